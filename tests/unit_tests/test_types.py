"""Criterion, example and feedback: what they take, and the ids they make."""

import math
from typing import Any

import pytest
from pydantic import ValidationError

from memalign_graph import Criterion, Episode, Example, Feedback, Judgment
from memalign_graph.errors import InvalidInputError
from memalign_graph.reading import read_example, read_feedback

SAID = {"inputs": "q", "outputs": "a", "rationale": "Too cold."}


def nested(levels: int) -> Any:
    value: Any = "deep"
    for _ in range(levels):
        value = [value]
    return value


def feedback(**fields: Any) -> Feedback:
    return Feedback.model_validate({**SAID, **fields})


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("", "must not be empty"),
        (" tone", "must not begin or end with blanks"),
        ("support.tone", "write 'support.tone' as 'support_tone'"),
        ("to\nne", "must not hold control characters"),
        ("\ud800", "valid string"),
        ("x" * 101, "at most 100 characters"),
        (None, "valid string"),
    ],
)
def test_a_criterion_refuses_a_name_no_store_can_keep(name: Any, problem: str) -> None:
    with pytest.raises(ValidationError, match=problem):
        Criterion(name=name, instructions="Is it good?")


def test_a_criterion_needs_instructions() -> None:
    with pytest.raises(
        ValidationError, match="must not be empty: say what the judge has to decide"
    ):
        Criterion(name="tone", instructions=" \n")


@pytest.mark.parametrize("field", ["inputs", "outputs"])
@pytest.mark.parametrize("empty", ["", " \n", None, [], {}])
def test_an_example_refuses_an_empty_side(field: str, empty: Any) -> None:
    with pytest.raises(InvalidInputError, match=f"^{field}: must not be empty"):
        read_example({"inputs": "q", "outputs": "a", field: empty})


@pytest.mark.parametrize("value", [0, False, 0.0, [None], {"text": ""}])
def test_an_example_takes_values_that_are_falsy_but_there(value: Any) -> None:
    assert Example(inputs=value, outputs="a").inputs == value


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ({1, 2}, "a value of type set, which is no JSON"),
        ({"when": object()}, r"inputs\['when'\] holds a value of type object"),
        ({1: "one"}, "has the key 1: JSON keys are strings"),
        ([1, math.nan], r"inputs\[1\] holds nan, which is no JSON"),
        (-math.inf, "holds -inf, which is no JSON"),
        ("half \ud83d", "half of a surrogate pair at position 5"),
        ("a\x00b", "holds a NUL character"),
        (2**63, "an integer beyond 64 bits"),
        (nested(100_000), "inputs is nested deeper than 100 levels: flatten it"),
    ],
)
@pytest.mark.parametrize("field", ["inputs", "reference_outputs"])
def test_an_example_refuses_what_is_no_json(field: str, value: Any, problem: str) -> None:
    with pytest.raises(InvalidInputError, match=problem.replace("inputs", field)) as caught:
        read_example({"inputs": "q", "outputs": "a", field: value})
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize("value", [2**63 - 1, -(2**63), 1e300, "🙂", nested(90), {"": None}])
def test_an_example_takes_json_to_its_limits(value: Any) -> None:
    assert Example(inputs=value, outputs="a").inputs == value


def test_the_same_example_has_the_same_id() -> None:
    first = Example(inputs={"a": 1, "b": [2.5, None]}, outputs="x")
    second = Example.model_validate_json('{"outputs": "x", "inputs": {"b": [2.5, null], "a": 1}}')
    assert first.id == second.id
    assert len(first.id) == 32


@pytest.mark.parametrize(
    "other",
    [
        {"inputs": "q", "outputs": "A"},
        {"inputs": "a", "outputs": "q"},
        {"inputs": "q", "outputs": "a", "reference_outputs": "a"},
        {"inputs": ["q"], "outputs": "a"},
    ],
)
def test_another_example_has_another_id(other: dict[str, Any]) -> None:
    assert read_example(other).id != Example(inputs="q", outputs="a").id


