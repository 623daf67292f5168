"""From which confidence on nobody is asked: the bound, the tests in sequence, what they keep."""

import pytest
from scipy.stats import beta, binomtest

from memalign_graph.evidence.trust import interval, trusted

TARGET = 0.9


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


def test_interval_is_that_of_scipy() -> None:
    for cases in (1, 10, 46, 1000):
        for agreeing in {0, 1, cases // 2, cases - 1, cases}:
            exact = binomtest(agreeing, cases).proportion_ci(0.95, method="exact")
            assert interval(agreeing, cases) == pytest.approx((exact.low, exact.high), abs=1e-8)
    assert interval(0, 0) == (0.0, 1.0)


@pytest.mark.parametrize(("target", "needed"), [(0.5, 5), (0.9, 29), (0.99, 299)])
def test_fewest_cases_that_show_a_target(target: float, needed: int) -> None:
    assert trusted([], target).needed == needed
    few = trusted(pairs((0.99, needed - 1, 0)), target)
    assert (few.threshold, few.has_enough, few.coverage) == (None, False, 0)
    assert (few.decisions, few.cases, few.agreement, few.bound) == (needed - 1, 0, None, None)
    enough = trusted(pairs((0.99, needed, 0)), target)
    assert (enough.threshold, enough.has_enough, enough.coverage) == (0.99, True, 1)
    assert (enough.cases, enough.agreement) == (needed, 1)
    assert enough.bound == pytest.approx(0.05 ** (1 / needed))


def test_threshold_is_the_lowest_that_the_sequence_reaches() -> None:
    trust = trusted(pairs((0.99, 40, 0), (0.9, 40, 1), (0.8, 40, 2), (0.4, 10, 30)), TARGET)
    assert (trust.threshold, trust.cases) == (0.8, 123)
    assert trust.agreement == pytest.approx(120 / 123)
    assert trust.coverage == pytest.approx(123 / 163)
    assert trust.bound == pytest.approx(bound(120, 123))
    # It ends at the first failure, even if a later one would pass.
    decisions = pairs((0.99, 70, 0), (0.9, 0, 8), (0.8, 400, 0))
    assert bound(470, 478) > TARGET
    assert trusted(decisions, TARGET).threshold == 0.99


def test_no_threshold_with_enough_feedback_is_told_from_too_little() -> None:
    trust = trusted(pairs((0.99, 30, 20)), TARGET)
    assert (trust.threshold, trust.has_enough, trust.coverage) == (None, True, 0)
    assert (trust.cases, trust.agreement) == (50, 0.6)
    assert trust.bound == pytest.approx(bound(30, 50))
    # Equal confidences are taken together: which come first in memory must not matter.
    right_first = pairs((0.9, 60, 9))
    for decisions in (right_first, right_first[::-1]):
        trust = trusted(decisions, TARGET)
        assert (trust.threshold, trust.cases) == (None, 69)


def test_larger_memory_bears_odd_decisions_whatever_agrees() -> None:
    one_odd = [(1 - at / 1000, at != 3) for at in range(100)]
    assert trusted(one_odd[:60], TARGET).threshold is None
    assert trusted(one_odd, TARGET).threshold == pytest.approx(1 - 99 / 1000)
    for count, begun in ((60, 29), (91, 29), (92, 46), (122, 61), (5000, 61)):
        wrong = [(1 - at / 10_000, False) for at in range(count)]
        assert trusted(wrong, TARGET).cases == begun
