"""What callers give, read as what the package speaks of: errors name the field in one sentence."""

import inspect
import math
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from memalign_graph.errors import InvalidInputError, explain
from memalign_graph.types import Example, Feedback

FeedbackLike = Feedback | Mapping[str, Any]
"""Feedback, or its fields."""

PLAIN_FUNCTION = "give a plain function, not an async one."
"""What is wrong with an async function where a decision is asked for."""

_NO_DATE = ("given_at", None)

ExampleLike = Example | Mapping[str, Any]
"""An example, or its fields."""


def read_feedback(feedback: FeedbackLike) -> Feedback:
    """Read feedback from its fields."""
    if not isinstance(feedback, Feedback | Mapping):
        raise InvalidInputError(
            "feedback: give Feedback, or an object with `inputs`, `outputs`, and `value`, "
            f"`rationale` or both, not a value of type {type(feedback).__name__}."
        )
    if isinstance(feedback, Mapping):
        # A table has cells without a value: what is not told is not there.
        given = {name: _plain(value) for name, value in feedback.items()}
        told = {name: value for name, value in given.items() if not _is_missing(value)}
        feedback = {name: value for name, value in told.items() if (name, value) != _NO_DATE}
        if isinstance(feedback.get("id"), int):
            feedback["id"] = str(feedback["id"])
    try:
        return Feedback.model_validate(feedback)
    except ValidationError as error:
        raise InvalidInputError(explain(error)) from error


def read_example(example: ExampleLike) -> Example:
    """Read an example from its fields."""
    if not isinstance(example, Example | Mapping):
        raise InvalidInputError(
            "example: give an Example, or an object with `inputs` and `outputs`, not a value of "
            f"type {type(example).__name__}."
        )
    try:
        return Example.model_validate(dict(example) if isinstance(example, Mapping) else example)
    except ValidationError as error:
        raise InvalidInputError(explain(error)) from error


def decided(answer: Any, field: str) -> bool:
    """Read what a caller's function decided."""
    if inspect.isawaitable(answer):
        if inspect.iscoroutine(answer):
            answer.close()
        raise InvalidInputError(f"{field}: {PLAIN_FUNCTION}")
    return bool(answer)


def _is_missing(value: Any) -> bool:
    """Tell whether a value is how pandas and others write that there is none."""
    if isinstance(value, float):
        return math.isnan(value)
    return type(value).__name__ in ("NAType", "NaTType")


def _plain(value: Any) -> Any:
    """Turn a single number or truth value of numpy into Python's own."""
    is_numpy = type(value).__module__ == "numpy" and getattr(value, "ndim", None) == 0
    return value.item() if is_numpy else value
