"""Whether judge and experts agree less often than at the beginning: a test at any time.

Each answer is ranked among those so far, disagreements first and ties at random. While nothing
changes, these ranks are independent and uniform, for any agreement. The test bets that from some
answer on disagreement is more frequent, so that ranks are lower. The capital of the bets is a
martingale, which Ville's inequality bounds at all times at once.

Source: V. Vovk, Testing randomness online, Statistical Science, 2021 (conformal test martingales).
"""

from collections.abc import Sequence
from datetime import date
from itertools import product

import numpy as np

from memalign_graph.identity import draw
from memalign_graph.types import FrozenModel

DRIFT_LEVEL = 0.05
"""The chance of a false alarm at any time."""

_BEFORE = (0.02, 0.04, 0.07, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5)  # disagreement that is bet on
_INCREASE = (0.04, 0.08, 0.15, 0.25, 0.4)  # its growth
_EARLY = 100  # half the stake is on a change within so many answers


class Drift(FrozenModel):
    """Whether judge and experts agree less often than at the beginning, on a random sample."""

    answers: int
    """The number of judgments in the sample with an expert's value."""

    evidence: float
    """The highest capital of the bets on a fall, with a stake of 1. From 20 on the agreement has
    fallen, with false alarms in at most 5 % of all streams, however often one looks."""

    has_fallen: bool
    """Whether agreement has fallen."""

    before: float | None = None
    """The agreement up to the fall; None without one."""

    after: float | None = None
    """The agreement from then until the evidence is highest."""

    since: date | None = None
    """The day of the first judgment after the most likely time of the fall."""


def find_drift(answers: Sequence[tuple[str, date, bool]]) -> Drift:
    """Test answers in their order: each has an id, its day, and whether the judge agreed."""
    agreed = np.array([agrees for *_, agrees in answers], dtype=bool)
    capital = bets(agreed, [draw(f"drift {key}") for key, *_ in answers])
    evidence = max(capital, default=1.0)
    drift = Drift(answers=len(answers), evidence=evidence, has_fallen=evidence >= 1 / DRIFT_LEVEL)
    if not drift.has_fallen:
        return drift
    # Afterwards the agreement may have risen again.
    agreed = agreed[: capital.index(evidence) + 1]
    # For each time of the fall: the answers before and after it, and their agreement.
    earlier = np.arange(1, len(agreed))
    later = len(agreed) - earlier
    right = np.cumsum(agreed)[:-1]
    before, after = right / earlier, (agreed.sum() - right) / later
    likelihood = earlier * _log_likelihood(before) + later * _log_likelihood(after)
    split = int(np.argmax(np.where(before > after, likelihood, -np.inf)))
    shares = {"before": float(before[split]), "after": float(after[split])}
    return drift.model_copy(update={**shares, "since": answers[split + 1][1]})


def bets(agreed: Sequence[bool] | np.ndarray, draws: Sequence[float]) -> list[float]:
    """Return the capital of all bets after each answer; draws from 0 to 1 break ties.

    A bet is on the share of disagreement before a change, its growth, and the answer at which it
    changes. For each pair of shares, `capital` is that of the bets on a change so far.
    """
    before, more = np.array(list(product(_BEFORE, _INCREASE))).T
    after = before + more
    won, lost = after / before, (1 - after) / (1 - before)
    capital, wrong, worth = np.zeros(len(before)), 0, list[float]()
    for at, (is_right, tie) in enumerate(zip(agreed, draws, strict=True), 1):
        wrong += not is_right
        rank = (wrong + tie * (at - wrong) if is_right else tie * wrong) / at
        stake = _EARLY / ((_EARLY + at - 1) * (_EARLY + at))
        capital = (capital + stake) * np.where(rank <= before, won, lost)
        unstaked = _EARLY / (_EARLY + at)  # on changes at later answers
        worth.append(float(capital.mean()) + unstaked)
    return worth


def _log_likelihood(shares: np.ndarray) -> np.ndarray:
    """Return the log-likelihood per answer of shares that are the observed ones."""
    inner = np.clip(shares, 1e-9, 1 - 1e-9)
    result: np.ndarray = inner * np.log(inner) + (1 - inner) * np.log(1 - inner)
    return result
