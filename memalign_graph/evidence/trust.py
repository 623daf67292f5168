"""How far a judge can be trusted: the confidence from which on no expert has to be asked.

Pure functions of past decisions. What they promise holds for cases like those in memory, as far as
the experts' words there are a fair sample of them: where sure judgments are asked about by chance
alone and unsure ones always, the sample errs on the side of asking.
"""

from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import groupby
from math import ceil, exp, lgamma, log

from memalign_graph.types import FrozenModel

LEVEL = 0.95
"""How sure a bound is: a target of 0.9 can then be shown with 29 decisions that all agree, with 46
if one does not, with 61 if two do not."""

LEFT_OUT_LEVEL = 0.98
"""The same for decisions that are scored by the labels of the others, each left out: a label moves
those scores, and what is counted varies up to 1.2 times as much as what is drawn independently."""

_SPARE = 2
"""How many decisions that do not agree the first step of the test can bear, where memory is large
enough: where they are at most half of all."""


class Trust(FrozenModel):
    """From which confidence on a judge agrees with the experts as often as was asked for.

    Attributes:
        target: The agreement asked for, as a share.
        threshold: The confidence from which on no expert is asked; None if none is known to reach
            the target.
        needed: The fewest decisions that can show the target, if all of them agree.
        decisions: How many past decisions there are whose confidence was measured.
        cases: How many of them have the threshold's confidence or more; without a threshold, that
            at which the test began and failed; 0 where there were too few to begin.
        agreement: The share of these that agree with the experts; None if there are none.
        bound: What the agreement on new cases is not below, at a level of 95 %; None likewise.
        coverage: The share of past decisions with the threshold's confidence; 0 without one.
    """

    target: float
    threshold: float | None
    needed: int
    decisions: int
    cases: int
    agreement: float | None
    bound: float | None
    coverage: float

    @property
    def has_enough(self) -> bool:
        """Whether there are so many decisions that the target could be shown at all."""
        return self.decisions >= self.needed


def interval(agreeing: int, cases: int) -> tuple[float, float]:
    """Bound a share from both sides, exactly (C. Clopper and E. Pearson, 1934)."""
    level = (1 + LEVEL) / 2
    return _lower(agreeing, cases, level), 1 - _lower(cases - agreeing, cases, level)


def trusted(decisions: Iterable[tuple[float, bool]], target: float, level: float = LEVEL) -> Trust:
    """Find the lowest confidence from which on a judge is known to agree with the experts.

    Thresholds are tested from the highest on until one fails, so that each may be tested at the
    whole level. That holds for confidences that rank decisions by nothing fitted to their labels.
    """
    ranked = sorted(decisions, key=lambda decision: -decision[0])
    first = needed = _needed(target, 0, level)
    for spare in range(1, _SPARE + 1):
        # Where to begin must not depend on the labels.
        first = more if (more := _needed(target, spare, level)) <= len(ranked) / 2 else first
    cases = agreeing = 0
    tested, threshold = (0, 0), None
    for confidence, alike in groupby(ranked, key=lambda decision: decision[0]):
        agreed = [agrees for _, agrees in alike]
        cases, agreeing = cases + len(agreed), agreeing + sum(agreed)
        if cases >= first:
            is_shown = _tail(agreeing, cases, target) <= (1 - level) * (1 + 1e-9)
            if is_shown or threshold is None:
                tested = cases, agreeing
            if not is_shown:
                break
            threshold = confidence
    cases, agreeing = tested
    return Trust(
        target=target,
        threshold=threshold,
        needed=needed,
        decisions=len(ranked),
        cases=cases,
        agreement=agreeing / cases if cases else None,
        bound=_lower(agreeing, cases, LEVEL) if cases else None,
        coverage=cases / len(ranked) if threshold is not None else 0,
    )


def is_blind(reasons: Sequence[str]) -> bool:
    """Tell whether a judgment that was asked about was so by chance alone."""
    return set(reasons) == {"sample"}


def _tail(agreeing: int, cases: int, share: float) -> float:
    """Return how likely at least so many of some cases agree if that share of all does."""
    if agreeing <= 0 or share >= 1:
        return 1.0
    if share <= 0:
        return 0.0
    whole, right, wrong = lgamma(cases + 1), log(share), log(1 - share)
    return sum(
        exp(whole - lgamma(off + 1) - lgamma(cases - off + 1) + off * wrong + (cases - off) * right)
        for off in range(cases - agreeing + 1)
    )


def _lower(agreeing: int, cases: int, level: float) -> float:
    """Return the share that is shown at a level: where the tail is what is left of it."""
    low, high = 0.0, 1.0 if agreeing else 0.0
    while high - low > 1e-12:  # noqa: PLR2004 - as exact as such sums are
        middle = (low + high) / 2
        low, high = (middle, high) if _tail(agreeing, cases, middle) <= 1 - level else (low, middle)
    return (low + high) / 2


@lru_cache(maxsize=256)
def _needed(target: float, spare: int, level: float) -> int:
    """Return the fewest cases that show a target, if so many of them do not agree."""
    # A hair less: 0.5 ** 2 is 0.25, but the logarithms' quotient is a bit more than 2.
    cases = max(1, ceil(log(1 - level) / log(target) - 1e-9))
    while spare and _tail(cases - spare, cases, target) > 1 - level:
        cases += 1
    return cases
