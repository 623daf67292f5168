"""Metrics against published values, against scikit-learn, and where they are undefined."""

# ruff: noqa: S311 - nothing secret

import math
import random
from typing import Any

import pytest
from sklearn.metrics import (
    accuracy_score,
    cohen_kappa_score,
    mean_absolute_error,
    precision_recall_fscore_support,
    roc_auc_score,
)

from memalign_graph.evaluation import metrics

LABELS = ["a", "b", "c", "d"]


def from_table(table: list[list[int]]) -> tuple[list[int], list[int]]:
    """Two raters' values out of their table of counts."""
    cells = [
        (row, column)
        for row, counts in enumerate(table)
        for column, count in enumerate(counts)
        for _ in range(count)
    ]
    return [row for row, _ in cells], [column for _, column in cells]


@pytest.mark.parametrize(
    ("table", "kappa"),
    [
        # J. Cohen, A coefficient of agreement for nominal scales, 1960: both worked examples.
        ([[88, 14, 18], [10, 40, 10], [2, 6, 12]], 0.492),
        ([[50, 26, 24], [24, 4, 32], [6, 30, 4]], (0.29 - 0.35) / (1 - 0.35)),
        # Full agreement, full disagreement, chance.
        ([[3, 0], [0, 5]], 1),
        ([[0, 4], [4, 0]], -1),
        ([[4, 4], [4, 4]], 0),
    ],
)
def test_kappa_published(table: list[list[int]], kappa: float) -> None:
    expected, got = from_table(table)
    found = metrics.cohen_kappa(expected, got, labels=range(len(table)))
    assert found == pytest.approx(kappa, abs=5e-4)


@pytest.mark.parametrize("weights", [None, "quadratic"])
@pytest.mark.parametrize("seed", range(200))
def test_kappa_as_scikit_learn(seed: int, weights: Any) -> None:
    chance = random.Random(seed)
    labels = list(range(chance.randint(2, 7)))
    skew = [chance.random() ** 3 + 0.01 for _ in labels]
    count = chance.randint(2, 60)
    expected = chance.choices(labels, skew, k=count)
    got = [one if chance.random() < 0.5 else chance.choice(labels) for one in expected]
    if len({*expected, *got}) < 2:
        assert metrics.cohen_kappa(expected, got, labels=labels, weights=weights) is None
        return
    wanted = cohen_kappa_score(expected, got, labels=labels, weights=weights)
    found = metrics.cohen_kappa(expected, got, labels=labels, weights=weights)
    assert found == pytest.approx(wanted, abs=1e-12)


def test_kappa_knows_the_order_of_its_labels() -> None:
    """Labels that nobody gave count as steps between those that someone did."""
    expected, got = ["low", "high", "low", "high"], ["low", "high", "high", "high"]
    near = metrics.cohen_kappa(expected, got, labels=["low", "high"], weights="quadratic")
    far = metrics.cohen_kappa(expected, got, labels=["low", "mid", "high"], weights="quadratic")
    assert near == far
    expected, got = ["low", "mid", "high"], ["low", "high", "high"]
    one = metrics.cohen_kappa(expected, got, labels=["low", "mid", "high"], weights="quadratic")
    other = metrics.cohen_kappa(expected, got, labels=["mid", "low", "high"], weights="quadratic")
    assert one is not None
    assert other is not None
    assert one > other


@pytest.mark.parametrize("value", [True, False])
def test_kappa_of_one_label_throughout_is_undefined(value: bool) -> None:  # noqa: FBT001
    assert metrics.cohen_kappa([value] * 5, [value] * 5, labels=[False, True]) is None


@pytest.mark.parametrize("weights", [None, "quadratic"])
def test_kappa_of_a_constant_is_zero(weights: Any) -> None:
    labels = [0, 1, 2]
    found = metrics.cohen_kappa([0, 1, 2, 1], [1] * 4, labels=labels, weights=weights)
    assert found == pytest.approx(0)
    assert metrics.cohen_kappa([0] * 4, [1] * 4, labels=labels, weights=weights) == 0


