"""What the builders of graphs share: options checked, and settings that a run can change."""

import inspect
from collections.abc import Sequence
from typing import Any, get_args

from langchain_core.embeddings import Embeddings
from langchain_core.language_models import BaseChatModel
from langgraph.graph import StateGraph

from memalign_graph.context import DEFAULT_SETTINGS, MAX_K, Review, ReviewMode
from memalign_graph.errors import InvalidInputError
from memalign_graph.models import DEFAULT_EMBEDDINGS
from memalign_graph.types import Criterion

Graph = StateGraph[Any, Any, Any, Any]
"""A graph still to be compiled."""


def run_settings(
    criterion: Criterion, model: Any, k: int, review: Review, max_guideline_tokens: int
) -> dict[str, Any]:
    """Check the options, and return what a run's context can change of them.

    Args:
        criterion: What is judged.
        model: The chat model.
        k: How many similar examples the judge is shown.
        review: When the expert is asked.
        max_guideline_tokens: How much of the prompt guidelines may take.

    Returns:
        The settings by the names of `MemAlignContext`'s fields.

    Raises:
        InvalidInputError: If an option can't be used.
    """
    if not isinstance(criterion, Criterion):
        raise InvalidInputError(
            "criterion: give a Criterion(name=..., instructions=...), not a value of type "
            f"{type(criterion).__name__}."
        )
    if not isinstance(model, BaseChatModel | str):
        raise InvalidInputError(
            "model: give a chat model or a string such as 'openai:gpt-4.1-mini', not a value of "
            f"type {type(model).__name__}."
        )
    if isinstance(k, bool) or not isinstance(k, int) or not 0 <= k <= MAX_K:
        raise InvalidInputError(f"k: {k!r} is not a whole number from 0 to {MAX_K}.")
    if not isinstance(max_guideline_tokens, int) or max_guideline_tokens < 0:
        raise InvalidInputError(
            f"max_guideline_tokens: {max_guideline_tokens!r} is not a whole number from 0 on."
        )
    if inspect.iscoroutinefunction(review):
        raise InvalidInputError("review: give a plain function, not an async one.")
    if not callable(review) and review not in get_args(ReviewMode):
        raise InvalidInputError(
            f"review: {review!r} is not known: give 'always', 'never', or a function that takes "
            "the Judgment and tells whether to ask."
        )
    return {
        **DEFAULT_SETTINGS,
        "k": k,
        "model": model if isinstance(model, str) else None,
        "review": review if isinstance(review, str) else None,
    }


def check_distill_model(distill_model: Any) -> None:
    """Check the model that distils.

    Args:
        distill_model: What was given.

    Raises:
        InvalidInputError: If it can't be used.
    """
    if not isinstance(distill_model, BaseChatModel | str | None):
        raise InvalidInputError(
            "distill_model: give a chat model or a string, not a value of type "
            f"{type(distill_model).__name__}."
        )


def check_embeddings(embeddings: Any) -> None:
    """Check the embeddings.

    Args:
        embeddings: What was given.

    Raises:
        InvalidInputError: If it can't be used.
    """
    if not (isinstance(embeddings, Embeddings | str) or callable(embeddings)):
        raise InvalidInputError(
            "embeddings: give LangChain embeddings, a function, or a string such as "
            f"{DEFAULT_EMBEDDINGS!r}, not a value of type {type(embeddings).__name__}."
        )


def check_choice(name: str, given: Any, choices: Sequence[Any]) -> None:
    """Check an option with a few choices.

    Args:
        name: The option.
        given: What was given.
        choices: What can be given.

    Raises:
        InvalidInputError: If it can't be used.
    """
    if given not in choices:
        raise InvalidInputError(
            f"{name}: {given!r} is not known: give {' or '.join(map(repr, choices))}."
        )


def check_count(name: str, given: Any) -> None:
    """Check an option that counts something.

    Args:
        name: The option.
        given: What was given.

    Raises:
        InvalidInputError: If it can't be used.
    """
    if isinstance(given, bool) or not isinstance(given, int) or given < 1:
        raise InvalidInputError(f"{name}: {given!r} is not a whole number from 1 on.")


def check_flag(name: str, given: Any) -> None:
    """Check an option that is on or off.

    Args:
        name: The option.
        given: What was given.

    Raises:
        InvalidInputError: If it can't be used.
    """
    if not isinstance(given, bool):
        raise InvalidInputError(f"{name}: {given!r} is neither True nor False.")
