"""What people said about MLflow's traces, as feedback: from `Trace`s, or from their JSON."""

import base64
import binascii
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any

from memalign_graph.errors import InvalidInputError
from memalign_graph.integrations.imported import Import, ImportedFeedback, make_example
from memalign_graph.integrations.plain import given_or_none
from memalign_graph.types import Criterion

EXAMPLE_KEY = "memalign_graph.example_id"
"""The tag of a trace that an export wrote: names the example it was made of."""

EPISODE_KEY = "memalign_graph.episode_id"
"""The metadata of an assessment that an export wrote: names the episode it was made of."""

FEEDBACK_KEY = "memalign_graph.feedback_id"
"""Likewise: the id that the feedback had where it came from, if it had one."""

EXPECTED = "expected_response"
"""What MLflow calls an expectation that is a whole answer."""

_PERSON = "HUMAN"
_JUDGE = "LLM_JUDGE"
_NOBODY = "default"
"""The source id that MLflow writes where none was given."""

Fields = dict[str, Any]


def feedback_from_mlflow(
    traces: Iterable[Any],
    criterion: Criterion,
    *,
    name: str | None = None,
    example: Callable[[Any], Any] | None = None,
) -> ImportedFeedback:
    """Read what people said about traces in MLflow.

    ```python
    traces = mlflow.search_traces(return_type="list")
    imported = feedback_from_mlflow(traces, criterion)
    graph.invoke({"feedback": imported.feedback})  # create_alignment_graph
    ```

    Human feedback assessments with the criterion's name count (in any case, as in MLflow's own
    alignment), those of judges and of code do not, nor those that were overridden since. The
    source's id is the author, the assessment's id the feedback's. Inputs and outputs are the root
    span's, or those of the span that the assessment is on; expectations are the
    `reference_outputs`. MLflow need not be installed.

    Args:
        traces: `Trace`s, or what their `to_dict()` or `to_json()` return.
        criterion: What the feedback has to be about.
        name: The assessments' name in MLflow; the criterion's name unless given.
        example: Makes the example of a trace, as its `to_dict()` returns it; for judges that look
            at something else than inputs and outputs.

    Returns:
        The feedback, what was rejected and why, and what was passed over.

    Raises:
        InvalidInputError: If something given is no trace.
    """
    found = Import(criterion)
    wanted = _plain_name(criterion.name if name is None else name)
    for trace in read_traces(traces):
        assessments = _list(_dict(trace.get("info")).get("assessments"))
        replaced = {one.get("overrides") for one in assessments}
        standing = [one for one in assessments if _stands(one, replaced)]
        for one in assessments:
            said = one.get("feedback")
            if not isinstance(said, Mapping):
                continue  # an expectation or a reference to an issue
            why = _why_not(one, wanted)
            if why is None and one not in standing:
                why = "it was overridden by another"
            if why is not None:
                found.pass_over(why)
                continue
            _take(found, trace, one, partial(_example, trace, one, standing, example))
    return found.result()


def trace_id_of(trace: Mapping[str, Any]) -> str:
    """Return a trace's id."""
    return str(_dict(trace.get("info")).get("trace_id") or "")


def _take(found: Import, trace: Fields, one: Fields, example: Callable[[], Fields]) -> None:
    said = one["feedback"]
    if said.get("error"):
        found.reject(
            one.get("assessment_id"),
            f"trace {trace_id_of(trace)}: the assessment is an error, and says nothing.",
        )
        return
    author = _dict(one.get("source")).get("source_id")
    made_of = _dict(one.get("metadata"))
    found.add(
        value=given_or_none(said.get("value")),
        example=example,
        rationale=one.get("rationale"),
        author=None if author == _NOBODY else author,
        # What comes back from an export is the episode that it was.
        id=made_of.get(FEEDBACK_KEY) if EPISODE_KEY in made_of else one.get("assessment_id"),
        given_at=one.get("last_update_time") or one.get("create_time"),
    )


