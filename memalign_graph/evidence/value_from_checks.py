"""The value of a case, from a small model's answers to its checks.

A small model answers some questions with yes too often and others too seldom. So each check has its
own threshold, set by the answers on cases in memory: the cases that the guideline comes from break
it, and cases that experts accepted meet it. The check that is met least counts, and cases with
similar answers vote.

A check counts in full until cases that experts accepted say otherwise, and then as far as it tells
these from rejected ones: a useless check must not hurt. With few rejected cases, failures of a
check are safe to use if hardly any accepted case fails it. That a case meets it is not, because
rejected cases may have other faults.
"""

from collections.abc import Collection, Container, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from math import exp, log, nan
from statistics import fmean
from typing import Any, NamedTuple

from memalign_graph.evidence.confidence import log_odds
from memalign_graph.memory.checks import check_answers, consensus_values
from memalign_graph.memory.view import MemoryView
from memalign_graph.prompts.judge import nearest_value
from memalign_graph.scales import Boolean, Scale, Value, share_of_scale
from memalign_graph.types import Check, Guideline, Probabilities

_USUAL_MET = 1.0
"""Usual log-odds of yes for a case that meets a guideline. With the embedded model the mean over
the development scenarios is 0.9."""
_LEAST_GAP = 0.35
"""Least distance from the log-odds of a breaking case to those of a meeting case. With this gap and
a threshold at 0.2 of it, 68 % of the breaking and 82 % of the meeting cases of the development
and training scenarios (`benchmarks/data/one_comment.jsonl`) were classified correctly."""
_GAP_CASES = 2.0  # the usual gap weighs as much as this many accepted cases
_FIRST_SHARE, _LAST_SHARE = 0.2, 0.5
"""Where in the gap the threshold lies: without accepted cases, and with many of them."""
_SLOPE = 3.0  # log-odds that a check is met, per log-odds of yes above the threshold
_MAX_ODDS = 3.0
"""The largest log-odds that a check is met. If the log ratio of its rates is as large, its weight
is 1."""
_MIN_WEIGHT = 0.1
"""A check whose failures have this weight or less is not used."""
_ADDED_CASES = 2  # of each kind, so that no rate is 0 or 1
_JUDGE_WEIGHT = 0.5  # of the judge's own log-odds; the worst check has weight 1 at most
_DECISIVE_WEIGHT = 0.3
"""The least weight of a check or of the vote with which a case's value is based on checks. A value
alone is nearly the same for all cases: on six exam questions and a code set it was farther off than
a verdict with a rationale (`benchmarks.agreement`)."""
_SURE = 0.9  # probability of the values seen where a check failed, or where all are met


@dataclass(frozen=True)
class AnchoredCheck:
    """A check's answer, compared with the answers on cases that experts valued."""

    check: Check  # `held` says whether the answer is above the threshold
    question: str
    odds: float  # log-odds that it is met
    weight: float  # of the log-odds, from 0 to 1
    broken_values: list[Value]  # the experts' values of the cases that break it
    anchor: float | None  # the mean probability of yes on these
    met_values: list[Value]  # the experts' values of accepted cases that were asked it


Vote = tuple[Probabilities, float]
"""The distribution of the values among cases with similar answers, and its weight."""


class CheckWeights(NamedTuple):
    """The weights of a check's log-odds, from 0 to 1."""

    failed: float
    met: float

    def of(self, odds: float) -> float:
        return self.met if odds > 0 else self.failed


