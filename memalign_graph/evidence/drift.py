"""Test whether agreement has fallen since the beginning; the test is valid after each answer.

Each answer is ranked among those so far, ties at random. While nothing changes, these ranks are
independent and uniform, whatever the agreement is. The test bets that from some answer on
disagreement is more frequent than before. The capital of the bets is a martingale, which Ville's
inequality bounds at all times at once.

Source: V. Vovk, Testing randomness online, Statistical Science, 2021 (conformal test martingales).
"""

from collections.abc import Sequence
from datetime import date
from itertools import product

import numpy as np

from memalign_graph.identity import draw
from memalign_graph.types import FrozenModel

LEVEL = 0.05
"""The test's chance of a false alarm at any time."""

_BEFORE = (0.02, 0.04, 0.07, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5)  # disagreement that is bet on
_MORE = (0.04, 0.08, 0.15, 0.25, 0.4)  # its growth
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
    """The agreement since then."""

    since: date | None = None
    """The day of the first answer after the most likely time of the fall."""


def find_drift(answers: Sequence[tuple[str, date, bool]]) -> Drift:
    """Test answers in their order: each has an id, its day, and whether the judge agreed."""
    agreed = np.array([agrees for *_, agrees in answers], dtype=bool)
    capital = max(bets(agreed, [draw(f"drift {key}") for key, *_ in answers]), default=1.0)
    drift = Drift(answers=len(answers), evidence=capital, has_fallen=capital >= 1 / LEVEL)
    if not drift.has_fallen:
        return drift
    ahead = np.arange(1, len(agreed))
    right = np.cumsum(agreed)[:-1]
    shares = np.array([right / ahead, (agreed.sum() - right) / (len(agreed) - ahead)])
    # The split with the most likely falling shares.
    gain = ahead * _information(shares[0]) + (len(agreed) - ahead) * _information(shares[1])
    at = int(np.argmax(np.where(shares[0] > shares[1], gain, -np.inf)))
    before, after = shares[:, at].tolist()
    return drift.model_copy(update={"before": before, "after": after, "since": answers[at + 1][1]})


def bets(agreed: Sequence[bool] | np.ndarray, draws: Sequence[float]) -> list[float]:
    """Return the capital of the bets on a fall after each answer."""
    before, more = np.array(list(product(_BEFORE, _MORE))).T
    after = np.minimum(before + more, 0.95)
    won, lost = after / before, (1 - after) / (1 - before)
    capital, wrong, worth = np.zeros(len(before)), 0, list[float]()
    for at, (is_right, tie) in enumerate(zip(agreed, draws, strict=True), 1):
        wrong += not is_right
        rank = (wrong + tie * (at - wrong) if is_right else tie * wrong) / at
        stake = _EARLY / ((_EARLY + at - 1) * (_EARLY + at))
        capital = (capital + stake) * np.where(rank <= before, won, lost)
        worth.append(float(capital.mean()) + _EARLY / (_EARLY + at))
    return worth


def _information(shares: np.ndarray) -> np.ndarray:
    inner = np.clip(shares, 1e-9, 1 - 1e-9)
    result: np.ndarray = inner * np.log(inner) + (1 - inner) * np.log(1 - inner)
    return result
