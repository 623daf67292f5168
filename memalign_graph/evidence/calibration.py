"""Calibrated confidences: how likely a decision is right, by past decisions.

Source: J. Platt, Probabilistic outputs for support vector machines, 1999.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from memalign_graph.evidence.regression import Floats
from memalign_graph.evidence.verdicts import log_odds
from memalign_graph.scales import Value

MIN_CALIBRATING = 20  # past decisions

_MIN_SLOPE = 1e-3
"""The curve rises, so that confidences keep the order of their scores: decisions that are ranked by
a fit to their own labels look better than they are."""


@dataclass(frozen=True)
class Calibration:
    """A rising logistic curve from the scores of decisions to how often they were right."""

    scores: Floats
    agreed: Floats
    rows: Floats
    """The index of the decided cases in memory."""
    values: Sequence[Value]
    """The decided values."""
    slope: float
    intercept: float

    @classmethod
    def fitted(
        cls, scores: Floats, agreed: Floats, rows: Floats, values: Sequence[Value]
    ) -> "Calibration":
        """Fit the curve to decisions on cases with an expert's value."""
        right = int(agreed.sum())
        targets = np.where(agreed, (right + 1) / (right + 2), 1 / (len(agreed) - right + 2))
        columns, penalty = np.stack((scores, np.ones_like(scores)), axis=1), np.diag([1.0, 1e-6])
        curve = np.zeros(2)
        for _ in range(50):
            fitted = _sigmoid(columns @ curve)
            gradient = columns.T @ (fitted - targets) + penalty @ curve
            curvature = columns.T @ (columns * (fitted * (1 - fitted))[:, None]) + penalty
            # Steps are at most 1: where the curve is flat a full Newton step diverges.
            curve = curve - np.clip(np.linalg.solve(curvature, gradient), -1, 1)
        if curve[0] < _MIN_SLOPE:
            curve = np.array([_MIN_SLOPE, log_odds(targets.mean())])
        slope, intercept = curve.tolist()
        return cls(scores, agreed, rows, values, slope, intercept)

    def confidences(self, scores: Floats) -> Floats:
        """Return the confidences for scores."""
        return _sigmoid(self.slope * scores + self.intercept)

    @property
    def decisions(self) -> list[tuple[float, bool]]:
        """Each decision's confidence, and whether it agrees with the experts."""
        confidences = self.confidences(self.scores).tolist()
        return list(zip(confidences, self.agreed.tolist(), strict=True))


def _sigmoid(logits: Floats) -> Floats:
    return 1 / (1 + np.exp(-np.clip(logits, -35, 35)))
