"""MLflow: a judge as a scorer, and people's feedback on traces."""

import base64
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from langchain_core.runnables import Runnable

from memalign_graph.errors import InvalidInputError, require_extra
from memalign_graph.integrations.langsmith import EvaluatorResult, JudgeEvaluator
from memalign_graph.integrations.recorded import (
    Fields,
    ImportedFeedback,
    add_feedback,
    are_mappings,
    example_fields,
    maybe_json,
    none_if_empty,
    rejecting,
    scale_of,
)
from memalign_graph.io import SYNC, run_sync
from memalign_graph.prompts.fences import as_text
from memalign_graph.types import Criterion

_ANONYMOUS = ("default", "User", "", None)  # MLflow's source ids of people without a name


def as_mlflow_scorer(graph: Runnable[Any, Any], **options: Any) -> Any:
    """Make a scorer for `mlflow.genai.evaluate` from a compiled judge graph, review graph or panel.

    ```python
    mlflow.genai.evaluate(data=data, scorers=[as_mlflow_scorer(judge)])
    ```

    The judge gets the row's `inputs` and `outputs`, and its `expectations` as `reference_outputs`.
    Each judgment becomes an assessment with the criterion's name, the value, the rationale, and the
    rest of the judgment as metadata. A panel gives one assessment for each criterion. If a case
    cannot be judged, its assessment has the error.

    Args:
        graph: The graph, compiled with a store. It must not ask an expert.
        **options: As of `as_evaluator`. `key` names the scorer and the assessment; `score` is a
            function that makes the value from a `Judgment`.

    Returns:
        MLflow's `Scorer`.

    Raises:
        InvalidInputError: If the graph or an option cannot be used.
        ImportError: If MLflow is not installed.
    """
    with require_extra("mlflow", "as_mlflow_scorer"):
        from mlflow.entities import AssessmentSource, Feedback
        from mlflow.genai.scorers import scorer
    evaluator = JudgeEvaluator(graph=graph, **options)
    source = AssessmentSource("LLM_JUDGE", "memalign-graph")

    def assessment(result: EvaluatorResult) -> Any:
        failed = result.get("extra", {}).get("error", False)
        # MLflow's metadata is text.
        details = {
            name: as_text(value) for name, value in result["metadata"].items() if value is not None
        }
        value = result.get("value") if result["score"] is None else result["score"]
        return Feedback(
            name=result["key"],
            value=None if failed else value,
            error=result["comment"] if failed else None,
            rationale=None if failed else result["comment"],
            source=source,
            metadata=details,
        )

    def judge(inputs: Any = None, outputs: Any = None, expectations: Any = None) -> Any:
        results = run_sync(evaluator.judge(SYNC, inputs, outputs, expectations))
        return list(map(assessment, results)) if isinstance(results, list) else assessment(results)

    return scorer(judge, name=evaluator.name)


def feedback_from_mlflow(
    traces: Iterable[Any], criterion: Criterion, *, name: str | None = None
) -> ImportedFeedback:
    """Import people's feedback on traces in MLflow, which need not be installed.

    ```python
    imported = feedback_from_mlflow(mlflow.search_traces(), criterion)
    graph.invoke({"feedback": imported.feedback})  # create_alignment_graph
    ```

    People's assessments with the criterion's name count, in upper or lower case. Assessments by
    judges and code, of sessions, and overridden ones, do not. A correction that keeps the judge's
    rationale is imported without it. Inputs and outputs are those of the root span, or of the span
    that the assessment is on. Expectations become the `reference_outputs`.

    Args:
        traces: MLflow's traces, their `to_dict()` or `to_json()`, or MLflow's table of traces.
        criterion: The criterion that the feedback is on.
        name: The name of the assessments, if it is not the criterion's.

    Returns:
        The feedback, what cannot be used with the reason, and counts of the other assessments.

    Raises:
        InvalidInputError: If `traces` holds something other than traces.
    """
    scale_of(criterion)
    imported = ImportedFeedback()
    for trace in _iter_traces(traces):
        _add_assessments(imported, trace, criterion, name or criterion.name)
    return imported


