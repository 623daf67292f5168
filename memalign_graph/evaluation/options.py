"""The options that all evaluations share, and the lab they set up."""

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, TypedDict, Unpack

from memalign_graph.errors import InvalidInputError
from memalign_graph.evaluation.cases import GroupBy, check_count
from memalign_graph.evaluation.lab import CacheLike, Lab, open_lab
from memalign_graph.evaluation.progress import ProgressLike
from memalign_graph.evaluation.scores import DEFAULT_RESAMPLES
from memalign_graph.evaluation.variants import Variant
from memalign_graph.models import DEFAULT_EMBEDDINGS
from memalign_graph.settings import Guard, Judge, JudgeOptions, LearnFrom
from memalign_graph.types import Criterion

_MOST_SEED = 2**32 - 1
"""The largest seed that scikit-learn takes."""


class LearningOptions(TypedDict, total=False):
    """How a judge learns, by the names of `create_alignment_graph`."""

    learn_from: LearnFrom
    """`both`, `labels` or `words`: what of the feedback is learned from."""

    guard: Guard | None
    """`replay` to keep no guideline that breaks what worked."""

    batch_size: int
    """How many pieces of feedback one call distils at most."""


class EvaluationOptions(JudgeOptions, LearningOptions, total=False):
    """What can be set of an evaluation, besides the options of the graphs it builds."""

    group_by: GroupBy
    """What is never both learned from and judged, and is drawn together for intervals: the same
    `example` (so unless told), the same `inputs`, or what a function of an Example returns."""

    seed: int
    """Shuffles items, and draws them for intervals; 0 unless told."""

    cache: CacheLike
    """Where models' answers are kept: a LangGraph store, or a file, which needs the extra `local`;
    for this call alone unless told. They are kept by model, settings and whole prompt, memory
    included: a repeated run costs nothing, one that was cut off goes on, nothing stale is found."""

    max_concurrency: int | None
    """How much is under way at a time; 32 unless told."""

    progress: ProgressLike
    """True for a progress bar, which is so unless told, or a function of (done, of)."""

    resamples: int
    """How many times items are drawn anew for intervals; 1,000 unless told, 0 for none."""


_OF_THE_RUN = (
    EvaluationOptions.__annotations__.keys()
    - JudgeOptions.__annotations__.keys()
    - LearningOptions.__annotations__.keys()
)


def grouping(options: EvaluationOptions) -> dict[str, Any]:
    """Return how feedback is divided."""
    seed = check_count("seed", options.get("seed", 0), least=0, most=_MOST_SEED)
    return {"group_by": options.get("group_by", "example"), "seed": seed}


def drawing(options: EvaluationOptions) -> dict[str, int]:
    """Return how intervals are drawn."""
    resamples = check_count("resamples", options.get("resamples", DEFAULT_RESAMPLES), least=0)
    return {"resamples": resamples, "seed": grouping(options)["seed"]}


def variant_of(name: str, criterion: Criterion, options: EvaluationOptions) -> Variant:
    """Return the way of judging that options describe."""
    given: dict[str, Any] = {key: value for key, value in options.items() if key not in _OF_THE_RUN}
    learning = {key: given.pop(key) for key in LearningOptions.__annotations__ if key in given}
    variant = Variant(name=name, judge=Judge(criterion=criterion, **given), **learning)
    if not variant.has_memory:
        raise InvalidInputError(
            "use_episodes: a judge without guidelines and episodes has no memory to evaluate: "
            'leave it one of them, or give decide="evidence".'
        )
    return variant


@contextmanager
def lab_for(
    criterion: Criterion, **options: Unpack[EvaluationOptions]
) -> Generator[Lab, None, None]:
    """Open the lab that options describe, for as long as the block lasts."""
    with open_lab(
        criterion,
        options.get("embeddings", DEFAULT_EMBEDDINGS),
        cache=options.get("cache"),
        max_concurrency=options.get("max_concurrency"),
        progress=options.get("progress", True),
    ) as lab:
        yield lab
