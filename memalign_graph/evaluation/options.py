"""The options that all evaluations share, and the lab they set up."""

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, Unpack, get_args

from memalign_graph.errors import InvalidInputError
from memalign_graph.evaluation.cases import GroupBy
from memalign_graph.evaluation.lab import CacheLike, Lab, open_lab
from memalign_graph.evaluation.progress import ProgressLike
from memalign_graph.evaluation.scores import DEFAULT_RESAMPLES
from memalign_graph.evaluation.variants import JudgingOptions, Variant
from memalign_graph.graphs.options import (
    check_choice,
    check_distill_model,
    check_embeddings,
    check_model,
)
from memalign_graph.models import DEFAULT_CHAT_MODEL, DEFAULT_EMBEDDINGS
from memalign_graph.nodes.remember import LearnFrom
from memalign_graph.types import Criterion

_OF_THE_RUN = frozenset(
    {"group_by", "seed", "cache", "max_concurrency", "progress", "resamples", "embeddings"}
)


_MOST_SEED = 2**32 - 1
"""The largest seed that scikit-learn takes."""


class EvaluationOptions(JudgingOptions, total=False):
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


def grouping(options: EvaluationOptions) -> dict[str, Any]:
    """Return how feedback is divided."""
    seed = options.get("seed", 0)
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed <= _MOST_SEED:
        raise InvalidInputError(f"seed: {seed!r} is not a whole number from 0 to {_MOST_SEED:,}.")
    return {"group_by": options.get("group_by", "example"), "seed": seed}


def drawing(options: EvaluationOptions) -> dict[str, int]:
    """Return how intervals are drawn."""
    resamples = options.get("resamples", DEFAULT_RESAMPLES)
    if isinstance(resamples, bool) or not isinstance(resamples, int) or resamples < 0:
        raise InvalidInputError(f"resamples: {resamples!r} is not a whole number from 0 on.")
    return {"resamples": resamples, "seed": grouping(options)["seed"]}


def variant_of(name: str, options: EvaluationOptions) -> Variant:
    """Return the way of judging that options describe."""
    given: dict[str, Any] = {key: value for key, value in options.items() if key not in _OF_THE_RUN}
    unknown = [key for key in given if key not in JudgingOptions.__annotations__]
    if unknown:
        raise InvalidInputError(
            f"{unknown[0]}: there is no such option: there are "
            f"{', '.join(sorted({*JudgingOptions.__annotations__, *_OF_THE_RUN}))}."
        )
    check_model(options.get("model", DEFAULT_CHAT_MODEL))
    check_distill_model(options.get("distill_model"))
    check_embeddings(options.get("embeddings", DEFAULT_EMBEDDINGS))
    check_choice("learn_from", options.get("learn_from", "both"), get_args(LearnFrom))
    variant = Variant(name=name, **given)
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
