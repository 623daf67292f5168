"""What the builders of graphs share: options checked, and settings that a run can change."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from importlib import import_module
from typing import Any, get_args

from langchain_core.embeddings import Embeddings
from langchain_core.language_models import BaseChatModel
from langgraph.graph import END, StateGraph
from typing_extensions import TypedDict

from memalign_graph.context import DEFAULT_SETTINGS, MAX_K, Review, ReviewMode
from memalign_graph.errors import InvalidInputError
from memalign_graph.extras import needs_extra
from memalign_graph.judgment import Decide
from memalign_graph.memory.judgments import check_keep
from memalign_graph.models import DEFAULT_EMBEDDINGS, EmbeddingsLike
from memalign_graph.nodes.base import DEFAULT_MAX_CONCURRENCY
from memalign_graph.nodes.retrieve import OnEmbeddingError
from memalign_graph.reading import PLAIN_FUNCTION, decided
from memalign_graph.types import Criterion, Pairwise

MAX_SAMPLES = 50
"""The most answers that one confidence may take."""

Graph = StateGraph[Any, Any, Any, Any]
"""A graph still to be compiled."""


class ParallelGraph(Graph):
    """A graph whose nodes run side by side also where the machine has few cores: they wait."""

    def compile(self, *args: Any, **options: Any) -> Any:
        """Compile the graph, as `StateGraph.compile` does."""
        compiled = super().compile(*args, **options)
        return compiled.with_config(max_concurrency=DEFAULT_MAX_CONCURRENCY)


class JudgeOptions(TypedDict, total=False):
    """The options of `create_judge_graph` that what is built around a judge leaves open."""

    model: BaseChatModel | str
    """Who judges: a chat model, or a `"provider:name"` string."""

    embeddings: EmbeddingsLike
    """What finds similar cases: LangChain embeddings, a function, or a string."""

    k: int
    """How many similar examples the judge is shown, from 0 to 100."""

    use_guidelines: bool
    """False to judge without guidelines, for comparison."""

    use_episodes: bool
    """False to judge without episodes, for comparison."""

    max_guideline_tokens: int
    """How much of the prompt guidelines may take, in tokens."""

    on_embedding_error: OnEmbeddingError
    """`raise`, or `guidelines` to judge by the guidelines alone, and say so."""

    swap: bool
    """True to judge two outputs in both orders."""

    keep_judgments: timedelta | None
    """How long judgments are kept for feedback that comes later; None for not."""

    confidence: bool
    """True to measure how sure the judge is, with one more short call."""

    samples: int
    """How many answers to ask for where the model gives no log-probabilities."""

    decide: Decide
    """`verdict`, or `evidence` to weigh the verdict against the most similar cases."""


class ReviewOptions(JudgeOptions, total=False):
    """The same of `create_review_graph`."""

    distill_model: BaseChatModel | str | None
    """Who distils feedback; the judge itself unless given."""

    clarify: bool
    """True to ask the expert one short question back where the words are too vague."""

    target_agreement: float
    """With `review="uncertain"`: how often what nobody is asked about is to agree."""

    max_reviews_per_day: int | None
    """With `review="uncertain"`: how many questions a day may bring."""

    max_review_share: float | None
    """The same as a share of the day's judgments."""

    sample_share: float
    """With `review="uncertain"`: the share of judgments asked about by chance."""


def run_settings(
    criterion: Criterion, model: Any, k: int, review: Review, max_guideline_tokens: int
) -> dict[str, Any]:
    """Check the options, and return what a run's context can change of them."""
    check_criterion(criterion)
    check_model(model)
    if isinstance(k, bool) or not isinstance(k, int) or not 0 <= k <= MAX_K:
        raise InvalidInputError(f"k: {k!r} is not a whole number from 0 to {MAX_K}.")
    if not isinstance(max_guideline_tokens, int) or max_guideline_tokens < 0:
        raise InvalidInputError(
            f"max_guideline_tokens: {max_guideline_tokens!r} is not a whole number from 0 on."
        )
    check_review(review)
    return {
        **DEFAULT_SETTINGS,
        "k": k,
        "model": model if isinstance(model, str) else None,
        "review": review if isinstance(review, str) else None,
    }


def check_criterion(criterion: Any) -> None:
    """Check the criterion."""
    if not isinstance(criterion, Criterion):
        raise InvalidInputError(
            "criterion: give a Criterion(name=..., instructions=...), not a value of type "
            f"{type(criterion).__name__}."
        )


