"""Criterion, example and feedback: validation and ids."""

import math
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from memalign_graph import (
    Criterion,
    Episode,
    Example,
    Feedback,
    InvalidInputError,
    Judgment,
    MemAlignContext,
)
from memalign_graph.errors import describe_validation_error
from memalign_graph.types import parse_example, parse_feedback

CASE = {"inputs": "q", "outputs": "a"}
SAID = {**CASE, "rationale": "Too cold."}


class NAType:
    """Like pandas.NA: never equal, and without a truth value."""

    def __bool__(self) -> bool:
        raise TypeError


def nested(levels: int) -> Any:
    value: Any = "deep"
    for _ in range(levels):
        value = [value]
    return value


def feedback(**fields: Any) -> Feedback:
    return Feedback.model_validate({**SAID, **fields})


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"name": ""}, "must not be empty"),
        ({"name": " tone"}, "begin or end with a space: ' tone'"),
        ({"name": "support.tone"}, "have a dot .*: 'support.tone'"),
        ({"name": "to\nne"}, "a control character"),
        ({"name": "x" * 101}, "at most 100 characters"),
        ({"instructions": " \n"}, "must not be empty: say what the judge has to decide"),
    ],
)
def test_criterion_refuses_unusable_fields(fields: Any, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        Criterion(**{"name": "tone", "instructions": "Is it good?", **fields})


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ("", "inputs: must not be empty"),
        ({1, 2}, "a value of type set, which is not JSON"),
        ({"when": object()}, r"inputs\['when'\] has a value of type object"),
        ({1: "one"}, "has the key 1. JSON keys are strings"),
        ([1, math.nan], r"inputs\[1\] has nan, which is not JSON"),
        ({"k" * 200: {"a": [math.inf]}}, r"inputs\['k{50}'\]\['a'\]\[0\] has inf"),
        ("half \ud83d", "half of a surrogate pair at position 5"),
        ("a\x00b", "has a NUL character"),
        (2**63, "an integer beyond 64 bits"),
        (nested(100_000), "inputs is nested deeper than 100 levels. Flatten it"),
    ],
)
def test_example_refuses_empty_and_other_values(value: Any, problem: str) -> None:
    for field in ("inputs", "outputs", "reference_outputs"):
        if field == "reference_outputs" and "empty" in problem:
            assert parse_example({**CASE, field: value}).reference_outputs == value
            continue
        with pytest.raises(InvalidInputError, match=problem.replace("inputs", field)) as caught:
            parse_example({**CASE, field: value})
        assert len(str(caught.value)) < 300


def test_id_of_an_example_depends_on_its_content() -> None:
    limits = [0, False, [None], {"text": ""}, 2**63 - 1, -(2**63), 1e300, "🙂", nested(90), {"": 0}]
    for value in limits:
        assert Example(inputs=value, outputs="a").inputs == value
    first = Example(inputs={"a": 1, "b": [2.5, None]}, outputs="x")
    second = Example.model_validate_json('{"outputs": "x", "inputs": {"b": [2.5, null], "a": 1}}')
    assert first.id == second.id
    assert len(first.id) == 32
    others: list[dict[str, Any]] = [
        {"outputs": "A"},
        {"inputs": "a", "outputs": "q"},
        {"reference_outputs": "a"},
        {"inputs": ["q"]},
    ]
    assert len({parse_example({**CASE, **other}).id for other in [{}, *others]}) == 5


def test_feedback_accepts_its_example_as_fields_or_as_an_object() -> None:
    example = Example(inputs="q", outputs="a", reference_outputs="r")
    whole = Feedback(example=example, rationale="Too cold.")
    assert feedback(reference_outputs="r", given_at=whole.given_at) == whole
    assert parse_feedback(whole) == whole
    assert parse_example(example) is example


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        (CASE, "^feedback needs a value or a rationale"),
        ({**SAID, "ratoinale": "x"}, "ratoinale: is not a known field"),
        ({"input": "q", "outputs": "a", "value": True}, "^input: is not a known field"),
        ({"inputs": "q", "rationale": "x"}, "outputs: is missing"),
        ({**SAID, "rationale": "a\x00b"}, "NUL"),
        ({**SAID, "id": [5]}, "id: .* is not text"),
        (
            {**SAID, "given_at": "02/13/2026"},
            "given_at: '02/13/2026' is not a date. Write it as 2026",
        ),
        ({"example": {}, "value": True}, "example.inputs: is missing"),
        ({"example": CASE, "inputs": "q", "value": 1}, "inputs: is not"),
        ("Too cold.", "^feedback: give Feedback, or an object"),
    ],
)
def test_feedback_refuses_unknown_fields(fields: Any, problem: str) -> None:
    with pytest.raises(InvalidInputError, match=problem) as caught:
        parse_feedback(fields)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("nothing", [math.nan, np.float64("nan"), NAType(), None])
