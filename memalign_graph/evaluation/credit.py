"""What guidelines do to verdicts: cases that turned, and each guideline left out in turn.

A judge that learns can unlearn: a new guideline that mends one case may break another that was
right before. Source of the measure: M. Srivastava, B. Nushi, E. Kamar, S. Shah and E. Horvitz, An
empirical analysis of backward compatibility in machine learning systems, KDD 2020.
"""

import random
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Unpack

from langgraph.store.memory import InMemoryStore

from memalign_graph.agreement import values_agree
from memalign_graph.alignment.cases import Case, cases_of
from memalign_graph.errors import (
    ChatModelError,
    InvalidInputError,
    ModelAnswerError,
    is_about_prompt,
)
from memalign_graph.evaluation.experiment import EvaluationOptions, Subject, opened, read_options
from memalign_graph.evaluation.results import ALIGNED, ChangedCase, GuidelineCredit
from memalign_graph.io import IO, sync_async_functions
from memalign_graph.memory.access import MemoryAccess
from memalign_graph.memory.embedding import index_missing
from memalign_graph.memory.history import Snapshot, snapshot
from memalign_graph.memory.jsonl import export_jsonl, import_jsonl
from memalign_graph.memory.judge_memory import JudgeMemory
from memalign_graph.nodes.judge import judge_again, value_judge
from memalign_graph.runtime import JudgeResources, NodeCall, Run
from memalign_graph.types import Guideline, Judgment


async def _flips(
    io: IO, memory: JudgeMemory, *, since: str, **options: Unpack[EvaluationOptions]
) -> list[ChangedCase]:
    """Find the cases that memory held at a version (`since`), were right then, and no longer are.

    Each is judged as it was and as it is, its own episode included, as the deployed judge would.
    Where evidence is weighed, a case has no vote on itself, or hardly any could turn, and verdict
    and votes are weighed as they are today. The memory is only read.
    """
    with _aligned(memory, options, "flips") as subject:
        then = await snapshot(io, memory.access, since)
        return await find_flips(io, subject, memory, then)


async def _guideline_credit(
    io: IO, memory: JudgeMemory, *, cases: int = 20, **options: Unpack[EvaluationOptions]
) -> list[GuidelineCredit]:
    """Leave each guideline out in turn, and see which verdicts change; harmful ones come first.

    Seen cases, of which `cases` are drawn at most, are judged as if they were new: the episodes on
    the case itself are not shown. Each case takes one judgment, and one more for each guideline.
    The memory is only read.
    """
    if isinstance(cases, bool) or not isinstance(cases, int) or cases < 1:
        raise InvalidInputError(f"cases: {cases!r} is not a whole number from 1 on.")
    with _aligned(memory, {**options, "credit_cases": cases}, "credit") as subject:
        return await give_credit(io, subject, memory)


flips, aflips = sync_async_functions(_flips)
guideline_credit, aguideline_credit = sync_async_functions(_guideline_credit)


@contextmanager
def _aligned(memory: JudgeMemory, options: Mapping[str, Any], stage: str) -> Iterator[Subject]:
    if not isinstance(memory, JudgeMemory):
        raise InvalidInputError(
            "memory: give a JudgeMemory(store, criterion, ...), not a value of type "
            f"{type(memory).__name__}."
        )
    plan, ways = read_options(memory.criterion, options)
    with opened(memory.criterion, plan) as experiment:
        yield Subject(experiment, ALIGNED, ways[ALIGNED], stage)


@dataclass(frozen=True)
class _Verdict:
    """What the judge says of a case, and whether it agrees with the experts."""

    judgment: Judgment
    is_right: bool


@dataclass(frozen=True)
class _Copy:
    """A copy of a memory to be tried on, its judge, and the cases that experts gave a value."""

    access: MemoryAccess
    resources: JudgeResources
    guidelines: list[Guideline]
    cases: list[Case]

    @classmethod
    async def of(cls, io: IO, subject: Subject, memory: JudgeMemory) -> "_Copy":
        own = memory.access
        access = MemoryAccess(InMemoryStore(), memory.criterion, own.layout, own.embedder)
        await import_jsonl(io, access, (await export_jsonl(io, own)).split("\n"))
        await index_missing(io, access, await access.refresh(io))
        cases = cases_of(await access.all_episodes(io), memory.criterion.scale)
        resources = JudgeResources(value_judge(subject.judge))
        return cls(access, resources, await access.guidelines(io), cases)

    async def verdict(
        self,
        io: IO,
        case: Case,
        guidelines: Sequence[Guideline],
        excluded_episode_ids: AbstractSet[str] = frozenset(),
    ) -> _Verdict | None:
        """Judge a case with some guidelines; None where the model gives no usable answer."""
        step = NodeCall(
            io, self.resources, Run(self.access.store), self.resources.defaults, self.access
        )
        try:
            said = await judge_again(
                step, case.example, guidelines=guidelines, excluded_episode_ids=excluded_episode_ids
            )
        except (ChatModelError, ModelAnswerError) as error:
            if not is_about_prompt(error):
                raise
            return None
        return _Verdict(said, values_agree(self.access.criterion.scale, said.value, case.expected))

    async def without(
        self, io: IO, case: Case, key: str, excluded_episode_ids: AbstractSet[str] = frozenset()
    ) -> _Verdict | None:
        """Judge a case without one guideline."""
        others = [guideline for guideline in self.guidelines if guideline.id != key]
        return await self.verdict(io, case, others, excluded_episode_ids)


