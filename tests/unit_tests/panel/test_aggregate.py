"""One score of many criteria, against a small reference."""

import itertools
import json
import random
from fractions import Fraction
from typing import Any

import pytest

from memalign_graph import Aggregate, Boolean, Categorical, Criterion, Numeric, Pairwise
from memalign_graph.scales import Scale, Value

LEVELS = ("poor", "fair", "good", "best")
SCALES: dict[str, Scale] = {
    "boolean": Boolean(),
    "grade": Numeric(minimum=1, maximum=3, integer=True),
    "points": Numeric(minimum=0, maximum=10, integer=True),
    "signed": Numeric(minimum=-2, maximum=2, integer=True),
    "share": Numeric(minimum=0, maximum=1),
    "level": Categorical(choices=LEVELS, ordered=True),
    "kind": Categorical(choices=("question", "complaint", "praise")),
    "pair": Pairwise(),
}
RUNS = 300


def criterion(name: str, scale: Scale) -> Criterion:
    return Criterion(name=name, instructions="How good?", scale=scale)


def is_ordered(scale: Scale) -> bool:
    return isinstance(scale, Boolean | Numeric) or (
        isinstance(scale, Categorical) and scale.ordered
    )


def place(scale: Scale, value: Any) -> Fraction:
    """Where a value lies between the lowest and the highest."""
    if isinstance(scale, Boolean):
        return Fraction(int(value))
    if isinstance(scale, Numeric):
        low, high = Fraction(scale.minimum), Fraction(scale.maximum)
        return (Fraction(value) - low) / (high - low)
    assert isinstance(scale, Categorical)
    return Fraction(scale.choices.index(value), len(scale.choices) - 1)


def any_value(scale: Scale, chance: random.Random) -> Value:
    if isinstance(scale, Boolean):
        return chance.random() < 0.5
    if isinstance(scale, Numeric):
        steps = round(scale.maximum - scale.minimum)
        if scale.integer:
            return int(scale.minimum) + chance.randint(0, steps)
        return chance.randint(0, 8) / 8
    return chance.choice(scale.choices)


def any_panel(chance: random.Random) -> list[Criterion]:
    kinds = [chance.choice(list(SCALES)) for _ in range(chance.randint(1, 9))]
    return [criterion(f"{kind}{at}", SCALES[kind]) for at, kind in enumerate(["grade", *kinds])]


@pytest.mark.parametrize("seed", range(3))
def test_score_is_the_weighted_mean_of_what_was_judged(seed: int) -> None:
    chance = random.Random(seed)  # noqa: S311 - a reference needs no secrets
    for _ in range(RUNS):
        panel = any_panel(chance)
        scales = {one.name: one.scale for one in panel}
        ordered = [name for name, scale in scales.items() if is_ordered(scale)]
        named = chance.sample(ordered, chance.randint(0, len(ordered)))
        weights = {name: chance.choice([0, 1, 2, 0.5, 3]) for name in named}
        if not any(weights.get(name, 1) for name in ordered):
            weights = {}
        values = {
            name: any_value(scale, chance)
            for name, scale in scales.items()
            if chance.random() < 0.9
        }
        passes = chance.choice([None, Fraction(chance.randint(0, 20), 20)])
        rule = Aggregate(weights=weights, passes=None if passes is None else float(passes))
        result = rule.bind(panel)(values)

        counted = [name for name in ordered if name in values]
        total = sum((Fraction(weights.get(name, 1)) for name in counted), Fraction(0))
        weighted = sum(
            (
                Fraction(weights.get(name, 1)) * place(scales[name], values[name])
                for name in counted
            ),
            Fraction(0),
        )
        score = weighted / total if total else None
        assert result["parts"].keys() == set(counted)
        assert all(
            part == pytest.approx(float(place(scales[name], values[name])))
            for name, part in result["parts"].items()
        )
        assert result["missing"] == [name for name in scales if name not in values]
        if score is None:
            assert result["score"] is None
        else:
            assert result["score"] == pytest.approx(float(score))
        expected = None if passes is None else score is not None and score >= passes
        assert result["passed"] is expected
        assert json.loads(json.dumps(result, allow_nan=False)) == result


@pytest.mark.parametrize("seed", range(2))
def test_veto_is_made_up_for_by_nothing(seed: int) -> None:
    chance = random.Random(seed)  # noqa: S311 - a reference needs no secrets
    for _ in range(RUNS):
        panel = any_panel(chance)
        scales = {one.name: one.scale for one in panel}
        wanted = {name: any_value(scale, chance) for name, scale in scales.items()}
        vetoes = {name: [wanted[name]] for name in scales if chance.random() < 0.5}
        values = {
            name: wanted[name] if chance.random() < 0.8 else any_value(scale, chance)
            for name, scale in scales.items()
            if chance.random() < 0.95
        }
        result = Aggregate(vetoes=vetoes).bind(panel)(values)
        broken = [name for name in vetoes if name in values and values[name] != wanted[name]]
        assert sorted(result["vetoed_by"]) == sorted(broken)
        kept = not broken and all(name in values for name in vetoes)
        assert result["passed"] is (kept if vetoes else None)


def test_threshold_that_is_reached_exactly_is_reached() -> None:
    for count, points in itertools.product(range(1, 13), range(11)):
        panel = [criterion(f"c{at}", SCALES["points"]) for at in range(count)]
        values = {one.name: points for one in panel}
        result = Aggregate(passes=points / 10).bind(panel)(values)
        assert result["passed"] is True
        if points < 10:
            above = Aggregate(passes=points / 10 + 0.001).bind(panel)(values)
            assert above["passed"] is False


@pytest.mark.parametrize("weight", [1e308, 5e-324, 1e-300])
def test_weights_of_any_size_give_a_score_from_zero_to_one(weight: float) -> None:
    panel = [criterion(name, SCALES["grade"]) for name in ("a", "b", "c")]
    rule = Aggregate(weights=dict.fromkeys(("a", "b", "c"), weight), passes=0.5)
    result = rule.bind(panel)({"a": 3, "b": 1, "c": 2})
    assert result["score"] == pytest.approx(0.5)
    assert result["passed"] is True


def test_nothing_judged_has_no_score_and_does_not_pass() -> None:
    panel = [criterion("a", Boolean())]
    assert Aggregate(passes=0).bind(panel)({}) == {
        "score": None,
        "passed": False,
        "parts": {},
        "vetoed_by": [],
        "missing": ["a"],
    }
    assert Aggregate().bind(panel)({})["passed"] is None
    weights = {"a": 1.0, "b": 0.0}
    panel = [criterion("a", Boolean()), criterion("b", Boolean())]
    bound = Aggregate(weights=weights, vetoes={"b": True}).bind(panel)
    weights["b"] = 100.0
    result = bound({"a": True, "b": False})
    assert (result["score"], result["passed"], result["vetoed_by"]) == (1.0, False, ["b"])