def anchor_checks(
    view: MemoryView,
    scale: Scale,
    checks: Sequence[Check],
    guidelines: Mapping[str, Guideline],
    excluded_ids: Container[str],
) -> list[AnchoredCheck]:
    """Set each check's threshold by cases in memory, without excluded examples.

    Checks that tell accepted cases from others by no more than chance are not returned.
    """
    answers, values = check_answers(view), consensus_values(view, scale, excluded_ids)
    example_ids = {row.id: row.example_id for row in view.rows()}
    anchored: list[AnchoredCheck] = []
    worst: dict[str, float] = {}  # of each accepted case: the log-odds of the check met least
    for check in checks:
        if check.probability is None:
            continue
        guideline = guidelines[check.guideline_id]
        sources = {example_ids.get(key) for key in guideline.episode_ids}
        asked = {key: p for key, p in answers.get(check.asked, {}).items() if key in values}
        item, accepted = _anchored(check, guideline.question or "", scale, values, sources, asked)
        if item is not None:
            anchored.append(item)
            for key, odds in accepted.items():
                worst[key] = min(odds, worst.get(key, odds))
    shift = worst_check_shift(worst.values()) if len(anchored) > 1 else 0.0
    return [_shifted(item, shift) for item in anchored]


def _shifted(item: AnchoredCheck, shift: float) -> AnchoredCheck:
    """Add to the weighted log-odds that a check is met."""
    odds = min(item.odds + shift / max(item.weight, _MIN_WEIGHT), _MAX_ODDS)
    return replace(item, check=item.check.model_copy(update={"held": odds > 0}), odds=odds)


def _anchored(
    check: Check,
    question: str,
    scale: Scale,
    values: Mapping[str, Value],
    sources: Container[str | None],
    asked: Mapping[str, float],
) -> tuple[AnchoredCheck | None, dict[str, float]]:
    """Compare a check's answer with those on cases in memory; None if it tells nothing.

    Also returns the weighted log-odds that accepted cases meet the check: those with a better value
    than the guideline's sources on average, because experts may hardly ever give the best value.
    Each case of the best value is left out of the threshold.
    """
    levels = {key: share_of_scale(values[key], scale) or 0.0 for key in asked}
    odds_of = {key: log_odds(answer) for key, answer in asked.items()}
    broken = [key for key, level in levels.items() if key in sources and level < 1]
    best = [key for key, level in levels.items() if level == 1]
    usual = fmean(levels[key] for key in broken) if broken else 1.0
    accepted = [key for key, level in levels.items() if level == 1 or level > usual]
    broken_odds, best_sum = [odds_of[key] for key in broken], sum(odds_of[key] for key in best)
    threshold = _threshold(broken_odds, len(best), best_sum)
    left_out = {key: _met_odds(odds, threshold) for key, odds in odds_of.items()}
    for key in best:
        without = _threshold(broken_odds, len(best) - 1, best_sum - odds_of[key])
        left_out[key] = _met_odds(odds_of[key], without)
    rejected = asked.keys() - set(accepted)
    weights = weigh_check(
        [left_out[key] for key in accepted],
        [left_out[key] for key in rejected if key not in sources],
    )
    if weights.failed <= _MIN_WEIGHT:
        return None, {}
    odds = _met_odds(log_odds(check.probability or 0.0), threshold)
    item = AnchoredCheck(
        check=check,
        question=question,
        odds=odds,
        weight=weights.of(odds),
        broken_values=[values[key] for key in broken],
        anchor=fmean(asked[key] for key in broken) if broken else None,
        met_values=[values[key] for key in best],
    )
    return item, {key: weights.of(left_out[key]) * left_out[key] for key in accepted}


def _threshold(broken_odds: Sequence[float], met_count: int, met_sum: float) -> float:
    """Return the log-odds of yes from which a case meets a check."""
    if broken_odds:
        low = fmean(broken_odds)
    elif met_count:
        low = met_sum / met_count - _USUAL_MET
    else:
        return 0.0
    usual = _GAP_CASES * max(low + _LEAST_GAP, _USUAL_MET)
    gap = max((usual + met_sum) / (_GAP_CASES + met_count) - low, 0.0)
    known = met_count / (met_count + 2 * _GAP_CASES)
    return low + gap * (_FIRST_SHARE + (_LAST_SHARE - _FIRST_SHARE) * known)


