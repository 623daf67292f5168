"""Memory scaling: how a judge gets better with each piece of feedback, and what that costs."""

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Unpack

from pydantic import BaseModel, ConfigDict

from memalign_graph.errors import InvalidInputError
from memalign_graph.evaluation.answers import Spent
from memalign_graph.evaluation.cases import (
    Fold,
    GroupBy,
    LabelledCase,
    check_count,
    hold_out,
    labelled_cases,
    read_all,
)
from memalign_graph.evaluation.cross_validation import divide
from memalign_graph.evaluation.flips import Flip, find_flips
from memalign_graph.evaluation.lab import Lab, Learned
from memalign_graph.evaluation.options import (
    EvaluationOptions,
    drawing,
    grouping,
    lab_for,
    variant_of,
)
from memalign_graph.evaluation.scores import JudgeScores, Verdicts, score
from memalign_graph.evaluation.variants import ALIGNED, Variant
from memalign_graph.io import AWAITING, BLOCKING, IO, run
from memalign_graph.memory.history import Snapshot, snapshot
from memalign_graph.reading import FeedbackLike
from memalign_graph.types import Criterion

DEFAULT_SIZES = (2, 5, 10, 20, 50, 100, 200, 500, 1000)
"""How much feedback memory has learned at each step, unless told otherwise."""

DEFAULT_TEST_SHARE = 0.3
"""How much of the items is set aside to be judged, unless told otherwise."""


class LearningStep(BaseModel):
    """The judge after so much feedback."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    feedback: int
    """How many pieces of feedback it had learned; 0 for the judge before any."""

    guidelines: int
    """How many guidelines it was given."""

    unseen: JudgeScores
    """How it judges the cases that were set aside."""

    seen: JudgeScores | None
    """How it judges the cases it has learned from, with their episodes; None before any."""

    learning: Spent
    """What learning asked of models since the step before."""

    judging: Spent
    """What judging the unseen cases asked of them."""

    flips: list[Flip]
    """Seen cases that were right at the step before and no longer are."""


class LearningCurve(BaseModel):
    """How a judge gets better."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    criterion: Criterion
    """What was judged."""

    steps: list[LearningStep]
    """From no feedback on."""

    test_cases: int
    """How many cases were set aside."""

    def to_json(self) -> dict[str, Any]:
        """Return it as plain JSON values."""
        return self.model_dump(mode="json")


def learning_curve(
    criterion: Criterion,
    feedback: Iterable[FeedbackLike],
    *,
    test: Iterable[FeedbackLike] | None = None,
    test_share: float = DEFAULT_TEST_SHARE,
    sizes: Sequence[int] = DEFAULT_SIZES,
    **options: Unpack[EvaluationOptions],
) -> LearningCurve:
    """Measure a judge as its memory grows: on cases it has seen, and on cases it has not.

    One memory learns more and more of the feedback, in random order; after each step it judges the
    cases that were set aside, and those it has learned from.

    Args:
        criterion: What is judged.
        feedback: What the experts said; cases that are judged need a value.
        test: Cases to set aside; a share of the feedback unless given.
        test_share: How much of the items is set aside, where `test` is not given.
        sizes: How much feedback memory has learned at each step; all of it is the last step.
        **options: See `EvaluationOptions`, and the options of `create_judge_graph` and
            `create_alignment_graph`.

    Returns:
        The steps, from no feedback on.

    Raises:
        InvalidInputError: If feedback or an option can't be used; before any model is called.
        MemAlignError: If learning fails, or a call does; what was answered is kept in the cache.
        ImportError: If the extra `evaluation` is not installed.
    """
    with lab_for(criterion, **options) as lab:
        fold = _divide(criterion, feedback, test, test_share, options)
        variant = variant_of(ALIGNED, criterion, options)
        return run(follow(BLOCKING, lab, fold, sizes, variant, options))


async def alearning_curve(
    criterion: Criterion,
    feedback: Iterable[FeedbackLike],
    *,
    test: Iterable[FeedbackLike] | None = None,
    test_share: float = DEFAULT_TEST_SHARE,
    sizes: Sequence[int] = DEFAULT_SIZES,
    **options: Unpack[EvaluationOptions],
) -> LearningCurve:
    """Async twin of `learning_curve`."""
    with lab_for(criterion, **options) as lab:
        fold = _divide(criterion, feedback, test, test_share, options)
        variant = variant_of(ALIGNED, criterion, options)
        return await follow(AWAITING, lab, fold, sizes, variant, options)


