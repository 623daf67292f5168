"""What the evidence says: how good it knows itself to be, and when it decides."""

import random
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest

from memalign_graph import Boolean, Numeric
from memalign_graph.agreement import values_agree
from memalign_graph.evidence import cases as module
from memalign_graph.evidence.cases import MIN_CASES, ValueEncoding
from memalign_graph.evidence.comparison import MIN_CALIBRATING, Calibration
from memalign_graph.scales import Scale, Value
from tests.unit_tests.evidence.worlds import (
    SCALES,
    Item,
    Judge,
    coin,
    decided,
    drop,
    key_of,
    model_of,
    normalised,
    right_in,
    values_of,
    view_of,
    word,
    world,
)

SEEDS = range(2)


def seeded(seed: int) -> random.Random:
    return random.Random(seed)  # noqa: S311 - nothing secret


def nearly(scale: Scale, truth: Value, rng: random.Random) -> Value:
    """A judge that is right 95 % of the time, or a little off."""
    if not isinstance(scale, Numeric):
        return right_in(0.95)(scale, truth, rng)
    noise = rng.gauss(0, 0.05) if not scale.integer else 0.25 * (rng.random() < 0.05)
    number = float(truth) + noise * (scale.maximum - scale.minimum)
    inside = min(max(number, scale.minimum), scale.maximum)
    return scale.validate_value(round(inside) if scale.integer else inside)


def errors(kind: str, judge: Judge, count: int, **options: Any) -> tuple[float, float, float]:
    """How far verdicts and decisions on new cases are off, and how often the evidence decides."""
    scale, used = SCALES[kind], []
    verdict: list[float] = []
    value: list[float] = []
    for seed in SEEDS:
        items = world(scale, count + 30, seeded(seed), judge, **options)
        model = model_of(items[:count], scale)
        used.append(model.decides("evidence"))
        for item in items[count:]:
            decision = decided(model, item)
            assert decision.evidence is not None
            by_evidence = decision.evidence.decided_by == "evidence"
            assert not by_evidence or model.decides("evidence")
            assert decision.value == (decision.evidence.estimate if by_evidence else item.verdict)
            for off, predicted in ((verdict, item.verdict), (value, decision.value)):
                is_number = isinstance(scale, Numeric)
                by = abs(float(predicted or 0) - float(item.truth)) if is_number else 1
                off.append(by * (predicted != item.truth))
    return float(np.mean(verdict)), float(np.mean(value)), float(np.mean(used))


@pytest.mark.parametrize("kind", SCALES)
def test_a_useless_judge_is_outvoted_and_a_good_one_not_harmed(kind: str) -> None:
    verdict, value, used = errors(kind, coin, 80)
    assert used == 1
    assert value < verdict / 2
    # Neighbours that know nothing do no harm.
    knowing_nothing: Any = {"clusters": 1, "purity": 0.4}
    for judge, count, options in ((nearly, 12, {}), (right_in(0.7), 40, knowing_nothing)):
        verdict, value, _ = errors(kind, judge, count, **options)
        assert value - verdict < 0.03 * (4 if kind == "stars" else 1)
    # Judge and neighbours together are no worse than either.
    verdict, both, _ = errors(kind, right_in(0.75), 140, purity=0.85)
    _, neighbours, _ = errors(kind, coin, 140, purity=0.85)
    assert both <= min(verdict, neighbours) * 1.1 + 0.015


@pytest.mark.parametrize("kind", SCALES)
def test_few_values_that_like_cases_tell_are_enough_and_strangers_tell_nothing(kind: str) -> None:
    scale, (one, other, *_) = SCALES[kind], values_of(SCALES[kind])
    # One of three choices is not proved by five cases.
    enough = 2 * MIN_CASES if kind == "choices" else MIN_CASES
    for count in (MIN_CASES - 1, enough):
        items = [
            Item(normalised([at % 2, 1 - at % 2, *(0.4 * (np.arange(11) == at))]), value, None)
            for at, value in enumerate([other, one] * 6)
        ][: count + 1]
        model = model_of(items[:count], scale)
        assert not model.decides("verdict")
        for verdict in (one, other):
            decision = decided(model, replace(items[count], verdict=verdict))
            assert decision.value == (items[count].truth if count == enough else verdict)
    # Where strangers tell nothing, choices are left to the verdict, and numbers to the median.
    items = [
        replace(item, vector=normalised(np.eye(90)[at]), verdict=None)
        for at, item in enumerate(world(scale, 90, seeded(1), coin))
    ]
    view = view_of(items[:80])
    truth = ValueEncoding(scale).numbers([item.truth for item in items])
    model = model_of(view, scale)
    if not model.encoding.is_ordered:
        assert model.decides("evidence") is False
    else:
        made = [decided(model, replace(item, verdict=one)).value for item in items[80:]]
        off = np.abs(model.encoding.numbers(made) - truth[80:]).mean()
        assert off <= 1.1 * np.abs(np.median(truth[:80]) - truth[80:]).mean()
    # Experts who always say the same tell nothing.
    items = [replace(item, truth=one) for item in world(scale, 30, seeded(1), coin)]
    view = view_of(items)
    decision = decided(model_of(view, scale), replace(items[0], verdict=other))
    assert decision.value == other
    assert decision.evidence is not None
    assert "the same value" in decision.evidence.reason