def _met_odds(odds: float, threshold: float) -> float:
    return min(max(_SLOPE * (odds - threshold), -_MAX_ODDS), _MAX_ODDS)


def weigh_check(accepted: Collection[float], rejected: Collection[float]) -> CheckWeights:
    """Weigh a check by the log-odds that accepted cases meet it, and rejected ones.

    Rejected cases are those that experts did not accept, without the sources of the guideline.
    """

    def weight(likelihood_ratio: float, initial_share: float) -> float:
        """Average the initial weight of 1 and the weight that cases in memory show."""
        measured = min(max(log(likelihood_ratio) / _MAX_ODDS, 0.0), 1.0)
        return initial_share + (1 - initial_share) * measured

    accepted_failing = sum(odds <= 0 for odds in accepted)
    rejected_failing = sum(odds <= 0 for odds in rejected)
    accepted_rate = (accepted_failing + 1) / (len(accepted) + _ADDED_CASES)
    rejected_rate = (rejected_failing + 1) / (len(rejected) + _ADDED_CASES)
    # Both added cases meet the check here, since they may have another fault.
    rejected_meeting = 1 - rejected_failing / (len(rejected) + _ADDED_CASES)
    return CheckWeights(
        failed=weight(rejected_rate / accepted_rate, 0.5**accepted_failing),
        met=weight((1 - accepted_rate) / rejected_meeting, 0.5 ** max(len(accepted) - 1, 0)),
    )


def worst_check_shift(worst: Collection[float]) -> float:
    """Return what to add to weighted log-odds, by the check that each accepted case meets least.

    Of many checks an accepted case fails some by chance. The shift brings the mean up to 0.
    """
    return max(-sum(worst), 0.0) / (len(worst) + _ADDED_CASES)


def are_decisive(anchored: Sequence[AnchoredCheck], vote: Vote | None) -> bool:
    """Return whether a check, or the vote of similar cases, tells enough of this case's value."""
    weights = [check.weight for check in anchored] + ([vote[1]] if vote else [])
    return max(weights, default=0.0) >= _DECISIVE_WEIGHT


def add_checks(
    judged: Probabilities, anchored: Sequence[AnchoredCheck], values: Sequence[Value], scale: Scale
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
_LEAST_SPREAD = 0.05  # added to that of the answers, so that nearly equal ones are not scaled up
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
    excluded_ids: Container[str],
) -> Vote | None:
    """Return the distribution of values among cases with similar answers, and its weight.

    `case_probabilities` maps an `asked_id` to the probability that the case meets the guideline.
    Cases are weighted by a Gaussian kernel on the log-odds of the checks. The weight of the vote is
    chosen by leave-one-out and shrunk with few cases. None if no case was asked these checks.
    """
    import numpy as np

    answers = [check_answers(view).get(asked, {}) for asked in case_probabilities]
    consensus = consensus_values(view, scale, excluded_ids).items()
    asked_cases = (pair for pair in consensus if any(pair[0] in by_id for by_id in answers))
    cases = dict(islice(asked_cases, _MAX_VOTERS))
    if not cases:
        return None
    table = [list(case_probabilities.values())]
    table += [[by_id.get(key, nan) for by_id in answers] for key in cases]
    odds = np.array([list(map(log_odds, row)) for row in table])
    odds = odds[:, ~np.isnan(odds[1:]).all(axis=0)]
    odds /= np.nanstd(odds[1:], axis=0) + _LEAST_SPREAD
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
    lines = []
    for item in anchored:
        source = "" if item.anchor is None else "; {:.2f} on the case that it was learned from"
        if not item.check.held:
            yes = f"yes with probability {item.check.probability:.2f}{source.format(item.anchor)}"
            lines.append(f'"{item.question}" ({yes})')
    count = len(anchored)
    if lines:
        return f"{len(lines)} of {count} checks failed: {'; '.join(lines)}."
    return "The only check is met." if count == 1 else f"All {count} checks are met."
