"""How much a check counts, by the cases in memory that meet and fail it.

A check counts in full until cases that experts accepted say otherwise, and then as far as it tells
these from rejected ones: a useless check must not hurt. With few rejected cases, failures of a
check are safe to use if hardly any accepted case fails it. That a case meets it is not, because
rejected cases may have other faults.
"""

from collections.abc import Collection
from math import log
from typing import NamedTuple

MAX_ODDS = 3.0
"""The largest log-odds of an answer. A check whose log ratio of rates is as large has weight 1."""
MIN_WEIGHT = 0.1
"""A check whose failures have this weight or less is not used."""

_ADDED_CASES = 2  # of each kind, so that no rate is 0 or 1


class CheckWeights(NamedTuple):
    """The weights of a check's log-odds, from 0 to 1."""

    failed: float
    met: float

    def apply(self, odds: float) -> float:
        return odds * (self.met if odds > 0 else self.failed)


def weigh_check(accepted: Collection[float], rejected: Collection[float]) -> CheckWeights:
    """Weigh a check by the log-odds that cases meet it.

    Args:
        accepted: Of the cases that experts accepted.
        rejected: Of the others, without those that set the threshold.
    """
    accepted_failing = sum(odds <= 0 for odds in accepted)
    rejected_failing = sum(odds <= 0 for odds in rejected)
    accepted_rate = (accepted_failing + 1) / (len(accepted) + _ADDED_CASES)
    rejected_rate = (rejected_failing + 1) / (len(rejected) + _ADDED_CASES)
    # Both added cases meet the check here, since they may have another fault.
    rejected_meeting = 1 - rejected_failing / (len(rejected) + _ADDED_CASES)
    return CheckWeights(
        _weight(rejected_rate / accepted_rate, 0.5**accepted_failing),
        _weight((1 - accepted_rate) / rejected_meeting, 0.5 ** max(len(accepted) - 1, 0)),
    )


def _weight(likelihood_ratio: float, initial_share: float) -> float:
    """Average the initial weight of 1 and the weight that cases in memory show."""
    shown = min(max(log(likelihood_ratio) / MAX_ODDS, 0.0), 1.0)
    return initial_share + (1 - initial_share) * shown


def worst_check_shift(worst: Collection[float]) -> float:
    """Return what to add to weighted log-odds, by the check that each accepted case meets least.

    Of many checks an accepted case fails some by chance. The shift brings the mean up to 0.
    """
    return max(-sum(worst), 0.0) / (len(worst) + _ADDED_CASES)
