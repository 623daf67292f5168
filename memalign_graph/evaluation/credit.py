"""Guideline credit: what each guideline does to the verdicts on the cases it is shown for."""

import random
from collections.abc import Sequence
from typing import Literal, Unpack

from pydantic import BaseModel, ConfigDict

from memalign_graph.agreement import agree
from memalign_graph.alignment.cases import Case
from memalign_graph.evaluation.cases import check_count
from memalign_graph.evaluation.lab import Lab
from memalign_graph.evaluation.options import EvaluationOptions, grouping, lab_for, variant_of
from memalign_graph.evaluation.seen import SeenLab, check_memory, open_seen
from memalign_graph.evaluation.variants import ALIGNED, Variant
from memalign_graph.io import AWAITING, BLOCKING, IO, run
from memalign_graph.memory.judge_memory import JudgeMemory
from memalign_graph.scales import Scale, Value
from memalign_graph.types import Example, Guideline, Judgment

DEFAULT_CREDIT_CASES = 20
"""On how many cases guidelines are left out at most, unless told otherwise."""

Worth = Literal["harmful", "useless", "useful"]
"""What a guideline is worth on the cases tried.

- `harmful`: it turns more verdicts away from the experts than towards them.
- `useless`: it turns none, or as many to as fro.
- `useful`: it turns more towards them.
"""


class ChangedVerdict(BaseModel):
    """A verdict that one guideline makes another."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    example: Example
    """The case."""

    expected: Value
    """The experts' value."""

    with_it: Value
    """The verdict with the guideline."""

    without_it: Value
    """The verdict without it."""


class GuidelineCredit(BaseModel):
    """What one guideline does."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    guideline: Guideline
    """The guideline."""

    shown_for: int
    """On how many of the cases tried it was in the prompt."""

    helped: int
    """How many verdicts agree with the experts with it and not without."""

    harmed: int
    """How many agree without it and not with it."""

    changed: list[ChangedVerdict]
    """The verdicts that differ, also those that are right or wrong either way."""

    @property
    def worth(self) -> Worth:
        """What it is worth on these cases."""
        if self.harmed > self.helped:
            return "harmful"
        return "useful" if self.helped > self.harmed else "useless"


def guideline_credit(
    memory: JudgeMemory,
    *,
    cases: int = DEFAULT_CREDIT_CASES,
    **options: Unpack[EvaluationOptions],
) -> list[GuidelineCredit]:
    """Leave each guideline out in turn, and see which verdicts change.

    Seen cases are judged as if they were new: the episodes on the case itself are not shown. Each
    case takes one judgment, and one more for each guideline. The memory is only read.

    Args:
        memory: The memory; its embeddings are used.
        cases: How many cases to try at most; a random sample where there are more.
        **options: See `EvaluationOptions`, and the options of `create_judge_graph`.

    Returns:
        One a guideline: harmful ones first, then useless ones, then useful ones.

    Raises:
        InvalidInputError: If an option can't be used.
        MemAlignError: If a call fails.
    """
    check_memory(memory)
    check_count("cases", cases)
    variant = variant_of(ALIGNED, memory.criterion, options)
    seed = grouping(options)["seed"]
    with lab_for(memory.criterion, **options) as lab:
        return run(give_credit(BLOCKING, lab, memory, variant, cases=cases, seed=seed))


async def aguideline_credit(
    memory: JudgeMemory,
    *,
    cases: int = DEFAULT_CREDIT_CASES,
    **options: Unpack[EvaluationOptions],
) -> list[GuidelineCredit]:
    """Async twin of `guideline_credit`."""
    check_memory(memory)
    check_count("cases", cases)
    variant = variant_of(ALIGNED, memory.criterion, options)
    seed = grouping(options)["seed"]
    with lab_for(memory.criterion, **options) as lab:
        return await give_credit(AWAITING, lab, memory, variant, cases=cases, seed=seed)


async def give_credit(
    io: IO, lab: Lab, memory: JudgeMemory, variant: Variant, *, cases: int, seed: int
) -> list[GuidelineCredit]:
    """Leave each guideline of a memory out in turn."""
    seen = await open_seen(io, lab, memory, variant, "credit")
    chance = random.Random(seed)  # noqa: S311 - nothing secret
    chosen = chance.sample(seen.cases, min(cases, len(seen.cases)))
    lab.progress.expect(len(chosen))
    rows: list[_Row] = await io.gather([_try(io, seen, case) for case in chosen], lab.limit)
    scale = seen.access.criterion.scale
    listed = [_credit(scale, one, chosen, rows) for one in seen.guidelines]
    order = {"harmful": 0, "useless": 1, "useful": 2}
    return sorted(listed, key=lambda one: (order[one.worth], one.helped - one.harmed))


_Row = tuple[Judgment | None, dict[str, Judgment | None]]
"""The verdict with all guidelines, and those without one each."""


async def _try(io: IO, seen: SeenLab, case: Case) -> _Row:
    own = frozenset(one.id for one in case.episodes)
    whole = await seen.verdict(io, case.example, seen.guidelines, own)
    shown = [] if whole is None else whole.guideline_ids
    without = [
        seen.verdict(io, case.example, [one for one in seen.guidelines if one.id != key], own)
        for key in shown
    ]
    # One after another: the cases are tried side by side.
    tried: list[Judgment | None] = await io.gather(without, 1)
    seen.lab.progress.tick()
    return whole, dict(zip(shown, tried, strict=True))


def _credit(
    scale: Scale, guideline: Guideline, cases: Sequence[Case], rows: Sequence[_Row]
) -> GuidelineCredit:
    shown = helped = harmed = 0
    changed = []
    for case, (whole, without) in zip(cases, rows, strict=True):
        other = without.get(guideline.id)
        if whole is None or other is None:
            continue
        shown += 1
        if whole.value == other.value:
            continue
        is_right = agree(scale, whole.value, case.expected)
        was_right = agree(scale, other.value, case.expected)
        helped += is_right and not was_right
        harmed += was_right and not is_right
        changed.append(
            ChangedVerdict(
                example=case.example,
                expected=case.expected,
                with_it=whole.value,
                without_it=other.value,
            )
        )
    return GuidelineCredit(
        guideline=guideline, shown_for=shown, helped=helped, harmed=harmed, changed=changed
    )
