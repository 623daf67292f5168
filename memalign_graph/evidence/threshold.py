"""The confidence from which on a judge is trusted, so that no expert is asked.

Pure functions of past decisions. The bound holds after every answer: it is an e-value, a bet
against "the judge agrees no more often than the target", which Ville's inequality bounds at all
times at once. It holds for cases like those in memory, if the experts' values there are a fair
sample. If confident judgments are asked about only at random and others always, it errs on the side
of asking.

Source: A. Ramdas et al., Game-theoretic statistics and safe anytime-valid inference, 2023.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import groupby
from math import ceil, exp, fsum, inf, log

from pydantic import Field

from memalign_graph.types import FrozenModel

LEVEL = 0.95
"""The level of a bound, for each verdict: a target of 0.9 takes 40 decisions that all agree."""

LEFT_OUT_LEVEL = 0.98
"""The same for leave-one-out scores: a label moves the scores of the other cases, so that counts
vary up to 1.2 times as much as those of independent decisions."""

_STARTS = ((1.0, 0.5), (0.5, 0.25), (0.25, 0.25))
"""Tests that begin with a share of the decisions, the most confident ones, and each test's part of
the error that the level leaves."""

_RATES = 20  # of agreement between the target and 1 that are bet on


class Trust(FrozenModel):
    """The confidence from which on a judge agrees with the experts as often as the target.

    The target is tested for each verdict on past decisions with that verdict alone: a gate that
    lets a bad answer pass is not excused by a hundred good ones. `verdicts` has the result of each;
    the other fields sum these up. It is tested with near-duplicates as one decision, and with each
    of them; the fields are those of the test with the higher threshold.

    Attributes:
        target: The required agreement, as a share.
        level: The level at which the target is tested.
        threshold: The confidence from which on no expert is asked about any of the verdicts that
            have a threshold: the highest of theirs; None if no verdict has one.
        needed: The fewest decisions with one verdict that can show the target, if all agree.
        decisions: The number of past decisions with a confidence.
        cases: The number of them that reach their verdict's threshold. If no verdict has one, those
            that the tests ended with; 0 if there were too few to test.
        agreement: The share of these that agree with the experts; None if there are none.
        bound: A lower bound, at a level of 95 %, of the agreement on new cases with any verdict
            that has a threshold; None if there are no such cases.
        coverage: The share of past decisions that reach their verdict's threshold; 0 without one.
        verdicts: The same for each verdict of past decisions, by the value as the scale renders
            it, or by its third of an ordered scale: `low`, `middle`, `high`.
    """

    target: float
    level: float = LEVEL
    threshold: float | None
    needed: int
    decisions: int
    cases: int
    agreement: float | None
    bound: float | None
    coverage: float
    verdicts: dict[str, "Trust"] = Field(default_factory=dict)

    @property
    def has_enough(self) -> bool:
        """Whether there are enough decisions to show the target."""
        return self.decisions >= self.needed


def find_threshold(
    decisions: Iterable[tuple[float, float]], target: float, level: float = LEVEL
) -> Trust:
    """Find the lowest confidence from which on a judge is shown to agree with the experts.

    Each decision has a confidence and whether it agrees, or the share of its duplicates that agree.
    The order of the confidences must not be fitted to the decisions' own labels.

    A test begins with a fixed share of the most confident decisions and adds less confident ones
    until it fails. So each set is tested at the whole level of its test.
    """
    ranked = sorted(decisions, key=lambda decision: -decision[0])
    count, cases, agreeing = len(ranked), 0, 0.0
    steps: list[tuple[float, int, float]] = []
    for confidence, alike in groupby(ranked, key=lambda decision: decision[0]):
        agreed = [agrees for _, agrees in alike]
        cases, agreeing = cases + len(agreed), agreeing + fsum(agreed)
        steps.append((confidence, cases, agreeing))
    threshold, needed = None, _needed(target, level)
    tested = (cases, agreeing) if count >= needed else (0, 0.0)
    for share, part in _STARTS:
        bar = -log((1 - level) * part) - 1e-9
        for confidence, cases, agreeing in steps:
            if cases < share * count:
                continue
            if _log_e(agreeing, cases, target) < bar:
                break
            if threshold is None or confidence < threshold:
                threshold, tested = confidence, (cases, agreeing)
    cases, agreeing = tested
    return Trust(
        target=target,
        level=level,
        threshold=threshold,
        needed=needed,
        decisions=count,
        cases=cases,
        agreement=agreeing / cases if cases else None,
        bound=_shown_agreement(agreeing, cases, level) if cases else None,
        coverage=cases / count if threshold is not None else 0,
    )


def find_threshold_by_verdict(
    decisions: Mapping[str, Sequence[tuple[float, float]]],
    target: float,
    level: float = LEVEL,
    singly: Mapping[str, Sequence[tuple[float, float]]] | None = None,
) -> Trust:
    """Find the threshold of each verdict, by past decisions with that verdict alone.

    If `decisions` has one for each group of near-duplicates, `singly` has all of them. Both have to
    show the target: many right decisions on one kind of case prove little, and many wrong ones
    would be lost in a mean.
    """
    verdicts = {name: find_threshold(pairs, target, level) for name, pairs in decisions.items()}
    for name, pairs in (singly or {}).items():
        both = verdicts[name], find_threshold(pairs, target, level)
        verdicts[name] = max(both, key=lambda t: inf if t.threshold is None else t.threshold)
    trusted = [trust for trust in verdicts.values() if trust.threshold is not None]
    counted = [trust for trust in trusted or verdicts.values() if trust.cases]
    total = sum(trust.decisions for trust in verdicts.values())
    cases = sum(trust.cases for trust in counted)
    agreeing = fsum(trust.cases * (trust.agreement or 0.0) for trust in counted)
    return Trust(
        target=target,
        level=level,
        threshold=max((trust.threshold or 0.0 for trust in trusted), default=None),
        needed=_needed(target, level),
        decisions=total,
        cases=cases,
        agreement=agreeing / cases if cases else None,
        bound=min((trust.bound or 0.0 for trust in counted), default=None),
        coverage=cases / total if trusted else 0,
        verdicts=verdicts,
    )


def more_decisions(trust: Trust) -> int | None:
    """Return how many more decisions show the target, if they agree as often as those so far.

    None if these agree no more often than the target, or so little more that no bet of the test
    wins in the long run.
    """
    if trust.threshold is not None:
        return 0
    if not trust.has_enough:
        return trust.needed - trust.decisions
    agreement, cases = trust.agreement or 0.0, trust.decisions
    if max(agreement * won + (1 - agreement) * lost for won, lost in _odds(trust.target)) <= 0:
        return None
    bar = -log((1 - trust.level) * _STARTS[0][1])
    while _log_e(agreement * cases, cases, trust.target) < bar:
        cases = ceil(cases * 1.02)
    return cases - trust.decisions


def _log_e(agreeing: float, cases: int, target: float) -> float:
    """Return the log e-value of a bet against the target after some cases.

    Half of the stake is on perfect agreement, half on rates between that and the target. A decision
    that agrees in part counts as a geometric mean, which is below the fair linear bet.
    """
    wrong = cases - agreeing
    logs = [agreeing * won + wrong * lost - log(_RATES) for won, lost in _odds(target)]
    if wrong < 1e-9:  # noqa: PLR2004 - a sum of shares
        logs.append(-cases * log(target))
    top = max(logs)
    return top + log(fsum(exp(log_e - top) for log_e in logs) / 2)


@lru_cache(maxsize=256)
def _odds(target: float) -> list[tuple[float, float]]:
    """Return the logarithms of a bet's factors for each rate: on agreement, on disagreement."""
    steps = [(step + 0.5) / _RATES for step in range(_RATES)]
    return [(log(1 + step * (1 - target) / target), log(1 - step)) for step in steps]


def _shown_agreement(agreeing: float, cases: int, level: float) -> float:
    """Return the highest agreement that the bet excludes, at most the share that agrees."""
    low, high = 0.0, agreeing / cases
    while high - low > 1e-9:  # noqa: PLR2004 - finer than any agreement
        middle = (low + high) / 2
        is_shown = _log_e(agreeing, cases, middle) >= -log(1 - level)
        low, high = (middle, high) if is_shown else (low, middle)
    return low


@lru_cache(maxsize=256)
def _needed(target: float, level: float) -> int:
    """Return the fewest cases that show a target, if all of them agree."""
    bar = -log((1 - level) * _STARTS[0][1]) - 1e-9
    cases = ceil(bar / -log(target))
    while _log_e(cases, cases, target) < bar:
        cases += 1
    return cases
