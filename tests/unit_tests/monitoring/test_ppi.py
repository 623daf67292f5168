"""Coverage and width of the pass rate's interval."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy.stats import binomtest

from memalign_graph.evidence.mean import MIN_LABELS, Estimate, estimate_mean, more_labels

RUNS, OTHERS = 400, 2_000
World = tuple[list[float], list[float], list[float]]
"""Values, the judge's predictions of them, and its predictions of the other cases."""


def share_world(rng: np.random.Generator, rate: float, accuracy: float, labels: int) -> World:
    truth = rng.random(labels + OTHERS) < rate
    judged = np.where(rng.random(len(truth)) < accuracy, truth, ~truth).astype(float)
    values = truth[:labels].astype(float)
    return values.tolist(), judged[:labels].tolist(), judged[labels:].tolist()


def score_world(rng: np.random.Generator, rate: float, noise: float, labels: int) -> World:
    """Scores from 1 to 5; the judge's are 0.4 too high."""
    truth = np.round(1 + 4 * rng.beta(6 * rate, 6 * (1 - rate), labels + OTHERS))
    judged = np.clip(np.round(truth + rng.normal(0.4, noise, len(truth))), 1, 5)
    return truth[:labels].tolist(), judged[:labels].tolist(), judged[labels:].tolist()


def covered(make: Callable[[], World], truth: float, **how: Any) -> tuple[float, float]:
    """Coverage of an interval, and its width relative to that of the labels alone."""
    hits, widths = 0, []
    for _ in range(RUNS):
        values, predictions, others = make()
        estimate = estimate_mean(values, predictions, others, **how)
        alone = estimate_mean(values, **how)
        hits += estimate.low <= truth <= estimate.high
        widths.append((estimate.high - estimate.low) / (alone.high - alone.low))
    return hits / RUNS, float(np.mean(widths))


@pytest.mark.parametrize("labels", [30, 100, 300])
@pytest.mark.parametrize("rate", [0.02, 0.2, 0.5])
def test_interval_of_a_share_has_its_stated_coverage(rate: float, labels: int) -> None:
    widths = []
    for accuracy in (0.6, 0.8, 0.95):
        rng = np.random.default_rng(1)
        share, width = covered(lambda: share_world(rng, rate, accuracy, labels), rate)  # noqa: B023
        assert share >= 0.925  # 0.95, minus the error of 400 runs
        widths.append(width)
    assert max(widths) < 1.05  # a useless judge costs nothing
    assert rate == 0.02 or widths[2] < 0.75


@pytest.mark.parametrize("rate", [0.2, 0.5, 0.9])
def test_interval_covers_if_all_errors_are_of_one_kind(rate: float) -> None:
    rng = np.random.default_rng(5)

    def world() -> World:
        values, _, _ = share_world(rng, rate, 1, 30 + OTHERS)
        seen = [value * float(rng.random() > 0.1) for value in values]  # misses one good in ten
        return values[:30], seen[:30], seen[30:]

    assert covered(world, rate)[0] >= 0.91


@pytest.mark.parametrize("rate", [0.1, 0.5])
def test_interval_of_a_mean_has_its_stated_coverage(rate: float) -> None:
    rng = np.random.default_rng(2)
    truth = float(np.mean(score_world(rng, rate, 1, 10**6)[0]))
    share, width = covered(lambda: score_world(rng, rate, 0.7, 100), truth, bounds=(1, 5))
    assert share >= 0.925
    assert width < 0.9


@pytest.mark.parametrize("labels", [10, 30, 100])
@pytest.mark.parametrize("shares", [(0.02, 0, 0, 0, 0.98), (0.02, 0.02, 0.03, 0.08, 0.85)])
def test_interval_of_a_mean_covers_rare_bad_values(shares: tuple[float, ...], labels: int) -> None:
    rng = np.random.default_rng(3)

    def alone() -> World:
        return rng.choice([1.0, 2, 3, 4, 5], labels, p=shares).tolist(), [], []

    truth = sum(value * share for value, share in enumerate(shares, 1))
    assert covered(alone, truth, bounds=(1, 5))[0] >= 0.925


def test_interval_of_a_mean_is_as_narrow_as_the_normal_one_for_values_in_the_middle() -> None:
    values = np.clip(np.random.default_rng(0).normal(3, 1, 30), 1, 5)
    estimate = estimate_mean(values, bounds=(1, 5))
    normal = 2 * 1.96 * values.std(ddof=1) / 30**0.5
    assert estimate.high - estimate.low == pytest.approx(normal, rel=0.1)


def test_without_a_judge_the_interval_of_a_share_is_wilsons() -> None:
    for count, right in ((1, 0), (2, 1), (46, 46), (1000, 900)):
        estimate = estimate_mean([1.0] * right + [0.0] * (count - right))
        exact = binomtest(right, count).proportion_ci(0.95, method="wilson")
        assert (estimate.low, estimate.high) == pytest.approx((exact.low, exact.high), abs=1e-6)


@pytest.mark.parametrize(
    ("labels", "others", "bounds", "widths"),
    [
        ([0.0] * 30, [0.0] * 2_000, (0, 1), (0.1, 0.3)),
        ([1.0, 0.0] * 20, [1.0, 0.0] * 1_000, (0, 1), (0.02, 0.15)),
        ([5.0] * 12, [], (1, 5), (0.1, 1.5)),
        ([5.0] * 12, [5.0] * 500, (1, 5), (0.1, 1.5)),
    ],
)
def test_a_judge_that_never_errs_leaves_an_interval(
    labels: list[float], others: list[float], bounds: Any, widths: tuple[float, float]
) -> None:
    estimate = estimate_mean(labels, labels, others, bounds=bounds)
    assert estimate.value == pytest.approx(np.mean(labels))
    assert widths[0] < estimate.high - estimate.low < widths[1]


def test_interval_without_enough_labels_is_bounded_by_the_scale() -> None:
    few = estimate_mean([4.0] * 9, bounds=(1, 5), min_values=MIN_LABELS)
    assert few == Estimate(value=None, low=1, high=5)
    assert more_labels(few, 9, 0.2) == 1
    alone = estimate_mean([3.0], bounds=(1, 5))
    assert alone.value == 3
    assert 1 < alone.low < 1.5


def test_more_labels_bring_the_interval_within_the_margin() -> None:
    labels = [1.0, 0.0] * 25
    needed = more_labels(estimate_mean(labels), 50, 0.05)
    wider = estimate_mean([1.0, 0.0] * ((50 + needed) // 2))
    assert (wider.high - wider.low) / 2 == pytest.approx(0.05, abs=0.003)
    assert more_labels(estimate_mean(labels), 50, 0.2) == 0