def _why_not(one: Fields, wanted: str) -> str | None:
    """Return why an assessment is no person's word on the criterion."""
    if _plain_name(one.get("assessment_name")) != wanted:
        return f"the name is {one.get('assessment_name')!r}, not {wanted!r}"
    kind = _dict(one.get("source")).get("source_type")
    return None if kind == _PERSON else f"its source is {kind}, which is no person"


def _stands(one: Fields, replaced: set[Any]) -> bool:
    return one.get("valid", True) is not False and one.get("assessment_id") not in replaced


def _example(
    trace: Fields,
    one: Fields,
    standing: list[Fields],
    mapping: Callable[[Any], Any] | None,
) -> Fields:
    if mapping is not None:
        return make_example({}, mapping, trace)
    span = _span(trace, one.get("span_id"))
    expected = {
        str(other.get("assessment_name")): _expected(other["expectation"])
        for other in standing
        if isinstance(other.get("expectation"), Mapping)
        and _dict(other.get("source")).get("source_type") != _JUDGE
    }
    attributes = _dict(span.get("attributes"))
    return {
        "inputs": given_or_none(_decoded(attributes.get("mlflow.spanInputs"))),
        "outputs": given_or_none(_decoded(attributes.get("mlflow.spanOutputs"))),
        "reference_outputs": _references(trace, expected),
    }


def _references(trace: Fields, expected: dict[str, Any]) -> Any:
    exported = EXAMPLE_KEY in _dict(_dict(trace.get("info")).get("tags"))
    return expected[EXPECTED] if exported and set(expected) == {EXPECTED} else expected or None


def _span(trace: Fields, span_id: Any) -> Fields:
    """Return the span that an assessment is on: the root unless it names another."""
    spans = _list(_dict(trace.get("data")).get("spans"))
    if not spans:
        raise InvalidInputError(
            f"trace {trace_id_of(trace)}: it has no spans, and so no inputs and outputs: fetch it "
            "with its spans."
        )
    for span in spans:
        is_root = not (span.get("parent_span_id") or span.get("parent_id"))
        if span_id in _span_ids(span) if span_id else is_root:
            return span
    what = f"span {span_id}" if span_id else "root span"
    raise InvalidInputError(f"trace {trace_id_of(trace)}: it has no {what}.")


def _span_ids(span: Fields) -> set[str]:
    """Return a span's id as assessments write it, in hex, and as the trace's JSON does."""
    given = str(span.get("span_id") or "")
    try:
        return {given, base64.b64decode(given, validate=True).hex()}
    except binascii.Error:
        return {given}


def _decoded(value: Any) -> Any:
    """Read a span's attribute, which is JSON in text."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError:
        return value


def _expected(expectation: Mapping[str, Any]) -> Any:
    """Read an expectation: MLflow writes what is no single value as JSON of its own."""
    serialized = _dict(expectation.get("serialized_value"))
    return _decoded(serialized.get("value")) if serialized else expectation.get("value")


def read_traces(traces: Iterable[Any]) -> Iterator[Fields]:
    """Read traces in any form that MLflow gives them in."""
    if hasattr(traces, "columns"):
        raise InvalidInputError(
            'traces: give a list of traces, not a table: search_traces(return_type="list"), or the '
            'table\'s column "trace".'
        )
    if isinstance(traces, str | bytes | Mapping) or not isinstance(traces, Iterable):
        raise InvalidInputError(
            "traces: give a list of traces, or of what their to_dict() or to_json() return, not a "
            f"value of type {type(traces).__name__}."
        )
    for number, trace in enumerate(traces):
        read = trace.to_dict() if hasattr(trace, "to_dict") else trace
        if isinstance(read, str):
            read = _decoded(read)
        if not isinstance(read, Mapping) or not isinstance(read.get("info"), Mapping):
            raise InvalidInputError(
                f"traces[{number}]: it is no trace: give MLflow's Trace, or what its to_dict() or "
                "to_json() returns."
            )
        yield dict(read)


def _plain_name(name: Any) -> str:
    return str(name).strip().lower()


def _dict(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _list(value: Any) -> list[Fields]:
    return [dict(one) for one in value if isinstance(one, Mapping)] if value else []
