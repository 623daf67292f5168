"""How far a judge can be trusted: the confidence from which on no expert has to be asked.

Pure functions of past decisions. The bound may be looked at after every answer: it is an e-value
(a bet against "the judge agrees no more often than the target", which Ville's inequality bounds at
all times together). What it promises holds for cases like those in memory, as far as the experts'
values there are a fair sample: where sure judgments are asked about by chance alone and unsure ones
always, the sample errs on the side of asking.

Source: A. Ramdas et al., Game-theoretic statistics and safe anytime-valid inference, 2023.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import groupby
from math import ceil, exp, fsum, log

from pydantic import Field

from memalign_graph.types import FrozenModel

LEVEL = 0.95
"""How sure a bound is, for each verdict: a target of 0.9 then takes 40 decisions that all agree."""

LEFT_OUT_LEVEL = 0.98
"""The same for decisions that are scored by the labels of the others, each left out: a label moves
those scores, and what is counted varies up to 1.2 times as much as what is drawn independently."""

_STARTS = ((1.0, 0.5), (0.5, 0.25), (0.25, 0.25))
"""Which shares of the decisions, the surest first, a test begins with, and each one's part of the
error that the level leaves."""

_RATES = 20  # of agreement above the target that are bet on, beside one that is perfect


class Trust(FrozenModel):
    """From which confidence on a judge agrees with the experts as often as was asked for.

    The target is shown for each verdict by past decisions with that verdict alone: a gate that
    lets a bad answer pass is not excused by a hundred good ones. `verdicts` has the result of each;
    the other fields sum these up. Decisions on near-duplicates count as one.

    Attributes:
        target: The agreement asked for, as a share.
        threshold: The confidence from which on no expert is asked about any of the verdicts that
            have one: the highest of theirs; None if no verdict has one.
        needed: The fewest decisions with one verdict that can show the target, if all agree.
        decisions: How many past decisions there are whose confidence was measured.
        cases: How many of them have their verdict's threshold or more; where no verdict has one,
            those that the tests ended with; 0 where there were too few to test.
        agreement: The share of these that agree with the experts; None if there are none.
        bound: What the agreement on new cases is not below for any verdict that has a threshold,
            at a level of 95 %; None if there are no such cases.
        coverage: The share of past decisions with their verdict's threshold; 0 without one.
        verdicts: The same for each verdict that past decisions have, by the value as the scale
            renders it, or by its third of an ordered scale: `low`, `middle`, `high`.
    """

    target: float
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
        """Whether there are so many decisions that the target could be shown at all."""
        return self.decisions >= self.needed


def find_threshold(
    decisions: Iterable[tuple[float, float]], target: float, level: float = LEVEL
) -> Trust:
    """Find the lowest confidence from which on a judge is known to agree with the experts.

    Each decision has a confidence and whether it agrees: a share, where it stands for several.
    Confidences have to rank decisions by nothing fitted to their labels.

    A test begins with a fixed share of the surest decisions, and goes on to less sure ones until
    it fails: so each further set is tested at the whole level of its test.
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
        threshold=threshold,
        needed=needed,
        decisions=count,
        cases=cases,
        agreement=agreeing / cases if cases else None,
        bound=_shown_agreement(agreeing, cases, level) if cases else None,
        coverage=cases / count if threshold is not None else 0,
    )


def find_threshold_by_verdict(
    decisions: Mapping[str, Sequence[tuple[float, float]]], target: float, level: float = LEVEL
) -> Trust:
    """Find such a confidence for each verdict, by past decisions with that verdict alone."""
    verdicts = {name: find_threshold(pairs, target, level) for name, pairs in decisions.items()}
    trusted = [trust for trust in verdicts.values() if trust.threshold is not None]
    counted = [trust for trust in trusted or verdicts.values() if trust.cases]
    total = sum(trust.decisions for trust in verdicts.values())
    cases = sum(trust.cases for trust in counted)
    agreeing = fsum(trust.cases * (trust.agreement or 0.0) for trust in counted)
    return Trust(
        target=target,
        threshold=max((trust.threshold or 0.0 for trust in trusted), default=None),
        needed=_needed(target, level),
        decisions=total,
        cases=cases,
        agreement=agreeing / cases if cases else None,
        bound=min((trust.bound or 0.0 for trust in counted), default=None),
        coverage=cases / total if trusted else 0,
        verdicts=verdicts,
    )


def more_decisions(trust: Trust, level: float = LEVEL) -> int | None:
    """Tell how many more decisions show a target, if they agree as often as those so far.

    None where these do not agree more often than the target.
    """
    if trust.threshold is not None:
        return 0
    if not trust.has_enough:
        return trust.needed - trust.decisions
    agreement, cases = trust.agreement or 0.0, trust.decisions
    if agreement <= trust.target:
        return None
    bar = -log((1 - level) * _STARTS[0][1])
    while _log_e(agreement * cases, cases, trust.target) < bar:
        cases = ceil(cases * 1.02)
    return cases - trust.decisions


def is_random_sample(reasons: Sequence[str]) -> bool:
    """Tell whether a judgment that was asked about was so by chance alone."""
    return set(reasons) == {"sample"}


def _log_e(agreeing: float, cases: int, target: float) -> float:
    """Return the logarithm of what a bet against the target is worth after some cases.

    Half of the stake is on perfect agreement, half on rates between that and the target. A share
    counts as a geometric mean, which is below the linear bet that is fair for any mean.
    """
    wrong = cases - agreeing
    logs = [agreeing * won + wrong * lost - log(_RATES) for won, lost in _odds(target)]
    if wrong < 1e-9:  # noqa: PLR2004 - a sum of shares
        logs.append(-cases * log(target))
    top = max(logs)
    return top + log(fsum(exp(log_e - top) for log_e in logs) / 2)


@lru_cache(maxsize=256)
def _odds(target: float) -> list[tuple[float, float]]:
    """Return for each rate what agreement is worth, and what disagreement is, as logarithms."""
    steps = [(step + 0.5) / _RATES for step in range(_RATES)]
    return [(log(1 + step * (1 - target) / target), log(1 - step)) for step in steps]


def _shown_agreement(agreeing: float, cases: int, level: float) -> float:
    """Return the highest share that a bet on all of some cases shows the agreement to be above.

    It is no more than the share that agrees, from which on nothing is shown.
    """
    low, high = 0.0, agreeing / cases
    while high - low > 1e-9:  # noqa: PLR2004 - finer than any agreement is known
        middle = (low + high) / 2
        is_shown = _log_e(agreeing, cases, middle) >= -log(1 - level)
        low, high = (middle, high) if is_shown else (low, middle)
    return low


@lru_cache(maxsize=256)
def _needed(target: float, level: float) -> int:
    """Return the fewest cases that show a target, if all of them agree."""
    bar = -log((1 - level) * _STARTS[0][1]) - 1e-9
    cases = max(1, ceil(bar / -log(target)))
    while _log_e(cases, cases, target) < bar:
        cases += 1
    return cases
