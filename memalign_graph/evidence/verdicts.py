"""The values that a judge chooses from, its verdict, and the decision."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from memalign_graph.agreement import is_ordered
from memalign_graph.scales import Boolean, Numeric, Scale, Value
from memalign_graph.types import ConfidenceSource, Evidence, Probabilities

MAX_VALUES = 20
"""The most values whose probabilities are measured: servers return no more alternatives."""

_MAX_LETTERS = 11
_FEW_VALUES = 5  # of a scale with more numbers: a small model distinguishes no more
_HALF = 0.5 - 1e-9  # allows for rounding


@dataclass(frozen=True)
class ConfidenceMeasurement:
    """The judge's probability of each value; on a continuous scale, of its verdict alone."""

    probabilities: Probabilities | None = None
    source: ConfidenceSource | None = None
    warning: str | None = None  # the reason if it was not measured as asked for


@dataclass(frozen=True)
class RawVerdict:
    """The judge's own value of a case."""

    value: Value
    probabilities: Mapping[str, float] | None = None
    source: ConfidenceSource | None = None


@dataclass(frozen=True)
class Decision:
    """The value of a judgment, with its confidence and evidence."""

    value: Value
    confidence: float | None = None
    confidence_source: ConfidenceSource | None = None
    calibrated_on: int | None = None
    evidence: Evidence | None = None


def verdict_only(verdict: RawVerdict) -> Decision:
    return Decision(verdict.value)


def permitted_values(scale: Scale) -> list[Value]:
    """Return the values of a finite scale; empty if there are too many."""
    if isinstance(scale, Numeric):
        low, high = math.ceil(scale.minimum), math.floor(scale.maximum)
        is_short = scale.integer and high - low < MAX_VALUES
        return list(range(low, high + 1)) if is_short else []
    values = (True, False) if isinstance(scale, Boolean) else scale.choices
    return list(values) if len(values) <= MAX_VALUES else []


def value_choices(scale: Scale) -> list[Value]:
    """Return the values that a small model chooses from; empty if there are too many."""
    values = permitted_values(scale)
    if isinstance(scale, Numeric) and not 0 < len(values) <= _MAX_LETTERS:
        step = (scale.maximum - scale.minimum) / (_FEW_VALUES - 1)
        numbers = [scale.minimum + step * n for n in range(_FEW_VALUES)]
        values = [scale.validate_value(round(n) if scale.integer else n) for n in numbers]
    return values


def choose_value(probabilities: Probabilities, values: Sequence[Value], scale: Scale) -> Value:
    """Choose the median of ordered values, otherwise the most probable one."""
    shares = [probabilities[scale.render(value)] for value in values]
    if is_ordered(scale):
        return next(
            v for v, total in zip(values, accumulate(shares), strict=True) if total >= _HALF
        )
    return values[shares.index(max(shares))]


def log_odds(share: float) -> float:
    """Return the log-odds of a probability, within bounds; NaN of NaN."""
    inside = min(max(share, 1e-3), 1 - 1e-3)
    return math.log(inside / (1 - inside))
