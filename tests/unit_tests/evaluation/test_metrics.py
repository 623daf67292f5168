"""Metrics compared with scikit-learn and published values; bootstrap intervals."""

# ruff: noqa: S311 - nothing secret

import random
import tracemalloc
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from sklearn import metrics as sklearn

from memalign_graph import Boolean, Categorical, Numeric
from memalign_graph.evaluation.metrics import (
    Comparison,
    Estimate,
    JudgeScores,
    Prediction,
    concordance,
    score,
)

LABELS = ("a", "b", "c", "d")
STARS = Numeric(minimum=1, maximum=5, integer=True)


def scored(
    scale: Any,
    expected: Sequence[Any],
    *judges: Sequence[Any],
    groups: Sequence[str] | None = None,
    sure: Sequence[float | None] | None = None,
    **options: Any,
) -> tuple[list[JudgeScores], list[Comparison]]:
    sure = sure or [None] * len(expected)
    predictions = {
        f"j{n}": [Prediction(value=v, confidence=c) for v, c in zip(got, sure, strict=True)]
        for n, got in enumerate(judges)
    }
    names = groups or [str(index) for index in range(len(expected))]
    return score(scale, expected, names, predictions, **{"resamples": 200, **options})


def numbers(scale: Any, expected: Any, got: Any, **options: Any) -> dict[str, float | None]:
    [scores], _ = scored(scale, expected, got, **{"resamples": 0, **options})
    return {name: estimate.value for name, estimate in scores.metrics.items()}


def coins(count: int, right: float, seed: int) -> tuple[list[bool], list[bool]]:
    chance = random.Random(seed)
    expected = [chance.random() < 0.5 for _ in range(count)]
    return expected, [label if chance.random() < right else not label for label in expected]


def width(estimate: Estimate) -> float:
    assert estimate.low is not None
    assert estimate.high is not None
    assert estimate.value is not None
    assert estimate.low <= estimate.value <= estimate.high
    return estimate.high - estimate.low


def test_metrics_match_scikit_learn() -> None:
    for seed in range(60):
        chance = random.Random(seed)
        count = chance.randint(4, 60)
        expected = chance.choices(LABELS, [chance.random() ** 3 + 0.01 for _ in LABELS], k=count)
        got = [label if chance.random() < 0.5 else chance.choice(LABELS) for label in expected]
        for ordered in (False, True):
            [scores], _ = scored(
                Categorical(choices=LABELS, ordered=ordered), expected, got, resamples=0
            )
            if len({*expected, *got}) > 1:
                weights = "quadratic" if ordered else None
                wanted = sklearn.cohen_kappa_score(expected, got, labels=LABELS, weights=weights)
                assert scores.metrics["kappa"].value == pytest.approx(wanted)
            there = [label for label in LABELS if label in {*expected, *got}]
            f1 = sklearn.f1_score(expected, got, labels=there, average="macro", zero_division=0)
            assert scores.metrics["macro_f1"].value == pytest.approx(f1)
            assert scores.metrics["agreement"].value == sklearn.accuracy_score(expected, got)
            confusion = sklearn.confusion_matrix(expected, got, labels=LABELS)
            assert scores.confusion == confusion.tolist()
            rows = sklearn.precision_recall_fscore_support(
                expected, got, labels=LABELS, zero_division=np.nan
            )
            for label, precision, recall, _, support in zip(scores.labels, *rows, strict=True):
                assert label.support == support
                for mine, theirs in ((label.precision, precision), (label.recall, recall)):
                    wanted = None if np.isnan(theirs) else pytest.approx(theirs)
                    assert mine.value == wanted
        truth = [label in "ab" for label in expected]
        belief = [round(chance.random(), 1) for _ in truth]
        metrics = numbers(
            Boolean(), truth, [b >= 0.5 for b in belief], sure=[max(b, 1 - b) for b in belief]
        )
        wanted = sklearn.roc_auc_score(truth, belief) if len(set(truth)) > 1 else None
        assert metrics["auc"] == (None if wanted is None else pytest.approx(wanted))


def test_memory_for_many_labels_does_not_grow_with_their_fourth_power() -> None:
    labels = tuple(f"intent {number}" for number in range(60))
    tracemalloc.start()
    [scores], _ = scored(Categorical(choices=labels), labels, labels, resamples=0)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert scores.metrics["kappa"].value == 1
    assert peak < 20_000_000


def test_concordance_is_correlation_times_bias_correction() -> None:
    for seed in range(20):
        drawn = np.random.default_rng(seed)
        x = drawn.normal(size=20) + 1e6 * (seed % 2)
        y = x * drawn.normal() + drawn.normal(size=20)
        r = np.corrcoef(x, y)[0, 1]
        wanted = 2 * r * x.std() * y.std() / (x.var() + y.var() + (x.mean() - y.mean()) ** 2)
        [result] = concordance(x, y, np.ones((1, 20)))
        assert result == pytest.approx(wanted, abs=1e-6)


