"""The value of a case, from a small model's answers to its checks.

A small model answers some questions with yes too often and others too seldom, so a probability of
one half is no usable threshold. Each check has its own threshold, set by the model's answers on
cases in memory: the cases that the guideline comes from break it, and cases that experts accepted
meet it. Cases with similar answers also vote on the value.
"""

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from math import exp, inf, log1p, nan
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
"""Usual log-odds of yes for a case that meets a guideline. With the embedded model the mean over
the development scenarios is 0.9."""
_LEAST_GAP = 0.35
"""Least distance from the log-odds of a breaking case to those of a meeting case. With this gap and
a threshold at 0.3 of it, 88 % of the breaking and 82 % of the meeting cases of the development
scenarios were classified correctly."""
_GAP_CASES = 2.0  # the usual gap weighs as much as this many accepted cases
_FIRST_SHARE, _LAST_SHARE = 0.3, 0.5
"""Where in the gap the threshold lies: without accepted cases, and with many of them."""
_SLOPE = 3.0  # log-odds that a check is met, per log-odds of yes above the threshold
_MAX_ODDS = 3.0
_JUDGE_WEIGHT = 0.5  # of the judge's own log-odds; the worst check has weight 1 at most
_TRUSTED_CASES = 4
"""A check's weight is 1 without accepted cases. This many of them count as much as that."""
_WEIGHTS = (0.0, 0.25, 0.5, 0.75, 1.0)  # that are tried, of a check and of a vote
_MIN_WEIGHT = 0.25  # a check with this weight or less is not used
_SURE = 0.9  # probability of the values seen where a check failed, or where all are met


@dataclass(frozen=True)
class AnchoredCheck:
    """A check's answer, compared with the answers on cases that experts valued."""

    check: Check  # `held` says whether the answer is above the threshold
    question: str
    odds: float  # log-odds that it is met
    weight: float  # from 0 to 1: how well the checks tell accepted cases from others
    broken_values: list[Value]  # the experts' values of the cases that break it
    anchor: float | None  # the mean probability of yes on these
    met_values: list[Value]  # the experts' values of accepted cases that were asked it


def share_of_scale(value: Value | None, scale: Scale) -> float | None:
    """Map a value to 0 (worst) to 1 (best); None if the scale has no order."""
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
    """Return the experts' consensus by example id, newest first, without excluded vector keys."""
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
    """Set each check's threshold by cases in memory, without the cases of excluded vector keys.

    Checks that tell accepted cases from others by no more than chance are not returned.
    """
    answers, values = check_answers(view), _consensus_values(view, scale, excluded_keys)
    example_ids = {row.id: row.example_id for row in view.rows()}
    anchored: list[AnchoredCheck] = []
    sources: set[str | None] = set()
    worst: dict[str, float] = {}  # of each case in memory: the log-odds of the check met least
    for check in checks:
        if check.probability is not None:
            guideline = guidelines[check.guideline_id]
            own = {example_ids.get(key) for key in guideline.episode_ids}
            asked = {key: p for key, p in answers.get(check.asked, {}).items() if key in values}
            question = guideline.question or ""
            item, odds = _anchored(check, question, scale, values, own, asked)
            if item.weight > _MIN_WEIGHT:
                anchored.append(item)
                sources |= own
                for key, case_odds in odds.items():
                    worst[key] = min(item.weight * case_odds, worst.get(key, inf))
    accepted = _accepted({key: values[key] for key in worst}, sources, scale)
    met = [worst.pop(key) for key in accepted]
    if_met = _weight([*worst.values()], met)
    # A rejected case may meet all checks, since something else was wrong with it: this takes weight
    # from checks that are met, and none from those that fail.
    failed = [odds if key in sources else min(odds, 0.0) for key, odds in worst.items()]
    if_failed = _weight(failed, met)
    if if_failed <= _MIN_WEIGHT:
        return []
    return [
        replace(item, weight=item.weight * (if_met if item.check.held else if_failed))
        for item in anchored
    ]


def _accepted(
    values: Mapping[str, Value], sources: Container[str | None], scale: Scale
) -> list[str]:
    """Return the cases that are better than a guideline's sources are on average.

    Without sources, or on a scale of two values, these are the cases with the best value. On others
    experts may hardly ever give the best value.
    """
    levels = {key: share_of_scale(value, scale) for key, value in values.items()}
    known = {key: level for key, level in levels.items() if level is not None}
    broken = [level for key, level in known.items() if key in sources and level < 1]
    usual = fmean(broken) if broken else 1.0
    return [key for key, level in known.items() if level == 1 or level > usual]


def _anchored(
    check: Check,
    question: str,
    scale: Scale,
    values: Mapping[str, Value],
    sources: Container[str | None],
    asked: Mapping[str, float],
) -> tuple[AnchoredCheck, dict[str, float]]:
    """Compare a check's answer with those on cases in memory; returns their log-odds, too.

    These are the log-odds that the cases meet the check, each accepted case left out of the
    threshold.
    """
    levels = {key: share_of_scale(values[key], scale) for key in asked}
    broken = [key for key, level in levels.items() if key in sources and level != 1]
    met = [key for key, level in levels.items() if level == 1]
    odds_of = {key: log_odds(answer) for key, answer in asked.items()}
    broken_odds, met_sum = [odds_of[key] for key in broken], sum(odds_of[key] for key in met)
    threshold = _threshold(broken_odds, len(met), met_sum)
    left_out = {key: _met_odds(odds, threshold) for key, odds in odds_of.items()}
    for key in met:
        without = _threshold(broken_odds, len(met) - 1, met_sum - odds_of[key])
        left_out[key] = _met_odds(odds_of[key], without)
    accepted = _accepted({key: values[key] for key in asked}, sources, scale)
    odds = _met_odds(log_odds(check.probability or 0.0), threshold)
    item = AnchoredCheck(
        check=check.model_copy(update={"held": odds > 0}),
        question=question,
        odds=odds,
        weight=_weight([left_out[key] for key in broken], [left_out[key] for key in accepted]),
        broken_values=[values[key] for key in broken],
        anchor=fmean([asked[key] for key in broken]) if broken else None,
        met_values=[values[key] for key in met],
    )
    return item, left_out


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


def _weight(failed: Sequence[float], accepted: Sequence[float]) -> float:
    """Return a weight from 0 to 1, by the log-odds of cases that should fail and of accepted ones.

    The weight has the least log loss, averaged over both kinds of case. With few accepted cases it
    is shrunk towards 1.
    """
    if not failed or not accepted:
        return 1.0

    def loss(weight: float) -> float:
        of_failed = fmean([log1p(exp(weight * odds)) for odds in failed])
        return of_failed + fmean([log1p(exp(-weight * odds)) for odds in accepted])

    count = len(accepted)
    return (_TRUSTED_CASES + count * min(_WEIGHTS, key=loss)) / (_TRUSTED_CASES + count)


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
