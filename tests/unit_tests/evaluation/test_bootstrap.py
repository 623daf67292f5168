"""Intervals: by item, paired, reproducible, and as wide as they have to be."""

# ruff: noqa: S311 - nothing secret

import random
from collections.abc import Sequence
from typing import Any

import pytest

from memalign_graph import Boolean, Categorical, Numeric
from memalign_graph.evaluation.scores import (
    Comparison,
    Estimate,
    JudgeScores,
    Verdicts,
    score,
)

Pair = tuple[str, str]


def coins(count: int, right: float, seed: int) -> tuple[list[Any], list[Any]]:
    """Expert values, and verdicts that are right with a probability."""
    chance = random.Random(seed)
    expected = [chance.random() < 0.5 for _ in range(count)]
    got = [one if chance.random() < right else not one for one in expected]
    return expected, got


def scored(
    expected: Sequence[Any],
    *judges: Verdicts,
    groups: Sequence[str] | None = None,
    pairs: Sequence[Pair] = (),
    scale: Any = None,
    **options: Any,
) -> tuple[list[JudgeScores], list[Comparison]]:
    given = {"resamples": 200, **options}
    names = groups or [str(place) for place in range(len(expected))]
    return score(scale or Boolean(), expected, names, judges, pairs=pairs, **given)


def width(estimate: Estimate) -> float:
    assert estimate.low is not None
    assert estimate.high is not None
    assert estimate.value is not None
    assert estimate.low <= estimate.value <= estimate.high
    return estimate.high - estimate.low


def test_same_seed_same_interval() -> None:
    expected, got = coins(30, 0.7, 1)
    one, _ = scored(expected, Verdicts("j", got), seed=5)
    again, _ = scored(expected, Verdicts("j", got), seed=5)
    other, _ = scored(expected, Verdicts("j", got), seed=6)
    assert one == again
    assert one[0].metrics["kappa"].value == other[0].metrics["kappa"].value
    assert one[0].metrics["kappa"] != other[0].metrics["kappa"]


def test_interval_does_not_depend_on_the_other_judges() -> None:
    expected, got = coins(30, 0.7, 1)
    _, worse = coins(30, 0.2, 2)
    alone, _ = scored(expected, Verdicts("j", got))
    beside, _ = scored(expected, Verdicts("other", worse), Verdicts("j", got))
    assert beside[1] == alone[0]


def test_no_draws_no_interval() -> None:
    expected, got = coins(10, 0.7, 1)
    judges = Verdicts("j", got), Verdicts("i", expected)
    scores, comparisons = scored(expected, *judges, pairs=[("j", "i")], resamples=0)
    for found in [*scores[0].metrics.values(), *comparisons[0].differences.values()]:
        assert (found.low, found.high) == (None, None)
    assert comparisons[0].is_ahead("agreement") is None


def test_cases_of_an_item_are_drawn_together() -> None:
    """The same item ten times over tells nothing new, and does not narrow the interval."""
    expected, got = coins(20, 0.7, 3)
    once, _ = scored(expected, Verdicts("j", got), groups=[f"item{n}" for n in range(20)])
    items = [f"item{n}" for n in range(20) for _ in range(10)]
    ten_expected = [one for one in expected for _ in range(10)]
    ten_got = [one for one in got for _ in range(10)]
    grouped, _ = scored(ten_expected, Verdicts("j", ten_got), groups=items)
    apart, _ = scored(ten_expected, Verdicts("j", ten_got))
    for name in ("agreement", "kappa"):
        wide, same = once[0].metrics[name], grouped[0].metrics[name]
        assert same.value == pytest.approx(wide.value)
        assert (same.low, same.high) == pytest.approx((wide.low, wide.high))
        assert width(apart[0].metrics[name]) < width(same) / 2


def test_order_of_the_cases_of_items_does_not_matter() -> None:
    """Items that stand mixed are drawn whole all the same."""
    expected, got = coins(20, 0.7, 3)
    grouped, _ = scored(
        expected * 3, Verdicts("j", got * 3), groups=[f"i{n}" for n in range(20)] * 3
    )
    once, _ = scored(expected, Verdicts("j", got))
    assert width(grouped[0].metrics["agreement"]) == pytest.approx(
        width(once[0].metrics["agreement"])
    )


def test_items_of_different_sizes_count_by_their_cases() -> None:
    expected = [True] * 10
    got = [True] * 9 + [False]
    scores, _ = scored(expected, Verdicts("j", got), groups=["big"] * 9 + ["small"])
    found = scores[0].metrics["agreement"]
    assert (found.value, found.low, found.high) == (0.9, 0, 1)


def test_judge_beside_itself_differs_by_nothing() -> None:
    expected, got = coins(25, 0.6, 4)
    judges = Verdicts("one", got), Verdicts("other", list(got))
    _, comparisons = scored(expected, *judges, pairs=[("one", "other")])
    for found in comparisons[0].differences.values():
        assert (found.value, found.low, found.high) == (0, 0, 0)
    assert comparisons[0].is_ahead("agreement") is None
    assert comparisons[0].cases == 25


