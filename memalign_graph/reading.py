"""What callers give, read as what the package speaks of: errors name the field in one sentence."""

import inspect
import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic import ValidationError

from memalign_graph.errors import InvalidInputError, explain
from memalign_graph.scales import Boolean, Categorical, Numeric, Scale, Value
from memalign_graph.types import Example, Feedback

Read = TypeVar("Read", Example, Feedback)

FeedbackLike = Feedback | Mapping[str, Any]
ExampleLike = Example | Mapping[str, Any]

PLAIN_FUNCTION = "give a plain function, not an async one."

Passes = bool | int | float | str | Collection[Any] | Callable[[Any], Any]
"""Which values pass: the lowest that does, a set of values, or a function of the value."""


def read_feedback(feedback: FeedbackLike) -> Feedback:
    if isinstance(feedback, Mapping):
        # A table has cells without a value: what is not told is not there.
        given = {name: plain(value) for name, value in feedback.items()}
        feedback = {
            name: value
            for name, value in given.items()
            if not (is_missing(value) or (name, value) == ("given_at", None))
        }
        number = feedback.get("id")
        if isinstance(number, int) or (isinstance(number, float) and number.is_integer()):
            feedback["id"] = str(int(number))  # 3.0 where a column has gaps
    fields = "`inputs`, `outputs`, and `value`, `rationale` or both"
    return _read(Feedback, feedback, f"feedback: give Feedback, or an object with {fields}")


def read_example(example: ExampleLike) -> Example:
    wanted = "example: give an Example, or an object with `inputs` and `outputs`"
    return _read(Example, example, wanted)


def _read(model: type[Read], given: Any, wanted: str) -> Read:
    if not isinstance(given, model | Mapping):
        raise InvalidInputError(f"{wanted}, not a value of type {type(given).__name__}.")
    try:
        return model.model_validate(dict(given) if isinstance(given, Mapping) else given)
    except ValidationError as error:
        raise InvalidInputError(explain(error)) from error


def decided(answer: Any, field: str) -> bool:
    if inspect.isawaitable(answer):
        if inspect.iscoroutine(answer):
            answer.close()
        raise InvalidInputError(f"{field}: {PLAIN_FUNCTION}")
    return bool(answer)


@dataclass(frozen=True)
class PassRule:
    """Tells which values of a scale pass."""

    scale: Scale
    test: Callable[[Any], Any]
    wanted: str | None = None  # which values do, in words; None where a function decides

    def passes(self, value: Value) -> bool:
        return decided(self.test(value), "passes")

    @classmethod
    def of(cls, scale: Scale, passes: Passes | None, field: str = "passes") -> "PassRule":
        """Read a rule; without one true passes, where the scale is boolean."""
        if passes is None and isinstance(scale, Boolean):
            passes = True
        if passes is None:
            raise InvalidInputError(
                f"{field}: say which values pass: the lowest that does, a set of values, or a "
                f"function of the value, which is {scale.describe()}"
            )
        if inspect.iscoroutinefunction(passes):
            raise InvalidInputError(f"{field}: {PLAIN_FUNCTION}")
        if callable(passes):
            return cls(scale, passes)
        if isinstance(passes, Collection) and not isinstance(passes, str):
            allowed = [_on_scale(scale, value, field) for value in passes]
            if not allowed:
                raise InvalidInputError(f"{field}: an empty set lets nothing pass: name a value.")
            names = " or ".join(scale.render(value) for value in allowed)
            return cls(scale, lambda value: value in allowed, names)
        if isinstance(scale, Boolean) and not isinstance(passes, bool):
            raise InvalidInputError(f"{field}: {passes!r} is neither True nor False.")
        lowest: Any = _on_scale(scale, passes, field)
        if isinstance(scale, Numeric):
            return cls(scale, lambda value: value >= lowest, f"{scale.render(lowest)} or more")
        if isinstance(scale, Categorical) and scale.ordered:
            rank = scale.choices.index
            better = f"{lowest} or better" if lowest != scale.choices[-1] else str(lowest)
            return cls(scale, lambda value: rank(value) >= rank(lowest), better)
        return cls(scale, lambda value: value == lowest, scale.render(lowest))


def _on_scale(scale: Scale, value: Any, field: str) -> Value:
    try:
        return scale.validate_value(value)
    except ValueError as error:
        raise InvalidInputError(f"{field}: {error}") from error


def is_missing(value: Any) -> bool:
    """Tell whether a value is how pandas and others write that there is none."""
    is_nan = isinstance(value, float) and math.isnan(value)
    return is_nan or type(value).__name__ in ("NAType", "NaTType")


def plain(value: Any) -> Any:
    """Turn a single number or truth value of numpy into Python's own."""
    is_numpy = type(value).__module__ == "numpy" and getattr(value, "ndim", None) == 0
    return value.item() if is_numpy else value
