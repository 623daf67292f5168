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
    Experiment,
    both,
    label_of,
    opened,
    read_options,
    way_of,
)
from memalign_graph.evaluation.results import (
    ALIGNED,
    ChangedVerdict,
    Flip,
    GuidelineCredit,
    TurnedBy,
)
from memalign_graph.io import IO
from memalign_graph.memory.access import MemoryAccess
from memalign_graph.memory.embedding import index_missing
from memalign_graph.memory.history import Snapshot, snapshot
from memalign_graph.memory.judge_memory import JudgeMemory
from memalign_graph.memory.portable import export_jsonl, import_jsonl
from memalign_graph.nodes.judge import judge_again, value_judge
from memalign_graph.runtime import Parts, Run, Step
from memalign_graph.settings import Alignment
from memalign_graph.types import Example, Guideline, Judgment

DEFAULT_CREDIT_CASES = 20


async def _flips(
    io: IO, memory: JudgeMemory, *, since: str, **options: Unpack[EvaluationOptions]
) -> list[Flip]:
    """Find the cases that memory held at a version (`since`), were right then, and no longer are.

    Each is judged as it was and as it is, its own episode included, as the deployed judge would.
    With `decide="evidence"` a case has no vote on itself, or hardly any could turn, and verdict
    and votes are weighed as they are today. The memory is only read.
    """
    checked = _check_memory(memory)
    plan, learning, judging = read_options(options)
    way = way_of(checked.criterion, learning, judging)
    with opened(checked.criterion, plan) as experiment:
        then = await snapshot(io, checked.access, since)
        return await find_flips(io, experiment, checked, then, ALIGNED, way)


async def _guideline_credit(
    io: IO,
    memory: JudgeMemory,
    *,
    cases: int = DEFAULT_CREDIT_CASES,
    **options: Unpack[EvaluationOptions],
) -> list[GuidelineCredit]:
    """Leave each guideline out in turn, and see which verdicts change; harmful ones come first.

    Seen cases, of which `cases` are drawn at most, are judged as if they were new: the episodes on
    the case itself are not shown. Each case takes one judgment, and one more for each guideline.
    The memory is only read.
    """
    checked = _check_memory(memory)
    if isinstance(cases, bool) or not isinstance(cases, int) or cases < 1:
        raise InvalidInputError(f"cases: {cases!r} is not a whole number from 1 on.")
    plan, learning, judging = read_options({**options, "credit_cases": cases})
    way = way_of(checked.criterion, learning, judging)
    with opened(checked.criterion, plan) as experiment:
        return await give_credit(io, experiment, checked, ALIGNED, way)


flips, aflips = both(_flips)
guideline_credit, aguideline_credit = both(_guideline_credit)


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
        example: Example,
        guidelines: Sequence[Guideline],
        besides: AbstractSet[str] = frozenset(),
    ) -> Judgment | None:
        """Judge a case with some guidelines; None where the model gives no usable answer."""
        step = Step(io, self.parts, Run(self.access.store), self.parts.defaults, self.access)
        try:
            return await judge_again(step, example, guidelines=guidelines, besides=besides)
        except ModelAnswerError:
            return None

    def is_right(self, case: Case, verdict: Judgment | None) -> bool:
        """Tell whether a verdict agrees with the experts."""
        scale = self.access.criterion.scale
        return verdict is not None and agree(scale, verdict.value, case.expected)


async def _copied(
    io: IO, experiment: Experiment, memory: JudgeMemory, name: str, way: Alignment, stage: str
) -> _Copy:
    own = memory.access
    lines = await export_jsonl(io, own)
    access = MemoryAccess(InMemoryStore(), memory.criterion, own.layout, own.embedder)
    await import_jsonl(io, access, lines.split("\n"))
    await index_missing(io, access, await access.refresh(io))
    episodes = await access.all_episodes(io)
    judge = value_judge(way.judge)
    parts = Parts(judge.but(model=experiment.model(judge.model, name, stage)))
    cases = cases_of(episodes, memory.criterion.scale)
    return _Copy(access, parts, await access.guidelines(io), cases)