async def find_flips(
    io: IO, subject: Subject, memory: JudgeMemory, then: Snapshot
) -> list[ChangedCase]:
    """Find the flips since a memory was what a snapshot shows."""
    copy = await _Copy.of(io, subject, memory)
    known = {episode.id: episode for episode in then.episodes}
    new = frozenset(
        episode.id
        for case in copy.cases
        for episode in case.episodes
        if episode.id not in known or not known[episode.id].says_the_same_as(episode)
    )
    cases = [case for case in copy.cases if not new & {one.id for one in case.episodes}]
    before = [guideline for guideline in then.guidelines if guideline.status == "standing"]
    stood, stands = (
        {(rule.id, rule.text) for rule in rules} for rules in (before, copy.guidelines)
    )
    fresh = [rule for rule in copy.guidelines if (rule.id, rule.text) not in stood]
    gone = [rule for rule in before if (rule.id, rule.text) not in stands]

    async def look(case: Case) -> ChangedCase | None:
        was = await copy.verdict(io, case, before, new)
        if was is None or not was.is_right:
            return None
        now = await copy.verdict(io, case, copy.guidelines)
        if now is None or now.is_right:
            return None
        # One after another: cases are looked at side by side.
        tried = [(rule, await copy.without(io, case, rule.id)) for rule in fresh]
        guilty, removed = [rule for rule, said in tried if said and said.is_right], []
        if not guilty:
            # Where it would be right with none of what changed, all of it may have a part in it.
            said = await copy.verdict(io, case, before)
            if said and said.is_right:
                guilty, removed = fresh, gone
        return _changed(case, was, now, guilty, removed)

    looks = await subject.experiment.each(io, look, cases)
    return [flip for flip in looks if flip is not None]


def _changed(
    case: Case,
    before: _Verdict,
    after: _Verdict,
    guidelines: list[Guideline],
    removed: Sequence[Guideline] = (),
) -> ChangedCase:
    return ChangedCase(
        example=case.example,
        expected=case.expected,
        before=before.judgment.value,
        after=after.judgment.value,
        rationale=after.judgment.rationale,
        guidelines=guidelines,
        removed=list(removed),
    )


async def give_credit(io: IO, subject: Subject, memory: JudgeMemory) -> list[GuidelineCredit]:
    """Leave each guideline of a memory out in turn, on a sample of its cases."""
    copy, options = await _Copy.of(io, subject, memory), subject.experiment.options
    chooser = random.Random(options.seed)  # noqa: S311 - nothing secret

    async def tried(case: Case) -> list[tuple[str, Case, _Verdict, _Verdict]]:
        own = frozenset(episode.id for episode in case.episodes)
        whole = await copy.verdict(io, case, copy.guidelines, own)
        keys = whole.judgment.guideline_ids if whole else []
        others = [(key, await copy.without(io, case, key, own)) for key in keys]
        return [(key, case, other, whole) for key, other in others if whole and other]

    chosen = chooser.sample(copy.cases, min(options.credit_cases, len(copy.cases)))
    rows = [row for rows in await subject.experiment.each(io, tried, chosen) for row in rows]

    def credit(rule: Guideline) -> GuidelineCredit:
        mine = [(case, other, whole) for key, case, other, whole in rows if key == rule.id]
        right = [(whole.is_right, other.is_right) for _, other, whole in mine]
        return GuidelineCredit(
            guideline=rule,
            shown_for=len(mine),
            helped=right.count((True, False)),
            harmed=right.count((False, True)),
            changed=[
                _changed(case, other, whole, [rule])
                for case, other, whole in mine
                if whole.judgment.value != other.judgment.value
            ],
        )

    order = ("harmful", "useless", "useful")
    every = map(credit, copy.guidelines)
    return sorted(every, key=lambda one: (order.index(one.worth), one.helped - one.harmed))
