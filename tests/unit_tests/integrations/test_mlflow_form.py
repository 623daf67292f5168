"""A memory in MLflow's forms, and traces read without MLflow: pure functions."""

from typing import Any, Literal

import pytest

from memalign_graph import (
    Boolean,
    Categorical,
    Criterion,
    Episode,
    Feedback,
    InvalidInputError,
    Numeric,
    Pairwise,
)
from memalign_graph.integrations import feedback_from_mlflow, memory_from_mlflow
from memalign_graph.integrations.mlflow_form import (
    examples_to_export,
    expectations,
    judge_instructions,
    value_type,
)
from tests.conftest import CASE, CRITERION


def assessment(**fields: Any) -> dict[str, Any]:
    return {
        "assessment_id": "a-1",
        "assessment_name": "support_tone",
        "source": {"source_type": "HUMAN", "source_id": "ann"},
        "create_time": "2025-03-01T12:00:00Z",
        "last_update_time": "2025-03-01T12:00:00Z",
        "feedback": {"value": True},
        **fields,
    }


def trace(*assessments: Any, **span: Any) -> dict[str, Any]:
    attributes = {"mlflow.spanInputs": '"Where is it?"', "mlflow.spanOutputs": '"Here."'}
    root = {"span_id": "AC4cDh4N0iw=", "parent_span_id": None, "attributes": attributes, **span}
    return {
        "info": {"trace_id": "tr-1", "assessments": list(assessments)},
        "data": {"spans": [root]},
    }


def read(*traces: Any, criterion: Criterion = CRITERION) -> Any:
    return feedback_from_mlflow(traces, criterion)


@pytest.mark.parametrize(
    ("scale", "expected"),
    [
        (Boolean(), bool),
        (Numeric(minimum=1, maximum=5, integer=True), int),
        (Numeric(minimum=0, maximum=1), float),
        (Categorical(choices=("poor", "good")), Literal["poor", "good"]),
        (Pairwise(allow_tie=False), Literal["A", "B"]),
    ],
)
def test_each_scale_has_its_type(scale: Any, expected: Any) -> None:
    assert value_type(scale) == expected


def test_braces_in_instructions_are_no_variables() -> None:
    criterion = Criterion(name="x", instructions="Is {{ trace }} in it? Or {{inputs}}?")
    told = judge_instructions(criterion, expects=False)
    assert told.count("{{") == told.count("}}") == len(["inputs", "outputs"])
    assert told.count("{{ inputs }}") == told.count("{{ outputs }}") == 1
    assert "expectations" not in told
    assert "{{ expectations }}" in judge_instructions(criterion, expects=True)


@pytest.mark.parametrize(
    ("reference", "written"),
    [
        (None, {}),
        ("Sorry.", {"expected_response": "Sorry."}),
        ({"answer": "Sorry.", "other": None}, {"answer": "Sorry."}),
        (["a"], {"expected_response": ["a"]}),
    ],
)
def test_references_have_names(reference: Any, written: Any) -> None:
    assert expectations(reference) == written


def test_what_has_no_value_on_the_scale_is_left_out_with_the_reason() -> None:
    def episode(**fields: Any) -> Episode:
        return Episode.from_feedback(Feedback.model_validate({**CASE, **fields}))

    good = episode(value="yes", author="ann")
    words = episode(rationale="Cold.", author="bob")
    off = episode(value=7, author="cem")
    shown, left_out = examples_to_export([good, words, off], CRITERION)
    assert [one.value for one in shown[good.example_id]] == [True]
    assert set(left_out) == {words.id, off.id}
    assert "7" in left_out[off.id]


@pytest.mark.parametrize(
    ("given", "value"), [("yes", True), (1.0, True), (0, False), ("False", False)]
)
def test_values_are_read_onto_the_scale(given: Any, value: bool) -> None:  # noqa: FBT001
    [one] = read(trace(assessment(feedback={"value": given}))).feedback
    assert one.value is value


@pytest.mark.parametrize("given", [0.6, "perhaps", ["yes"], {"value": True}, 2])
def test_other_values_are_rejected(given: Any) -> None:
    [one] = read(trace(assessment(feedback={"value": given}))).rejected
    assert (one.id, "is not on the scale" in one.reason) == ("a-1", True)


