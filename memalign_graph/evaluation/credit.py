"""What guidelines do to verdicts: cases that turned, and each guideline left out in turn.

A judge that learns can unlearn: a new guideline that mends one case may break another that was
right before. Source of the measure: M. Srivastava, B. Nushi, E. Kamar, S. Shah and E. Horvitz, An
empirical analysis of backward compatibility in machine learning systems, KDD 2020.
"""

import random
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Unpack

from langgraph.store.memory import InMemoryStore

from memalign_graph.agreement import agree
from memalign_graph.alignment.cases import Case, cases_of
from memalign_graph.errors import InvalidInputError, ModelAnswerError
from memalign_graph.evaluation.experiment import (
    EvaluationOptions,
    Subject,
    opened,
    read_options,
)
from memalign_graph.evaluation.results import ALIGNED, ChangedCase, GuidelineCredit
from memalign_graph.io import IO, twin_functions
from memalign_graph.memory.access import MemoryAccess
from memalign_graph.memory.embedding import index_missing
from memalign_graph.memory.history import Snapshot, snapshot
from memalign_graph.memory.judge_memory import JudgeMemory
from memalign_graph.memory.portable import export_jsonl, import_jsonl
from memalign_graph.nodes.judge import judge_again, value_judge
from memalign_graph.runtime import Parts, Run, Step
from memalign_graph.types import Guideline, Judgment


async def _flips(
    io: IO, memory: JudgeMemory, *, since: str, **options: Unpack[EvaluationOptions]
) -> list[ChangedCase]:
    """Find the cases that memory held at a version (`since`), were right then, and no longer are.

    Each is judged as it was and as it is, its own episode included, as the deployed judge would.
    With `decide="evidence"` a case has no vote on itself, or hardly any could turn, and verdict
    and votes are weighed as they are today. The memory is only read.
    """
    checked = _check_memory(memory)
    plan, ways = read_options(checked.criterion, options)
    with opened(checked.criterion, plan) as experiment:
        then = await snapshot(io, checked.access, since)
        subject = Subject(experiment, ALIGNED, ways[ALIGNED], "flips")
        return await find_flips(io, subject, checked, then)


async def _guideline_credit(
    io: IO, memory: JudgeMemory, *, cases: int = 20, **options: Unpack[EvaluationOptions]
) -> list[GuidelineCredit]:
    """Leave each guideline out in turn, and see which verdicts change; harmful ones come first.

    Seen cases, of which `cases` are drawn at most, are judged as if they were new: the episodes on
    the case itself are not shown. Each case takes one judgment, and one more for each guideline.
    The memory is only read.
    """
    checked = _check_memory(memory)
    if isinstance(cases, bool) or not isinstance(cases, int) or cases < 1:
        raise InvalidInputError(f"cases: {cases!r} is not a whole number from 1 on.")
    plan, ways = read_options(checked.criterion, {**options, "credit_cases": cases})
    with opened(checked.criterion, plan) as experiment:
        subject = Subject(experiment, ALIGNED, ways[ALIGNED], "credit")
        return await give_credit(io, subject, checked)


flips, aflips = twin_functions(_flips)
guideline_credit, aguideline_credit = twin_functions(_guideline_credit)


def _check_memory(memory: object) -> JudgeMemory:
    if isinstance(memory, JudgeMemory):
        return memory
    raise InvalidInputError(
        "memory: give a JudgeMemory(store, criterion, ...), not a value of type "
        f"{type(memory).__name__}."
    )


@dataclass(frozen=True)
class _Copy:
    """A copy of a memory to be tried on, its judge, and the cases that experts gave a value."""

    access: MemoryAccess
    parts: Parts
    guidelines: list[Guideline]
    cases: list[Case]

    async def verdict(
        self,
        io: IO,
        case: Case,
        guidelines: Sequence[Guideline],
        besides: AbstractSet[str] = frozenset(),
    ) -> Judgment | None:
        """Judge a case with some guidelines; None where the model gives no usable answer."""
        step = Step(io, self.parts, Run(self.access.store), self.parts.defaults, self.access)
        try:
            return await judge_again(step, case.example, guidelines=guidelines, besides=besides)
        except ModelAnswerError:
            return None

    def is_right(self, case: Case, verdict: Judgment | None) -> bool:
        """Tell whether a verdict agrees with the experts."""
        scale = self.access.criterion.scale
        return verdict is not None and agree(scale, verdict.value, case.expected)


