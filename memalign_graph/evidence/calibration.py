"""How often a decision of some score was right, by the experts' verdicts in memory."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from memalign_graph.evidence.logistic import Logistic, fit_logistic, probability
from memalign_graph.evidence.nearest import Floats
from memalign_graph.extras import needs_extra

MIN_CALIBRATING = 20
"""How many decisions that experts spoke on it takes to calibrate a confidence."""

_ISOTONIC_FROM = 1_000
"""From how many on the curve may rise in any shape: with fewer, isotonic regression fits chance.

Source: A. Niculescu-Mizil and R. Caruana, Predicting good probabilities with supervised learning,
2005.
"""

_FOLDS = 10


@dataclass(frozen=True)
class Rising:
    """A curve that never falls: straight between its points, level beyond them."""

    scores: Floats
    """Where the points are."""

    confidences: Floats
    """How high they are."""

    def at(self, scores: Floats) -> Floats:
        """Read the curve."""
        import numpy as np

        heights: Floats = np.interp(scores, self.scores, self.confidences)
        return heights


@dataclass(frozen=True)
class Calibration:
    """A fitted calibration."""

    cases: int
    """How many decisions it was fitted to."""

    curve: Logistic | Rising
    """What turns scores into confidences."""

    foretell: Callable[[], Floats]
    """Foretells each of them as if it had not been there."""

    @cached_property
    def left_out(self) -> Floats:
        """The confidence of each of them, out of fold."""
        return self.foretell()

    def confidences(self, scores: Floats) -> Floats:
        """Calibrate decisions."""
        if isinstance(self.curve, Logistic):
            return probability(self.curve.logits(scores))
        return self.curve.at(scores[:, 0])


def calibrate(scores: Floats, agreed: Floats) -> Calibration | None:
    """Fit how likely decisions are right, given their scores."""
    import numpy as np

    count = len(agreed)
    if count < MIN_CALIBRATING:
        return None
    if scores.shape[1] == 1 and count >= _ISOTONIC_FROM:
        return _isotonic(scores[:, 0], agreed)
    right = float(agreed.sum())
    targets = np.where(agreed > 0, (right + 1) / (right + 2), 1 / (count - right + 2))
    curve = fit_logistic(scores, targets, np.arange(count))
    return Calibration(count, curve, lambda: probability(curve.left_out))


def _isotonic(scores: Floats, agreed: Floats) -> Calibration:
    import numpy as np

    with needs_extra("evidence", "Calibrating a confidence"):
        from sklearn import config_context
        from sklearn.isotonic import isotonic_regression

    # Decisions of the same score are one point, as heavy as they are many.
    points, place = np.unique(scores, return_inverse=True)
    # Never quite 0 or 1, by the same rule as the targets of fewer decisions.
    least = 1 / (len(agreed) + 2)

    def fitted(rows: Any) -> Rising:
        counts = np.bincount(place[rows], minlength=len(points))
        hits = np.bincount(place[rows], agreed[rows], minlength=len(points))
        there = counts > 0
        with config_context(assume_finite=True, skip_parameter_validation=True):
            heights = isotonic_regression(
                hits[there] / counts[there],
                sample_weight=counts[there].astype(float),
                y_min=least,
                y_max=1 - least,
            )
        return Rising(points[there], heights)

    folds = np.arange(len(agreed)) % _FOLDS

    def foretell() -> Floats:
        left_out = np.empty(len(agreed))
        for fold in range(_FOLDS):
            left_out[folds == fold] = fitted(folds != fold).at(scores[folds == fold])
        return left_out

    return Calibration(len(agreed), fitted(folds >= 0), foretell)
