"""Statistics of the judgments that were drawn at random and that experts answered.

The pass rate: a judge's own mean is biased by its errors. The mean of a random sample with experts'
values is not, and the judge's values on all other cases reduce its variance, as far as judge and
experts correlate. The interval is Wilson's with the effective number of labels, because a normal
interval fails on rare values. A mean counts as a share: of all values with one mean, those at the
ends of the scale have the largest variance, and the smaller the variance, the more a label counts.
The variance is the jackknife's, with a few pseudo-labels at the ends of the scale: a sample without
an error does not prove that there is none.

Drift: whether agreement has fallen since the beginning, by a test that is valid after each answer.
Each answer is ranked among those so far, ties at random. While nothing changes, these ranks are
independent and uniform, for any agreement. The test bets that from some answer on
disagreement is more frequent than before. The capital of the bets is a martingale, which Ville's
inequality bounds at all times at once.

Sources: A. Angelopoulos, J. Duchi and T. Zrnic, PPI++: efficient prediction-powered inference,
2023. V. Vovk, Testing randomness online, Statistical Science, 2021 (conformal test martingales).
"""

from collections.abc import Sequence
from datetime import date
from itertools import product
from math import ceil, sqrt

import numpy as np
import numpy.typing as npt

from memalign_graph.identity import draw
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
    """
    low, high = bounds
    count, span = len(values), high - low
    if count < min_values:
        return Estimate(value=None, low=low, high=high)
    scaled = (np.array(values, dtype=float) - low) / span
    unlabeled = (np.array(others, dtype=float) - low) / span
    predicted = (np.array(predictions, dtype=float) - low) / span if len(others) else 0 * scaled
    weight, efficiency = _weight_and_efficiency(
        scaled, predicted, count / len(others) if len(others) else 0.0
    )
    mean = float(scaled.mean())
    if len(others):
        mean += weight * float(unlabeled.mean() - predicted.mean())
    mean = min(max(mean, 0.0), 1.0)
    effective = count * efficiency
    shrink = 1 + _Z**2 / effective
    middle = (mean + _Z**2 / (2 * effective)) / shrink
    half = _Z / shrink * sqrt(mean * (1 - mean) / effective + (_Z / (2 * effective)) ** 2)
    ends = [low + span * min(max(end, 0.0), 1.0) for end in (middle - half, middle + half)]
    return Estimate(value=low + span * mean, low=ends[0], high=ends[1])


def more_labels(estimate: Estimate, labels: int, margin: float) -> int:
    """Return how many more labels narrow an interval to a margin on each side."""
    if estimate.value is None:
        return MIN_LABELS - labels
    ratio = (estimate.high - estimate.low) / 2 / margin
    return max(0, ceil(labels * (ratio * ratio - 1)))


def _weight_and_efficiency(
    values: Floats, predictions: Floats, per_other: float
) -> tuple[float, float]:
    """Return the weight of the predictions, and the efficiency of a label with them.

    That is how many passes or failures without predictions a label is worth. `per_other` is the
    number of values for each other case; 0 if there are no others.
    """
    corners = np.array([(0, 0), (0, 1), (1, 0), (1, 1)], dtype=float)
    y = np.concatenate([values, corners[:, 0]])
    f = np.concatenate([predictions, corners[:, 1]])
    weights = np.concatenate([np.ones(len(values)), np.full(4, _PSEUDO_LABELS)])
    total = weights.sum()
    mean = weights @ y / total
    y_off, f_off = y - mean, f - weights @ f / total
    variance = float(weights @ y_off**2 / total)
    spread = float(weights @ f_off**2 / total)
    slope = float(weights @ (y_off * f_off) / total) / spread
    tuned = min(max(slope / (1 + per_other), 0.0), 1.0) if per_other else 0.0
    leverage = np.minimum(1 / total + f_off**2 / (total * spread), _MAX_LEVERAGE)
    jackknifed = ((y_off - tuned * f_off) / (1 - leverage)) ** 2
    residual = float(weights @ jackknifed / total) + tuned**2 * spread * per_other
    return tuned, float(mean * (1 - mean)) / min(residual, variance)


DRIFT_LEVEL = 0.05
"""The chance of a false alarm at any time."""

_BEFORE = (0.02, 0.04, 0.07, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5)  # disagreement that is bet on
_INCREASE = (0.04, 0.08, 0.15, 0.25, 0.4)  # its growth
_EARLY = 100  # half the stake is on a change within so many answers


class Drift(FrozenModel):
    """Whether judge and experts agree less often than at the beginning, on a random sample."""

    answers: int
    """The number of judgments in the sample with an expert's value."""

    evidence: float
    """The highest capital of the bets on a fall, with a stake of 1. From 20 on the agreement has
    fallen, with false alarms in at most 5 % of all streams, however often one looks."""

    has_fallen: bool
    """Whether agreement has fallen."""

    before: float | None = None
    """The agreement up to the fall; None without one."""

    after: float | None = None
    """The agreement from then until the evidence is highest."""

    since: date | None = None
    """The day of the first judgment after the most likely time of the fall."""


def find_drift(answers: Sequence[tuple[str, date, bool]]) -> Drift:
    """Test answers in their order: each has an id, its day, and whether the judge agreed."""
    agreed = np.array([agrees for *_, agrees in answers], dtype=bool)
    capital = bets(agreed, [draw(f"drift {key}") for key, *_ in answers])
    evidence = max(capital, default=1.0)
    drift = Drift(answers=len(answers), evidence=evidence, has_fallen=evidence >= 1 / DRIFT_LEVEL)
    if not drift.has_fallen:
        return drift
    # Afterwards the agreement may have risen again.
    agreed = agreed[: capital.index(evidence) + 1]
    ahead = np.arange(1, len(agreed))
    right = np.cumsum(agreed)[:-1]
    shares = np.array([right / ahead, (agreed.sum() - right) / (len(agreed) - ahead)])
    # The split with the most likely falling shares.
    gain = ahead * _log_likelihood(shares[0]) + (len(agreed) - ahead) * _log_likelihood(shares[1])
    split = int(np.argmax(np.where(shares[0] > shares[1], gain, -np.inf)))
    before, after = shares[:, split].tolist()
    since = answers[split + 1][1]
    return drift.model_copy(update={"before": before, "after": after, "since": since})


def bets(agreed: Sequence[bool] | np.ndarray, draws: Sequence[float]) -> list[float]:
    """Return the capital of the bets on a fall after each answer."""
    before, more = np.array(list(product(_BEFORE, _INCREASE))).T
    after = before + more
    won, lost = after / before, (1 - after) / (1 - before)
    capital, wrong, worth = np.zeros(len(before)), 0, list[float]()
    for at, (is_right, tie) in enumerate(zip(agreed, draws, strict=True), 1):
        wrong += not is_right
        rank = (wrong + tie * (at - wrong) if is_right else tie * wrong) / at
        stake = _EARLY / ((_EARLY + at - 1) * (_EARLY + at))
        capital = (capital + stake) * np.where(rank <= before, won, lost)
        worth.append(float(capital.mean()) + _EARLY / (_EARLY + at))
    return worth


def _log_likelihood(shares: np.ndarray) -> np.ndarray:
    """Return the log-likelihood per answer of shares that are the observed ones."""
    inner = np.clip(shares, 1e-9, 1 - 1e-9)
    result: np.ndarray = inner * np.log(inner) + (1 - inner) * np.log(1 - inner)
    return result
