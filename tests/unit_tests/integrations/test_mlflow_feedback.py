"""Traces and judges of MLflow, read without MLflow."""

import json
from typing import Any, Literal

import pandas as pd
import pytest
from langgraph.store.memory import InMemoryStore

from memalign_graph import (
    Boolean,
    Categorical,
    Criterion,
    InvalidInputError,
    JudgeMemory,
    Numeric,
    Pairwise,
)
from memalign_graph.integrations import feedback_from_mlflow, memory_from_mlflow
from memalign_graph.integrations.mlflow import _instructions, _value_type
from tests.conftest import CRITERION


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


def test_a_judge_there_is_told_the_scale_and_what_it_looks_at() -> None:
    types: list[tuple[Any, Any]] = [
        (Boolean(), bool),
        (Numeric(minimum=1, maximum=5, integer=True), int),
        (Numeric(minimum=0, maximum=1), float),
        (Categorical(choices=("poor", "good")), Literal["poor", "good"]),
        (Pairwise(allow_tie=False), Literal["A", "B"]),
    ]
    assert [_value_type(scale) for scale, _ in types] == [expected for _, expected in types]
    criterion = Criterion(name="x", instructions="Is {{ trace }} in it? Or {{inputs}}?")
    text = _instructions(criterion, expects=False)
    assert text.count("{{") == text.count("{{ inputs }}") + text.count("{{ outputs }}") == 2
    assert "{{ expectations }}" in _instructions(criterion, expects=True)


@pytest.mark.parametrize(
    ("given", "value"),
    [
        ("yes", True),
        (0, False),
        (0.6, "off"),
        ({"value": True}, "off"),
    ],
)
def test_values_are_read_onto_the_scale(given: Any, value: Any) -> None:
    found = read(trace(assessment(feedback={"value": given})))
    if value == "off":
        [one] = found.rejected
        assert (one.id, "is not on the scale" in one.reason) == ("a-1", True)
    else:
        assert [one.value for one in found.feedback] == [value]


def test_what_is_overridden_or_no_person_s_does_not_count() -> None:
    older = assessment(feedback={"value": False})
    newer = assessment(assessment_id="a-2", overrides="a-1")
    words = {"assessment_id": None, "feedback": {"value": None}, "rationale": "Cold."}
    unnamed = assessment(**words, source={"source_type": "HUMAN"})
    judged = assessment(source={"source_type": "LLM_JUDGE", "source_id": "ann"})
    found = read(trace(older, newer, unnamed, judged))
    assert [(one.value, one.id) for one in found.feedback] == [(True, "a-2"), (None, None)]
    assert found.passed_over == {
        "it was overridden by another": 1,
        "its source is LLM_JUDGE, which is no person": 1,
    }


def test_a_judge_s_expectations_and_overridden_ones_are_no_reference() -> None:
    person = {"source": {"source_type": "HUMAN"}, "expectation": {"value": "x"}}
    written = [
        assessment(**person, assessment_name="by_person"),
        assessment(**person, assessment_name="old", valid=False),
        assessment(expectation={"value": "x"}, source={"source_type": "LLM_JUDGE"}),
    ]
    [one] = read(trace(assessment(), *written)).feedback
    assert one.example.reference_outputs == {"by_person": "x"}


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"info": {"trace_id": "tr-1", "assessments": [assessment()]}}, "it has no root span"),
        (trace(assessment(span_id="beef")), "it has no span beef"),
        (trace(assessment(feedback={"error": {"error_code": "x"}})), "the assessment is an error"),
    ],
)
def test_a_trace_without_its_parts_is_rejected(given: Any, reason: str) -> None:
    [one] = read(given).rejected
    assert reason in one.reason


def test_every_form_of_a_trace_is_read() -> None:
    given = trace(assessment(span_id="002e1c0e1e0dd22c"))
    [one] = read(given).feedback
    assert (one.author, one.example.outputs) == ("ann", "Here.")
    table = pd.DataFrame([{"trace_id": "tr-1", "trace": json.dumps(given)}])
    assert feedback_from_mlflow(table, CRITERION) == read(json.dumps(given)) == read(given)
    nothing = read(trace(), {"info": {"trace_id": "tr-2"}})
    assert (nothing.feedback, nothing.rejected, nothing.passed_over) == ([], [], {})


@pytest.mark.parametrize("wrong", ["text", [1], [{"data": {}}], ["{"]])
def test_what_is_no_trace_is_named(wrong: Any) -> None:
    with pytest.raises(InvalidInputError, match=r"^traces"):
        feedback_from_mlflow(wrong, CRITERION)


def test_a_judge_s_dump_and_traces_are_enough() -> None:
    semantic_memory = [
        {"guideline_text": "Say sorry.", "source_trace_ids": ["tr-1"]},
        {"guideline_text": " ", "source_trace_ids": None},
        {"guideline_text": "Lost its trace.", "source_trace_ids": ["tr-2"]},
    ]
    ids = {"episodic_trace_ids": ["tr-1", "tr-2", "tr-1"], "semantic_memory": semantic_memory}
    judge = {"name": "tone_of_voice", "memory_augmented_judge_data": ids}
    given = trace(assessment(assessment_name="Tone_of_Voice"), assessment(assessment_id="a-2"))
    found = memory_from_mlflow(judge, CRITERION, traces=[given])
    memory = JudgeMemory(
        InMemoryStore(), CRITERION, embeddings=lambda texts: [[1.0] for _ in texts]
    )
    memory.import_jsonl(found.lines)
    [episode] = memory.episodes()
    assert (episode.author, episode.status) == ("ann", "distilled")
    by_text = {one.text: one for one in memory.guidelines()}
    assert by_text["Say sorry."].episode_ids == [episode.id]
    assert by_text["Lost its trace."].origin == "expert"
    assert found.missing_trace_ids == ["tr-2"]
    assert [one.reason for one in found.rejected] == [
        "guideline 2: text: a guideline is a sentence, not empty."
    ]
    assert found.passed_over == {"the name is 'support_tone', not 'tone_of_voice'": 1}


@pytest.mark.parametrize("wrong", [{"name": "x"}, "text"])
def test_a_judge_without_a_memory_is_named(wrong: Any) -> None:
    with pytest.raises(InvalidInputError, match=r"^judge: give a judge that MLflow's MemAlign"):
        memory_from_mlflow(wrong, CRITERION)
