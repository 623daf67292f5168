"""Past decisions: how far to move from a baseline to estimates, and calibrated confidences.

Decisions move to the estimates as far as it helped on past cases. A confidence is how likely a
decision is right, by past decisions.

Source: J. Platt, Probabilistic outputs for support vector machines, 1999.
"""

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from memalign_graph.evidence.confidence import log_odds
from memalign_graph.evidence.regression import Floats

MIN_CALIBRATING = 20  # past decisions

_MIN_SLOPE = 1e-3
"""The curve rises, so that confidences keep the order of their scores: decisions that are ranked by
a fit to their own labels look better than they are."""

_BEYOND_CHANCE = 1.645  # standard errors: a one-sided test at 95 %
_MAX_LOSS = 0.02
"""A class may lose this share of the range: with choices less than one case in thirty."""
_BLEND_PENALTY = 0.1  # of the ridge regression that blends baseline and estimate
_MOVE_PENALTY = 0.1  # of the one for the judge's coefficient


def blend(baseline: Floats, estimates: Floats, weight: float) -> Floats:
    """Blend the baseline with estimates; unordered choices can't be blended."""
    if weight == 1 or estimates.shape[1] > 1:
        return estimates
    return baseline[:, None] + weight * (estimates - baseline[:, None])


def blend_weight(moves: Floats, targets: Floats, groups: Floats, *, pulled_to: int) -> float:
    """Fit the weight of the estimates beside a baseline by ridge regression, from 0 to 1.

    Moves (estimate minus baseline) and targets (truth minus baseline) are shares of the range. The
    penalty pulls the weight to 0 or 1. Each group of near-duplicates counts as one case.
    """
    _, index, counts = np.unique(groups, return_inverse=True, return_counts=True)
    each = 1 / counts[index]
    hits, size = (each * moves * targets).sum(), (each * moves**2).sum()
    return float(np.clip((hits + _BLEND_PENALTY * pulled_to) / (size + _BLEND_PENALTY), 0, 1))


def judge_coefficient(
    moves: Floats, targets: Floats, span: float, *, pulled_to: int
) -> tuple[float, Floats]:
    """Fit the coefficient of the judge's moves by ridge regression; also without each row.

    The penalty pulls it to 0 or 1.
    """
    penalty = _MOVE_PENALTY * span**2
    hits, size = (moves * targets).sum(axis=1), (moves**2).sum(axis=1)
    without = (hits.sum() - hits + penalty * pulled_to) / (size.sum() - size + penalty)
    fitted = (hits.sum() + penalty * pulled_to) / (size.sum() + penalty)
    return max(float(fitted), 0.0), np.maximum(without, 0.0)


def loses_no_class(gains: Floats, classes: Floats, groups: Floats, kinds: Floats) -> bool:
    """Return whether no class loses more than chance explains; arguments as of `is_better`."""
    return all(
        own.mean() >= -max(_MAX_LOSS, _BEYOND_CHANCE * own.std() / len(own) ** 0.5)
        for own in _gains_by_class(gains, classes, groups, kinds)
    )


def is_better(gains: Floats, classes: Floats, groups: Floats, kinds: Floats) -> bool:
    """Return whether the mean gain over the classes is beyond chance, and no class loses.

    A gain is the reduction of a case's error, as a share of the range. `kinds` are all classes of
    experts' values in memory, also those without a case here.
    """
    by_class = _gains_by_class(gains, classes, groups, kinds)
    # The last two gains of each class are added ones.
    if any(own[:-2].mean() < -_MAX_LOSS for own in by_class if len(own) > 2):  # noqa: PLR2004
        return False
    mean = np.mean([own.mean() for own in by_class])
    error = sum(own.var() / len(own) for own in by_class) ** 0.5 / len(by_class)
    return bool(mean > _BEYOND_CHANCE * error)


def _gains_by_class(gains: Floats, classes: Floats, groups: Floats, kinds: Floats) -> list[Floats]:
    """Return the gains in each class; a group of near-duplicates has one gain, their mean.

    Each class gets one more usual gain and one usual loss: a few equal cases prove little.
    """
    usual = float(np.sqrt((gains**2).sum() / max((gains != 0).sum(), 1)))  # for choices 1
    by_class = []
    for kind in kinds:
        _, group = np.unique(groups[classes == kind], return_inverse=True)
        means = np.bincount(group, gains[classes == kind]) / np.maximum(np.bincount(group), 1)
        by_class.append(np.append(means, (usual, -usual)))
    return by_class


class Calibration:
    """A rising logistic curve from the scores of decisions to how often they were right."""

    def __init__(
        self, scores: Floats, agreed: Floats, rows: Floats, classes: Sequence[str | None]
    ) -> None:
        """Fit the curve to decisions on cases with an expert's value.

        `rows` are the index of the cases in memory, and `classes` name the classes of the decided
        values; None if the decision says nothing of new cases.
        """
        self.scores, self.agreed, self.rows, self.classes = scores, agreed, rows, classes
        right = int(agreed.sum())
        targets = np.where(agreed, (right + 1) / (right + 2), 1 / (len(agreed) - right + 2))
        columns, penalty = np.stack((scores, np.ones_like(scores)), axis=1), np.diag([1.0, 1e-6])
        self._curve = np.zeros(2)
        for _ in range(50):
            fitted = self.confidences(scores)
            gradient = columns.T @ (fitted - targets) + penalty @ self._curve
            curvature = columns.T @ (columns * (fitted * (1 - fitted))[:, None]) + penalty
            # Steps are at most 1: where the curve is flat a full Newton step diverges.
            self._curve -= np.clip(np.linalg.solve(curvature, gradient), -1, 1)
        if self._curve[0] < _MIN_SLOPE:
            self._curve = np.array([_MIN_SLOPE, log_odds(targets.mean())])

    def confidences(self, scores: Floats) -> Floats:
        """Return the confidences for scores."""
        slope, intercept = self._curve
        return 1 / (1 + np.exp(-np.clip(slope * scores + intercept, -35, 35)))

    def by_class(self, groups: Floats) -> dict[str, list[tuple[float, float]]]:
        """Return the confidences of the decisions in each class, and the shares that agree.

        Each group of decisions counts as one, with its means.
        """
        decisions = np.stack((self.confidences(self.scores), self.agreed), axis=1)
        by_group: dict[tuple[str, int], list[Floats]] = defaultdict(list)
        for name, group, decision in zip(self.classes, groups, decisions, strict=True):
            if name is not None:
                by_group[name, int(group)].append(decision)
        by_class: dict[str, list[tuple[float, float]]] = defaultdict(list)
        for (name, _), alike in by_group.items():
            by_class[name].append(tuple(np.mean(alike, axis=0).tolist()))
        return by_class
