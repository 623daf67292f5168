"""What the answers to checks say of a case's value, with a small model.

A small model answers some questions with yes too often and others too seldom, so that one half is
no threshold. Its answers on cases that experts valued are anchors: the cases that a guideline comes
from break it, and cases that experts accepted meet it. With one comment there is one anchor. Cases
with similar answers vote on the value, too.
"""

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from math import exp, nan
from statistics import fmean
from typing import Any

from memalign_graph.agreement import consensus, value_or_none
from memalign_graph.evidence.verdicts import LEAST_SPREAD, log_odds
from memalign_graph.memory.checks import check_answers
from memalign_graph.memory.view import MemoryView
from memalign_graph.prompts.judge import nearest_value
from memalign_graph.scales import Boolean, Categorical, Numeric, Scale, Value
from memalign_graph.types import Check, Guideline, Probabilities

_USUAL_MET = 1.0
"""Log-odds of yes for cases that meet a guideline, with the embedded model: the mean over cases of
the development scenarios is 0.9."""
_LEAST_GAP = 0.35
"""By how much they lie above those that break it at least; with it, and thresholds at 0.3 of the
gap, 88 % of the breaking and 82 % of the meeting cases of the development scenarios were told."""
_GAP_CASES = 2.0  # as many accepted cases that gap counts for
_FIRST_SHARE, _LAST_SHARE = 0.3, 0.5
"""The threshold's share of the gap: with the anchor alone, and with many accepted cases."""
_SLOPE = 3.0  # of the log-odds that a check is met
_MAX_ODDS = 3.0
_JUDGE_WEIGHT = 0.5  # of the judge's own log-odds beside those of the checks
_SURE = 0.9  # of the value that a failed check leads to


@dataclass(frozen=True)
class AnchoredCheck:
    """A check's answer, held against its answers on cases that experts valued."""

    check: Check  # held by the threshold
    question: str
    odds: float  # log-odds that it is met
    broken_values: list[Value]  # the experts' values of the cases that break it
    anchor: float | None  # the mean probability of yes on these
    met_values: list[Value]  # the experts' values of accepted cases that were asked it


def share_of_scale(value: Value | None, scale: Scale) -> float | None:
    """Return how high a value stands, from 0 to 1; None where a scale has no better or worse."""
    if value is None:
        return None
    if isinstance(scale, Boolean):
        return float(bool(value))
    if isinstance(scale, Numeric):
        return (float(value) - scale.minimum) / (scale.maximum - scale.minimum)
    if isinstance(scale, Categorical) and scale.ordered:
        return scale.choices.index(str(value)) / max(len(scale.choices) - 1, 1)
    return None


def _consensus_values(
    view: MemoryView, scale: Scale, excluded_keys: Container[str]
) -> dict[str, Value]:
    """Return the experts' value of each example, newest first, without excluded vector keys."""
    values: dict[str, list[Value]] = {}
    for row in sorted(view.rows(), key=lambda row: (row.given_at, row.id), reverse=True):
        value = value_or_none(row.value, scale)
        if value is not None and row.vector_key not in excluded_keys:
            values.setdefault(row.example_id, []).insert(0, value)
    return {example_id: consensus(labels, scale) for example_id, labels in values.items()}


def anchor_checks(
    view: MemoryView,
    scale: Scale,
    checks: Sequence[Check],
    guidelines: Mapping[str, Guideline],
    excluded_keys: Container[str],
) -> list[AnchoredCheck]:
    """Compare answers with those on cases in memory, without the cases of excluded vector keys."""
    answers, values = check_answers(view), _consensus_values(view, scale, excluded_keys)
    example_ids = {row.id: row.example_id for row in view.rows()}
    anchored = []
    for check in checks:
        if check.probability is not None:
            guideline = guidelines[check.guideline_id]
            sources = {example_ids.get(key) for key in guideline.episode_ids}
            asked = {key: p for key, p in answers.get(check.asked, {}).items() if key in values}
            question = guideline.question or ""
            anchored.append(_anchored(check, question, scale, values, sources, asked))
    return anchored


