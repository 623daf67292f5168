"""What a gate says: which values pass, and the verdict that goes into the parent's state."""

import inspect
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, Literal

from typing_extensions import TypedDict

from memalign_graph.errors import InvalidInputError
from memalign_graph.reading import PLAIN_FUNCTION, decided
from memalign_graph.scales import Boolean, Categorical, Numeric, Scale, Value

GateStatus = Literal["accepted", "revise", "escalated", "exhausted", "judge_error"]
"""What became of an answer.

- `accepted`: it passed.
- `revise`: it did not, and goes back with the critique; the gate will see it again.
- `escalated`: it did not, its revisions have run out, and it goes where the gate escalates to.
- `exhausted`: likewise, but the gate escalates to nowhere.
- `judge_error`: nobody knows, since the judge failed. `let_through` says what became of it.
"""

OnJudgeError = Literal["closed", "open"]
"""What a gate does when its judge fails.

- `closed`: the answer does not pass; it is escalated, where the gate escalates to somewhere.
- `open`: the answer goes on as if it had passed, but is not called accepted.
"""

Passes = bool | int | float | str | Collection[Any] | Callable[[Any], Any]
"""Which values pass: see `PassRule.of`."""


class GateVerdict(TypedDict):
    """What a gate said of one answer; JSON values only."""

    gate: str
    """The gate's name."""

    example_id: str | None
    """The id of the example; None where there was nothing to judge."""

    status: GateStatus
    """What became of the answer."""

    passed: bool
    """Whether it passed; False also where nobody knows."""

    let_through: bool
    """Whether it goes on: it passed, or the judge failed and the gate is open."""

    value: Value | None
    """The value that decided; None where nobody gave one."""

    decided_by: Literal["judge", "expert"] | None
    """Whose word it was; None where the judge failed or there was nothing to judge."""

    critique: str
    """What to change, in words for the writer; empty where it passed."""

    revisions: int
    """How often an answer to this has been sent back, this time included."""

    judgment: dict[str, Any] | None
    """The `Judgment` as JSON."""

    feedback: dict[str, Any] | None
    """The expert's `Feedback` as JSON, where one was asked."""

    learned: dict[str, Any] | None
    """What memory made of it."""

    error: str | None
    """Why the judge failed, where it did."""


@dataclass(frozen=True)
class PassRule:
    """Tells which values of a scale pass."""

    scale: Scale
    """The scale."""

    test: Callable[[Any], Any]
    """Tells of a value on the scale whether it passes."""

    wanted: str | None = None
    """Which values do, in words; None where a function decides."""

    def passes(self, value: Value) -> bool:
        """Tell whether a value passes."""
        return decided(self.test(value), "passes")

    @classmethod
    def of(cls, scale: Scale, passes: Passes | None) -> "PassRule":
        """Read a rule."""
        if passes is None and isinstance(scale, Boolean):
            passes = True
        if passes is None:
            raise InvalidInputError(
                "passes: say which values pass: the lowest that does, a set of values, or a "
                f"function of the value, which is {scale.describe()}"
            )
        if inspect.iscoroutinefunction(passes):
            raise InvalidInputError(f"passes: {PLAIN_FUNCTION}")
        if callable(passes):
            return cls(scale, passes)
        if isinstance(passes, Collection) and not isinstance(passes, str):
            allowed = [_on_scale(scale, one) for one in passes]
            if not allowed:
                raise InvalidInputError("passes: an empty set lets nothing pass: name a value.")
            names = " or ".join(scale.render(one) for one in allowed)
            return cls(scale, lambda value: value in allowed, names)
        if isinstance(scale, Boolean) and not isinstance(passes, bool):
            raise InvalidInputError(f"passes: {passes!r} is neither True nor False.")
        lowest: Any = _on_scale(scale, passes)
        if isinstance(scale, Numeric):
            return cls(scale, lambda value: value >= lowest, f"{scale.render(lowest)} or more")
        if isinstance(scale, Categorical) and scale.ordered:
            rank = scale.choices.index
            better = f"{lowest} or better" if lowest != scale.choices[-1] else str(lowest)
            return cls(scale, lambda value: rank(value) >= rank(lowest), better)
        return cls(scale, lambda value: value == lowest, scale.render(lowest))


def _on_scale(scale: Scale, value: Any) -> Value:
    try:
        return scale.validate_value(value)
    except ValueError as error:
        raise InvalidInputError(f"passes: {error}") from error
