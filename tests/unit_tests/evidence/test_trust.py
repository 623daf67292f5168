"""From which confidence on nobody is asked: the bound, the tests in sequence, what they keep."""

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import beta, binomtest

from memalign_graph.evidence.trust import (
    LEVEL,
    Trust,
    interval,
    trusted,
)

TARGET = 0.9
MEMORIES = 200

Floats = NDArray[np.float64]
Judge = Callable[[np.random.Generator, int], tuple[Floats, Floats]]
"""Draws confidences, and how likely each decision agrees."""


def bound(agreeing: int, cases: int) -> float:
    """What scipy says of the share on one side."""
    return float(beta.ppf(0.05, agreeing, cases - agreeing + 1)) if agreeing else 0.0


def pairs(*groups: tuple[float, int, int]) -> list[tuple[float, bool]]:
    """Decisions in groups: their confidence, how many agree, and how many do not."""
    return [
        (confidence, agreed)
        for confidence, right, wrong in groups
        for agreed in [True] * right + [False] * wrong
    ]


@pytest.mark.parametrize("cases", [1, 2, 10, 29, 46, 100, 1000])
def test_bound_is_that_of_scipy(cases: int) -> None:
    for agreeing in {0, 1, cases // 2, cases - 1, cases}:
        exact = binomtest(agreeing, cases).proportion_ci(0.95, method="exact")
        assert interval(agreeing, cases) == pytest.approx((exact.low, exact.high), abs=1e-8)


@pytest.mark.parametrize(
    ("agreeing", "cases", "low", "high"),
    [
        # As printed in tables of exact 95 % limits of a proportion.
        (0, 10, 0.0, 0.3085),
        (5, 10, 0.1871, 0.8129),
        (8, 10, 0.4439, 0.9748),
        (10, 10, 0.6915, 1.0),
        (1, 20, 0.0013, 0.2487),
        (15, 20, 0.5090, 0.9134),
    ],
)
def test_interval_is_that_of_published_tables(
    agreeing: int, cases: int, low: float, high: float
) -> None:
    assert interval(agreeing, cases) == pytest.approx((low, high), abs=5e-5)


def test_interval_of_nothing_is_everything() -> None:
    assert interval(0, 0) == (0.0, 1.0)


@pytest.mark.parametrize(
    ("target", "needed"), [(0.5, 5), (0.8, 14), (0.9, 29), (0.95, 59), (0.99, 299)]
)
def test_fewest_cases_that_show_a_target(target: float, needed: int) -> None:
    assert trusted([], target).needed == needed
    assert trusted(pairs((0.9, needed, 0)), target).threshold == 0.9
    assert trusted(pairs((0.9, needed - 1, 0)), target).threshold is None


def test_few_decisions_are_too_few_however_well_they_agree() -> None:
    trust = trusted(pairs((0.99, 28, 0)), TARGET)
    assert (trust.threshold, trust.has_enough, trust.coverage) == (None, False, 0)
    assert (trust.decisions, trust.needed, trust.cases) == (28, 29, 0)
    assert (trust.agreement, trust.bound) == (None, None)
    assert trusted([], TARGET).decisions == 0


def test_just_enough_that_all_agree_are_trusted() -> None:
    trust = trusted(pairs((0.99, 29, 0)), TARGET)
    assert (trust.threshold, trust.has_enough, trust.coverage) == (0.99, True, 1)
    assert (trust.cases, trust.agreement) == (29, 1)
    assert trust.bound == pytest.approx(0.05 ** (1 / 29))


def test_threshold_is_the_lowest_that_the_sequence_reaches() -> None:
    trust = trusted(pairs((0.99, 40, 0), (0.9, 40, 1), (0.8, 40, 2), (0.4, 10, 30)), TARGET)
    assert trust.threshold == 0.8
    assert trust.cases == 123
    assert trust.agreement == pytest.approx(120 / 123)
    assert trust.coverage == pytest.approx(123 / 163)
    assert trust.bound == pytest.approx(bound(120, 123))


def test_sequence_ends_at_the_first_failure_even_if_a_later_one_would_pass() -> None:
    decisions = pairs((0.99, 70, 0), (0.9, 0, 8), (0.8, 400, 0))
    assert bound(470, 478) > TARGET
    assert trusted(decisions, TARGET).threshold == 0.99


def test_no_threshold_with_enough_feedback_is_told_from_too_little() -> None:
    trust = trusted(pairs((0.99, 30, 20)), TARGET)
    assert (trust.threshold, trust.has_enough, trust.coverage) == (None, True, 0)
    assert (trust.cases, trust.agreement) == (50, 0.6)
    assert trust.bound == pytest.approx(bound(30, 50))


def test_equal_confidences_are_taken_together() -> None:
    """Which of them come first in memory must not matter."""
    right_first = pairs((0.9, 60, 9))
    for decisions in (right_first, right_first[::-1]):
        trust = trusted(decisions, TARGET)
        assert (trust.threshold, trust.cases) == (None, 69)


def test_larger_memory_bears_an_odd_decision_among_the_surest() -> None:
    one_odd = [(1 - at / 1000, at != 3) for at in range(100)]
    assert trusted(one_odd[:60], TARGET).threshold is None
    assert trusted(one_odd, TARGET).threshold == pytest.approx(1 - 99 / 1000)


def test_where_the_sequence_begins_does_not_depend_on_what_agrees() -> None:
    begun = {trusted([(1 - at / 1000, False) for at in range(n)], TARGET).cases for n in (60, 91)}
    assert begun == {29}
    assert trusted([(1 - at / 1000, False) for at in range(92)], TARGET).cases == 46
    assert trusted([(1 - at / 1000, False) for at in range(122)], TARGET).cases == 61
    assert trusted([(1 - at / 1000, False) for at in range(5000)], TARGET).cases == 61


def calibrated(a: float, b: float) -> Judge:
    """A judge that agrees as often as it says it does."""

    def judge(rng: np.random.Generator, count: int) -> tuple[Floats, Floats]:
        confidence = rng.beta(a, b, count)
        return confidence, confidence

    return judge


def flat(agreement: float) -> Judge:
    """A judge whose confidence says nothing, and which agrees so often."""

    def judge(rng: np.random.Generator, count: int) -> tuple[Floats, Floats]:
        return rng.random(count), np.full(count, agreement)

    return judge


def memories(judge: Judge, size: int) -> list[tuple[Trust, float, float]]:
    """Of many random memories: what is trusted, and the true coverage and agreement."""
    rng = np.random.default_rng(7)
    new, likely = judge(rng, 50_000)
    found = []
    for _ in range(MEMORIES):
        confidence, chance = judge(rng, size)
        agreed = rng.random(size) < chance
        trust = trusted(zip(confidence.tolist(), agreed.tolist(), strict=True), TARGET)
        if trust.threshold is None:
            found.append((trust, 0.0, 1.0))
            continue
        unasked = new >= trust.threshold
        found.append((trust, float(unasked.mean()), float(likely[unasked].mean())))
    return found


@pytest.mark.parametrize("size", [40, 100, 200, 500])
@pytest.mark.parametrize("judge", [calibrated(4, 1.2), calibrated(8, 1), calibrated(2, 1.2)])
def test_agreement_on_what_is_not_asked_keeps_the_target(judge: Judge, size: int) -> None:
    missed = sum(agreement < TARGET for _, _, agreement in memories(judge, size))
    assert missed / MEMORIES <= 1 - LEVEL


def test_judge_just_below_the_target_is_not_trusted_by_luck() -> None:
    """The worst case for trying many thresholds: each of them is a little too low."""
    found = memories(flat(0.895), 300)
    assert sum(trust.threshold is not None for trust, _, _ in found) / MEMORIES <= 1 - LEVEL
    rng = np.random.default_rng(7)
    lucky = 0
    for _ in range(MEMORIES):
        right = np.cumsum(rng.random(300) < 0.895)
        lucky += any(bound(int(right[n - 1]), n) >= TARGET for n in range(29, 301))
    assert lucky / MEMORIES > 2 * (1 - LEVEL)


def test_coverage_grows_with_a_better_judge_and_with_feedback() -> None:
    def coverage(judge: Judge, size: int) -> float:
        return float(np.mean([one for _, one, _ in memories(judge, size)]))

    by_judge = [coverage(calibrated(a, 1), 150) for a in (3, 6, 12, 40)]
    assert by_judge == sorted(by_judge)
    assert by_judge[-1] - by_judge[0] > 0.5
    by_size = [coverage(calibrated(8, 1), size) for size in (40, 100, 200, 500)]
    assert by_size == sorted(by_size)
    assert by_size[-1] - by_size[0] > 0.5


def test_useless_confidence_of_a_good_judge_is_trusted_as_a_whole() -> None:
    found = memories(flat(0.98), 200)
    assert np.mean([coverage for _, coverage, _ in found]) > 0.8
