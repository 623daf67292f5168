"""A mean of experts' values, corrected and narrowed by the judge's values on all other cases.

A judge's own mean is biased by its errors. The mean of a random sample with experts' values is not.
The judge's values on the other cases reduce its variance, as far as judge and experts correlate.

Source: A. Angelopoulos, J. Duchi and T. Zrnic, PPI++: efficient prediction-powered inference, 2023.
"""

from collections.abc import Sequence
from math import ceil, sqrt

import numpy as np
import numpy.typing as npt

from memalign_graph.types import FrozenModel

Floats = npt.NDArray[np.float64]

MIN_LABELS = 10
"""With fewer labels there is no estimate."""

_Z = 1.959964  # of a 95 % interval
_PSEUDO_LABELS = 0.35  # for each pair of ends
_MAX_LEVERAGE = 0.8


class Estimate(FrozenModel):
    """A share or a mean with its 95 % interval."""

    value: float | None
    """The estimate; None if there are too few values."""

    low: float
    """The lower end of the interval."""

    high: float
    """The upper end."""


def estimate_mean(
    values: Sequence[float] | Floats,
    predictions: Sequence[float] | Floats = (),
    others: Sequence[float] | Floats = (),
    *,
    bounds: tuple[float, float] = (0.0, 1.0),
    min_values: int = 1,
) -> Estimate:
    """Estimate a mean from values, the predictions of the same cases, and those of others.

    All values are within the bounds. A share is the mean of values that are 0 or 1.

    The interval is Wilson's, because a normal one fails on rare values. A mean counts as a share:
    of all values with one mean, those at the ends of the scale have the largest variance.
    """
    low, high = bounds
    count, span = len(values), high - low
    if count < min_values:
        return Estimate(value=None, low=low, high=high)

    def as_shares(numbers: Sequence[float] | Floats) -> Floats:
        return (np.array(numbers, dtype=float) - low) / span

    labels = as_shares(values)
    predicted = as_shares(predictions) if len(others) else np.zeros(count)
    weight, efficiency = _weight_and_efficiency(labels, predicted, len(others))
    mean = float(labels.mean())
    if len(others):
        mean += weight * float(as_shares(others).mean() - predicted.mean())
    mean = min(max(mean, 0.0), 1.0)
    effective = count * efficiency
    shrink = 1 + _Z**2 / effective
    middle = (mean + _Z**2 / (2 * effective)) / shrink
    half = _Z / shrink * sqrt(mean * (1 - mean) / effective + (_Z / (2 * effective)) ** 2)
    ends = [low + span * min(max(end, 0.0), 1.0) for end in (middle - half, middle + half)]
    return Estimate(value=low + span * mean, low=ends[0], high=ends[1])


def _weight_and_efficiency(labels: Floats, predictions: Floats, others: int) -> tuple[float, float]:
    """Return the weight of the predictions, and the efficiency of a label with them.

    The estimate is the mean label, plus the weight times how much higher the mean prediction of the
    other cases is than that of the labeled ones. Its variance is, for each label,

        var(label - weight * prediction) + weight**2 * var(prediction) * labels / others

    which the weight minimizes. The efficiency is the variance of passes and failures with the same
    mean, divided by this: the smaller the variance, the more a label counts.

    The residuals are the jackknife's, and a few pseudo-labels are at the ends of the scale: a
    sample without an error does not prove that there is none.
    """
    per_other = len(labels) / others if others else 0.0
    corners = np.array([(0, 0), (0, 1), (1, 0), (1, 1)], dtype=float)
    label = np.concatenate([labels, corners[:, 0]])
    prediction = np.concatenate([predictions, corners[:, 1]])
    counts = np.concatenate([np.ones(len(labels)), np.full(4, _PSEUDO_LABELS)])
    total = counts.sum()
    mean = counts @ label / total
    label_off, prediction_off = label - mean, prediction - counts @ prediction / total
    label_variance = float(counts @ label_off**2 / total)
    variance = float(counts @ prediction_off**2 / total)
    slope = float(counts @ (label_off * prediction_off) / total) / variance
    weight = min(max(slope / (1 + per_other), 0.0), 1.0) if others else 0.0
    leverage = np.minimum(1 / total + prediction_off**2 / (total * variance), _MAX_LEVERAGE)
    squares = ((label_off - weight * prediction_off) / (1 - leverage)) ** 2
    residual = float(counts @ squares / total) + weight**2 * variance * per_other
    return weight, float(mean * (1 - mean)) / min(residual, label_variance)


def more_labels(estimate: Estimate, labels: int, margin: float) -> int:
    """Return how many more labels narrow an interval to a margin on each side."""
    if estimate.value is None:
        return MIN_LABELS - labels
    ratio = (estimate.high - estimate.low) / 2 / margin
    return max(0, ceil(labels * (ratio * ratio - 1)))
