"""Where a check turns from broken to met, and what failed checks say of the value.

A small model answers some questions with yes too often and others too seldom, so that one half is
no threshold. Its answers on cases that experts valued are anchors: the cases that a guideline comes
from break it, and cases that experts accepted meet it. With one comment there is one anchor.
"""

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from math import exp, log
from statistics import fmean

from memalign_graph.agreement import consensus, value_or_none
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


def log_odds_of(probability: float) -> float:
    inside = min(max(probability, 1e-3), 1 - 1e-3)
    return log(inside / (1 - inside))


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


def anchor_checks(
    view: MemoryView,
    scale: Scale,
    checks: Sequence[Check],
    guidelines: Mapping[str, Guideline],
    excluded_keys: Container[str],
) -> list[AnchoredCheck]:
    """Compare answers with those on cases in memory, without the cases of excluded vector keys."""
    answers = check_answers(view)
    valued: dict[str, list[Value]] = {}
    sources: dict[str, str] = {}
    for row in sorted(view.rows(), key=lambda row: (row.given_at, row.id)):
        value = value_or_none(row.value, scale)
        if value is not None and row.vector_key not in excluded_keys:
            valued.setdefault(row.example_id, []).append(value)
            sources[row.id] = row.example_id
    values = {key: consensus(given, scale) for key, given in valued.items()}
    anchored = []
    for check in checks:
        if check.probability is None:
            continue
        guideline = guidelines[check.guideline_id]
        own = {sources[key] for key in guideline.episode_ids if key in sources}
        asked = {key: p for key, p in answers.get(check.asked, {}).items() if key in values}
        anchored.append(_anchored(check, guideline.question or "", scale, values, own, asked))
    return anchored


def _anchored(
    check: Check,
    question: str,
    scale: Scale,
    values: Mapping[str, Value],
    own: Container[str],
    asked: Mapping[str, float],
) -> AnchoredCheck:
    levels = {key: share_of_scale(values[key], scale) for key in asked}
    broken = [key for key, level in levels.items() if key in own and level != 1]
    met = [log_odds_of(asked[key]) for key, level in levels.items() if level == 1]
    low = fmean([log_odds_of(asked[key]) for key in broken]) if broken else None
    if low is None and met:
        low = fmean(met) - _USUAL_MET
    threshold = 0.0
    if low is not None:
        usual = _GAP_CASES * max(low + _LEAST_GAP, _USUAL_MET)
        gap = max((usual + sum(met)) / (_GAP_CASES + len(met)) - low, 0.0)
        done = len(met) / (len(met) + 2 * _GAP_CASES)
        threshold = low + gap * (_FIRST_SHARE + (_LAST_SHARE - _FIRST_SHARE) * done)
    odds = _SLOPE * (log_odds_of(check.probability or 0.0) - threshold)
    return AnchoredCheck(
        check=check.model_copy(update={"held": odds > 0}),
        question=question,
        odds=min(max(odds, -_MAX_ODDS), _MAX_ODDS),
        broken_values=[values[key] for key in broken],
        anchor=fmean([asked[key] for key in broken]) if broken else None,
        met_values=[values[key] for key, level in levels.items() if level == 1],
    )


def add_checks(
    judged: Probabilities,
    anchored: Sequence[AnchoredCheck],
    values: Sequence[Value],
    scale: Scale,
) -> Probabilities:
    """Add the log-odds of the check that is met least to those of the judge itself."""
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
    shares = {
        name: share**_JUDGE_WEIGHT * (met * where_met[name] + (1 - met) * where_broken[name])
        for name, share in judged.items()
    }
    total = sum(shares.values()) or 1.0
    return {name: share / total for name, share in shares.items()}


def _spread(known: Sequence[Value], values: Sequence[Value], scale: Scale) -> dict[str, float]:
    """Return the shares of known values, with some for every value; even ones where none is."""
    sure = _SURE if known else 0.0
    shares = dict.fromkeys(map(scale.render, values), (1 - sure) / len(values))
    for value in known:
        shares[scale.render(nearest_value(values, value))] += sure / len(known)
    return shares


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