def test_empty_cell_is_missing(nothing: Any) -> None:
    feedback = {**CASE, "reference_outputs": nothing, "author": nothing, "id": nothing}
    parsed = parse_feedback({**feedback, "value": nothing, "rationale": "Too cold."})
    assert (parsed.value, parsed.rationale) == (None, "Too cold.")
    assert (parsed.author, parsed.id) == (None, None)
    value = parse_feedback({**feedback, "value": True, "rationale": nothing, "given_at": nothing})
    assert (value.value, value.rationale) == (True, None)


@pytest.mark.parametrize("date", ["20240531", " 20240531", 20240531, 20240531.0, "20240531.0"])
def test_compact_date_is_a_date(date: Any) -> None:
    assert feedback(given_at=date).given_at.isoformat() == "2024-05-31T00:00:00+00:00"


@pytest.mark.parametrize("date", ["2024", "20241399", 45_000, "20240531100000", "9" * 5_000])
def test_number_outside_the_range_of_dates_is_refused(date: Any) -> None:
    problem = r"^given_at: .{1,45} is not a date: write it as 2024"
    with pytest.raises(InvalidInputError, match=problem):
        parse_feedback({**SAID, "given_at": date})


def test_numbers_of_tables_are_numbers_and_blanks_are_dropped() -> None:
    assert feedback(value=1.0).value == 1
    assert parse_feedback({**SAID, "id": 7.0}).id == "7"  # of a column that has gaps
    read = parse_feedback({**SAID, "value": np.bool_(True), "id": np.int64(7)})
    assert (read.value, read.id) == (True, "7")
    first = feedback(rationale=" Too cold.\n", author=" ann ", id="")
    assert (first.rationale, first.author, first.id) == ("Too cold.", "ann", None)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ({}, {"rationale": "Another word."}, True),
        ({"author": "ann"}, {"author": " ann", "id": "7"}, True),
        ({"author": "ann"}, {"author": "bob"}, False),
        ({"id": "7"}, {}, False),
        ({"id": "7"}, {"author": "7"}, False),
        ({}, {"author": "anonymous"}, False),
        ({}, {"outputs": "b"}, False),
    ],
)
def test_one_expert_on_one_example_is_one_episode(one: Any, other: Any, *, same: bool) -> None:
    assert (feedback(**one).episode_id == feedback(**other).episode_id) is same


def test_agreement_has_the_judges_value_and_no_new_comment() -> None:
    made: Any = {"criterion": "tone", "example_id": "x", "rationale": "Fine.", "thread_id": "t1"}
    judgment = Judgment(**made, value=True, memory_version="0")
    assert feedback(judgment=judgment, value=True, rationale=None).agrees
    for reply in ({"value": False, "rationale": None}, {"value": True}, {}):
        assert not feedback(judgment=judgment, **reply).agrees
    assert not feedback(value=True, rationale=None).agrees
    for thread, threads in (("t1", ["t1"]), ("t2", ["t1", "t2"])):
        episode = Episode.from_feedback(feedback(judgment=judgment, thread_id=thread))
        assert episode.thread_ids == threads
    once, again = (Episode.from_feedback(feedback()) for _ in range(2))
    assert once.says_the_same_as(again)
    for other in ({"rationale": "Fine."}, {"value": True}):
        assert not once.says_the_same_as(Episode.from_feedback(feedback(**other)))


def test_value_of_an_unsupported_type_raises_one_short_sentence() -> None:
    with pytest.raises(ValidationError) as caught:
        Feedback.model_validate({"inputs": "Q", "outputs": "A", "value": [1]})
    sentence = "value: [1] is neither bool, int, float nor str."
    assert describe_validation_error(caught.value) == sentence
    long = "x" * 10_000
    with pytest.raises(InvalidInputError) as refused:
        parse_feedback({**CASE, "value": [long]})
    assert len(str(refused.value)) < 300
    with pytest.raises(InvalidInputError, match=r"\[\[\[.* is neither bool"):
        parse_feedback({**CASE, "value": nested(5_000)})
    with pytest.raises(InvalidInputError) as refused:
        MemAlignContext(namespace=(f"{long}.",))
    assert len(str(refused.value)) < 1_100