@pytest.mark.parametrize(("seed", "weight"), [(0, 0.34), (10, 0.0)])
def test_a_judge_without_past_verdicts_does_not_count(seed: int, weight: float) -> None:
    rng = np.random.default_rng(seed)
    vectors = normalised(rng.normal(size=(31, 16)))
    items = [Item(vector, float(rng.random()), None) for vector in vectors]
    model = model_of(items[:30], SCALES["share"])
    assert model.leave_one_out is not None
    assert model.leave_one_out.weight == pytest.approx(weight, abs=0.01)
    low, high = (decided(model, replace(items[30], verdict=each)).value for each in (0.0, 1.0))
    assert low == high == pytest.approx(np.median(model.truth), abs=0.05)


@pytest.mark.parametrize(
    ("scale", "bad", "good"),
    [(Boolean(), False, True), (SCALES["stars"], 1, 5), (SCALES["ordered"], "poor", "good")],
)
def test_probabilities_are_weighed_where_they_tell_more(scale: Scale, bad: Any, good: Any) -> None:
    rng, items = seeded(4), []
    names = scale.render(good), scale.render(bad)
    for at in range(120):
        chance = min(max(rng.gauss(0.6 + 0.3 * (at % 2), 0.08), 0.01), 0.99)
        vector = normalised([rng.gauss(0, 1) for _ in range(8)])
        chances = dict(zip(names, (chance, 1 - chance), strict=True))
        items.append(Item(vector, good if at % 2 else bad, good, {**chances, "unreadable": 1}))
    model = model_of(items[:80], scale)
    assert model.decides("evidence")
    wrong = [decided(model, item).value != item.truth for item in items[80:]]
    assert np.mean(wrong) < 0.2


@pytest.mark.parametrize("kind", ["choices", "stars"])
def test_neither_the_order_of_facts_nor_what_was_forgotten_leaves_a_trace(kind: str) -> None:
    scale, items = SCALES[kind], world(SCALES[kind], 60, seeded(2), right_in(0.7))
    new = world(scale, 5, seeded(3), coin)

    def outcomes(view: Any, excluded: Any = ()) -> list[Any]:
        model = model_of(view, scale, excluded)
        calibration = model.calibration("estimate" if model.decides("evidence") else "verdict")
        assert calibration is not None
        return [
            [decided(model, item) for item in new],
            model.trust(model.usual_kind("evidence"), 0.8),
        ]

    never, forgotten = view_of(items[:50]), view_of(items)
    order = seeded(4).sample(range(50), 50)
    shuffled = view_of([items[at] for at in order], [word(at, items[at]) for at in order])
    assert outcomes(forgotten) != outcomes(never)
    assert outcomes(forgotten, {f"x{at:04d}" for at in range(50, 60)}) == outcomes(never)
    drop(forgotten, [f"e{at:04d}" for at in range(50, 60)])
    assert outcomes(forgotten) == outcomes(shuffled) == outcomes(never)


def test_of_several_experts_the_median_is_learned() -> None:
    values, [item] = [2, 3, 5], world(SCALES["stars"], 1, seeded(1), coin)
    records = [word(at, replace(item, truth=value), case=0) for at, value in enumerate(values)]
    [case] = model_of(view_of([item] * 3, records), SCALES["stars"]).cases
    assert case.value == 3


def test_of_more_cases_than_are_fitted_the_newest_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_CASES", 40)
    items = world(Boolean(), 90, seeded(5), coin)
    model = model_of(items)
    assert {case.vector_key for case in model.cases} == {key_of(at) for at in range(50, 90)}
    assert model.decides("evidence")
    for at, is_there in ((0, False), (50, True)):
        evidence = decided(model, items[at]).evidence
        assert evidence is not None
        assert (evidence.neighbours[0].example_id == f"x{at:04d}") is is_there


