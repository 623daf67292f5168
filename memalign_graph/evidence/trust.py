"""How far a judge can be trusted: the confidence from which on no expert has to be asked.

Pure functions of past decisions. What they promise holds for cases like those in memory, as far as
the experts' words there are a fair sample of them: where sure judgments are asked about by chance
alone and unsure ones always, the sample errs on the side of asking.
"""

from collections.abc import Iterable
from math import ceil, log
from typing import Any

from memalign_graph.extras import needs_extra
from memalign_graph.types import FrozenModel

LEVEL = 0.95
"""How sure a bound is.

A target of 0.9 can then be shown with 29 decisions that all agree (46 with one that does not, 61
with two), one of 0.8 with 14, one of 0.95 with 59 and one of 0.99 with 299: what a memory of 30 to
200 pieces of feedback can reach. A level of 0.99 would ask for 44 instead of 29.
"""

_WHAT = "Telling how far a judge can be trusted"

_SPARE = 2
"""How many decisions that do not agree the first step of the test can bear, where memory is large
enough."""

_FIRST_STEP = 0.5
"""The share of past decisions that the first step may look at, to bear any."""


class Trust(FrozenModel):
    """From which confidence on a judge agrees with the experts as often as was asked for."""

    target: float
    """The agreement asked for, as a share."""

    threshold: float | None
    """The confidence from which on no expert is asked; None if no confidence is known to reach the
    target."""

    needed: int
    """The fewest decisions that can show the target, if all of them agree."""

    decisions: int
    """How many past decisions there are whose confidence was measured."""

    cases: int
    """How many of them have the threshold's confidence or more; without a threshold, the confidence
    or more at which the test began and failed; 0 where there were too few to begin."""

    agreement: float | None
    """The share of these that agree with the experts; None if there are none."""

    bound: float | None
    """What the agreement on new cases is not below, at a level of 95 %; None likewise."""

    coverage: float
    """The share of past decisions with the threshold's confidence or more; 0 without one."""

    @property
    def has_enough(self) -> bool:
        """Whether there are so many decisions that the target could be shown at all."""
        return self.decisions >= self.needed


def lower_bound(agreeing: int, cases: int, *, level: float = LEVEL) -> float:
    """Bound a share from below, by what was counted."""
    if agreeing == 0:
        return 0.0
    with needs_extra("evidence", _WHAT):
        from scipy.special import betaincinv
    return float(betaincinv(agreeing, cases - agreeing + 1, 1 - level))


def interval(agreeing: int, cases: int, *, level: float = LEVEL) -> tuple[float, float]:
    """Bound a share from both sides, by what was counted."""
    one_sided = (1 + level) / 2
    low = lower_bound(agreeing, cases, level=one_sided)
    return low, 1 - lower_bound(cases - agreeing, cases, level=one_sided)


def cases_needed(target: float, *, level: float = LEVEL) -> int:
    """Tell how many cases show a share, if all of them agree."""
    # A hair less: 0.5 ** 2 is 0.25, but the logarithms' quotient is a bit more than 2.
    return max(1, ceil(log(1 - level) / log(target) - 1e-9))


def trusted(decisions: Iterable[tuple[float, bool]], target: float) -> Trust:
    """Find the lowest confidence from which on a judge is known to agree with the experts."""
    ranked = sorted(decisions, key=lambda one: -one[0])
    blank: dict[str, Any] = {
        "target": target,
        "needed": cases_needed(target),
        "decisions": len(ranked),
    }
    steps = _steps(ranked, _first_step(len(ranked), target))
    if not steps:
        return Trust(**blank, threshold=None, cases=0, agreement=None, bound=None, coverage=0)
    passes = _show(target, [one[2] for one in steps], [one[1] for one in steps])
    failed = next((at for at, passed in enumerate(passes) if not passed), len(steps))
    confidence, cases, agreeing = steps[max(failed - 1, 0)]
    return Trust(
        **blank,
        threshold=confidence if failed else None,
        cases=cases,
        agreement=agreeing / cases,
        bound=lower_bound(agreeing, cases),
        coverage=cases / len(ranked) if failed else 0,
    )


def _steps(ranked: list[tuple[float, bool]], first: int) -> list[tuple[float, int, int]]:
    """Return each threshold to test, how many decisions reach it, and how many of these agree."""
    steps = []
    agreeing = 0
    for count, (confidence, agreed) in enumerate(ranked, start=1):
        agreeing += agreed
        is_last = count == len(ranked) or ranked[count][0] < confidence
        if is_last and count >= first:
            steps.append((confidence, count, agreeing))
    return steps


def _first_step(decisions: int, target: float) -> int:
    """Return how many decisions the first threshold has at least."""
    least = cases_needed(target)
    counts = range(1, min(int(decisions * _FIRST_STEP), 4 * least) + 1)
    for spare in range(1, _SPARE + 1):
        passes = _show(target, [max(one - spare, 0) for one in counts], counts)
        least = next((one for one, passed in zip(counts, passes, strict=True) if passed), least)
    return least


def _show(target: float, agreeing: Iterable[int], cases: Iterable[int]) -> list[bool]:
    """Tell of each share whether its lower bound is the target or more."""
    import numpy as np

    with needs_extra("evidence", _WHAT):
        from scipy.special import bdtrc
    hits, counts = np.asarray(list(agreeing), dtype=float), np.asarray(list(cases), dtype=np.int64)
    chances = bdtrc(np.maximum(hits, 1) - 1, counts, target)
    # A hair more: 19 of 19 show 0.95 ** (1 / 19) also where that is rounded.
    shown: list[bool] = ((hits > 0) & (chances <= (1 - LEVEL) * (1 + 1e-9))).tolist()
    return shown