async def find_flips(
    io: IO, experiment: Experiment, memory: JudgeMemory, then: Snapshot, name: str, way: Alignment
) -> list[Flip]:
    """Find the flips since a memory was what a snapshot shows."""
    copy = await _copied(io, experiment, memory, name, way, "flips")
    known = {episode.id: episode for episode in then.episodes}
    new = frozenset(
        episode.id
        for case in copy.cases
        for episode in case.episodes
        if episode.id not in known or not known[episode.id].says_the_same_as(episode)
    )
    cases = [case for case in copy.cases if not new & {one.id for one in case.episodes}]
    before = [guideline for guideline in then.guidelines if guideline.status == "standing"]

    async def look(case: Case) -> Flip | None:
        flip = None
        was = await copy.verdict(io, case.example, before, new)
        if was is not None and copy.is_right(case, was):
            now = await copy.verdict(io, case.example, copy.guidelines)
            if now is not None and not copy.is_right(case, now):
                flip = await _explain(io, copy, case, before, was, now)
        experiment.progress.step()
        return flip

    experiment.progress.step(0, len(cases))
    looks = await io.gather([look(case) for case in cases], experiment.limit)
    return [flip for flip in looks if flip is not None]


async def _explain(
    io: IO, copy: _Copy, case: Case, before: list[Guideline], was: Judgment, now: Judgment
) -> Flip:
    stood = {(guideline.id, guideline.text) for guideline in before}
    stands = {(guideline.id, guideline.text) for guideline in copy.guidelines}
    fresh = [one for one in copy.guidelines if (one.id, one.text) not in stood]
    gone = [one for one in before if (one.id, one.text) not in stands]

    async def right_with(guidelines: Sequence[Guideline]) -> bool:
        return copy.is_right(case, await copy.verdict(io, case.example, guidelines))

    # One after another: cases are looked at side by side.
    guilty = [
        one
        for one in fresh
        if await right_with([other for other in copy.guidelines if other.id != one.id])
    ]
    turned_by: TurnedBy = "guideline"
    if not guilty:
        turned_by = "episodes"
        ids = {guideline.id for guideline in gone}
        others = [guideline for guideline in copy.guidelines if guideline.id not in ids]
        if gone and await right_with([*others, *gone]):
            turned_by, guilty = "removed", gone
        elif fresh and await right_with(before):
            turned_by, guilty = "guidelines", fresh
    return Flip(
        example=case.example,
        expected=case.expected,
        experts=[label_of(episode) for episode in case.episodes],
        before=was.value,
        after=now.value,
        rationale=now.rationale,
        turned_by=turned_by,
        guidelines=guilty,
    )


async def give_credit(
    io: IO, experiment: Experiment, memory: JudgeMemory, name: str, way: Alignment
) -> list[GuidelineCredit]:
    """Leave each guideline of a memory out in turn, on a sample of its cases."""
    copy = await _copied(io, experiment, memory, name, way, "credit")
    chooser = random.Random(experiment.options.seed)  # noqa: S311 - nothing secret
    most = min(experiment.options.credit_cases, len(copy.cases))
    chosen = chooser.sample(copy.cases, most)

    async def tried(case: Case) -> tuple[Case, Judgment | None, dict[str, Judgment | None]]:
        own = frozenset(episode.id for episode in case.episodes)
        whole = await copy.verdict(io, case.example, copy.guidelines, own)
        without = {
            key: await copy.verdict(
                io, case.example, [one for one in copy.guidelines if one.id != key], own
            )
            for key in (whole.guideline_ids if whole else [])
        }
        experiment.progress.step()
        return case, whole, without

    experiment.progress.step(0, len(chosen))
    rows = await io.gather([tried(case) for case in chosen], experiment.limit)
    listed = []
    for guideline in copy.guidelines:
        shown = helped = harmed = 0
        changed = []
        for case, whole, without in rows:
            other = without.get(guideline.id)
            if whole is None or other is None:
                continue
            shown += 1
            is_right, was_right = copy.is_right(case, whole), copy.is_right(case, other)
            helped += is_right and not was_right
            harmed += was_right and not is_right
            if whole.value != other.value:
                values = {"with_it": whole.value, "without_it": other.value}
                change = ChangedVerdict(example=case.example, expected=case.expected, **values)
                changed.append(change)
        listed.append(
            GuidelineCredit(
                guideline=guideline, shown_for=shown, helped=helped, harmed=harmed, changed=changed
            )
        )
    order = {"harmful": 0, "useless": 1, "useful": 2}
    return sorted(listed, key=lambda credit: (order[credit.worth], credit.helped - credit.harmed))
