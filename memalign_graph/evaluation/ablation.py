"""Ways of judging side by side: without a part of the memory, with other models, with another k."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Unpack

from langchain_core.language_models import BaseChatModel

from memalign_graph.errors import InvalidInputError
from memalign_graph.evaluation.cross_validation import DEFAULT_FOLDS, divide, measure
from memalign_graph.evaluation.lab import Lab
from memalign_graph.evaluation.options import EvaluationOptions, lab_for, variant_of
from memalign_graph.evaluation.results import Evaluation
from memalign_graph.evaluation.variants import ALIGNED, Variant
from memalign_graph.graphs.options import check_model
from memalign_graph.io import AWAITING, BLOCKING, IO, run
from memalign_graph.reading import FeedbackLike
from memalign_graph.types import Criterion

NONE = "none"
"""No memory."""


def ablate(
    criterion: Criterion,
    feedback: Iterable[FeedbackLike],
    *,
    test: Iterable[FeedbackLike] | None = None,
    folds: int = DEFAULT_FOLDS,
    ks: Sequence[int] = (),
    models: Mapping[str, BaseChatModel | str] | Sequence[str] = (),
    **options: Unpack[EvaluationOptions],
) -> Evaluation:
    """Measure what each part of the memory is good for, on the same folds.

    The ways of judging are `none` (no memory), `semantic only` (guidelines), `episodic only`
    (episodes), `aligned` (both), `labels only` and `words only` (both, learned from the experts'
    values or from their words alone), one for each further k (`k=3`), and two for each further
    model: without memory and with it (`gpt-4.1: none`, `gpt-4.1: aligned`).

    Args:
        criterion: What is judged.
        feedback: What the experts said; cases that are judged need a value.
        test: Cases to judge instead of folds.
        folds: How many folds; each case is judged once by each way.
        ks: Further numbers of similar examples to show.
        models: Further judges: `"provider:name"` strings, or chat models by the name to call them.
        **options: See `EvaluationOptions`, and the options of `create_judge_graph` and
            `create_alignment_graph`.

    Returns:
        The scores of each way, each compared with `none`.

    Raises:
        InvalidInputError: If feedback or an option can't be used; before any model is called.
        MemAlignError: If learning fails, or a call does; what was answered is kept in the cache.
        ImportError: If the extra `evaluation` is not installed.
    """
    with lab_for(criterion, **options) as lab:
        variants = ways(variant_of(ALIGNED, options), ks, models)
        return run(_ablate(BLOCKING, lab, (feedback, test, folds), variants, options))


async def aablate(
    criterion: Criterion,
    feedback: Iterable[FeedbackLike],
    *,
    test: Iterable[FeedbackLike] | None = None,
    folds: int = DEFAULT_FOLDS,
    ks: Sequence[int] = (),
    models: Mapping[str, BaseChatModel | str] | Sequence[str] = (),
    **options: Unpack[EvaluationOptions],
) -> Evaluation:
    """Async twin of `ablate`."""
    with lab_for(criterion, **options) as lab:
        variants = ways(variant_of(ALIGNED, options), ks, models)
        return await _ablate(AWAITING, lab, (feedback, test, folds), variants, options)


async def _ablate(
    io: IO,
    lab: Lab,
    given: tuple[Iterable[FeedbackLike], Iterable[FeedbackLike] | None, int],
    variants: Sequence[Variant],
    options: EvaluationOptions,
) -> Evaluation:
    divided = divide(lab.criterion, *given, options)
    evaluation, _ = await measure(io, lab, divided, variants, options)
    return evaluation


def ways(
    aligned: Variant,
    ks: Sequence[int] = (),
    models: Mapping[str, BaseChatModel | str] | Sequence[str] = (),
) -> list[Variant]:
    """List the ways of judging that an ablation compares."""
    if not (aligned.use_guidelines and aligned.use_episodes):
        left_out = "use_episodes" if aligned.use_guidelines else "use_guidelines"
        raise InvalidInputError(
            f"{left_out}: an ablation leaves out each part of the memory in turn: leave it away."
        )
    if isinstance(ks, str) or not isinstance(ks, Iterable):
        raise InvalidInputError(f"ks: give whole numbers, such as [1, 3], not {ks!r}.")
    if isinstance(models, str):
        models = [models]
    if not isinstance(models, Iterable):
        raise InvalidInputError(
            "models: give chat models by the name to call them, such as {'small': model}, or "
            f"'provider:name' strings, not a value of type {type(models).__name__}."
        )
    if not isinstance(models, Mapping):
        unnamed = [one for one in models if not isinstance(one, str)]
        if unnamed:
            raise InvalidInputError(
                "models: give chat models by the name to call them, such as {'small': model}, or "
                "'provider:name' strings."
            )
        models = {one: one for one in models}
    other_ks = [one for one in dict.fromkeys(ks) if one != aligned.k]
    listed = [
        aligned.without_memory(NONE),
        replace(aligned, name="semantic only", use_episodes=False),
        replace(aligned, name="episodic only", use_guidelines=False),
        aligned,
        replace(aligned, name="labels only", learn_from="labels"),
        replace(aligned, name="words only", learn_from="words"),
        *(replace(aligned, name=f"k={one}", k=one) for one in other_ks),
    ]
    for name, model in models.items():
        check_model(model)
        other = replace(aligned, model=model)
        listed.append(other.without_memory(f"{name}: {NONE}"))
        listed.append(replace(other, name=f"{name}: {ALIGNED}"))
    return listed
