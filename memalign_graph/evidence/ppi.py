"""Estimate the mean of experts' values from few of them and a judge's values on many cases.

A judge's own mean is biased by its errors. The mean of a random sample with experts' values is
not, and the judge's values on all other cases reduce its variance, as far as judge and experts
correlate.

Source: A. Angelopoulos, J. Duchi and T. Zrnic, PPI++: efficient prediction-powered inference, 2023.
The interval of a share is Wilson's with the effective number of labels, because a normal interval
fails on rare values. The variance is the jackknife's, with a few pseudo-labels at the ends of the
scale: a sample without an error does not prove that there is none.
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
_PSEUDO_LABELS = {True: 0.35, False: 0.03}  # for each pair of ends, of a share and of a mean
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
    is_share: bool = True,
    min_values: int = 1,
) -> Estimate:
    """Estimate a mean from values, the predictions of the same cases, and those of others.

    All values are within the bounds. A share is the mean of values that are 0 or 1.
    """
    low, high = bounds
    count, span = len(values), high - low
    if count < min_values:
        return Estimate(value=None, low=low, high=high)
    scaled = (np.array(values, dtype=float) - low) / span
    unlabeled = (np.array(others, dtype=float) - low) / span
    predicted = (np.array(predictions, dtype=float) - low) / span if len(others) else 0 * scaled
    weight, variance, residual = _tuned(
        scaled, predicted, count / max(len(others), 1), _PSEUDO_LABELS[is_share]
    )
    mean = float(scaled.mean())
    if len(others):
        mean += weight * float(unlabeled.mean() - predicted.mean())
    else:
        residual = variance
    effective = count * max(variance / residual, 1.0) if is_share else count
    return _interval(mean, effective, residual, bounds, is_share=is_share)


def more_labels(estimate: Estimate, labels: int, margin: float) -> int:
    """Return how many more labels narrow an interval to a margin on each side."""
    if estimate.value is None:
        return MIN_LABELS - labels
    ratio = (estimate.high - estimate.low) / 2 / margin
    return max(0, ceil(labels * (ratio * ratio - 1)))


def _tuned(
    values: Floats, predictions: Floats, share: float, pseudo: float
) -> tuple[float, float, float]:
    """Return the weight of the predictions, the values' variance, and the residual variance.

    `share` is the number of values for each other case.
    """
    corners = np.array([(0, 0), (0, 1), (1, 0), (1, 1)], dtype=float)
    y = np.concatenate([values, corners[:, 0]])
    f = np.concatenate([predictions, corners[:, 1]])
    weights = np.concatenate([np.ones(len(values)), np.full(4, pseudo)])
    total = weights.sum()
    y_off, f_off = y - weights @ y / total, f - weights @ f / total
    spread = float(weights @ f_off**2 / total)
    variance = float(weights @ y_off**2 / total)
    if not spread:
        return 0.0, variance, variance
    slope = float(weights @ (y_off * f_off) / total) / spread
    tuned = min(max(slope / (1 + share), 0.0), 1.0)
    leverage = np.minimum(1 / total + f_off**2 / (total * spread), _MAX_LEVERAGE)
    jackknifed = ((y_off - tuned * f_off) / (1 - leverage)) ** 2
    return tuned, variance, float(weights @ jackknifed / total) + tuned**2 * spread * share


def _interval(
    mean: float, count: float, variance: float, bounds: tuple[float, float], *, is_share: bool
) -> Estimate:
    low, high = bounds
    mean = min(max(mean, 0.0), 1.0)
    if is_share:
        shrink = 1 + _Z**2 / count
        middle = (mean + _Z**2 / (2 * count)) / shrink
        half = _Z / shrink * sqrt(mean * (1 - mean) / count + (_Z / (2 * count)) ** 2)
    else:
        middle, degrees = mean, max(count - 1, 1)
        # Student's quantile, by the first term of its expansion.
        half = (_Z + (_Z**3 + _Z) / (4 * degrees)) * sqrt(variance / degrees)
    ends = [low + (high - low) * min(max(end, 0.0), 1.0) for end in (middle - half, middle + half)]
    return Estimate(value=low + (high - low) * mean, low=ends[0], high=ends[1])
