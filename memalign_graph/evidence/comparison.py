"""How far decisions go from a baseline to estimates: as far as past cases show that it helps."""

from dataclasses import dataclass

import numpy as np

from memalign_graph.evidence.regression import Floats

_BEYOND_CHANCE = 1.645  # standard errors: a one-sided test at 95 %
_MAX_LOSS = 0.02
"""What a class may lose, as a share of the range: of choices less than one case in thirty."""
_BLEND_PENALTY = 0.1
"""Of the ridge regression that blends verdict and estimate, in squares of the range."""


@dataclass(frozen=True)
class LeaveOneOut:
    """What the evidence says of the cases in memory, each left out with its near-duplicates."""

    rows: Floats
    """The cases with a verdict where they are enough, otherwise all."""
    judge: float | None
    """How far the verdict moves an estimate; None where too few cases have one."""
    weight: float | None
    """How far a decision goes from the baseline to the estimate; None where the verdict decides.
    The baseline is the judge's verdict; without verdicts the median, or the majority."""
    estimates: Floats
    """With the weight applied."""
    numbers: Floats
    errors: Floats
    baseline_errors: Floats


def blend(baseline: Floats, estimates: Floats, weight: float) -> Floats:
    """Go from the baseline some of the way to estimates; of choices there is no way between."""
    if weight == 1 or estimates.shape[1] > 1:
        return estimates
    return baseline[:, None] + weight * (estimates - baseline[:, None])


def blend_weight(moves: Floats, targets: Floats, groups: Floats, *, pulled_to: int) -> float:
    """Fit by ridge regression how far to go from a baseline to estimates, from 0 to 1.

    Moves and targets are shares of the range. The penalty pulls the weight to 0, the baseline, or
    to 1, the estimates. Near-duplicates, a group, count as one case.
    """
    _, index, counts = np.unique(groups, return_inverse=True, return_counts=True)
    each = 1 / counts[index]
    hits, size = (each * moves * targets).sum(), (each * moves**2).sum()
    return float(np.clip((hits + _BLEND_PENALTY * pulled_to) / (size + _BLEND_PENALTY), 0, 1))


def judge_coefficient(moves: Floats, targets: Floats, span: float) -> tuple[float, Floats]:
    """Fit by ridge regression how far the judge's moves go; also for each row without it."""
    hits, size = (moves * targets).sum(axis=1), (moves**2).sum(axis=1)
    without = (hits.sum() - hits) / (size.sum() - size + span**2)
    return max(float(hits.sum() / (size.sum() + span**2)), 0.0), np.maximum(without, 0.0)


def class_loses(gains: Floats, classes: Floats, groups: Floats, kinds: Floats) -> bool:
    """Tell whether a class loses more than chance explains; arguments as of `is_better`."""
    return bool(gains.any()) and any(
        own.mean() < -max(_MAX_LOSS, _BEYOND_CHANCE * own.std() / len(own) ** 0.5)
        for own in _gains_by_class(gains, classes, groups, kinds)
    )


def is_better(gains: Floats, classes: Floats, groups: Floats, kinds: Floats) -> bool:
    """Tell whether gains are beyond chance, each class counting alike, and no class loses.

    Args:
        gains: By how much the error on each case is less, as a share of the range.
        classes: The class of each case, by the experts' value.
        groups: The number of the group of near-duplicates that each case is in.
        kinds: The classes that experts' values in memory have, also without a case here.
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
    """Return the gains in each class; near-duplicates, a group, have one gain, their mean.

    Each class has two more: the usual gain, and the usual loss. Of few cases little is known, even
    where all are alike.
    """
    usual = float(np.sqrt((gains[gains != 0] ** 2).mean()))  # of choices 1
    by_class = []
    for kind in kinds:
        _, group = np.unique(groups[classes == kind], return_inverse=True)
        means = np.bincount(group, gains[classes == kind]) / np.maximum(np.bincount(group), 1)
        by_class.append(np.append(means, (usual, -usual)))
    return by_class