def test_undefined_metrics() -> None:
    same = numbers(Boolean(), [True] * 4, [True] * 4, sure=[0.9] * 4)
    assert (same["kappa"], same["auc"], same["agreement"]) == (None, None, 1)
    assert same["ece"] == pytest.approx(0.1)
    by_hand = numbers(Boolean(), [True, True, False, True], [True] * 4, sure=[0.95] * 3 + [0.55])
    assert by_hand["ece"] == pytest.approx(3 / 4 * (0.95 - 2 / 3) + 1 / 4 * 0.45)
    share = numbers(Numeric(minimum=0, maximum=10), [3.0, 1.0, 9.0], [3.9, 1.0, 5.0])
    assert set(share) == {"agreement", "mae", "ccc"}
    assert share["agreement"] == pytest.approx(2 / 3)  # within a tenth of the scale
    assert numbers(STARS, [2, 2], [2, 2])["ccc"] is None
    assert numbers(STARS, [1, 5], [3, 3])["ccc"] == pytest.approx(0)
    # An interval needs most draws to define the number.
    assert Estimate.of(np.array([0.5, 0.4, 0.6, *[np.nan] * 3])).low is None
    none = numbers(Boolean(), [True, False], [None, None])
    assert set(none.values()) == {None}
    assert "ece" not in none


def test_intervals_are_reproducible_from_the_seed() -> None:
    expected, got = coins(40, 0.7, 1)
    chance = random.Random(0)
    sure = [chance.uniform(0.5, 1) for _ in expected]
    [one], _ = scored(Boolean(), expected, got, sure=sure, seed=5)
    [again], _ = scored(Boolean(), expected, got, sure=sure, seed=5)
    [other], _ = scored(Boolean(), expected, got, sure=sure, seed=6)
    assert one == again
    # Each resample of a judge is further from calibrated: the quantiles are no interval.
    assert one.metrics["ece"] == Estimate(value=other.metrics["ece"].value)
    for name in ("agreement", "kappa", "macro_f1", "auc"):
        assert 0 < width(one.metrics[name]) < 1
        assert one.metrics[name].value == other.metrics[name].value
        assert one.metrics[name] != other.metrics[name]
    assert all(width(label.f1) > 0 for label in one.labels)
    beside, _ = scored(Boolean(), expected, expected, got, sure=sure, seed=5)
    assert beside[1].metrics == one.metrics


def test_cases_of_an_item_are_resampled_as_a_group() -> None:
    """Ten copies of an item do not narrow the interval."""
    expected, got = coins(20, 0.7, 3)
    [once], _ = scored(Boolean(), expected, got)
    items = [f"item{n}" for n in range(20)]
    [grouped], _ = scored(Boolean(), expected * 10, got * 10, groups=items * 10)
    [apart], _ = scored(Boolean(), expected * 10, got * 10)
    for name in ("agreement", "kappa"):
        wide, same = once.metrics[name], grouped.metrics[name]
        assert (same.value, same.low, same.high) == pytest.approx((wide.value, wide.low, wide.high))
        assert width(apart.metrics[name]) < width(same) / 2
    [one], _ = scored(Boolean(), [True, False], [True, True], groups=["x", "x"])
    assert one.metrics["agreement"] == Estimate(value=0.5)


