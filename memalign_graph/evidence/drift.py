"""Whether agreement has fallen since the beginning: a test that may be looked at after each answer.

Each answer is ranked among those so far, ties by chance: while nothing changes these ranks are
independent and uniform, whatever the agreement is. The test bets that from some answer on
disagreement is more frequent than it was. What the bets earn is a martingale, which Ville's
inequality bounds at all times together.

Source: V. Vovk, Testing randomness online, Statistical Science, 2021 (conformal test martingales).
"""

from collections.abc import Sequence
from datetime import date
from itertools import product

import numpy as np

from memalign_graph.identity import draw
from memalign_graph.types import FrozenModel

LEVEL = 0.05
"""How often the test says so at most, at any time, where nothing changed."""

_BEFORE = (0.02, 0.04, 0.07, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5)  # shares of disagreement bet on
_MORE = (0.04, 0.08, 0.15, 0.25, 0.4)  # by how much it grows
_EARLY = 100  # half the stake is on a change within as many answers


class Drift(FrozenModel):
    """Whether judge and experts agree less often than at the beginning, on a random sample."""

    answers: int
    """How many judgments of the sample have an expert's value."""

    evidence: float
    """What the bets on a fall were worth at best, where 1 is the stake: from 20 on it has fallen,
    with false alarms in at most 5 % of all streams, however often one looks."""

    has_fallen: bool
    """Whether agreement has fallen."""

    before: float | None = None
    """The agreement up to the fall; None without one."""

    after: float | None = None
    """The agreement since then."""

    since: date | None = None
    """The day of the first answer after it, as far as that can be told."""


def find_drift(answers: Sequence[tuple[str, date, bool]]) -> Drift:
    """Test answers in their order: each one's id, its day, and whether the judge agreed."""
    agreed = np.array([agrees for *_, agrees in answers], dtype=bool)
    worth = max(bets(agreed, [draw(f"drift {key}") for key, *_ in answers]), default=1.0)
    drift = Drift(answers=len(answers), evidence=worth, has_fallen=worth >= 1 / LEVEL)
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
    """Return what the bets on a fall are worth after each answer."""
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
