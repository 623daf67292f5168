"""The values that a judge chooses from, what it said of a case, and what is decided."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from memalign_graph.scales import Boolean, Categorical, Numeric, Scale, Value
from memalign_graph.types import ConfidenceSource, Evidence, Probabilities

MAX_VALUES = 20
"""The most values of a scale whose probabilities are measured: servers return no more alternatives
to a token."""

_MAX_LETTERS = 11
_FEW_VALUES = 5  # of a scale with more numbers: told apart better than more are
_HALF = 0.5 - 1e-9  # of probabilities that add up to 1 but for rounding


@dataclass(frozen=True)
class ConfidenceMeasurement:
    """How likely the judge holds each value; of a continuous scale its verdict alone."""

    probabilities: Probabilities | None = None
    source: ConfidenceSource | None = None
    warning: str | None = None  # why it was not measured as asked for


@dataclass(frozen=True)
class RawVerdict:
    """What the judge said of a case."""

    value: Value
    probabilities: Mapping[str, float] | None = None
    source: ConfidenceSource | None = None


@dataclass(frozen=True)
class Decision:
    """What is decided on a verdict."""

    value: Value
    confidence: float | None = None
    confidence_source: ConfidenceSource | None = None
    calibrated_on: int | None = None
    evidence: Evidence | None = None


def verdict_only(verdict: RawVerdict) -> Decision:
    return Decision(verdict.value)


def permitted_values(scale: Scale) -> list[Value]:
    """Return the values of a finite scale; none of one with too many."""
    if isinstance(scale, Numeric):
        low, high = math.ceil(scale.minimum), math.floor(scale.maximum)
        is_short = scale.integer and high - low < MAX_VALUES
        return list(range(low, high + 1)) if is_short else []
    values = (True, False) if isinstance(scale, Boolean) else scale.choices
    return list(values) if len(values) <= MAX_VALUES else []


def value_choices(scale: Scale) -> list[Value]:
    """Return the values that a small model chooses from; none where there are too many."""
    values = permitted_values(scale)
    if isinstance(scale, Numeric) and not 0 < len(values) <= _MAX_LETTERS:
        step = (scale.maximum - scale.minimum) / (_FEW_VALUES - 1)
        numbers = [scale.minimum + step * n for n in range(_FEW_VALUES)]
        values = [scale.validate_value(round(n) if scale.integer else n) for n in numbers]
    return values


def choose_value(probabilities: Probabilities, values: Sequence[Value], scale: Scale) -> Value:
    """Choose by how likely values are: the median where they have an order, else the likeliest."""
    shares = [probabilities[scale.render(value)] for value in values]
    if isinstance(scale, Numeric) or (isinstance(scale, Categorical) and scale.ordered):
        return next(
            v for v, total in zip(values, accumulate(shares), strict=True) if total >= _HALF
        )
    return values[shares.index(max(shares))]


def log_odds(share: float) -> float:
    """Return the log-odds of a probability, within bounds; NaN of NaN."""
    inside = min(max(share, 1e-3), 1 - 1e-3)
    return math.log(inside / (1 - inside))


LEAST_SPREAD = 0.05
"""Added to the spread of log-odds: what is all but the same on all cases is not blown up."""