@pytest.mark.parametrize("kind", ["LLM_JUDGE", "CODE", "AI_JUDGE", None])
def test_what_no_person_said_is_passed_over(kind: Any) -> None:
    found = read(trace(assessment(source={"source_type": kind, "source_id": "ann"})))
    assert (found.feedback, found.rejected) == ([], [])
    assert found.passed_over == {f"its source is {kind}, which is no person": 1}


def test_an_author_s_newer_assessment_overrides_the_older_also_without_the_mark() -> None:
    older = assessment(feedback={"value": False})
    newer = assessment(assessment_id="a-2", overrides="a-1")
    found = read(trace(older, newer))
    assert [one.value for one in found.feedback] == [True]
    assert found.passed_over == {"it was overridden by another": 1}


def test_a_judge_s_expectations_and_overridden_ones_are_no_reference() -> None:
    known: list[dict[str, Any]] = [
        {"assessment_name": "by_judge", "source": {"source_type": "LLM_JUDGE"}},
        {"assessment_name": "old", "source": {"source_type": "HUMAN"}, "valid": False},
        {"assessment_name": "by_person", "source": {"source_type": "HUMAN"}},
    ]
    written = [
        {**one, "assessment_id": f"e-{number}", "expectation": {"value": "x"}}
        for number, one in enumerate(known)
    ]
    [one] = read(trace(assessment(), *written)).feedback
    assert one.example.reference_outputs == {"by_person": "x"}


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"info": {"trace_id": "tr-1", "assessments": [assessment()]}}, "it has no spans"),
        (trace(assessment(), parent_span_id="x"), "it has no root span"),
        (trace(assessment(span_id="beef")), "it has no span beef"),
        (trace(assessment(), attributes={}), "example.inputs: must not be empty"),
    ],
)
def test_a_trace_without_its_parts_is_rejected(given: Any, reason: str) -> None:
    [one] = read(given).rejected
    assert reason in one.reason


def test_a_trace_that_nobody_assessed_says_nothing() -> None:
    found = read(trace(), {"info": {"trace_id": "tr-2"}})
    assert (found.feedback, found.rejected, found.passed_over) == ([], [], {})


@pytest.mark.parametrize("wrong", ["text", {"info": {}}, [1], [{"data": {}}], ["{"], 7])
def test_what_is_no_trace_is_named(wrong: Any) -> None:
    with pytest.raises(InvalidInputError, match=r"^traces"):
        feedback_from_mlflow(wrong, CRITERION)


DUMP = {
    "name": "tone_of_voice",
    "memory_augmented_judge_data": {
        "episodic_trace_ids": ["tr-1", "tr-2", "tr-1"],
        "semantic_memory": [
            {"guideline_text": "Say sorry.", "source_trace_ids": ["tr-1"]},
            {"guideline_text": " ", "source_trace_ids": None},
            {"guideline_text": "Lost its trace.", "source_trace_ids": ["tr-2"]},
        ],
    },
}


def test_a_judge_s_dump_and_traces_are_enough() -> None:
    given = trace(assessment(assessment_name="Tone_of_Voice"), assessment(assessment_id="a-2"))
    found = memory_from_mlflow(DUMP, CRITERION, traces=[given])
    assert [one.author for one in found.episodes] == ["ann"]
    by_text = {one.text: one for one in found.guidelines}
    assert by_text["Say sorry."].episode_ids == [found.episodes[0].id]
    assert by_text["Lost its trace."].origin == "expert"
    assert found.missing_trace_ids == ["tr-2"]
    assert [one.reason for one in found.rejected] == [
        "guideline 2: text: a guideline is a sentence, not empty."
    ]
    assert found.passed_over == {"the name is 'support_tone', not 'tone_of_voice'": 1}


@pytest.mark.parametrize("wrong", [{}, {"name": "x"}, "text", None, object()])
def test_a_judge_without_a_memory_is_named(wrong: Any) -> None:
    with pytest.raises(InvalidInputError, match=r"^judge: give a judge that MLflow's MemAlign"):
        memory_from_mlflow(wrong, CRITERION)
