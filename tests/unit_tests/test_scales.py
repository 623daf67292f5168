"""The four scales: which values they take, how they write them, and what they say of themselves."""

import math
from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from memalign_graph import Boolean, Categorical, Numeric, Pairwise
from memalign_graph.scales import Scale

STARS = Numeric(minimum=1, maximum=5, integer=True)
SHARE = Numeric(minimum=0, maximum=1)
BETTER = "A if the first output is better, B if the second is better"
GRADES = Categorical(choices=("Poor", "fair", "GOOD"), ordered=True)


@pytest.mark.parametrize("given", [True, "true", "TRUE", " yes ", "Yes", "1", 1, 1.0, "1.0"])
def test_boolean_takes_words_for_true(given: Any) -> None:
    assert Boolean().validate_value(given) is True


@pytest.mark.parametrize("given", [False, "false", "No", " 0", 0, 0.0, "0.0"])
def test_boolean_takes_words_for_false(given: Any) -> None:
    assert Boolean().validate_value(given) is False


@pytest.mark.parametrize("given", ["", "maybe", 2, -1, 1.5, 0.5, math.nan, None, [True], {}])
def test_boolean_refuses_all_else(given: Any) -> None:
    with pytest.raises(ValueError, match=r"is not on the scale: the value is true or false\."):
        Boolean().validate_value(given)


@pytest.mark.parametrize(
    ("given", "written"), [("poor", "Poor"), (" FAIR ", "fair"), ("good", "GOOD")]
)
def test_categorical_writes_a_choice_in_its_authors_case(given: str, written: str) -> None:
    assert GRADES.validate_value(given) == written


@pytest.mark.parametrize("given", ["", "goodish", 0, 1, True, None, ["Poor"]])
def test_categorical_refuses_what_is_no_choice(given: Any) -> None:
    with pytest.raises(ValueError, match="the value is one of Poor, fair, GOOD"):
        GRADES.validate_value(given)


@pytest.mark.parametrize("given", [3, 3.0, "3", " 3 ", "3.0"])
def test_an_integer_scale_gives_an_int(given: Any) -> None:
    value = STARS.validate_value(given)
    assert (value, type(value)) == (3, int)


@pytest.mark.parametrize("given", [1, 5, "1", "5"])
def test_numeric_bounds_are_on_the_scale(given: Any) -> None:
    assert STARS.validate_value(given) == int(given)


@pytest.mark.parametrize(
    "given",
    [0, 6, 2.5, "2.5", "three", "", True, False, None, [3], math.nan, "nan", math.inf, 10**400],
)
def test_an_integer_scale_refuses_all_else(given: Any) -> None:
    with pytest.raises(ValueError, match=r"is not on the scale: .* a whole number from 1 to 5\."):
        STARS.validate_value(given)


@pytest.mark.parametrize("given", [1, "1", 1.0])
def test_a_numeric_scale_gives_a_float(given: Any) -> None:
    value = SHARE.validate_value(given)
    assert (value, type(value)) == (1.0, float)


@pytest.mark.parametrize(("given", "written"), [("a", "A"), ("B ", "B"), ("TIE", "tie")])
def test_pairwise_writes_the_side(given: str, written: str) -> None:
    assert Pairwise().validate_value(given) == written


@pytest.mark.parametrize("given", ["tie", "C", "", 0, None])
def test_pairwise_without_ties_takes_a_side_only(given: Any) -> None:
    with pytest.raises(ValueError, match="is not on the scale"):
        Pairwise(allow_tie=False).validate_value(given)


def test_a_long_wrong_value_is_shown_shortened() -> None:
    with pytest.raises(ValueError) as caught:
        STARS.validate_value("x" * 10_000)
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize(
    ("scale", "schema"),
    [
        (Boolean(), {"type": "boolean"}),
        (GRADES, {"type": "string", "enum": ["Poor", "fair", "GOOD"]}),
        (STARS, {"type": "integer", "minimum": 1, "maximum": 5}),
        (SHARE, {"type": "number", "minimum": 0.0, "maximum": 1.0}),
        (Pairwise(), {"type": "string", "enum": ["A", "B", "tie"]}),
        (Pairwise(allow_tie=False), {"type": "string", "enum": ["A", "B"]}),
    ],
)
def test_value_schema(scale: Scale, schema: dict[str, Any]) -> None:
    assert scale.value_schema() == schema


def test_an_integer_scales_schema_has_integer_bounds() -> None:
    assert type(STARS.value_schema()["minimum"]) is int


@pytest.mark.parametrize(
    ("scale", "words"),
    [
        (Boolean(), "true (the criterion is met) or false (it is not)."),
        (GRADES, "one of Poor, fair, GOOD, from lowest to highest."),
        (Categorical(choices=("x", "y")), "one of x, y."),
        (STARS, "a whole number from 1 to 5."),
        (SHARE, "a number from 0.0 to 1.0."),
        (Pairwise(), f"{BETTER}, or tie if neither is better."),
        (
            Pairwise(allow_tie=False),
            f"{BETTER}.",
        ),
    ],
)
def test_describe(scale: Scale, words: str) -> None:
    assert scale.describe() == words


@pytest.mark.parametrize(
    ("scale", "value", "text"),
    [
        (Boolean(), True, "true"),
        (Boolean(), False, "false"),
        (GRADES, "Poor", "Poor"),
        (STARS, 3, "3"),
        (SHARE, 0.5, "0.5"),
    ],
)
def test_render(scale: Scale, value: Any, text: str) -> None:
    assert scale.render(value) == text


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"type": "categorical", "choices": ["one"]}, "at least two choices"),
        ({"type": "categorical", "choices": ["a", " "]}, "without blanks around it"),
        ({"type": "categorical", "choices": ["a", " b"]}, "without blanks around it"),
        ({"type": "categorical", "choices": ["Good", "good"]}, "the same but for their case"),
        ({"type": "numeric", "minimum": 1, "maximum": 1}, "minimum must be below maximum"),
        ({"type": "numeric", "minimum": 5, "maximum": 1}, "minimum must be below maximum"),
        ({"type": "numeric", "minimum": math.nan, "maximum": 1}, "finite numbers"),
        ({"type": "numeric", "minimum": 0, "maximum": math.inf}, "finite numbers"),
        (
            {"type": "numeric", "minimum": 0.5, "maximum": 3, "integer": True},
            "whole numbers as minimum and maximum",
        ),
        ({"type": "boolean", "choices": ["a", "b"]}, "Extra inputs"),
        ({"type": "stars"}, "does not match any of the expected tags"),
    ],
)
def test_a_bad_scale_is_refused(fields: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValidationError, match=problem):
        TypeAdapter(Scale).validate_python(fields)


@pytest.mark.parametrize("scale", [Boolean(), GRADES, STARS, SHARE, Pairwise(allow_tie=False)])
def test_a_scale_survives_json(scale: Scale) -> None:
    text = scale.model_dump_json()
    assert TypeAdapter[Scale](Scale).validate_json(text) == scale