def check_model(model: Any) -> None:
    """Check the judge's model."""
    if not isinstance(model, BaseChatModel | str):
        raise InvalidInputError(
            "model: give a chat model or a string such as 'openai:gpt-4.1-mini', not a value of "
            f"type {type(model).__name__}."
        )


def check_distill_model(distill_model: Any) -> None:
    """Check the model that distils."""
    if not isinstance(distill_model, BaseChatModel | str | None):
        raise InvalidInputError(
            "distill_model: give a chat model or a string, not a value of type "
            f"{type(distill_model).__name__}."
        )


def check_embeddings(embeddings: Any) -> None:
    """Check the embeddings."""
    if not (isinstance(embeddings, Embeddings | str) or callable(embeddings)):
        raise InvalidInputError(
            "embeddings: give LangChain embeddings, a function, or a string such as "
            f"{DEFAULT_EMBEDDINGS!r}, not a value of type {type(embeddings).__name__}."
        )


def check_choice(name: str, given: Any, choices: Sequence[Any]) -> None:
    """Check an option with a few choices."""
    if given not in choices:
        raise InvalidInputError(
            f"{name}: {given!r} is not known: give {' or '.join(map(repr, choices))}."
        )


def check_review(
    review: Any, *, modes: Sequence[str] = get_args(ReviewMode), takes: str = "the Judgment"
) -> None:
    """Check when the expert is asked."""
    if inspect.iscoroutinefunction(review):
        raise InvalidInputError(f"review: {PLAIN_FUNCTION}")
    if not callable(review) and review not in modes:
        raise InvalidInputError(
            f"review: {review!r} is not known: give {', '.join(map(repr, modes))}, or a function "
            f"that takes {takes} and tells whether to ask."
        )


def asks(
    review: Any, read: Callable[[Mapping[str, Any]], Any]
) -> Callable[[Mapping[str, Any]], str]:
    """Make the way out of judging: to the expert, or to the end."""

    def way(state: Mapping[str, Any]) -> str:
        mode = state["judge_settings"]["review"]
        if mode is None and callable(review):
            wanted = decided(review(read(state)), "review")
        else:
            wanted = mode == "always"
        return "collect_feedback" if wanted else END

    return way


def check_count(name: str, given: Any, *, least: int = 1) -> None:
    """Check an option that counts something."""
    if isinstance(given, bool) or not isinstance(given, int) or given < least:
        raise InvalidInputError(f"{name}: {given!r} is not a whole number from {least} on.")


def check_flag(name: str, given: Any) -> None:
    """Check an option that is on or off."""
    if not isinstance(given, bool):
        raise InvalidInputError(f"{name}: {given!r} is neither True nor False.")


def check_judging(
    criterion: Criterion,
    *,
    embeddings: Any,
    use_guidelines: Any,
    use_episodes: Any,
    on_embedding_error: Any,
    swap: Any,
    cite_guidelines: Any,
    keep_judgments: Any,
    confidence: Any,
    samples: Any,
    decide: Any,
) -> None:
    """Check the options of judging that a run can't change."""
    check_embeddings(embeddings)
    check_flag("use_guidelines", use_guidelines)
    check_flag("use_episodes", use_episodes)
    check_choice("on_embedding_error", on_embedding_error, get_args(OnEmbeddingError))
    check_swap(swap, criterion)
    check_flag("cite_guidelines", cite_guidelines)
    check_keep(keep_judgments)
    check_evidence(confidence=confidence, samples=samples, decide=decide)


def check_swap(swap: Any, criterion: Criterion) -> None:
    """Check whether two outputs are to be judged in both orders."""
    check_flag("swap", swap)
    if swap and not isinstance(criterion.scale, Pairwise):
        raise InvalidInputError(
            "swap: only a criterion with scale=Pairwise() is judged in both orders; this one's "
            f"scale is {criterion.scale.type}."
        )


def check_evidence(*, confidence: Any, samples: Any, decide: Any) -> None:
    """Check the options on how sure the judge is, and what decides."""
    check_flag("confidence", confidence)
    check_choice("decide", decide, get_args(Decide))
    check_count("samples", samples, least=0)
    if samples > MAX_SAMPLES:
        raise InvalidInputError(f"samples: {samples} is more than {MAX_SAMPLES} answers a case.")
    if samples and not confidence:
        raise InvalidInputError("samples: they measure the confidence: give confidence=True, too.")
    if confidence or decide == "evidence":
        with needs_extra("evidence", "confidence=True" if confidence else 'decide="evidence"'):
            import_module("sklearn")
