"""The four scales of a judgment's value, and the rule that decides which values pass."""

import inspect
import math
import unicodedata
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from memalign_graph.errors import InvalidInputError, show_value

Value = bool | int | float | str
"""A judgment's value; the scale decides the type."""


class _Scale(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    def validate_value(self, value: Any) -> Value:
        """Return the value in the scale's own form; a `ValueError` if it is not on the scale."""
        raise NotImplementedError

    def validate_stored(self, value: Any) -> Value:
        """Return a stored value in the scale's own form; a `ValueError` if it is not on the scale.

        A stored number or text is no boolean: 1 may be the lowest grade of an earlier scale.
        """
        if isinstance(self, Boolean) and not isinstance(value, bool):
            raise _off_scale(value, "true or false.")
        return self.validate_value(value)

    def render(self, value: Value) -> str:
        """Return a value of this scale as prompts show it."""
        return str(value)

    def show(self, value: Value) -> str:
        """Return a stored value as prompts show it, also if the scale has changed since."""
        try:
            return self.render(self.validate_stored(value))
        except ValueError:
            return f"{value} (on an earlier scale)"


class Boolean(_Scale):
    """True or false: the criterion is met, or it is not."""

    type: Literal["boolean"] = "boolean"

    def value_schema(self) -> dict[str, Any]:
        """Return the JSON Schema of a boolean."""
        return {"type": "boolean"}

    def validate_value(self, value: Any) -> bool:
        """Return a boolean; `"yes"`, `"no"`, `"true"`, `"false"`, 1 and 0 count as booleans too."""
        # A table's column with missing cells holds 1.0 for 1.
        word = str(value).strip().lower().removesuffix(".0")
        if word not in ("true", "yes", "1", "false", "no", "0"):
            raise _off_scale(value, "true or false.")
        return word in ("true", "yes", "1")

    def describe(self) -> str:
        """Return the scale in words."""
        return "true (the criterion is met) or false (it is not)."

    def render(self, value: Value) -> str:
        """Return `true` or `false`, as in JSON."""
        return "true" if value else "false"


def _choice_schema(scale: "Categorical | Pairwise") -> dict[str, Any]:
    """Return the JSON Schema of a choice."""
    return {"type": "string", "enum": list(scale.choices)}


def _folded(choice: str) -> str:
    return unicodedata.normalize("NFKC", choice).casefold()


def _choice(scale: "Categorical | Pairwise", value: Any) -> str:
    """Return a choice as the scale spells it."""
    is_name = isinstance(value, str | int | float) and not isinstance(value, bool)
    text = str(value).strip() if is_name else ""
    for folded in (str.casefold, _folded):  # `x²` is read as `x2`, unless both are choices
        by_name = {folded(choice): choice for choice in scale.choices}
        # A table's column with missing cells holds 1.0 for 1.
        if choice := by_name.get(folded(text)) or by_name.get(folded(text).removesuffix(".0")):
            return choice
    raise _off_scale(value, f"one of {', '.join(scale.choices)}.")


class Categorical(_Scale):
    """One of several named choices."""

    type: Literal["categorical"] = "categorical"
    choices: tuple[str, ...]
    """At least two names that differ in more than case; lowest first if ordered."""
    ordered: bool = False
    """Whether the choices are ordered, so that some errors are smaller than others."""

    @field_validator("choices")
    @classmethod
    def _check_choices(cls, choices: tuple[str, ...]) -> tuple[str, ...]:
        if len(choices) <= 1:
            raise ValueError("give at least two choices.")
        if any(not choice.strip() or choice != choice.strip() for choice in choices):
            raise ValueError("a choice may not be empty, or begin or end with blanks.")
        if len({choice.casefold() for choice in choices}) < len(choices):
            raise ValueError("two choices differ only in case: rename one.")
        return choices

    value_schema = _choice_schema
    validate_value = _choice

    def describe(self) -> str:
        """Return the scale in words."""
        order = ", from lowest to highest" if self.ordered else ""
        return f"one of {', '.join(self.choices)}{order}."


class Numeric(_Scale):
    """A number between two bounds, both included."""

    type: Literal["numeric"] = "numeric"
    minimum: float
    maximum: float
    integer: bool = False
    """Whether only whole numbers are on the scale."""

    @model_validator(mode="after")
    def _check_bounds(self) -> Self:
        if not (math.isfinite(self.minimum) and math.isfinite(self.maximum)):
            raise ValueError("minimum and maximum must be finite numbers.")
        if max(abs(self.minimum), abs(self.maximum)) > 2.0**53:
            raise ValueError("minimum and maximum must be within ±2**53, where floats are exact.")
        if self.minimum >= self.maximum:
            raise ValueError("minimum must be below maximum.")
        if self.integer and not (self.minimum.is_integer() and self.maximum.is_integer()):
            raise ValueError("minimum and maximum must be whole numbers on an integer scale.")
        return self

    def value_schema(self) -> dict[str, Any]:
        """Return the JSON Schema of a number within the bounds."""
        lowest, highest = self._number(self.minimum), self._number(self.maximum)
        kind = "integer" if self.integer else "number"
        return {"type": kind, "minimum": lowest, "maximum": highest}

    def validate_value(self, value: Any) -> int | float:
        """Return the number, an `int` on an integer scale; `"3"` is 3."""
        number = _to_float(value)  # NaN lies between no bounds
        if self.minimum <= number <= self.maximum and (number.is_integer() or not self.integer):
            return self._number(number)
        raise _off_scale(value, self.describe())

    def describe(self) -> str:
        """Return the scale in words."""
        kind = "a whole number" if self.integer else "a number"
        return f"{kind} from {self._number(self.minimum)} to {self._number(self.maximum)}."

    def _number(self, number: float) -> int | float:
        return int(number) if self.integer else float(number) + 0.0  # -0.0 is 0.0


class Pairwise(_Scale):
    """Which of two outputs is better: `A`, `B` or, where allowed, `tie`."""

    type: Literal["pairwise"] = "pairwise"
    allow_tie: bool = True
    """Whether `tie` is on the scale."""

    @property
    def choices(self) -> tuple[str, ...]:
        """The values in order: `A`, `B` and, where allowed, `tie`."""
        return ("A", "B", "tie") if self.allow_tie else ("A", "B")

    value_schema = _choice_schema
    validate_value = _choice

    def describe(self) -> str:
        """Return the scale in words."""
        tie = ", or tie if neither is better" if self.allow_tie else ""
        return f"A if the first output is better, B if the second is better{tie}."


Scale = Annotated[Boolean | Categorical | Numeric | Pairwise, Field(discriminator="type")]
"""Any of the four scales."""


def _to_float(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return math.nan
    try:
        # `float` accepts Python's "1_000", which is not a number for an expert.
        return math.nan if "_" in str(value) else float(value)
    except (ValueError, OverflowError):
        return math.nan


def _off_scale(value: Any, allowed: str) -> ValueError:
    return ValueError(f"{show_value(value, 80)} is not on the scale: the value is {allowed}")


PLAIN_FUNCTION = "give a plain function, not an async one."

Passes = bool | int | float | str | Collection[Any] | Callable[[Any], Any]
"""Which values pass: the lowest passing value, a set of values, or a function of the value."""


def require_bool(answer: Any, field: str) -> bool:
    if inspect.isawaitable(answer):
        if inspect.iscoroutine(answer):
            answer.close()
        raise InvalidInputError(f"{field}: {PLAIN_FUNCTION}")
    if isinstance(answer, str):  # "no" is true for Python
        text = show_value(answer, 80)
        raise InvalidInputError(f"{field}: the function returned {text}. Return True or False.")
    return bool(answer)


@dataclass(frozen=True)
class PassRule:
    """Which values of a scale pass."""

    test: Callable[[Any], Any]
    passing_values: str | None = None  # in words; None if a function decides

    def passes(self, value: Value) -> bool:
        return require_bool(self.test(value), "passes")

    @classmethod
    def of(cls, scale: Scale, passes: Passes | None, field: str = "passes") -> "PassRule":
        """Parse the option; on a boolean scale its default is true."""
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
            return cls(passes)
        if isinstance(passes, Collection) and not isinstance(passes, str):
            allowed = [_on_scale(scale, value, field) for value in passes]
            if not allowed:
                raise InvalidInputError(f"{field}: an empty set lets nothing pass: name a value.")
            names = " or ".join(scale.render(value) for value in allowed)
            return cls(lambda value: value in allowed, names)
        if isinstance(scale, Boolean) and not isinstance(passes, bool):
            raise InvalidInputError(f"{field}: {passes!r} is neither True nor False.")
        lowest: Any = _on_scale(scale, passes, field)
        if isinstance(scale, Numeric):
            return cls(lambda value: value >= lowest, f"{scale.render(lowest)} or more")
        if isinstance(scale, Categorical) and scale.ordered:
            rank = scale.choices.index
            better = f"{lowest} or better" if lowest != scale.choices[-1] else str(lowest)
            return cls(lambda value: rank(value) >= rank(lowest), better)
        return cls(lambda value: value == lowest, scale.render(lowest))


def share_of_scale(value: Value | None, scale: Scale) -> float | None:
    """Map a value to 0 (worst) to 1 (best); None if the scale has no order."""
    if value is None:
        return None
    if isinstance(scale, Boolean):
        return float(bool(value))
    if isinstance(scale, Numeric):
        return (float(value) - scale.minimum) / (scale.maximum - scale.minimum)
    if isinstance(scale, Categorical) and scale.ordered:
        return scale.choices.index(str(value)) / (len(scale.choices) - 1)
    return None


def _on_scale(scale: Scale, value: Any, field: str) -> Value:
    try:
        return scale.validate_value(value)
    except ValueError as error:
        raise InvalidInputError(f"{field}: {error}") from error