def test_feedback_takes_its_example_flat_or_whole() -> None:
    whole = Feedback(
        example=Example(inputs="q", outputs="a", reference_outputs="r"), rationale="Too cold."
    )
    assert feedback(reference_outputs="r", given_at=whole.given_at) == whole


@pytest.mark.parametrize("silence", [{}, {"rationale": "  "}, {"value": None, "rationale": ""}])
def test_feedback_says_something(silence: dict[str, Any]) -> None:
    with pytest.raises(InvalidInputError, match=r"^feedback needs a value or a rationale"):
        read_feedback({"inputs": "q", "outputs": "a", **silence})


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"rationale": "Too cold."}, "example: is missing"),
        ({**SAID, "ratoinale": "x"}, "ratoinale: is not a field"),
        ({"inputs": "q", "rationale": "x"}, "outputs: is missing"),
        ({**SAID, "value": [1]}, "value"),
        ({**SAID, "rationale": "a\x00b"}, "NUL"),
        ({**SAID, "author": "\ud800"}, "surrogate"),
        ({**SAID, "id": [5]}, "id: .*string"),
        ({"example": {"inputs": "q", "outputs": "a"}, "inputs": "q", "value": 1}, "inputs: is not"),
        ("Too cold.", "Feedback"),
    ],
)
def test_feedback_refuses_what_it_does_not_know(fields: Any, problem: str) -> None:
    with pytest.raises(InvalidInputError, match=problem) as caught:
        read_feedback(fields)
    assert "\n" not in str(caught.value)


def test_blanks_around_what_the_expert_says_are_dropped() -> None:
    said = feedback(rationale=" Too cold.\n", author=" ann ", id="")
    assert (said.rationale, said.author, said.id) == ("Too cold.", "ann", None)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({}, {"rationale": "Another word."}),
        ({"author": "ann"}, {"author": " ann", "id": "7"}),
        ({"id": "7"}, {"id": "7", "value": True}),
    ],
)
def test_one_voice_on_one_example_is_one_episode(one: Any, other: Any) -> None:
    assert feedback(**one).episode_id == feedback(**other).episode_id


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"author": "ann"}, {"author": "bob"}),
        ({"author": "ann"}, {}),
        ({"id": "7"}, {"id": "8"}),
        ({"id": "7"}, {}),
        ({"id": "7"}, {"author": "7"}),
        ({}, {"author": "anonymous"}),
        ({}, {"outputs": "b"}),
    ],
)
def test_two_voices_or_examples_are_two_episodes(one: Any, other: Any) -> None:
    assert feedback(**one).episode_id != feedback(**other).episode_id


@pytest.mark.parametrize(
    ("said", "agrees"),
    [
        ({"value": True, "rationale": None}, True),
        ({"value": False, "rationale": None}, False),
        ({"value": True}, False),
        ({}, False),
    ],
)
def test_agreeing_is_the_judges_value_and_no_more(said: Any, *, agrees: bool) -> None:
    judgment = Judgment(
        criterion="tone", example_id="x", value=True, rationale="Fine.", memory_version="0"
    )
    assert feedback(judgment=judgment, **said).agrees is agrees


def test_an_episode_names_each_thread_once() -> None:
    judgment = Judgment(
        criterion="tone",
        example_id="x",
        value=True,
        rationale="Fine.",
        memory_version="0",
        thread_id="t1",
    )
    same = Episode.from_feedback(feedback(judgment=judgment, thread_id="t1"))
    two = Episode.from_feedback(feedback(judgment=judgment, thread_id="t2"))
    assert (same.thread_ids, two.thread_ids) == (["t1"], ["t1", "t2"])


def test_an_episodes_word_is_what_the_expert_says_and_not_when() -> None:
    once, again = (Episode.from_feedback(feedback()) for _ in range(2))
    other = Episode.from_feedback(feedback(rationale="Fine."))
    assert once.says_the_same_as(again)
    assert not once.says_the_same_as(other)
    assert not once.says_the_same_as(Episode.from_feedback(feedback(value=True)))
