"""Checks of a case, compared with their answers on cases that experts valued.

A small model answers some questions with yes too often and others too seldom, so a probability of
one half is no usable threshold. Each check has its own threshold, set by the model's answers on
cases in memory: the cases that the guideline comes from break it, and cases that experts accepted
meet it.
"""

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from memalign_graph.agreement import consensus, value_or_none
from memalign_graph.evidence.check_weights import (
    MAX_ODDS,
    MIN_WEIGHT,
    weigh_check,
    worst_check_shift,
)
from memalign_graph.evidence.verdicts import log_odds
from memalign_graph.memory.checks import check_answers
from memalign_graph.memory.view import MemoryView
from memalign_graph.scales import Boolean, Categorical, Numeric, Scale, Value
from memalign_graph.types import Check, Guideline

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


def consensus_values(
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
    answers, values = check_answers(view), consensus_values(view, scale, excluded_keys)
    example_ids = {row.id: row.example_id for row in view.rows()}
    anchored: list[AnchoredCheck] = []
    worst: dict[str, float] = {}  # of each accepted case: the log-odds of the check met least
    for check in checks:
        if check.probability is not None:
            guideline = guidelines[check.guideline_id]
            sources = {example_ids.get(key) for key in guideline.episode_ids}
            asked = {key: p for key, p in answers.get(check.asked, {}).items() if key in values}
            question = guideline.question or ""
            if used := _anchored(check, question, scale, values, sources, asked):
                anchored.append(used[0])
                for key, odds in used[1].items():
                    worst[key] = min(odds, worst.get(key, odds))
    if len(anchored) <= 1:
        return anchored
    shift = worst_check_shift(worst.values())
    return [_shifted(item, shift) for item in anchored]


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
) -> tuple[AnchoredCheck, dict[str, float]] | None:
    """Compare a check's answer with those on cases in memory; None if it tells nothing.

    Also returns the weighted log-odds that accepted cases meet the check. Each case of the best
    value is left out of the threshold.
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
    rejected = asked.keys() - set(accepted)
    weights = weigh_check(
        [left_out[key] for key in accepted],
        [left_out[key] for key in rejected if key not in sources],
    )
    if weights.failed <= MIN_WEIGHT:
        return None
    odds = _met_odds(log_odds(check.probability or 0.0), threshold)
    item = AnchoredCheck(
        check=check.model_copy(update={"held": odds > 0}),
        question=question,
        odds=odds,
        weight=weights.met if odds > 0 else weights.failed,
        broken_values=[values[key] for key in broken],
        anchor=fmean([asked[key] for key in broken]) if broken else None,
        met_values=[values[key] for key in met],
    )
    return item, {key: weights.apply(left_out[key]) for key in accepted}


def _shifted(item: AnchoredCheck, shift: float) -> AnchoredCheck:
    """Add to the weighted log-odds that a check is met."""
    odds = min(item.odds + shift / max(item.weight, MIN_WEIGHT), MAX_ODDS)
    return replace(item, check=item.check.model_copy(update={"held": odds > 0}), odds=odds)


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
    return min(max(_SLOPE * (odds - threshold), -MAX_ODDS), MAX_ODDS)