def test_pairing_takes_away_what_makes_items_harder() -> None:
    """A judge that is right on one case more is ahead or even in every draw."""
    expected, got = coins(40, 0.5, 5)
    wrong = next(place for place in range(40) if got[place] != expected[place])
    better = [*got[:wrong], expected[wrong], *got[wrong + 1 :]]
    judges = Verdicts("worse", got), Verdicts("better", better)
    scores, comparisons = scored(expected, *judges, pairs=[("better", "worse")])
    found = comparisons[0].differences["agreement"]
    assert found.value == pytest.approx(1 / 40)
    assert found.low == 0
    assert width(found) < width(scores[0].metrics["agreement"]) / 2


def test_comparison_turned_round_is_the_same() -> None:
    expected, got = coins(30, 0.8, 6)
    _, worse = coins(30, 0.3, 7)
    judges = Verdicts("a", got), Verdicts("b", worse)
    _, (one, other) = scored(expected, *judges, pairs=[("a", "b"), ("b", "a")])
    for name, found in one.differences.items():
        turned = other.differences[name]
        assert found.value == pytest.approx(-(turned.value or 0))
        assert (found.low, found.high) == pytest.approx((-(turned.high or 0), -(turned.low or 0)))
    assert one.is_ahead("agreement") is True
    assert other.is_ahead("agreement") is False


def test_less_error_is_ahead() -> None:
    scale = Numeric(minimum=1, maximum=5, integer=True)
    expected = [1, 2, 3, 4, 5] * 6
    judges = Verdicts("near", expected), Verdicts("far", [6 - one for one in expected])
    _, (found,) = scored(expected, *judges, scale=scale, pairs=[("near", "far")])
    assert found.differences["mae"].value == pytest.approx(-2.4)
    assert found.is_ahead("mae") is True
    assert found.is_ahead("ccc") is True
    assert found.is_ahead("no such metric") is None


def test_failures_count_for_neither_judge() -> None:
    """Each is scored on what it judged, and two are compared on what both judged."""
    expected = [True, True, False, False, True, False]
    one = Verdicts("one", [True, None, False, True, True, None])
    other = Verdicts("other", [None, False, False, False, False, None])
    scores, (found,) = scored(expected, one, other, pairs=[("one", "other")])
    assert [(of.cases, of.failed) for of in scores] == [(4, 2), (4, 2)]
    assert scores[0].metrics["agreement"].value == pytest.approx(3 / 4)
    assert scores[1].metrics["agreement"].value == pytest.approx(2 / 4)
    # Both judged the third, fourth and fifth: two of three right, and two of three.
    assert found.cases == 3
    assert found.differences["agreement"].value == 0
    assert scores[0].confusion is not None
    assert sum(map(sum, scores[0].confusion.counts)) == 4
    assert sum(label.support for label in scores[0].labels) == 4


def test_judge_without_any_verdict() -> None:
    expected = [True, False, True]
    judges = Verdicts("none", [None] * 3), Verdicts("some", [True, True, None])
    scores, (found,) = scored(expected, *judges, pairs=[("some", "none")])
    assert (scores[0].cases, scores[0].failed) == (0, 3)
    assert {one.value for one in scores[0].metrics.values()} == {None}
    assert found.cases == 0
    assert {one.value for one in found.differences.values()} == {None}


def test_nothing_to_score() -> None:
    scores, _ = scored([], Verdicts("j", []))
    assert (scores[0].cases, scores[0].failed) == (0, 0)
    assert {one.value for one in scores[0].metrics.values()} == {None}


def test_number_that_most_draws_leave_undefined_has_no_interval() -> None:
    expected = [True] * 3
    scores, _ = scored(expected, Verdicts("j", [True] * 3))
    kappa = scores[0].metrics["kappa"]
    assert (kappa.value, kappa.low, kappa.high) == (None, None, None)
    agreement = scores[0].metrics["agreement"]
    assert (agreement.value, agreement.low, agreement.high) == (1, 1, 1)


def test_one_item_has_no_interval() -> None:
    """However many its cases: nothing tells how far another item would be off."""
    expected, got = [True, True, False], [True, True, True]
    judges = Verdicts("j", got), Verdicts("i", [False, False, True])
    scores, (found,) = scored(expected, *judges, groups=["a"] * 3, pairs=[("j", "i")])
    agreement = scores[0].metrics["agreement"]
    assert agreement.value == pytest.approx(2 / 3)
    assert (agreement.low, agreement.high) == (None, None)
    assert found.is_ahead("agreement") is None


def test_coverage() -> None:
    """Of 95 % intervals about 95 % hold the truth; percentile intervals of 40 items some less."""
    truth = 0.7
    held = 0
    runs = 100
    for seed in range(runs):
        expected, got = coins(40, truth, 1_000 + seed)
        (found,), _ = scored(expected, Verdicts("j", got), resamples=150, seed=seed)
        agreement = found.metrics["agreement"]
        assert agreement.low is not None
        assert agreement.high is not None
        held += agreement.low <= truth <= agreement.high
    assert 0.88 <= held / runs <= 0.99


