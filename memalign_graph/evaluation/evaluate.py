"""`evaluate`: everything this lab measures, in one call, as a report."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Unpack

from memalign_graph.errors import InvalidInputError
from memalign_graph.evaluation.cases import Fold, check_count, hold_out, read_all
from memalign_graph.evaluation.credit import DEFAULT_CREDIT_CASES, GuidelineCredit, give_credit
from memalign_graph.evaluation.cross_validation import DEFAULT_FOLDS, divide, measure
from memalign_graph.evaluation.lab import Lab
from memalign_graph.evaluation.learning import (
    DEFAULT_SIZES,
    DEFAULT_TEST_SHARE,
    LearningCurve,
    check_sizes,
    follow,
)
from memalign_graph.evaluation.options import EvaluationOptions, grouping, lab_for, variant_of
from memalign_graph.evaluation.report import Report
from memalign_graph.evaluation.variants import ALIGNED
from memalign_graph.io import AWAITING, BLOCKING, IO, run
from memalign_graph.reading import FeedbackLike
from memalign_graph.types import Criterion, Feedback


@dataclass(frozen=True)
class _Plan:
    """What is measured, and on what."""

    feedback: list[Feedback]
    folds: list[Fold]
    curve: Fold | None
    sizes: Sequence[int]
    credit_cases: int


def evaluate(
    criterion: Criterion,
    feedback: Iterable[FeedbackLike],
    *,
    test: Iterable[FeedbackLike] | None = None,
    folds: int = DEFAULT_FOLDS,
    learning_curve: bool = False,
    sizes: Sequence[int] = DEFAULT_SIZES,
    credit_cases: int = DEFAULT_CREDIT_CASES,
    **options: Unpack[EvaluationOptions],
) -> Report:
    """Measure a judge by its experts' feedback, and report what was found.

    Does what `cross_validate` does; learns all the feedback, to show its guidelines and what each
    of them does (`guideline_credit`); and follows the judge as it learns (`learning_curve`) where
    that is asked for. Answers are kept, so that nothing is asked twice.

    Args:
        criterion: What is judged.
        feedback: What the experts said; cases that are judged need a value.
        test: Cases to judge instead of folds.
        folds: How many folds; each case is judged once.
        learning_curve: Whether to follow the judge as it learns; many more judgments.
        sizes: How much feedback it has learned at each step of the curve.
        credit_cases: On how many cases each guideline is left out; 0 to leave that.
        **options: See `EvaluationOptions`, and the options of `create_judge_graph` and
            `create_alignment_graph`.

    Returns:
        The report: `to_html()`, `to_markdown()`, `to_json()`, `save(path)`, `metric(judge, name)`.

    Raises:
        InvalidInputError: If feedback or an option can't be used; before any model is called.
        MemAlignError: If learning fails, or a call does; what was answered is kept in the cache.
        ImportError: If the extra `evaluation` is not installed.
    """
    with lab_for(criterion, **options) as lab:
        plan = _plan(
            criterion, (feedback, test, folds), (learning_curve, sizes), credit_cases, options
        )
        return run(_evaluate(BLOCKING, lab, plan, options))


async def aevaluate(
    criterion: Criterion,
    feedback: Iterable[FeedbackLike],
    *,
    test: Iterable[FeedbackLike] | None = None,
    folds: int = DEFAULT_FOLDS,
    learning_curve: bool = False,
    sizes: Sequence[int] = DEFAULT_SIZES,
    credit_cases: int = DEFAULT_CREDIT_CASES,
    **options: Unpack[EvaluationOptions],
) -> Report:
    """Async twin of `evaluate`."""
    with lab_for(criterion, **options) as lab:
        plan = _plan(
            criterion, (feedback, test, folds), (learning_curve, sizes), credit_cases, options
        )
        return await _evaluate(AWAITING, lab, plan, options)


def _plan(
    criterion: Criterion,
    given: tuple[Iterable[FeedbackLike], Iterable[FeedbackLike] | None, int],
    curve: tuple[bool, Sequence[int]],
    credit_cases: int,
    options: EvaluationOptions,
) -> _Plan:
    feedback, test, folds = given
    read = read_all(feedback, criterion)
    check_count("credit_cases", credit_cases, least=0)
    wanted, sizes = curve
    if not isinstance(wanted, bool):
        raise InvalidInputError(f"learning_curve: {wanted!r} is neither True nor False.")
    divided = divide(criterion, read, test, folds, options)
    followed = None
    sizes = check_sizes(sizes)
    if wanted:
        whole = divided[0] if test is not None else None
        share = DEFAULT_TEST_SHARE
        followed = whole or hold_out(read, criterion, share=share, **grouping(options))
    return _Plan(read, divided, followed, sizes, credit_cases)


async def _evaluate(io: IO, lab: Lab, plan: _Plan, options: EvaluationOptions) -> Report:
    aligned = variant_of(ALIGNED, lab.criterion, options)
    evaluation, memories = await measure(
        io, lab, plan.folds, [aligned.without_memory(), aligned], options
    )
    if len(plan.folds) == 1:
        learned = memories[0, ALIGNED]  # it has learned all there is: a test never is
    else:
        lab.progress.expect(1)
        learned = await lab.learn(io, aligned, lab.empty(), plan.feedback)
    guidelines = await learned.memory.access.guidelines(io)
    cited = list(dict.fromkeys(key for one in guidelines for key in one.episode_ids))
    sources = await learned.memory.access.episodes(io, cited)
    credit: list[GuidelineCredit] = []
    if plan.credit_cases and guidelines:
        credit = await give_credit(
            io,
            lab,
            learned.memory,
            aligned,
            cases=plan.credit_cases,
            seed=grouping(options)["seed"],
        )
    curve: LearningCurve | None = None
    if plan.curve is not None:
        curve = await follow(io, lab, plan.curve, plan.sizes, aligned, options)
    return Report(
        evaluation=evaluation,
        learning_curve=curve,
        guidelines=guidelines,
        sources=list(sources.values()),
        credit=credit,
    )