def _add_assessments(
    imported: ImportedFeedback, trace: Fields, criterion: Criterion, name: str
) -> None:
    assessments = trace["info"].get("assessments") or []
    replaced = {str(item.get("assessment_id")): item.get("overrides") or "" for item in assessments}
    active = [
        item
        for item in assessments
        if item.get("valid") is not False and item.get("assessment_id") not in replaced.values()
    ]
    for item in assessments:
        if not isinstance(item.get("feedback"), Mapping):
            continue  # an expectation, or a reference to an issue
        with rejecting(imported, item.get("assessment_id")):
            if reason := _skip_reason(item, name, active):
                imported.passed_over[reason] += 1
                continue
            # MLflow's form for a correction starts with the judge's words.
            is_judges = item.get("overrides") and item.get("rationale") in [
                each.get("rationale") for each in assessments if _source_type(each) != "HUMAN"
            ]
            author, feedback_id = item["source"].get("source_id"), item.get("assessment_id")
            if author in _ANONYMOUS:
                author = None
                # The memory tells anonymous feedback apart by its id, which an override changes.
                for _ in replaced:
                    feedback_id = replaced.get(str(feedback_id)) or feedback_id
            add_feedback(
                imported,
                criterion.scale,
                value=none_if_empty(item["feedback"].get("value")),
                example=_example(trace, item.get("span_id"), active),
                rationale=None if is_judges else item.get("rationale"),
                author=author,
                id=feedback_id,
                given_at=item.get("last_update_time") or item.get("create_time"),
            )


def _skip_reason(assessment: Fields, name: str, active: Sequence[Fields]) -> str | None:
    """Return why it is no person's feedback on the criterion; None if it is."""
    if str(assessment.get("assessment_name")).strip().lower() != name.strip().lower():
        return f"the name is {assessment.get('assessment_name')!r}, not {name!r}"
    if _source_type(assessment) != "HUMAN":
        return f"its source is {_source_type(assessment)}, which is not a person"
    if assessment not in active:
        return "it was overridden by another"
    if _is_on_session(assessment):
        return "it is on a session, not on a trace"
    return "it is an error and has no value" if assessment["feedback"].get("error") else None


def _source_type(assessment: Fields) -> Any:
    return (assessment.get("source") or {}).get("source_type")


def _is_on_session(assessment: Fields) -> bool:
    return "mlflow.trace.session" in (assessment.get("metadata") or {})


def _example(trace: Fields, span_id: str | None, active: Iterable[Fields]) -> Fields:
    attributes = _span(trace, span_id).get("attributes") or {}
    expected: dict[str, Any] = {}
    for item in active:
        expectation = item.get("expectation")
        if expectation and _source_type(item) != "LLM_JUDGE" and not _is_on_session(item):
            # MLflow serializes lists and dicts as JSON.
            serialized = expectation.get("serialized_value") or {}
            value = maybe_json(serialized["value"]) if serialized else expectation.get("value")
            expected[str(item.get("assessment_name"))] = value
    inputs, outputs = (
        none_if_empty(maybe_json(attributes.get(f"mlflow.span{name}")))
        for name in ("Inputs", "Outputs")
    )
    return example_fields(inputs, outputs, expected or None)


def _span(trace: Fields, span_id: str | None) -> Fields:
    """Return the span that an assessment is on; by default the root."""
    spans: list[Fields] = (trace.get("data") or {}).get("spans") or []
    for span in spans:
        ids = [span.get("span_id")]
        with suppress(ValueError):  # base64 in a trace's JSON, hex in assessments
            ids.append(base64.b64decode(str(ids[0]), validate=True).hex())
        is_root = not (span.get("parent_span_id") or span.get("parent_id"))
        if span_id in ids if span_id else is_root:
            return span
    what = f"span {span_id}" if span_id else "root span"
    trace_id = trace["info"].get("trace_id")
    raise InvalidInputError(f"trace {trace_id}: it has no {what}. Fetch it with its spans.")


def _iter_traces(traces: Any) -> Iterator[Fields]:
    """Yield the fields of traces in any of MLflow's forms: objects, JSON, a table."""
    rows = traces["trace"] if "trace" in getattr(traces, "columns", ()) else traces
    for trace in rows if isinstance(rows, Iterable) else [rows]:
        fields = maybe_json(trace.to_dict() if hasattr(trace, "to_dict") else trace)
        info = fields.get("info") if isinstance(fields, Mapping) else None
        if not isinstance(info, Mapping) or not are_mappings(info.get("assessments") or []):
            raise InvalidInputError(
                f"traces: expected MLflow's traces, got {type(trace).__name__}. Give a list of "
                "traces, or of what their to_dict() or to_json() return."
            )
        yield dict(fields)