@pytest.mark.parametrize(("items", "low"), [(2, 0.158), (10, 0.692), (100, 0.964)])
def test_perfect_score_on_few_items_has_a_wide_interval(items: int, low: float) -> None:
    """If all resamples are equal, the exact Clopper-Pearson bound is used."""
    expected = [number % 2 == 0 for number in range(items)] * 2
    groups = [str(number) for number in range(items)] * 2
    [scores], _ = scored(Boolean(), expected, expected, groups=groups)
    metric = scores.metrics["agreement"]
    assert metric.high == 1
    assert metric.low == pytest.approx(low, abs=1e-3)
    assert scores.metrics["macro_f1"].low is None
    [bad, _] = scores.labels
    assert bad.recall.low == pytest.approx(0.025 ** (1 / (items // 2)))
    [numbers], _ = scored(Numeric(minimum=0, maximum=10), [5.0] * 10, [5.0] * 10)
    assert numbers.metrics["mae"].low == 0
    assert numbers.metrics["mae"].high == pytest.approx(10 * (1 - 0.692), abs=0.01)


def test_judges_are_compared_on_the_same_resamples() -> None:
    expected, got = coins(40, 0.5, 5)
    wrong = next(index for index in range(40) if got[index] != expected[index])
    better = [*got[:wrong], expected[wrong], *got[wrong + 1 :]]
    pairs = [("j0", "j1"), ("j1", "j0"), ("j0", "j0")]
    _, [ahead, behind, same] = scored(Boolean(), expected, better, got, pairs=pairs)
    gain = ahead.differences["agreement"]
    assert gain.value == pytest.approx(1 / 40)
    assert gain.low == 0
    assert behind.differences["agreement"].value == pytest.approx(-1 / 40)
    assert {difference.value for difference in same.differences.values()} == {0}
    assert same.is_ahead("agreement") is None
    _, [clear] = scored(Boolean(), expected, expected, got, pairs=[("j0", "j1")])
    assert clear.is_ahead("agreement") is True
    _, [less] = scored(STARS, [1, 5] * 20, [1, 5] * 20, [3] * 40, pairs=[("j0", "j1")])
    assert less.is_ahead("mae") is True
    assert less.is_ahead("nothing") is None


def test_failed_cases_are_excluded_for_both_judges() -> None:
    expected = [True, True, False, False]
    values = [True, None, False, True], [False, True, False, None]
    [one, other], [pair] = scored(Boolean(), expected, *values, pairs=[("j0", "j1")])
    assert (one.cases, one.failed, pair.cases) == (3, 1, 2)
    assert one.metrics["agreement"].value == pytest.approx(2 / 3)
    assert pair.differences["agreement"].value == pytest.approx(0.5)
    assert other.confusion == [[1, 0], [1, 1]]


def test_confidences_are_compared_where_both_judges_have_one() -> None:
    """One judge gives no confidence where it is wrong, which flatters it."""
    expected = [True, True, False, False] * 5
    got = [label if at % 4 < 3 else not label for at, label in enumerate(expected)]
    whole, some = ([0.9, 0.9, 0.9, missing] * 5 for missing in (0.8, None))
    judges = {
        name: [Prediction(value=v, confidence=c) for v, c in zip(got, sure, strict=True)]
        for name, sure in (("whole", whole), ("some", some))
    }
    names = [str(at) for at in range(20)]
    _, [pair] = score(Boolean(), expected, names, judges, pairs=[("some", "whole")])
    assert (pair.differences["auc"].value, pair.differences["ece"].value) == (0, 0)


def test_intervals_are_of_95_percent_and_calibration_has_ten_bins() -> None:
    expected = [True] * 100
    [one], _ = scored(Boolean(), expected, [True] * 80 + [False] * 20, resamples=5_000)
    normal = 2 * 1.96 * (0.8 * 0.2 / 100) ** 0.5
    assert width(one.metrics["agreement"]) == pytest.approx(normal, rel=0.08)
    for sure, error in (([0.65, 0.75], (0.35 + 0.75) / 2), ([0.62, 0.68], (0.68 - 0.38) / 2)):
        metrics = numbers(Boolean(), [True, False], [True, True], sure=sure)
        assert metrics["ece"] == pytest.approx(error)
    # No interval if most resamples are undefined: two in five have both cases.
    expected, some = [True, False, *[True] * 8], [0.9, 0.8, *[None] * 8]
    [one], _ = scored(Boolean(), expected, expected, sure=some)
    assert one.metrics["auc"] == Estimate(value=1)


@pytest.mark.parametrize(
    ("wins", "losses", "is_ahead"),
    [(5, 0, None), (6, 0, True), (9, 2, None), (10, 2, True), (14, 6, True), (None, None, True)],
)
def test_few_pairs_must_pass_the_sign_test(wins: Any, losses: Any, is_ahead: Any) -> None:
    gain, counts = Estimate(value=0.2, low=0.05, high=0.35), {"wins": wins, "losses": losses}
    differences = {"agreement": gain, "ece": gain}
    pair = Comparison(judge="a", against="b", cases=40, differences=differences, **counts)
    assert pair.is_ahead("agreement") is is_ahead
    assert pair.is_ahead("ece") is (is_ahead and False)


@pytest.mark.parametrize("items", [2, 4, 8])
def test_luck_on_a_few_items_with_many_cases_is_no_lead(items: int) -> None:
    chance, ahead = random.Random(3), 0
    groups = [str(item) for item in range(items) for _ in range(20)]
    for _ in range(100):
        better = [chance.random() < 0.5 for _ in range(items)]
        first = [better[int(item)] for item in groups]
        second = [not right for right in first]
        _, [pair] = scored(
            Boolean(), [True] * len(groups), first, second, groups=groups, pairs=[("j0", "j1")]
        )
        assert (pair.wins, pair.losses) == (sum(better), items - sum(better))
        ahead += pair.is_ahead("agreement") is not None
    assert ahead <= 5


def test_item_is_won_by_the_mean_of_its_cases() -> None:
    expected, groups = [0.4, 0.4, 0.4, 0.4], ["a", "a", "b", "b"]
    scale = Numeric(minimum=0, maximum=1)
    judges = [0.4, 0.3, 0.4, 0.7], [0.3, 0.4, 0.5, 0.5]
    _, [pair] = scored(scale, expected, *judges, groups=groups, pairs=[("j0", "j1")])
    assert (pair.wins, pair.losses) == (0, 1)
