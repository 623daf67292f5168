"""How far decisions move from a baseline to the estimates: as far as it helped on past cases."""

from dataclasses import dataclass

import numpy as np

from memalign_graph.evidence.regression import Floats

_BEYOND_CHANCE = 1.645  # standard errors: a one-sided test at 95 %
_MAX_LOSS = 0.02
"""A class may lose this share of the range: with choices less than one case in thirty."""
_BLEND_PENALTY = 0.1  # of the ridge regression that blends baseline and estimate


@dataclass(frozen=True)
class LeaveOneOut:
    """Estimates of the cases in memory, each without itself and its near-duplicates."""

    rows: Floats
    """The index of the cases: those with a verdict if they are enough, otherwise all."""
    judge: float | None
    """The coefficient of the judge's verdict in an estimate; None if too few cases have one."""
    weight: float | None
    """The weight of the estimate beside the baseline; None if the verdict decides. The baseline is
    the judge's verdict; without verdicts the median, or the majority."""
    estimates: Floats
    """Ordered ones with the weight applied."""
    numbers: Floats
    errors: Floats
    baseline_errors: Floats


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


def judge_coefficient(moves: Floats, targets: Floats, span: float) -> tuple[float, Floats]:
    """Fit the coefficient of the judge's moves by ridge regression; also without each row."""
    hits, size = (moves * targets).sum(axis=1), (moves**2).sum(axis=1)
    without = (hits.sum() - hits) / (size.sum() - size + span**2)
    return max(float(hits.sum() / (size.sum() + span**2)), 0.0), np.maximum(without, 0.0)


def class_loses(gains: Floats, classes: Floats, groups: Floats, kinds: Floats) -> bool:
    """Return whether a class loses more than chance explains; arguments as of `is_better`."""
    return bool(gains.any()) and any(
        own.mean() < -max(_MAX_LOSS, _BEYOND_CHANCE * own.std() / len(own) ** 0.5)
        for own in _gains_by_class(gains, classes, groups, kinds)
    )


def is_better(gains: Floats, classes: Floats, groups: Floats, kinds: Floats) -> bool:
    """Return whether the mean gain over the classes is beyond chance, and no class loses.

    Args:
        gains: The reduction of the error on each case, as a share of the range.
        classes: The class of each case, by the experts' value.
        groups: Each case's group of near-duplicates.
        kinds: All classes of experts' values in memory, also those without a case here.
    """
    if not gains.any():
        return False
    by_class = _gains_by_class(gains, classes, groups, kinds)
    if any(own[:-2].mean() < -_MAX_LOSS for own in by_class if len(own) > 2):  # noqa: PLR2004
        return False
    mean = np.mean([own.mean() for own in by_class])
    error = sum(own.var() / len(own) for own in by_class) ** 0.5 / len(by_class)
    return bool(mean > _BEYOND_CHANCE * error)


def _gains_by_class(gains: Floats, classes: Floats, groups: Floats, kinds: Floats) -> list[Floats]:
    """Return the gains in each class; a group of near-duplicates has one gain, their mean.

    Each class gets one more usual gain and one usual loss: a few equal cases prove little.
    """
    usual = float(np.sqrt((gains[gains != 0] ** 2).mean()))  # for choices 1
    by_class = []
    for kind in kinds:
        _, group = np.unique(groups[classes == kind], return_inverse=True)
        means = np.bincount(group, gains[classes == kind]) / np.maximum(np.bincount(group), 1)
        by_class.append(np.append(means, (usual, -usual)))
    return by_class
