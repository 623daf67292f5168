"""One score of many criteria, against a small reference."""

import itertools
import json
import random
from fractions import Fraction
from typing import Any

import pytest

from memalign_graph import Aggregate, Boolean, Categorical, Criterion, Numeric, Pairwise
from memalign_graph.scales import Scale

SCALES: dict[str, tuple[Scale, dict[Any, Fraction | None]]] = {
    "boolean": (Boolean(), {False: Fraction(0), True: Fraction(1)}),
    "signed": (
        Numeric(minimum=-2, maximum=2, integer=True),
        {value: Fraction(value + 2, 4) for value in range(-2, 3)},
    ),
    "share": (Numeric(minimum=0, maximum=1), {value / 8: Fraction(value, 8) for value in range(9)}),
    "level": (
        Categorical(choices=("poor", "fair", "good", "best"), ordered=True),
        {value: Fraction(at, 3) for at, value in enumerate(("poor", "fair", "good", "best"))},
    ),
    "kind": (Categorical(choices=("question", "praise")), {"question": None, "praise": None}),
    "pair": (Pairwise(), {"A": None, "B": None, "tie": None}),
}
"""Each scale with where its values lie between the lowest and the highest, if anywhere."""


def criterion(name: str, scale: Scale) -> Criterion:
    return Criterion(name=name, instructions="How good?", scale=scale)


@pytest.mark.parametrize("seed", range(5))
def test_score_is_the_weighted_mean_and_a_veto_is_made_up_for_by_nothing(seed: int) -> None:
    chance = random.Random(seed)  # noqa: S311 - a reference needs no secrets
    for _ in range(300):
        kinds = ["signed", *(chance.choice(list(SCALES)) for _ in range(chance.randint(1, 9)))]
        places = {f"{kind}{at}": SCALES[kind][1] for at, kind in enumerate(kinds)}
        panel = [criterion(f"{kind}{at}", SCALES[kind][0]) for at, kind in enumerate(kinds)]
        ordered = [name for name, place in places.items() if None not in place.values()]
        named = chance.sample(ordered, chance.randint(0, len(ordered)))
        weights = {name: chance.choice([0, 1, 2, 0.5, 3]) for name in named}
        if not any(weights.get(name, 1) for name in ordered):
            weights = {}
        wanted = {name: chance.choice(list(place)) for name, place in places.items()}
        vetoes = {name: [wanted[name]] for name in places if chance.random() < 0.2}
        values = {
            name: wanted[name] if chance.random() < 0.5 else chance.choice(list(place))
            for name, place in places.items()
            if chance.random() < 0.9
        }
        passes = chance.choice([None, Fraction(chance.randint(0, 20), 20)])
        threshold = None if passes is None else float(passes)
        rule = Aggregate(weights=weights, vetoes=vetoes, passes=threshold)
        result = rule.bind(panel)(values)

        parts = {
            name: places[name][values[name]] or Fraction(0) for name in ordered if name in values
        }
        total = sum((Fraction(weights.get(name, 1)) for name in parts), Fraction(0))
        weighted = sum(
            (Fraction(weights.get(name, 1)) * parts[name] for name in parts), Fraction(0)
        )
        score = weighted / total if total else None
        assert result["parts"] == pytest.approx({name: float(parts[name]) for name in parts})
        assert result["score"] == (None if score is None else pytest.approx(float(score)))
        assert result["missing"] == [name for name in places if name not in values]
        broken = [name for name in vetoes if name in values and values[name] != wanted[name]]
        assert result["vetoed_by"] == broken
        kept = not broken and all(name in values for name in vetoes)
        reached = passes is None or (score is not None and score >= passes)
        assert result["passed"] is (kept and reached if vetoes or passes is not None else None)
        assert json.loads(json.dumps(result, allow_nan=False)) == result


def test_threshold_that_is_reached_exactly_is_reached() -> None:
    ten = Numeric(minimum=0, maximum=10, integer=True)
    for count, points in itertools.product(range(1, 13), range(11)):
        panel = [criterion(f"c{at}", ten) for at in range(count)]
        values = {one.name: points for one in panel}
        assert Aggregate(passes=points / 10).bind(panel)(values)["passed"] is True
        if points < 10:
            above = Aggregate(passes=points / 10 + 0.001).bind(panel)(values)
            assert above["passed"] is False


@pytest.mark.parametrize("weight", [1e308, 5e-324, 1e-300])
def test_weights_of_any_size_give_a_score_from_zero_to_one(weight: float) -> None:
    panel = [criterion(name, SCALES["signed"][0]) for name in ("a", "b", "c")]
    rule = Aggregate(weights=dict.fromkeys(("a", "b", "c"), weight), passes=0.5)
    result = rule.bind(panel)({"a": 2, "b": -2, "c": 0})
    assert result["score"] == pytest.approx(0.5)
    assert result["passed"] is True


def test_nothing_judged_has_no_score_and_does_not_pass() -> None:
    panel = [criterion("a", Boolean())]
    result = Aggregate(passes=0).bind(panel)({})
    assert (result["score"], result["passed"], result["missing"]) == (None, False, ["a"])
    assert Aggregate().bind(panel)({})["passed"] is None