def test_coverage_of_items_with_many_cases() -> None:
    """Cases of one item share their fate: by item the truth is held, case by case it is not."""
    truth = 0.6
    held = {"by item": 0, "by case": 0}
    runs = 60
    for seed in range(runs):
        chance = random.Random(seed)
        fates = [chance.random() < truth for _ in range(25)]
        expected = [True] * 125
        got = [fate for fate in fates for _ in range(5)]
        items = [str(place // 5) for place in range(125)]
        for name, groups in {"by item": items, "by case": None}.items():
            given: Any = {"resamples": 60, "seed": seed, "groups": groups}
            (found,), _ = scored(expected, Verdicts("j", got), **given)
            low, high = found.metrics["agreement"].low, found.metrics["agreement"].high
            assert low is not None
            assert high is not None
            held[name] += low <= truth <= high
    assert held["by item"] / runs >= 0.83
    assert held["by case"] / runs <= 0.75


@pytest.mark.parametrize("value", [0, 3])
def test_right_verdict_is_right_whatever_its_value(value: int) -> None:
    """Zero is a verdict like any other."""
    scale = Numeric(minimum=0, maximum=5, integer=True)
    verdicts = Verdicts("j", [value, value], confidence=[1.0, 1.0])
    (found,), _ = scored([value, value], verdicts, scale=scale)
    assert found.metrics["agreement"].value == 1
    assert [one.accuracy for one in found.reliability] == [1]
    assert found.metrics["ece"].value == 0


def test_confidence_of_some_cases() -> None:
    expected = [True, False, True, False]
    sure = Verdicts("j", [True, True, None, False], confidence=[0.9, 0.6, None, None])
    (found,), _ = scored(expected, sure)
    assert [(one.confidence, one.accuracy, one.count) for one in found.reliability] == [
        (0.6, 0, 1),
        (0.9, 1, 1),
    ]
    assert found.metrics["ece"].value == pytest.approx((0.6 + 0.1) / 2)
    # Its belief in yes is 0.9 for the one that is, and 0.6 for the one that is not.
    assert found.metrics["auc"].value == 1


def test_metrics_of_each_scale() -> None:
    plain = {"agreement", "exact_match", "kappa", "macro_f1"}
    table: list[tuple[Any, list[Any], set[str]]] = [
        (Boolean(), [True, False], plain),
        (Categorical(choices=("a", "b", "c")), ["a", "b"], plain),
        (Numeric(minimum=0, maximum=10, integer=True), [0, 10], {*plain, "mae", "ccc"}),
        (
            Numeric(minimum=0, maximum=11, integer=True),
            [0, 11],
            {"agreement", "exact_match", "mae", "ccc"},
        ),
        (Numeric(minimum=0, maximum=1), [0.5, 1.0], {"agreement", "exact_match", "mae", "ccc"}),
    ]
    for scale, expected, names in table:
        (found,), _ = scored(expected, Verdicts("j", expected), scale=scale, resamples=0)
        assert set(found.metrics) == names, scale
        wanted = {name: 0 if name == "mae" else 1 for name in names}
        values = {name: one.value for name, one in found.metrics.items()}
        assert values == pytest.approx(wanted), scale


def test_kappa_weighs_distance_where_labels_are_ordered() -> None:
    expected = list("abcabc")
    far, near = ["c", *expected[1:]], ["b", *expected[1:]]
    for ordered in (False, True):
        scale = Categorical(choices=("a", "b", "c"), ordered=ordered)
        scores, _ = scored(expected, Verdicts("far", far), Verdicts("near", near), scale=scale)
        kappas = [one.metrics["kappa"].value or 0 for one in scores]
        assert (kappas[0] < kappas[1]) == ordered


def test_confusion_has_the_scales_order() -> None:
    scale = Categorical(choices=("low", "mid", "high"), ordered=True)
    (found,), _ = scored(
        ["high", "low", "low"], Verdicts("j", ["low", "low", "mid"]), scale=scale, resamples=0
    )
    assert found.confusion is not None
    assert found.confusion.labels == ["low", "mid", "high"]
    assert found.confusion.counts == [[1, 1, 0], [0, 0, 0], [1, 0, 0]]
    assert [one.label for one in found.labels] == ["low", "mid", "high"]


def test_continuous_values_agree_within_a_tenth() -> None:
    scale = Numeric(minimum=0, maximum=10)
    (found,), _ = scored([5.0, 5.0, 5.0], Verdicts("j", [6.0, 5.0, 6.1]), scale=scale, resamples=0)
    assert found.metrics["agreement"].value == pytest.approx(2 / 3)
    assert found.metrics["exact_match"].value == pytest.approx(1 / 3)
    assert found.confusion is None
    assert found.labels == []
