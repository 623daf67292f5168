"""The value of a case, from a small model's answers to its checks.

The check that is met least counts, and cases with similar answers vote.
"""

from collections.abc import Container, Mapping, Sequence
from itertools import islice
from math import exp, nan
from typing import Any

from memalign_graph.evidence.check_anchors import (
    AnchoredCheck,
    consensus_values,
    share_of_scale,
)
from memalign_graph.evidence.verdicts import LEAST_SPREAD, log_odds
from memalign_graph.memory.checks import check_answers
from memalign_graph.memory.view import MemoryView
from memalign_graph.prompts.judge import nearest_value
from memalign_graph.scales import Boolean, Scale, Value
from memalign_graph.types import Probabilities

_JUDGE_WEIGHT = 0.5  # of the judge's own log-odds; the worst check has weight 1 at most
_SURE = 0.9  # probability of the values seen where a check failed, or where all are met


def add_checks(
    judged: Probabilities,
    anchored: Sequence[AnchoredCheck],
    values: Sequence[Value],
    scale: Scale,
) -> Probabilities:
    """Combine the judge's own probabilities with those of the check that is met least."""
    if not anchored or share_of_scale(values[0], scale) is None:
        return judged
    worst = min(anchored, key=lambda check: check.weight * check.odds)
    met = 1 / (1 + exp(-worst.odds))
    if isinstance(scale, Boolean):
        where_broken, where_met = {"false": 1.0, "true": 0.0}, {"false": 0.0, "true": 1.0}
    else:
        where_broken = _spread(worst.broken_values or values[:1], values, scale)
        # Without accepted cases, the value of a case that meets all checks is unknown.
        where_met = _spread(worst.met_values, values, scale)
    by_check = {
        name: (met * where_met[name] + (1 - met) * where_broken[name]) ** worst.weight
        for name in judged
    }
    return combine_probabilities(by_check, judged, _JUDGE_WEIGHT)


def _spread(known: Sequence[Value], values: Sequence[Value], scale: Scale) -> dict[str, float]:
    """Return the known values' distribution, smoothed over all values; uniform without any."""
    sure = _SURE if known else 0.0
    shares = dict.fromkeys(map(scale.render, values), (1 - sure) / len(values))
    for value in known:
        shares[scale.render(nearest_value(values, value))] += sure / len(known)
    return shares


def combine_probabilities(
    probabilities: Probabilities, others: Probabilities, weight: float
) -> Probabilities:
    """Multiply probabilities by others to the power of `weight`, and normalize."""
    product = {name: share * others[name] ** weight for name, share in probabilities.items()}
    total = sum(product.values()) or 1.0
    return {name: share / total for name, share in product.items()}


_WIDTH = 0.5  # of the kernel, in squared standard deviations of the answers
_HALF_WEIGHT_CASES = 8  # number of cases at which a vote has half of its weight
_MAX_VOTERS = 200  # the newest cases
_WEIGHTS = (0.0, 0.25, 0.5, 0.75, 1.0)  # of the vote
_MIN_KINDS = 2  # values that more than one case has
_PRIOR = 0.05  # smoothing of the votes: share of all votes that each value gets in addition


def check_vote(
    view: MemoryView,
    scale: Scale,
    case_probabilities: Mapping[str, float],
    values: Sequence[Value],
    excluded_keys: Container[str],
) -> tuple[Probabilities, float] | None:
    """Return the distribution of values among cases with similar answers, and its weight.

    `case_probabilities` maps an `asked_id` to the probability that the case meets the guideline.
    Cases are weighted by a Gaussian kernel on the log-odds of the checks. The weight of the vote is
    chosen by leave-one-out and shrunk with few cases. None if no case was asked these checks.
    """
    import numpy as np

    answers = [check_answers(view).get(asked, {}) for asked in case_probabilities]
    consensus = consensus_values(view, scale, excluded_keys).items()
    asked_cases = (pair for pair in consensus if any(pair[0] in by_id for by_id in answers))
    cases = dict(islice(asked_cases, _MAX_VOTERS))
    if not cases:
        return None
    table = [list(case_probabilities.values())]
    table += [[by_id.get(key, nan) for by_id in answers] for key in cases]
    odds = np.array([list(map(log_odds, row)) for row in table])
    odds = odds[:, ~np.isnan(odds[1:]).all(axis=0)]
    odds /= np.nanstd(odds[1:], axis=0) + LEAST_SPREAD
    squares = (odds[:, None] - odds[None]) ** 2
    compared = ~np.isnan(squares)
    distances = np.where(compared, squares, 0).sum(axis=2) / np.maximum(compared.sum(axis=2), 1)
    weights = np.where(compared.any(axis=2), np.exp(-distances / _WIDTH), 0)
    np.fill_diagonal(weights, 0)
    chosen = np.array([values.index(nearest_value(values, value)) for value in cases.values()])
    votes = weights[:, 1:] @ np.eye(len(values))[chosen]
    votes += _PRIOR * votes.sum(axis=1, keepdims=True) + 1e-6
    shares = votes / votes.sum(axis=1, keepdims=True)
    weight = _left_out_weight(shares[1:], chosen) * len(cases) / (len(cases) + _HALF_WEIGHT_CASES)
    return dict(zip(map(scale.render, values), shares[0].tolist(), strict=True)), weight


def _left_out_weight(shares: Any, chosen: Any) -> float:
    """Choose the weight with the least leave-one-out log loss, averaged over the values.

    Rare values count as much as frequent ones. A value of a single case is left out, because no
    other case can predict it. A vote between fewer than two values would always win: its weight is
    0.
    """
    import numpy as np

    kinds, counts = np.unique(chosen, return_counts=True)
    repeated = kinds[counts > 1]
    if len(repeated) < _MIN_KINDS:
        return 0.0

    def loss(weight: float) -> float:
        powers = shares**weight
        right = powers[np.arange(len(chosen)), chosen] / powers.sum(axis=1)
        return float(np.mean([-np.log(right[chosen == kind]).mean() for kind in repeated]))

    return min(_WEIGHTS, key=loss)


def explain_checks(anchored: Sequence[AnchoredCheck]) -> str:
    """Name the checks that failed, with their questions, or say that all are met."""
    failed = [item for item in anchored if not item.check.held]
    if not failed:
        count = len(anchored)
        return "The only check is met." if count == 1 else f"All {count} checks are met."
    lines = "; ".join(map(_failed_check, failed))
    return f"{len(failed)} of {len(anchored)} checks failed: {lines}."


def _failed_check(item: AnchoredCheck) -> str:
    line = f'"{item.question}" (yes with probability {item.check.probability:.2f}'
    if item.anchor is None:
        return f"{line})"
    return f"{line}; {item.anchor:.2f} on the case that it was learned from)"
