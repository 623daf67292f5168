"""The four scales: values, formatting and descriptions."""

import math
from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from memalign_graph import Boolean, Categorical, Numeric, Pairwise
from memalign_graph.scales import Scale

YES_NO = Boolean()
STARS = Numeric(minimum=1, maximum=5, integer=True)
SHARE = Numeric(minimum=0, maximum=1)
BETTER = "A if the first output is better, B if the second is better"
GRADES = Categorical(choices=("Poor", "fair", "GOOD"), ordered=True)
AREAS = Categorical(choices=("m\u00b2", "m2"))
COUNTS = Categorical(choices=("1", "2"))
VERSIONS = Categorical(choices=("1", "1.0", "2"))
PAIR, SIDES = Pairwise(), Pairwise(allow_tie=False)

TAKEN: list[tuple[Scale, list[Any], Any]] = [
    (YES_NO, [True, "TRUE", " yes ", "1", 1, 1.0, "1.0"], True),
    (YES_NO, [False, "false", "No", " 0", 0, 0.0, "0.0"], False),
    (GRADES, ["poor", " POOR "], "Poor"),
    (GRADES, ["good", "\uff27\uff2f\uff2f\uff24"], "GOOD"),
    (
        Categorical(choices=("To\u0302\u0301t", "Kém")),
        ["T\u1ed1t", "t\u00f4\u0301t"],
        "To\u0302\u0301t",
    ),
    (AREAS, ["m\u00b2", "M\u00b2"], "m\u00b2"),
    (AREAS, ["m2"], "m2"),
    (COUNTS, [1, 1.0, "1"], "1"),
    (VERSIONS, [1.0, "1.0"], "1.0"),
    (VERSIONS, [2, 2.0], "2"),
    (STARS, [3, 3.0, "3", " 3 ", "3.0"], 3),
    (STARS, [5], 5),
    (SHARE, [1, "1", 1.0], 1.0),
    (PAIR, ["a"], "A"),
    (PAIR, ["TIE"], "tie"),
    (SIDES, ["B "], "B"),
]

REFUSED: list[tuple[Scale, list[Any]]] = [
    (YES_NO, ["", "maybe", 2, -1, 0.5, math.nan, None, [True], {}]),
    (GRADES, ["", "goodish", 0, True, None, ["Poor"]]),
    (COUNTS, [True, 3, 1.5]),
    (STARS, [0, 6, 2.5, "2.5", "three", "", True, None, [3], math.nan, "nan", math.inf, 10**400]),
    (SHARE, [-0.1, "1_0", "0,5"]),
    (Numeric(minimum=0, maximum=5_000), ["1,000"]),
    (PAIR, ["C", "", 0, None]),
    (SIDES, ["tie"]),
]

SHOWN: list[tuple[Scale, dict[str, Any], str]] = [
    (YES_NO, {"type": "boolean"}, "true (the criterion is met) or false (it is not)."),
    (
        GRADES,
        {"type": "string", "enum": ["Poor", "fair", "GOOD"]},
        "one of Poor, fair, GOOD, from lowest to highest.",
    ),
    (COUNTS, {"type": "string", "enum": ["1", "2"]}, "one of 1, 2."),
    (STARS, {"type": "integer", "minimum": 1, "maximum": 5}, "a whole number from 1 to 5."),
    (SHARE, {"type": "number", "minimum": 0.0, "maximum": 1.0}, "a number from 0.0 to 1.0."),
    (PAIR, {"type": "string", "enum": ["A", "B", "tie"]}, f"{BETTER}, or tie if neither is."),
    (SIDES, {"type": "string", "enum": ["A", "B"]}, f"{BETTER}."),
]


@pytest.mark.parametrize(("scale", "values", "written"), TAKEN)
def test_value_has_one_canonical_form(scale: Scale, values: list[Any], written: Any) -> None:
    for value in map(scale.validate_value, values):
        assert (value, type(value)) == (written, type(written))


@pytest.mark.parametrize(("scale", "values"), REFUSED)
def test_value_that_is_not_on_the_scale_is_refused(scale: Scale, values: list[Any]) -> None:
    for value in values:
        with pytest.raises(ValueError) as caught:
            scale.validate_value(value)
        message = str(caught.value)
        assert "is not on the scale: the value is " in message
        assert len(message) < 250


@pytest.mark.parametrize(("scale", "schema", "words"), SHOWN)
def test_scale_survives_json(scale: Scale, schema: dict[str, Any], words: str) -> None:
    assert scale.value_schema() == schema
    assert [*map(type, scale.value_schema().values())] == [*map(type, schema.values())]
    assert scale.describe().replace("neither is better", "neither is") == words
    assert TypeAdapter[Scale](Scale).validate_json(scale.model_dump_json()) == scale


def test_value_is_rendered_as_a_prompt_shows_it() -> None:
    assert [YES_NO.render(True), STARS.render(3), SHARE.render(0.5)] == ["true", "3", "0.5"]
    assert STARS.show(7) == "7 (on an earlier scale)"
    assert [YES_NO.show(value) for value in (False, 1)] == ["false", "1 (on an earlier scale)"]


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"type": "categorical", "choices": ["one"]}, "at least two choices"),
        ({"type": "categorical", "choices": ["a", " b"]}, "may not be empty, or begin or end with"),
        ({"type": "categorical", "choices": ["Good", "good"]}, "differ only in case"),
        ({"type": "numeric", "minimum": 1, "maximum": 1}, "minimum must be below maximum"),
        ({"type": "numeric", "minimum": math.nan, "maximum": 1}, "finite numbers"),
        ({"type": "numeric", "minimum": 0, "maximum": 2**60}, "within ±2"),
        (
            {"type": "numeric", "minimum": 0.5, "maximum": 3, "integer": True},
            "whole numbers on an integer scale",
        ),
    ],
)
def test_bad_scale_is_refused(fields: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValidationError, match=problem):
        TypeAdapter(Scale).validate_python(fields)
