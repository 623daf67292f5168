"""Whether one way to decide is better than another: on past cases, each class counting alike."""

from typing import Any

import numpy as np

Floats = Any
"""An array: numpy's types say little of what arithmetic makes of them."""

COUNTED = 30
"""The newest verdicts that are compared: the judge learns, and its old verdicts are another's."""

_LOSS = 0.02
"""What a class may lose, as a share of the range: of choices less than one case in thirty."""

BEYOND_CHANCE = 1.645  # standard errors: a one-sided test at 95 %


def loses(gains: Floats, classes: Floats, groups: Floats, kinds: Floats) -> bool:
    """Tell whether a class loses more than chance explains; arguments as of `is_better`."""
    if not gains.any():
        return False
    usual = float(np.sqrt((gains[gains != 0] ** 2).mean()))
    for kind in kinds:
        own = np.append(_by_group(gains[classes == kind], groups[classes == kind]), (usual, -usual))
        if own.mean() < -max(_LOSS, BEYOND_CHANCE * own.std() / len(own) ** 0.5):
            return True
    return False


def _by_group(gains: Floats, groups: Floats) -> Floats:
    """Return the mean gain of each group."""
    _, group = np.unique(groups, return_inverse=True)
    return np.bincount(group, gains) / np.maximum(np.bincount(group), 1)


def is_better(gains: Floats, classes: Floats, groups: Floats, kinds: Floats) -> bool:
    """Tell whether gains are beyond chance, each class counting alike, and no class loses.

    The gains of near-duplicates, a group, count once. Each class has two more cases, one won and
    one lost by the usual gain: of few cases little is known, even where all are alike.

    Args:
        gains: By how much the error on each case is less, as a share of the range.
        classes: The class of each case, by the experts' value.
        groups: The number of the group that each case is in.
        kinds: The classes that experts' values in memory have, also without a case here.
    """
    if not gains.any():
        return False
    usual = float(np.sqrt((gains[gains != 0] ** 2).mean()))  # of choices 1
    mean = square = 0.0
    for kind in kinds:
        own = _by_group(gains[classes == kind], groups[classes == kind])
        if len(own) and own.mean() < -_LOSS:
            return False
        own = np.append(own, (usual, -usual))
        mean += own.mean() / len(kinds)
        square += own.var() / len(own) / len(kinds) ** 2
    return bool(mean > BEYOND_CHANCE * square**0.5)
