"""Backward flips: seen cases that agreed with their expert and no longer do, and what turned them.

A judge that learns can unlearn: a new guideline that mends one case may break another that was
right before. Source of the measure: M. Srivastava, B. Nushi, E. Kamar, S. Shah and E. Horvitz, An
empirical analysis of backward compatibility in machine learning systems, KDD 2020.
"""

from typing import Literal, Unpack

from pydantic import BaseModel, ConfigDict

from memalign_graph.agreement import agree
from memalign_graph.alignment.cases import Case
from memalign_graph.evaluation.lab import Lab
from memalign_graph.evaluation.options import EvaluationOptions, lab_for, variant_of
from memalign_graph.evaluation.results import ExpertWord
from memalign_graph.evaluation.seen import SeenLab, check_memory, open_seen
from memalign_graph.evaluation.variants import ALIGNED, Variant
from memalign_graph.io import AWAITING, BLOCKING, IO, run
from memalign_graph.memory.history import Snapshot, snapshot
from memalign_graph.memory.judge_memory import JudgeMemory
from memalign_graph.scales import Value
from memalign_graph.types import Example, Guideline, Judgment

TurnedBy = Literal["guideline", "guidelines", "removed", "episodes"]
"""What turned a case.

- `guideline`: a new guideline; without it alone the case would still be right.
- `guidelines`: the new guidelines, no one of them alone.
- `removed`: guidelines that are not there any more, or have other words; with them back it would
  still be right.
- `episodes`: the new episodes in the prompt; it is wrong with the old guidelines, too.
"""


class Flip(BaseModel):
    """A seen case that was right and no longer is."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    example: Example
    """The case."""

    expected: Value
    """The experts' value."""

    experts: list[ExpertWord]
    """What each expert said."""

    before: Value
    """The verdict before."""

    after: Value
    """The verdict now."""

    rationale: str
    """Why, in the judge's words, now."""

    turned_by: TurnedBy
    """What turned it."""

    guidelines: list[Guideline]
    """The guidelines that turned it; several where each alone does, or they do together."""


def backward_flips(
    memory: JudgeMemory, *, since: str, **options: Unpack[EvaluationOptions]
) -> list[Flip]:
    """Find the cases that memory held at a version, were right then, and no longer are.

    Each is judged as it was and as it is, its own episode included, as the deployed judge would.
    With `decide="evidence"` a case has no vote on itself, or hardly any could turn, and verdict
    and votes are weighed as they are today. The memory is only read.

    Args:
        memory: The memory; its embeddings are used.
        since: The version before, as a judgment, a commit or `version()` names it.
        **options: See `EvaluationOptions`, and the options of `create_judge_graph`.

    Returns:
        The flips, the case first spoken of longest ago first, each with what turned it.

    Raises:
        InvalidInputError: If the memory never had this version, or an option can't be used.
        MemAlignError: If a call fails.
    """
    check_memory(memory)
    with lab_for(memory.criterion, **options) as lab:
        return run(
            _backward_flips(
                BLOCKING, lab, memory, since, variant_of(ALIGNED, memory.criterion, options)
            )
        )


async def abackward_flips(
    memory: JudgeMemory, *, since: str, **options: Unpack[EvaluationOptions]
) -> list[Flip]:
    """Async twin of `backward_flips`."""
    check_memory(memory)
    with lab_for(memory.criterion, **options) as lab:
        return await _backward_flips(
            AWAITING, lab, memory, since, variant_of(ALIGNED, memory.criterion, options)
        )


async def _backward_flips(
    io: IO, lab: Lab, memory: JudgeMemory, since: str, variant: Variant
) -> list[Flip]:
    then = await snapshot(io, memory.access, since)
    return await find_flips(io, lab, memory, then, variant)


async def find_flips(
    io: IO, lab: Lab, memory: JudgeMemory, then: Snapshot, variant: Variant
) -> list[Flip]:
    """Find the flips since a memory was what a snapshot shows."""
    seen = await open_seen(io, lab, memory, variant, "flips")
    known = {one.id: one for one in then.episodes}
    new = frozenset(
        one.id
        for case in seen.cases
        for one in case.episodes
        if one.id not in known or not known[one.id].says_the_same_as(one)
    )
    cases = [case for case in seen.cases if not new & {one.id for one in case.episodes}]
    before = [one for one in then.guidelines if one.status == "standing"]
    lab.progress.expect(len(cases))
    looks = [_look(io, seen, case, before, new) for case in cases]
    found: list[Flip | None] = await io.gather(looks, lab.limit)
    return [one for one in found if one is not None]


async def _look(
    io: IO, seen: SeenLab, case: Case, before: list[Guideline], new: frozenset[str]
) -> Flip | None:
    scale = seen.access.criterion.scale
    was = await seen.verdict(io, case.example, before, new)
    flip = None
    if was is not None and agree(scale, was.value, case.expected):
        now = await seen.verdict(io, case.example, seen.guidelines)
        if now is not None and not agree(scale, now.value, case.expected):
            flip = await _explain(io, seen, case, before, was, now)
    seen.lab.progress.tick()
    return flip


async def _explain(
    io: IO, seen: SeenLab, case: Case, before: list[Guideline], was: Judgment, now: Judgment
) -> Flip:
    scale = seen.access.criterion.scale

    def right(verdict: Judgment | None) -> bool:
        return verdict is not None and agree(scale, verdict.value, case.expected)

    stood = {(one.id, one.text) for one in before}
    fresh = [one for one in seen.guidelines if (one.id, one.text) not in stood]
    without = [
        seen.verdict(io, case.example, [other for other in seen.guidelines if other.id != one.id])
        for one in fresh
    ]
    tried: list[Judgment | None] = await io.gather(without, 1)
    guilty = [one for one, verdict in zip(fresh, tried, strict=True) if right(verdict)]
    turned_by: TurnedBy = "guideline"
    if not guilty:
        turned_by = "episodes"
        there = {(one.id, one.text) for one in seen.guidelines}
        gone = [one for one in before if (one.id, one.text) not in there]
        others = [one for one in seen.guidelines if one.id not in {old.id for old in gone}]
        if gone and right(await seen.verdict(io, case.example, [*others, *gone])):
            turned_by, guilty = "removed", gone
        elif fresh and right(await seen.verdict(io, case.example, before)):
            turned_by, guilty = "guidelines", fresh
    return Flip(
        example=case.example,
        expected=case.expected,
        experts=[
            ExpertWord(author=one.author, value=one.value, rationale=one.rationale)
            for one in case.episodes
        ],
        before=was.value,
        after=now.value,
        rationale=now.rationale,
        turned_by=turned_by,
        guidelines=guilty,
    )