def test_concordance_published() -> None:
    # The example in the documentation of Keras' ConcordanceCorrelation: the mean of two rows.
    rows = [([0, 1, 0.5], [0.1, 0.9, 0.5]), ([1, 1, 0.2], [1, 0.9, 0.2])]
    found = [metrics.concordance(*row) or 0 for row in rows]
    assert sum(found) / 2 == pytest.approx(0.9816320385426076, abs=1e-6)
    # The example of the metric card `agkphysics/ccc`.
    assert metrics.concordance([0.1, 0.3], [0.1, 0.2]) == pytest.approx(2 / 3)
    assert metrics.concordance([0.2, 0.1], [0.1, 0.2]) == pytest.approx(-1)


@pytest.mark.parametrize("seed", range(50))
def test_concordance_is_correlation_times_bias(seed: int) -> None:
    """Lin's own way of writing it: rho_c = rho * C_b, C_b = 2 / (v + 1/v + u^2)."""
    chance = random.Random(seed)
    x = [chance.gauss(3, 2) for _ in range(30)]
    y = [chance.uniform(0.5, 2) * one + chance.gauss(0, 1) for one in x]
    mean_x, mean_y = sum(x) / 30, sum(y) / 30
    dev_x = math.sqrt(sum((one - mean_x) ** 2 for one in x) / 30)
    dev_y = math.sqrt(sum((one - mean_y) ** 2 for one in y) / 30)
    both = sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True)) / 30
    v, u = dev_x / dev_y, (mean_x - mean_y) / math.sqrt(dev_x * dev_y)
    wanted = both / (dev_x * dev_y) * 2 / (v + 1 / v + u**2)
    assert metrics.concordance(x, y) == pytest.approx(wanted)
    assert metrics.concordance(y, x) == pytest.approx(wanted)


@pytest.mark.parametrize(
    ("expected", "got", "found"),
    [
        ([1, 2, 3], [1, 2, 3], 1),
        ([1, 2, 3], [3, 2, 1], -1),
        ([1, 2, 3], [2, 2, 2], 0),
        ([2, 2, 2], [1, 2, 3], 0),
        ([0.1, 0.1, 0.1], [0.1, 0.1, 0.1], None),
        ([1, 1], [2, 2], 0),
        ([1], [1], None),
        ([1], [2], 0),
        ([], [], None),
    ],
)
def test_concordance_at_its_ends(expected: Any, got: Any, found: float | None) -> None:
    value = metrics.concordance(expected, got)
    assert value is found if found is None else value == pytest.approx(found, abs=1e-12)


@pytest.mark.parametrize("seed", range(50))
def test_exact_match_and_error_as_scikit_learn(seed: int) -> None:
    chance = random.Random(seed)
    count = chance.randint(1, 40)
    expected = [chance.randint(1, 5) for _ in range(count)]
    got = [chance.randint(1, 5) for _ in range(count)]
    assert metrics.exact_match(expected, got) == pytest.approx(accuracy_score(expected, got))
    error = metrics.mean_absolute_error(expected, got)
    assert error == pytest.approx(mean_absolute_error(expected, got))


@pytest.mark.parametrize("seed", range(50))
def test_labels_as_scikit_learn(seed: int) -> None:
    chance = random.Random(seed)
    count = chance.randint(1, 25)
    expected = [chance.choice(LABELS) for _ in range(count)]
    got = [chance.choice(LABELS[: chance.randint(1, 4)]) for _ in range(count)]
    columns = precision_recall_fscore_support(expected, got, labels=LABELS, zero_division=0)
    found = metrics.label_scores(expected, got, labels=LABELS)
    assert [one.label for one in found] == LABELS
    for one, precision, recall, f1, support in zip(found, *columns, strict=True):
        assert one.support == support == expected.count(one.label)
        assert (one.precision is None) == (one.label not in got)
        assert (one.recall is None) == (one.label not in expected)
        assert (one.f1 is None) == (one.label not in {*expected, *got})
        assert (one.precision or 0, one.recall or 0, one.f1 or 0) == pytest.approx(
            (precision, recall, f1)
        )