def _divide(
    criterion: Criterion,
    feedback: Iterable[FeedbackLike],
    test: Iterable[FeedbackLike] | None,
    test_share: float,
    options: EvaluationOptions,
) -> Fold:
    if test is None:
        read = read_all(feedback, criterion)
        return hold_out(read, criterion, share=test_share, **grouping(options))
    [fold] = divide(criterion, feedback, test, 0, options)
    return fold


async def follow(
    io: IO,
    lab: Lab,
    fold: Fold,
    sizes: Sequence[int],
    variant: Variant,
    options: EvaluationOptions,
) -> LearningCurve:
    """Follow a memory as it learns."""
    lab.check(variant)
    most = len(fold.train)
    wanted = [*sorted({size for size in check_sizes(sizes) if size < most}), most]
    train = list(fold.train)
    random.Random(grouping(options)["seed"]).shuffle(train)  # noqa: S311 - nothing secret
    fold = replace(fold, train=tuple(train))
    curve = _Curve(lab, lab.empty(), fold, variant, drawing(options), grouping(options)["group_by"])
    access = curve.learned.memory.access
    steps = [await curve.step(io, 0, None)]
    lab.progress.expect(len(wanted))
    for before, size in pairwise([0, *wanted]):
        view = await access.refresh(io)
        then = await snapshot(io, access, view.version) if before else None
        spent = curve.learned.spent
        await lab.learn(io, variant, curve.learned, fold.train[before:size])
        step = await curve.step(io, size, then)
        steps.append(step.model_copy(update={"learning": curve.learned.spent - spent}))
    return LearningCurve(criterion=lab.criterion, steps=steps, test_cases=len(fold.test))


@dataclass(frozen=True)
class _Curve:
    """One memory as it learns, and what it is judged on."""

    lab: Lab
    learned: Learned
    fold: Fold
    variant: Variant
    draws: dict[str, int]
    group_by: GroupBy

    async def step(self, io: IO, size: int, then: Snapshot | None) -> LearningStep:
        """Judge after so much feedback, and look back at what memory was before."""
        seen_cases = labelled_cases(self.fold.train[:size], self.lab.criterion, self.group_by)
        purpose = f"judge {self.variant.name}"
        already = self.lab.spent(purpose)
        unseen = await self._judge(io, self.fold.test, "unseen")
        judging = self.lab.spent(purpose) - already
        seen = await self._judge(io, seen_cases, "seen") if seen_cases else None
        memory = self.learned.memory
        flips: list[Flip] = []
        if then is not None:
            flips = await find_flips(io, self.lab, memory, then, self.variant)
        return LearningStep(
            feedback=size,
            guidelines=len(await memory.access.guidelines(io)),
            unseen=unseen,
            seen=seen,
            learning=Spent(),
            judging=judging,
            flips=flips,
        )

    async def _judge(self, io: IO, cases: Sequence[LabelledCase], name: str) -> JudgeScores:
        tasks = [(self.variant, self.learned, case.example) for case in cases]
        outcomes = await self.lab.judge_all(io, tasks)
        given = [one.judgment for one in outcomes]
        verdicts = Verdicts(
            judge=name,
            values=[None if one is None else one.value for one in given],
            confidence=[None if one is None else one.confidence for one in given],
        )
        expected, groups = [case.expected for case in cases], [case.group for case in cases]
        scale = self.lab.criterion.scale
        scores, _ = score(
            scale,
            expected,
            groups,
            [verdicts],
            resamples=self.draws["resamples"],
            seed=self.draws["seed"],
        )
        return scores[0]


def check_sizes(sizes: Any) -> list[int]:
    """Check how much feedback is learned at each step."""
    if isinstance(sizes, str) or not isinstance(sizes, Iterable):
        raise InvalidInputError(f"sizes: give whole numbers, such as (2, 5, 10), not {sizes!r}.")
    read = list(sizes)
    for size in read:
        check_count("sizes", size)
    return read
