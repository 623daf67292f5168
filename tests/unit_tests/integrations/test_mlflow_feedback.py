"""Traces of MLflow, read without MLflow."""

import json
from typing import Any

import pandas as pd
import pytest

from memalign_graph import Criterion, InvalidInputError
from memalign_graph.integrations import feedback_from_mlflow
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
    info = {"trace_id": "tr-1", "assessments": list(assessments)}
    return {"info": info, "data": {"spans": [root]}}


def read(*traces: Any, criterion: Criterion = CRITERION) -> Any:
    return feedback_from_mlflow(traces, criterion)


def test_overridden_and_automatic_assessments_do_not_count() -> None:
    older = assessment(feedback={"value": 0})
    newer = assessment(assessment_id="a-2", overrides="a-1", feedback={"value": "yes"})
    comment = {"assessment_id": None, "feedback": {"value": None}, "rationale": "Cold."}
    unnamed = assessment(**comment, source={"source_type": "HUMAN", "source_id": "default"})
    judged = assessment(source={"source_type": "LLM_JUDGE", "source_id": "ann"})
    parsed = read(trace(older, newer, unnamed, judged))
    labels = [(feedback.value, feedback.id, feedback.author) for feedback in parsed.feedback]
    assert labels == [(True, "a-2", "ann"), (None, None, None)]
    by_judge = "its source is LLM_JUDGE, which is not a person"
    assert parsed.passed_over == {"it was overridden by another": 1, by_judge: 1}


@pytest.mark.parametrize("source_id", ["default", "User", "", None])
def test_anonymous_override_replaces_the_feedback_it_corrects(source_id: str | None) -> None:
    anonymous = {"source": {"source_type": "HUMAN", "source_id": source_id}}
    first = assessment(**anonymous)
    second = assessment(**anonymous, assessment_id="a-2", overrides="a-1")
    last = assessment(**anonymous, assessment_id="a-3", overrides="a-2", feedback={"value": False})
    other = assessment(**anonymous, assessment_id="a-4")
    [before] = read(trace(first)).feedback
    after, another = read(trace(last, second, first, other)).feedback
    assert (after.value, after.episode_id) == (False, before.episode_id)
    assert another.episode_id != before.episode_id


def test_rationale_of_the_judge_is_not_that_of_its_corrector() -> None:
    judge = {"source_type": "LLM_JUDGE", "source_id": "memalign-graph"}
    judged = assessment(source=judge, rationale="Polite.", valid=False)
    page = {"source": {"source_type": "HUMAN", "source_id": "User"}, "feedback": {"value": False}}
    corrected = {**judged, **page, "assessment_id": "a-2", "overrides": "a-1", "valid": True}
    name = " Support_Tone"  # in upper or lower case
    other = assessment(**page, assessment_id="a-3", rationale="Cold.", assessment_name=name)
    same_words = assessment(assessment_id="a-4", rationale="Polite.")
    imported = read(trace(judged, corrected, other, same_words)).feedback
    labels = [(item.value, item.rationale, item.author) for item in imported]
    assert labels == [(False, None, None), (False, "Cold.", None), (True, "Polite.", "ann")]
    assert imported[0].episode_id != imported[1].episode_id


def test_assessments_of_a_session_and_errors_do_not_count() -> None:
    session = {"metadata": {"mlflow.trace.session": "s-1"}}
    expectation = assessment(**session, feedback=None, expectation={"value": "Paid in the end."})
    failed = assessment(feedback={"error": {"error_code": "x"}})
    parsed = read(trace(assessment(), assessment(**session), expectation, failed))
    [feedback] = parsed.feedback
    assert feedback.example.reference_outputs is None
    reasons = ["it is on a session, not on a trace", "it is an error and has no value"]
    assert parsed.passed_over == dict.fromkeys(reasons, 1)


def test_expectations_of_a_judge_and_overridden_ones_are_not_used_as_reference() -> None:
    person = {"source": {"source_type": "HUMAN"}, "expectation": {"value": "x"}}
    written = [
        assessment(**person, assessment_name="by_person"),
        assessment(**person, assessment_name="old", valid=False),
        assessment(expectation={"value": "x"}, source={"source_type": "LLM_JUDGE"}),
    ]
    [feedback] = read(trace(assessment(), *written)).feedback
    assert feedback.example.reference_outputs == {"by_person": "x"}


@pytest.mark.parametrize(
    ("assessment", "reason"),
    [
        ({"info": {"trace_id": "tr-1", "assessments": [assessment()]}}, "it has no root span"),
        (trace(assessment(span_id="beef")), "it has no span beef"),
        (trace(assessment(feedback={"value": 0.6})), "is not on the scale"),
        (trace(assessment(feedback={"value": {"value": True}})), "is not on the scale"),
    ],
)
def test_unusable_assessment_is_rejected(assessment: Any, reason: str) -> None:
    [rejected] = read(assessment).rejected
    assert (rejected.id, reason in rejected.reason) == ("a-1", True)


SERIALIZED = {"serialized_value": {"serialization_format": "JSON"}}
ATTRIBUTES = [{"key": "mlflow.spanInputs", "value": {"stringValue": "q"}}]


@pytest.mark.parametrize(
    "odd",
    [
        trace(assessment(source="HUMAN")),
        trace(assessment(), assessment(feedback=None, expectation="x")),
        trace(assessment(), assessment(feedback=None, expectation=SERIALIZED)),
        trace(assessment(), attributes=ATTRIBUTES),
        {**trace(assessment()), "data": "x"},
        {**trace(assessment()), "data": {"spans": [None]}},
    ],
)
def test_odd_record_is_rejected_alone(odd: Any) -> None:
    parsed = read(odd, trace(assessment(assessment_id="a-2")))
    assert [feedback.id for feedback in parsed.feedback] == ["a-2"]
    [rejected] = parsed.rejected
    assert rejected.id == "a-1"
    assert "it or its run is not as the tool exports it" in rejected.reason


def test_feedback_that_overrides_something_unknown_counts() -> None:
    [feedback] = read(trace(assessment(overrides=["a-1"]))).feedback
    assert feedback.id == "a-1"


def test_every_format_of_a_trace_is_accepted() -> None:
    sample_trace = trace(assessment(span_id="002e1c0e1e0dd22c"))
    [feedback] = read(sample_trace).feedback
    assert (feedback.author, feedback.example.outputs) == ("ann", "Here.")
    table = pd.DataFrame([{"trace_id": "tr-1", "trace": json.dumps(sample_trace)}])
    expected = read(sample_trace)
    assert feedback_from_mlflow(table, CRITERION) == read(json.dumps(sample_trace)) == expected
    nothing = read(trace(), {"info": {"trace_id": "tr-2"}})
    assert (nothing.feedback, nothing.rejected, nothing.passed_over) == ([], [], {})


@pytest.mark.parametrize(
    "wrong",
    [
        "text", [1], [{"data": {}}], ["{"], ["[" * 100_000], [{"info": {"assessments": ["x"]}}],
        pd.DataFrame({"request": ["Hi"]}),
    ],
)  # fmt: skip
def test_objects_that_are_not_traces_are_named(wrong: Any) -> None:
    with pytest.raises(InvalidInputError, match=r"^traces"):
        feedback_from_mlflow(wrong, CRITERION)
