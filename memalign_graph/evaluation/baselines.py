"""What needs no judge: the same value for every case, and the value of the nearest episodes.

A judge that is no better than these is of no use, however high its agreement.
"""

from collections.abc import Sequence
from statistics import fmean

from memalign_graph.agreement import majority, majority_value
from memalign_graph.scales import Numeric, Scale, Value
from memalign_graph.types import RecalledExample

CONSTANT = "constant"
"""Always the value that fits the training cases best."""

NEAREST = "nearest"
"""The value of the most similar training cases."""


def constant_value(values: Sequence[Value], scale: Scale) -> Value | None:
    """Return the one value that is right most often, or least far off; of several the first."""
    return majority(values[::-1], scale) if values else None


def nearest_value(recalled: Sequence[RecalledExample], scale: Scale) -> Value | None:
    """Return what the most similar examples say, without looking at the case itself."""
    found = [majority_value(one.episodes, scale) for one in recalled]
    values = [value for value in found if value is not None]
    if not values:
        return None
    if isinstance(scale, Numeric):
        mean = fmean(float(one) for one in values)
        return scale.validate_value(round(mean) if scale.integer else mean)
    return constant_value(values, scale)