def _anchored(
    check: Check,
    question: str,
    scale: Scale,
    values: Mapping[str, Value],
    sources: Container[str | None],
    asked: Mapping[str, float],
) -> AnchoredCheck:
    levels = {key: share_of_scale(values[key], scale) for key in asked}
    broken = [key for key, level in levels.items() if key in sources and level != 1]
    met = [key for key, level in levels.items() if level == 1]
    met_odds = [log_odds(asked[key]) for key in met]
    low = fmean([log_odds(asked[key]) for key in broken]) if broken else None
    if low is None and met:
        low = fmean(met_odds) - _USUAL_MET
    threshold = 0.0
    if low is not None:
        usual = _GAP_CASES * max(low + _LEAST_GAP, _USUAL_MET)
        gap = max((usual + sum(met_odds)) / (_GAP_CASES + len(met)) - low, 0.0)
        known = len(met) / (len(met) + 2 * _GAP_CASES)
        threshold = low + gap * (_FIRST_SHARE + (_LAST_SHARE - _FIRST_SHARE) * known)
    odds = _SLOPE * (log_odds(check.probability or 0.0) - threshold)
    return AnchoredCheck(
        check=check.model_copy(update={"held": odds > 0}),
        question=question,
        odds=min(max(odds, -_MAX_ODDS), _MAX_ODDS),
        broken_values=[values[key] for key in broken],
        anchor=fmean([asked[key] for key in broken]) if broken else None,
        met_values=[values[key] for key in met],
    )


def add_checks(
    judged: Probabilities,
    anchored: Sequence[AnchoredCheck],
    values: Sequence[Value],
    scale: Scale,
) -> Probabilities:
    """Add the log-odds of the check that is met least to half of those of the judge itself."""
    if not anchored or share_of_scale(values[0], scale) is None:
        return judged
    worst = min(anchored, key=lambda check: check.odds)
    met = 1 / (1 + exp(-worst.odds))
    if isinstance(scale, Boolean):
        where_broken, where_met = {"false": 1.0, "true": 0.0}, {"false": 0.0, "true": 1.0}
    else:
        where_broken = _spread(worst.broken_values or values[:1], values, scale)
        # Without accepted cases nothing is known of the value of a case that meets all.
        where_met = _spread(worst.met_values, values, scale)
    by_check = {name: met * where_met[name] + (1 - met) * where_broken[name] for name in judged}
    return combine_probabilities(by_check, judged, _JUDGE_WEIGHT)


def _spread(known: Sequence[Value], values: Sequence[Value], scale: Scale) -> dict[str, float]:
    """Return the shares of known values, with some for every value; even ones where none is."""
    sure = _SURE if known else 0.0
    shares = dict.fromkeys(map(scale.render, values), (1 - sure) / len(values))
    for value in known:
        shares[scale.render(nearest_value(values, value))] += sure / len(known)
    return shares


def combine_probabilities(
    probabilities: Probabilities, others: Probabilities, weight: float
) -> Probabilities:
    """Multiply probabilities with others to the power of their weight."""
    product = {name: share * others[name] ** weight for name, share in probabilities.items()}
    total = sum(product.values()) or 1.0
    return {name: share / total for name, share in product.items()}


_WIDTH = 0.5  # of a case's reach in a vote, in squares of the answers' spread
_HALF_WEIGHT_CASES = 8  # so many cases halve the weight of a vote
_WEIGHTS = (0.0, 0.25, 0.5, 0.75, 1.0)
_MAX_VOTERS = 200  # the newest cases
_PRIOR = 0.05  # the share that each value has from no case


def check_vote(
    view: MemoryView,
    scale: Scale,
    case_probabilities: Mapping[str, float],
    values: Sequence[Value],
    excluded_keys: Container[str],
) -> tuple[Probabilities, float] | None:
    """Return the share of each value among cases with similar checks, and the weight of that.

    `case_probabilities` has how likely the case meets each guideline, by `asked_id`. Cases count by
    how near they are in the log-odds of the checks. The weight is learned by leave-one-out, and
    shrunk where cases are few. None without a case that was asked the same.
    """
    import numpy as np

    answers = [check_answers(view).get(asked, {}) for asked in case_probabilities]
    consensus = _consensus_values(view, scale, excluded_keys).items()
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
    """Choose how much a vote counts by what it says of each case without that case.

    Each value that several cases have counts alike, however rare it is; a value that only one case
    has can't be known without that case.
    """
    import numpy as np

    kinds, counts = np.unique(chosen, return_counts=True)
    repeated = kinds[counts > 1] if (counts > 1).any() else kinds

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