async def _copied(io: IO, subject: Subject, memory: JudgeMemory) -> _Copy:
    own = memory.access
    access = MemoryAccess(InMemoryStore(), memory.criterion, own.layout, own.embedder)
    await import_jsonl(io, access, (await export_jsonl(io, own)).split("\n"))
    await index_missing(io, access, await access.refresh(io))
    cases = cases_of(await access.all_episodes(io), memory.criterion.scale)
    return _Copy(access, Parts(value_judge(subject.judge)), await access.guidelines(io), cases)


async def find_flips(
    io: IO, subject: Subject, memory: JudgeMemory, then: Snapshot
) -> list[ChangedCase]:
    """Find the flips since a memory was what a snapshot shows."""
    copy, experiment = await _copied(io, subject, memory), subject.experiment
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
        was, now = await copy.verdict(io, case, before, new), None
        if was is not None and copy.is_right(case, was):
            now = await copy.verdict(io, case, copy.guidelines)
        experiment.progress.step()
        if was is None or now is None or copy.is_right(case, now):
            return None
        guilty = []
        # One after another: cases are looked at side by side.
        for rule in fresh:
            others = [other for other in copy.guidelines if other.id != rule.id]
            if copy.is_right(case, await copy.verdict(io, case, others)):
                guilty.append(rule)
        # Where it would be right with none of what changed, all of it may have a part in it.
        together = not guilty and copy.is_right(case, await copy.verdict(io, case, before))
        return ChangedCase(
            example=case.example,
            expected=case.expected,
            before=was.value,
            after=now.value,
            rationale=now.rationale,
            guidelines=fresh if together else guilty,
            removed=gone if together else [],
        )

    experiment.progress.step(0, len(cases))
    looks = await io.gather([look(case) for case in cases], experiment.limit)
    return [flip for flip in looks if flip is not None]


async def give_credit(io: IO, subject: Subject, memory: JudgeMemory) -> list[GuidelineCredit]:
    """Leave each guideline of a memory out in turn, on a sample of its cases."""
    copy, experiment = await _copied(io, subject, memory), subject.experiment
    chooser = random.Random(experiment.options.seed)  # noqa: S311 - nothing secret
    most = min(experiment.options.credit_cases, len(copy.cases))

    async def tried(case: Case) -> tuple[Case, Judgment | None, dict[str, Judgment]]:
        own = frozenset(episode.id for episode in case.episodes)
        whole = await copy.verdict(io, case, copy.guidelines, own)
        without = {}
        for key in whole.guideline_ids if whole else []:
            others = [rule for rule in copy.guidelines if rule.id != key]
            if judgment := await copy.verdict(io, case, others, own):
                without[key] = judgment
        experiment.progress.step()
        return case, whole, without

    experiment.progress.step(0, most)
    chosen = chooser.sample(copy.cases, most)
    rows = await io.gather([tried(case) for case in chosen], experiment.limit)

    def credit(rule: Guideline) -> GuidelineCredit:
        pairs = [
            (case, whole, without[rule.id])
            for case, whole, without in rows
            if whole is not None and rule.id in without
        ]
        right = [(copy.is_right(case, one), copy.is_right(case, no)) for case, one, no in pairs]
        return GuidelineCredit(
            guideline=rule,
            shown_for=len(pairs),
            helped=right.count((True, False)),
            harmed=right.count((False, True)),
            changed=[
                ChangedCase(
                    example=case.example,
                    expected=case.expected,
                    before=other.value,
                    after=whole.value,
                    rationale=whole.rationale,
                    guidelines=[rule],
                )
                for case, whole, other in pairs
                if whole.value != other.value
            ],
        )

    order = ("harmful", "useless", "useful")
    every = map(credit, copy.guidelines)
    return sorted(every, key=lambda one: (order.index(one.worth), one.helped - one.harmed))