def test_labels_by_hand() -> None:
    found = metrics.label_scores(list("aaabbc"), list("aabbba"), labels=LABELS)
    by_label = {one.label: one for one in found}
    assert (by_label["a"].precision, by_label["a"].recall) == pytest.approx((2 / 3, 2 / 3))
    assert (by_label["b"].precision, by_label["b"].recall) == pytest.approx((2 / 3, 1))
    assert by_label["b"].f1 == pytest.approx(4 / 5)
    c, d = by_label["c"], by_label["d"]
    assert (c.precision, c.recall, c.f1, c.support) == (None, 0, 0, 1)
    assert (d.precision, d.recall, d.f1, d.support) == (None, None, None, 0)


@pytest.mark.parametrize("seed", range(50))
def test_auc_as_scikit_learn(seed: int) -> None:
    chance = random.Random(seed)
    positive = [True, False, *(chance.random() < 0.5 for _ in range(20))]
    belief = [round(chance.random(), 1) for _ in positive]
    found = metrics.roc_auc(positive, belief)
    assert found == pytest.approx(roc_auc_score(positive, belief))
    # Mann and Whitney: how many pairs are in order, ties half.
    pairs = [
        (one > other) + (one == other) / 2
        for one, is_one in zip(belief, positive, strict=True)
        for other, is_other in zip(belief, positive, strict=True)
        if is_one and not is_other
    ]
    assert found == pytest.approx(sum(pairs) / len(pairs))


@pytest.mark.parametrize("positive", [[], [True], [False, False]])
def test_auc_of_one_kind_is_undefined(positive: list[bool]) -> None:
    assert metrics.roc_auc(positive, [0.5] * len(positive)) is None


def test_calibration_by_hand() -> None:
    sure = [0.95, 0.95, 0.91, 0.65, 0.61, 0.05, 1.0, 0.0]
    right = [True, True, False, True, False, False, True, True]
    bins = metrics.reliability(right, sure)
    assert [one.count for one in bins] == [2, 2, 4]
    assert [one.accuracy for one in bins] == [0.5, 0.5, 0.75]
    assert [one.confidence for one in bins] == pytest.approx([0.025, 0.63, 3.81 / 4])
    wanted = (2 * 0.475 + 2 * 0.13 + 4 * (3.81 / 4 - 0.75)) / 8
    assert metrics.expected_calibration_error(right, sure) == pytest.approx(wanted)


def test_calibration_at_its_ends() -> None:
    error = metrics.expected_calibration_error
    assert error([], []) is None
    assert error([True] * 3, [1.0] * 3) == 0
    assert error([False] * 3, [1.0] * 3) == 1
    assert error([True] * 3, [0.0] * 3) == 1
    assert error([True, False], [0.5, 0.5]) == 0
    assert error([True, False], [0.2, 0.9], bins=1) == pytest.approx(0.05)
    assert metrics.reliability([], []) == []


@pytest.mark.parametrize(
    "measure",
    [
        metrics.exact_match,
        metrics.mean_absolute_error,
        metrics.concordance,
        lambda expected, got: metrics.cohen_kappa(expected, got, labels=[0, 1]),
    ],
)
def test_no_cases(measure: Any) -> None:
    assert measure([], []) is None


def test_labels_of_no_cases() -> None:
    found = metrics.label_scores([], [], labels=["a", "b"])
    assert [(one.label, one.precision, one.recall, one.f1, one.support) for one in found] == [
        ("a", None, None, None, 0),
        ("b", None, None, None, 0),
    ]


@pytest.mark.parametrize("measure", [metrics.exact_match, metrics.mean_absolute_error])
def test_unequal_lengths_are_refused(measure: Any) -> None:
    with pytest.raises(ValueError):
        measure([1, 0, 1], [1, 0])