@pytest.mark.parametrize("mode", ["evidence", "verdict"])
@pytest.mark.parametrize("kind", SCALES)
def test_confidences_are_calibrated_shares(kind: str, mode: Any) -> None:
    scale, rng = SCALES[kind], seeded(3)
    names = [scale.render(value) for value in values_of(scale)]

    def odds() -> dict[str, float]:
        return dict(zip(names, rng.choices([0.1, 0.5, 0.9], k=len(names)), strict=True))

    items = [replace(each, probabilities=odds()) for each in world(scale, 60, rng, right_in(0.8))]
    model = model_of(items, scale)
    for item, probabilities in product(items[:4], (None, odds(), {"gone": 1.0})):
        decision = decided(model, replace(item, probabilities=probabilities), mode)
        known = decision.confidence is not None
        assert 0 <= (decision.confidence or 0) <= 1
        assert (decision.confidence_source is not None) == known
        assert decision.calibrated_on is None or MIN_CALIBRATING <= decision.calibrated_on <= 60
        assert (decision.evidence is not None) == (mode == "evidence")
        assert known or decision.evidence is None
        shares = decision.evidence.probabilities if decision.evidence else None
        assert shares is None or sum(shares.values()) == pytest.approx(1)


def test_numbers_have_a_confidence_from_what_is_left_out() -> None:
    scale, rng, items = SCALES["share"], seeded(5), []
    for _ in range(300):
        clear = rng.random() < 0.5
        centre = rng.choice([0.2, 0.5, 0.8])
        truth = min(max(rng.gauss(centre, 0.02 if clear else 0.25), 0.0), 1.0)
        noise = [rng.gauss(0, 0.2) for _ in range(16)]
        vector = normalised([3 * centre, 2.0 if clear else -2.0, *noise])
        items.append(Item(vector, truth, min(max(rng.gauss(truth, 0.2), 0.0), 1.0)))
    view = view_of(items[:200])
    for mode in ("evidence", "verdict"):
        model = model_of(view, scale)
        made = [decided(model, item, mode) for item in items[200:]]
        assert {each.confidence_source for each in made} == {"evidence"}
        assert {each.calibrated_on for each in made} == {200}
        right = [
            values_agree(scale, decision.value, item.truth)
            for decision, item in zip(made, items[200:], strict=True)
        ]
        sure = np.array([each.confidence for each in made], dtype=float)
        assert sure.mean() == pytest.approx(np.mean(right), abs=0.12)
        if mode == "evidence":
            halves = np.array(right)[np.argsort(sure)].reshape(2, -1).mean(axis=1)
            assert halves[1] - halves[0] > 0.3


@pytest.mark.parametrize(
    "scale",
    [
        Numeric(minimum=-1e-7, maximum=1e-7),
        Numeric(minimum=-1e9, maximum=1e9 / 3),
        Numeric(minimum=-30, maximum=30, integer=True),
    ],
)
def test_estimates_stay_on_the_scale(scale: Numeric) -> None:
    width, rng, items = scale.maximum - scale.minimum, seeded(5), []
    for _ in range(60):
        share = rng.choice([0.0, 0.0, 1.0, 1.0, rng.random()])
        ends = min(max(scale.minimum + share * width, scale.minimum), scale.maximum)
        truth = scale.validate_value(round(ends) if scale.integer else ends)
        vector = normalised([1, 4 * share, *(rng.gauss(0, 0.4) for _ in range(8))])
        items.append(Item(vector, truth, scale.validate_value(scale.maximum)))
    model = model_of(items[:40], scale)
    assert model.decides("evidence")
    for item in items[40:]:
        evidence = decided(model, item).evidence
        assert evidence is not None
        assert evidence.estimate is not None
        value = evidence.estimate
        assert scale.validate_value(value) == value
        assert type(value) is (int if scale.integer else float)
        assert abs(float(value) - float(item.truth)) < 0.35 * width


@pytest.mark.parametrize(
    ("scale", "values", "classes"),
    [
        (SCALES["share"], [0.0, 0.3, 0.4, 0.7, 1.0], ["low", "low", "middle", "high", "high"]),
        (SCALES["stars"], [1, 2, 3, 4, 5], ["low", "low", "middle", "high", "high"]),
        (SCALES["choices"], ["odd", "warm"], ["odd", "warm"]),
    ],
)
def test_ordered_values_have_classes(scale: Scale, values: list[Value], classes: list[str]) -> None:
    assert list(map(ValueEncoding(scale).class_name, values)) == classes


def test_a_curve_fitted_to_labels_keeps_the_order_of_the_scores() -> None:
    rng = np.random.default_rng(2)
    for sign in (-1, 0, 1):
        scores = rng.normal(size=200)
        agreed = rng.random(200) < 1 / (1 + np.exp(-3 * sign * scores))
        made = Calibration(scores, agreed, np.arange(200), [None] * 200)
        assert (np.diff(made.confidences(np.sort(scores))) > 0).all()
        assert made.confidences(scores).mean() == pytest.approx(agreed.mean(), abs=0.03)
