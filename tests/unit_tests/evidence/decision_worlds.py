"""Worlds in which a default decision can do harm, and what it does there beside the judge alone.

A world makes the cases that experts have reviewed and the new ones, from a random generator. What
is measured of the new cases: agreement in the mean of the classes (balanced), and the share of bad
answers that are caught.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from memalign_graph import Numeric
from memalign_graph.agreement import values_agree
from memalign_graph.scales import Scale, Value
from tests.unit_tests.evidence.worlds import YES_NO, Item, decided, model_of, normalised

STARS = Numeric(minimum=1, maximum=5, integer=True)
SHARE = Numeric(minimum=0, maximum=1)
_WIDTH = 64
Rng = np.random.Generator
Made = tuple[list[Item], list[Item]]
Make = Callable[[Rng, int, int], Made]


class World(NamedTuple):
    """A world with its sizes of memory."""

    make: Make
    counts: tuple[int, ...] = (12, 20, 40, 100)
    new: int = 60
    scale: Scale = YES_NO
    judge_key: str | None = None  # of the judge that decides on the new cases


def turned(rng: Rng, truth: bool, right: float) -> bool:  # noqa: FBT001 - a value
    """Return a value that is right so often."""
    return bool(truth) if rng.random() < right else not truth


def _anywhere(rng: Rng) -> NDArray[np.float32]:
    return normalised(rng.normal(size=_WIDTH))


def unlike(catches: float, false_alarms: float, bad: float = 0.5) -> Make:
    """Neighbours tell nothing."""

    def make(rng: Rng, count: int, new: int) -> Made:
        items = []
        for _ in range(count + new):
            truth = bool(rng.random() >= bad)
            verdict = rng.random() >= (false_alarms if truth else catches)
            items.append(Item(_anywhere(rng), truth, bool(verdict)))
        return items[:count], items[count:]

    return make


def topics(
    right: Callable[[float, bool], float],
    purity: float = 0.9,
    *,
    flips: Callable[[Rng, int], bool] = lambda *_: False,
    moved: bool = False,
    keys: Callable[[float], str | None] = lambda _: None,
) -> Make:
    """Six topics, three of them bad: how often the judge is right, by time from 0 to 1 and truth.

    `flips` tells which labels in memory are wrong, by topic; where it `moved`, the experts changed
    their mind on three topics at 0.7.
    """

    def make(rng: Rng, count: int, new: int) -> Made:
        centres = rng.normal(size=(6, _WIDTH))
        own, items = rng.permutation([True, False] * 3), []
        for at in range(count + new):
            time, topic = min(at / count, 1.0), int(rng.integers(6))
            truth = turned(rng, own[topic] ^ (moved and time >= 0.7 and topic < 3), purity)
            verdict = turned(rng, truth, right(time, truth))
            label = truth ^ (at < count and flips(rng, topic))
            vector = normalised(centres[topic] + 0.5 * rng.normal(size=_WIDTH))
            items.append(Item(vector, label, verdict, judge_key=keys(time)))
        return items[:count], items[count:]

    return make


def twins(right: float, times: int) -> Make:
    """Each case in memory in a few wordings; new cases have none."""

    def make(rng: Rng, count: int, new: int) -> Made:
        past: list[Item] = []
        while len(past) < count:
            base, truth = _anywhere(rng), bool(rng.random() < 0.5)
            for _ in range(times):
                vector = normalised(base + 0.15 * _anywhere(rng))
                past.append(Item(vector, truth, turned(rng, truth, right)))
        return past[:count], unlike(right, 1 - right)(rng, 0, new)[1]

    return make


def numbers(scale: Numeric, off: float, *, pure: bool, low: float = 0.5) -> Make:
    """Numbers that a judge misses by so much of the range; six topics tell them, or nothing does.

    Four topics are high, two are low, of which there are fewer cases.
    """

    def make(rng: Rng, count: int, new: int) -> Made:
        def on_scale(share: float) -> Value:
            number = scale.minimum + min(max(share, 0.0), 1.0) * (scale.maximum - scale.minimum)
            return scale.validate_value(round(number) if scale.integer else number)

        centres, items = rng.normal(size=(6, _WIDTH)), []
        shares = np.array([low / 2] * 2 + [(1 - low) / 4] * 4)
        for _ in range(count + new):
            topic = int(rng.choice(6, p=shares))
            true = (0.1, 0.2, 0.7, 0.8, 0.9, 1.0)[topic] + 0.05 * rng.normal()
            vector = normalised(pure * centres[topic] + 0.5 * rng.normal(size=_WIDTH))
            items.append(Item(vector, on_scale(true), on_scale(true + off * rng.normal())))
        return items[:count], items[count:]

    return make


def _steady(right: float) -> Callable[[float, bool], float]:
    return lambda *_: right


def _grows(old: float, new: float, since: float) -> Callable[[float, bool], float]:
    return lambda time, _: old if time < since else new


_ONE_IN_THREE: Callable[[Rng, int], bool] = lambda rng, _: bool(rng.random() < 1 / 3)  # noqa: E731
_FROM_40, _RARE = (40, 100), (40, 100, 300)

WORLDS = {
    "judge .85, neighbours useless": World(unlike(0.85, 0.15)),
    "judge .95, neighbours useless": World(unlike(0.95, 0.05)),
    "judge .60, neighbours useless": World(unlike(0.60, 0.40)),
    "judge .85, neighbours .85": World(topics(_steady(0.85), 0.85)),
    "judge leans to yes (.95, .4), neighbours .85": World(
        topics(lambda _, truth: 0.95 if truth else 0.4, 0.85)
    ),
    "5 % bad, judge catches .8, false alarms .1": World(unlike(0.8, 0.1, 0.05), _RARE, 200),
    "10 % bad, judge catches .8, false alarms .15": World(unlike(0.8, 0.15, 0.1), _RARE, 200),
    "judge .85, each case twice": World(twins(0.85, 2), (20, 40, 100)),
    "judge .85, each case four times": World(twins(0.85, 4), (20, 40, 100)),
    "new model .6 -> .95, no verdict of it": World(
        topics(_grows(0.6, 0.95, 1.0), 0.85, keys=lambda time: "old" if time < 1 else "new"),
        _FROM_40,
        judge_key="new",
    ),
    "judge learned .6 -> .95, last 30 %": World(topics(_grows(0.6, 0.95, 0.7), 0.85), _FROM_40),
    "judge learned .6 -> .95, last half": World(topics(_grows(0.6, 0.95, 0.5), 0.85), _FROM_40),
    "policy changed, judge .65 -> .9 follows": World(
        topics(_grows(0.65, 0.9, 0.7), 0.95, moved=True), _FROM_40
    ),
    "one expert in three flips labels": World(
        topics(_steady(0.85), 0.85, flips=_ONE_IN_THREE), (20, 40, 100)
    ),
    "stars: judge off by .1, neighbours useless": World(
        numbers(STARS, 0.1, pure=False), (6, 10, 20, 40, 100), scale=STARS
    ),
    "stars: 10 % low, judge off by .1": World(
        numbers(STARS, 0.1, pure=True, low=0.1), (6, 10, 40, 100), 100, STARS
    ),
    "shares: 10 % low, judge off by .15": World(
        numbers(SHARE, 0.15, pure=True, low=0.1), (6, 10, 40, 100), 100, SHARE
    ),
}
"""What an owner may have: here the default must do no harm."""

HELPED = {
    "coin judge, neighbours .9": World(topics(_steady(0.5))),
    "stars: judge off by .5, neighbours good": World(
        numbers(STARS, 0.5, pure=True), _FROM_40, scale=STARS
    ),
}
"""Here the default is to help."""

NOT_KNOWN = {
    "one expert flips two of six topics, alone": World(
        topics(_steady(0.85), 0.95, flips=lambda _, topic: topic < 2), (20, 40, 100)
    ),
    "judge learned .6 -> .95 since the last verdict": World(
        topics(_grows(0.6, 0.95, 1.0), 0.85), _FROM_40
    ),
}
"""Nothing in memory tells these from worlds where the default is to help."""


class Measured(NamedTuple):
    """What came of one memory: of the judge alone, then of the default decision."""

    decides: float
    agreement: tuple[float, float]
    """In the mean of the classes."""
    caught: tuple[float, float]
    """The share of bad answers that are found bad; NaN where there is none."""


def judged(past: list[Item], new: list[Item], scale: Scale, key: str | None = None) -> Measured:
    """Decide on new cases by default."""
    model = model_of(past, scale, judge_key=key)
    values = [decided(model, item, "auto").value for item in new]

    def classes(values: list[Value]) -> NDArray[np.int64]:
        bands = np.array(values, dtype=float)
        if isinstance(scale, Numeric):
            bands = 3 * (bands - scale.minimum) / (scale.maximum - scale.minimum)
        classes: NDArray[np.int64] = np.minimum(bands, 2).astype(np.int64)
        return classes

    truth = classes([item.truth for item in new])
    agreements, shares = [], []
    for made in ([item.verdict for item in new], values):
        some = [value for value in made if value is not None]
        right = np.array([values_agree(scale, a, b.truth) for a, b in zip(some, new, strict=True)])
        agreements.append(
            float(np.mean([right[truth == each].mean() for each in np.unique(truth)]))
        )
        bad = truth == 0
        shares.append(float((classes(some)[bad] == 0).mean()) if bad.any() else float("nan"))
    pairs = (agreements[0], agreements[1]), (shares[0], shares[1])
    return Measured(model.decides("auto"), *pairs)


def simulate(world: World, count: int, seeds: range) -> list[Measured]:
    """Measure memories of one size."""
    outcomes = []
    for seed in seeds:
        rng = np.random.default_rng([count, seed])
        made = world.make(rng, count, world.new)
        outcomes.append(judged(*made, world.scale, world.judge_key))
    return outcomes


class Change(NamedTuple):
    """A mean change by the default decision, and its standard error."""

    before: float
    after: float
    error: float


def change(pairs: list[tuple[float, float]]) -> Change:
    """Compare what the judge alone reaches with what the default does."""
    known = np.array([pair for pair in pairs if not np.isnan(pair).any()])
    off = known[:, 1] - known[:, 0]
    before, after = known.mean(axis=0).tolist()
    return Change(before, after, float(off.std(ddof=1) / len(off) ** 0.5))
