"""Evidence leans on a judge that is good and on the neighbours where it is useless."""

import random
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest

from memalign_graph import Numeric
from memalign_graph.evidence.deciding import Decision
from memalign_graph.scales import Scale, Value
from tests.unit_tests.evidence.worlds import (
    SCALES,
    Item,
    Judge,
    bench_of,
    coin,
    decided,
    error,
    off,
    right_in,
    world,
)

SEEDS = range(5)
NEW = 60


def nearly(scale: Scale, truth: Value, rng: random.Random) -> Value:
    """A judge that is right 95 % of the time: within a tenth of the range, or one star off."""
    assert isinstance(scale, Numeric)
    if scale.integer:
        return truth if rng.random() < 0.95 else off(scale, truth, rng.choice([-1, 1]))
    return off(scale, truth, rng.gauss(0, 0.05 * (scale.maximum - scale.minimum)))


def spread(scale: Scale, centre: Value, rng: random.Random) -> Value:
    """Experts' numbers in a cluster."""
    assert isinstance(scale, Numeric)
    return off(scale, centre, rng.gauss(0, 0.12 * (scale.maximum - scale.minimum)))


@dataclass
class Outcome:
    """What came of new cases, over several memories."""

    verdict: list[float] = field(default_factory=list)
    estimate: list[float] = field(default_factory=list)
    decided: list[float] = field(default_factory=list)
    used: int = 0
    weights: list[tuple[float, float]] = field(default_factory=list)
    with_judge: list[bool] = field(default_factory=list)
    """Of the cases where judge and neighbours differ: whether the estimate is nearer the judge."""

    @property
    def errors(self) -> tuple[float, float, float]:
        verdict, estimate, value = map(np.mean, (self.verdict, self.estimate, self.decided))
        return float(verdict), float(estimate), float(value)


def trial(kind: str, judge: Judge, count: int, *, knows_nothing: bool = False) -> Outcome:
    """Decide on new cases with memories of so many."""
    options: dict[str, Any] = {"clusters": 1, "purity": 0.4} if knows_nothing else {}
    scale, outcome = SCALES[kind], Outcome()
    for seed in SEEDS:
        rng = random.Random(seed)  # noqa: S311 - nothing secret
        labels = spread if isinstance(scale, Numeric) and not knows_nothing else None
        items = world(scale, count + NEW, rng, judge, labels=labels, **options)
        table, bench = bench_of(items[:count], scale)
        outcome.used += bench.uses_evidence
        for one in items[count:]:
            note(outcome, scale, one, decided(table, bench, one))
        assert bench.weighing is not None
        weights = bench.weighing.weights
        outcome.weights.append((weights["judge"], weights["neighbours"]))
    return outcome


def note(outcome: Outcome, scale: Scale, item: Item, decision: Decision) -> None:
    evidence = decision.evidence
    assert evidence is not None
    assert evidence.estimate is not None
    assert item.verdict is not None
    assert decision.value == (
        evidence.estimate if evidence.decided_by == "evidence" else item.verdict
    )
    outcome.verdict.append(error(scale, item.verdict, item.truth))
    outcome.estimate.append(error(scale, evidence.estimate, item.truth))
    outcome.decided.append(error(scale, decision.value, item.truth))
    if isinstance(evidence.vote, dict):
        favoured = max(evidence.vote, key=evidence.vote.__getitem__)
        differ = favoured != scale.render(item.verdict)
        judges = evidence.estimate == item.verdict
    else:
        vote = float(evidence.vote or 0)
        apart = abs(vote - float(item.verdict))
        assert isinstance(scale, Numeric)
        differ = apart > 0.15 * (scale.maximum - scale.minimum)
        judges = abs(float(evidence.estimate) - float(item.verdict)) < apart / 2
    if differ:
        outcome.with_judge.append(judges)


def strong(kind: str) -> Judge:
    return nearly if isinstance(SCALES[kind], Numeric) else right_in(0.95)


@pytest.mark.parametrize("kind", SCALES)
def test_a_judge_that_is_right_95_percent_of_the_time(kind: str) -> None:
    outcome = trial(kind, strong(kind), 80)
    judge, neighbours = np.median(outcome.weights, axis=0)
    assert judge > 1.2 * neighbours
    # With neighbours of one mind, Bayes' rule says so in two thirds of them.
    assert np.mean(outcome.with_judge) > 0.4
    verdict, _, value = outcome.errors
    assert value <= 1.1 * verdict + 0.01


@pytest.mark.parametrize("kind", SCALES)
def test_a_judge_that_tosses_a_coin(kind: str) -> None:
    outcome = trial(kind, coin, 80)
    judge, neighbours = np.median(outcome.weights, axis=0)
    assert judge < 0.15 * neighbours
    assert np.mean(outcome.with_judge) < 0.1
    assert outcome.used == len(SEEDS)
    verdict, estimate, value = outcome.errors
    assert value == estimate
    assert value < verdict / 2


@pytest.mark.parametrize("kind", SCALES)
@pytest.mark.parametrize("count", [12, 25])
def test_a_small_memory_does_no_harm_to_a_good_judge(kind: str, count: int) -> None:
    verdict, _, value = trial(kind, strong(kind), count).errors
    scale = SCALES[kind]
    span = scale.maximum - scale.minimum if isinstance(scale, Numeric) else 1
    assert value - verdict < 0.03 * span


@pytest.mark.parametrize("kind", SCALES)
def test_neighbours_that_know_nothing_do_no_harm(kind: str) -> None:
    outcome = trial(kind, right_in(0.7), 40, knows_nothing=True)
    verdict, _, value = outcome.errors
    scale = SCALES[kind]
    span = scale.maximum - scale.minimum if isinstance(scale, Numeric) else 1
    assert value - verdict < 0.03 * span


@pytest.mark.parametrize("kind", SCALES)
def test_judge_and_neighbours_together_are_no_worse_than_either(kind: str) -> None:
    scale, errors = SCALES[kind], []
    for seed in SEEDS:
        rng = random.Random(seed)  # noqa: S311 - nothing secret
        items = world(scale, 200, rng, right_in(0.75), purity=0.85)
        table, bench = bench_of(items[:140], scale)
        alone = (
            table,
            bench_of([replace(one, verdict=coin(scale, 0, rng)) for one in items[:140]], scale)[1],
        )
        errors.append(
            [
                np.mean(
                    [
                        [
                            error(scale, one.verdict or 0, one.truth),
                            error(scale, decided(*alone, one).value, one.truth),
                            error(scale, decided(table, bench, one).value, one.truth),
                        ]
                        for one in items[140:]
                    ],
                    axis=0,
                )
            ]
        )
    verdict, neighbours, both = np.mean(errors, axis=0)[0]
    assert both <= min(verdict, neighbours) * 1.05 + 0.01
