"""MLflow: what people said about traces, and memories to and from judges of its MemAlign."""

import asyncio
import base64
import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from itertools import chain
from typing import Any, Literal, NamedTuple

from pydantic import Field

from memalign_graph.agreement import value_or_none
from memalign_graph.errors import InvalidInputError, needs_extra
from memalign_graph.identity import digest
from memalign_graph.integrations.feedback import (
    Fields,
    ImportedFeedback,
    add,
    present,
    reject,
    scale_of,
)
from memalign_graph.memory.guidelines import check_guideline_text
from memalign_graph.memory.jsonl import FORMAT
from memalign_graph.memory.judge_memory import JudgeMemory
from memalign_graph.scales import Boolean, Numeric, Scale
from memalign_graph.types import Criterion, Episode, Guideline

# What an export writes, so that what comes back is what it was.
_EXAMPLE_KEY = "memalign_graph.example_id"
_EPISODE_KEY = "memalign_graph.episode_id"
_FEEDBACK_KEY = "memalign_graph.feedback_id"

_EXPECTED = "expected_response"  # what MLflow calls an expectation that is a whole answer
_NOBODY = "default"  # the source id that MLflow writes where none was given
_MEMORY = "memory_augmented_judge_data"


def feedback_from_mlflow(
    traces: Iterable[Any], criterion: Criterion, *, name: str | None = None
) -> ImportedFeedback:
    """Read what people said about traces in MLflow, which need not be installed.

    ```python
    imported = feedback_from_mlflow(mlflow.search_traces(), criterion)
    graph.invoke({"feedback": imported.feedback})  # create_alignment_graph
    ```

    Human feedback assessments with the criterion's name count (in any case, as in MLflow's own
    alignment), those of judges and of code do not, nor those that were overridden since. Inputs and
    outputs are the root span's, or those of the span that the assessment is on; expectations are
    the `reference_outputs`.

    Traces' own `to_dict()` or `to_json()` do as well, and MLflow's table of them. `name` is that of
    the assessments, where it is another than the criterion's.
    """
    scale_of(criterion)
    found = ImportedFeedback()
    for trace in _read_traces(traces):
        _read_feedback(found, trace, criterion, name or criterion.name)
    return found


def _read_feedback(found: ImportedFeedback, trace: Fields, criterion: Criterion, name: str) -> None:
    assessments = trace["info"].get("assessments") or []
    overridden = {one["overrides"] for one in assessments if one.get("overrides")}
    standing = [
        one
        for one in assessments
        if one.get("valid") is not False and one.get("assessment_id") not in overridden
    ]
    for one in assessments:
        said, source, why = one.get("feedback"), one.get("source") or {}, None
        if not isinstance(said, Mapping):
            continue  # an expectation, or a reference to an issue
        if str(one.get("assessment_name")).strip().lower() != name.strip().lower():
            why = f"the name is {one.get('assessment_name')!r}, not {name!r}"
        elif source.get("source_type") != "HUMAN":
            why = f"its source is {source.get('source_type')}, which is no person"
        elif one not in standing:
            why = "it was overridden by another"
        if why is not None:
            found.passed_over[why] += 1
        elif said.get("error"):
            reason = f"trace {_id_of(trace)}: the assessment is an error, and says nothing."
            reject(found, one.get("assessment_id"), reason)
        else:
            author, metadata = source.get("source_id"), one.get("metadata") or {}
            is_ours = _EPISODE_KEY in metadata
            add(
                found,
                criterion.scale,
                partial(_example, trace, one.get("span_id"), standing),
                value=present(said.get("value")),
                rationale=one.get("rationale"),
                author=None if author == _NOBODY else author,
                id=metadata.get(_FEEDBACK_KEY) if is_ours else one.get("assessment_id"),
                given_at=one.get("last_update_time") or one.get("create_time"),
            )


def _example(trace: Fields, span_id: str | None, standing: Iterable[Fields]) -> Fields:
    attributes = _span(trace, span_id).get("attributes") or {}
    expected: dict[str, Any] = {}
    for one in standing:
        expectation, source = one.get("expectation"), one.get("source") or {}
        if expectation and source.get("source_type") != "LLM_JUDGE":
            # MLflow writes what is no single value as JSON of its own.
            serialized = expectation.get("serialized_value") or {}
            value = _decoded(serialized["value"]) if serialized else expectation.get("value")
            expected[str(one.get("assessment_name"))] = value
    is_ours = _EXAMPLE_KEY in (trace["info"].get("tags") or {}) and set(expected) == {_EXPECTED}
    return {
        "inputs": present(_decoded(attributes.get("mlflow.spanInputs"))),
        "outputs": present(_decoded(attributes.get("mlflow.spanOutputs"))),
        "reference_outputs": expected[_EXPECTED] if is_ours else expected or None,
    }


def _span(trace: Fields, span_id: str | None) -> Fields:
    """Return the span that an assessment is on: the root unless it names another."""
    spans: list[Fields] = (trace.get("data") or {}).get("spans") or []
    for span in spans:
        ids = [span.get("span_id")]
        with suppress(ValueError):  # assessments write it in hex, a trace's JSON does not
            ids.append(base64.b64decode(str(ids[0]), validate=True).hex())
        is_root = not (span.get("parent_span_id") or span.get("parent_id"))
        if span_id in ids if span_id else is_root:
            return span
    what = f"span {span_id}" if span_id else "root span"
    raise InvalidInputError(f"trace {_id_of(trace)}: it has no {what}: fetch it with its spans.")


def _read_traces(traces: Any) -> Iterator[Fields]:
    """Read traces in any form that MLflow gives them in."""
    rows = traces["trace"] if hasattr(traces, "columns") else traces
    for trace in rows if isinstance(rows, Iterable) else [rows]:
        read = _decoded(trace.to_dict() if hasattr(trace, "to_dict") else trace)
        if not isinstance(read, Mapping) or not isinstance(read.get("info"), Mapping):
            raise InvalidInputError(
                "traces: give a list of MLflow's Traces, or of what their to_dict() or to_json() "
                f"return; a value of type {type(trace).__name__} is none."
            )
        yield dict(read)


def _id_of(trace: Fields) -> str:
    return str(trace["info"].get("trace_id"))


def _decoded(value: Any) -> Any:
    """Read JSON where a value is text, which it may also be for itself."""
    try:
        return json.loads(value) if isinstance(value, str) else value
    except ValueError:
        return value


class ExportedJudge(NamedTuple):
    """A `MemoryAugmentedJudge`: call it, `register()` it, or align it further."""

    judge: Any
    trace_ids: dict[str, str]  # the trace that was written for each example
    left_out: dict[str, str]  # why an episode is not among its examples


def export_to_mlflow(
    memory: JudgeMemory,
    *,
    model: str = "openai:/gpt-4.1-mini",
    reflection_lm: str | None = None,
    embedding_model: str = "openai:/text-embedding-3-small",
    embedding_dim: int = 512,
    retrieval_k: int = 5,
) -> ExportedJudge:
    """Make of a memory a judge of MLflow's MemAlign, with its guidelines and its examples.

    MLflow keeps examples as traces with human assessments: so each example becomes a trace in the
    active experiment, each episode on it an assessment. Another export writes new traces. Models
    are called as MLflow calls them; `reflection_lm` distils when the judge is aligned further.
    """
    with needs_extra("mlflow", "export_to_mlflow"):
        import dspy  # noqa: F401 - MLflow's MemAlign looks for it at its first call only
        from mlflow.genai.judges import make_judge
        from mlflow.genai.scorers import Scorer

    criterion = memory.criterion
    shown: defaultdict[str, list[Episode]] = defaultdict(list)
    left_out: dict[str, str] = {}
    for episode in memory.episodes():
        value = value_or_none(episode.value, criterion.scale)
        if value is None:
            left_out[episode.id] = "it has no value on the scale, and MLflow's examples show one."
        else:
            shown[episode.example_id].append(episode.model_copy(update={"value": value}))
    references = [group[0].example.reference_outputs for group in shown.values()]
    # A judge that asks for expectations drops every example that has none.
    expects = bool(references) and None not in references
    base = make_judge(
        name=criterion.name,
        instructions=_instructions(criterion, expects=expects),
        model=model,
        feedback_value_type=_value_type(criterion.scale),
    ).model_dump()
    trace_ids = {key: _write_trace(group, criterion) for key, group in shown.items()}
    trace_of = {one.id: trace_ids[key] for key, group in shown.items() for one in group}
    semantic_memory = []
    for guideline in memory.guidelines():
        sources = sorted({trace_of[key] for key in guideline.episode_ids if key in trace_of})
        given = {"guideline_text": guideline.text, "source_trace_ids": sources or None}
        semantic_memory.append(given)
    shared = ("name", "description", "aggregations", "mlflow_version", "serialization_version")
    fields: Fields = {name: base[name] for name in shared if name in base}
    fields[_MEMORY] = {
        "base_judge": base,
        "episodic_trace_ids": list(trace_ids.values()),
        "semantic_memory": semantic_memory,
        "reflection_lm": reflection_lm or model,
        "embedding_model": embedding_model,
        "embedding_dim": embedding_dim,
        "retrieval_k": retrieval_k,
    }
    return ExportedJudge(Scorer.model_validate(fields), trace_ids, left_out)


async def aexport_to_mlflow(memory: JudgeMemory, **options: Any) -> ExportedJudge:
    """Async twin of `export_to_mlflow`: MLflow has no async calls, so that it runs in a thread."""
    return await asyncio.to_thread(export_to_mlflow, memory, **options)


def _instructions(criterion: Criterion, *, expects: bool) -> str:
    """Write the criterion as instructions of an MLflow judge, which name what it looks at."""
    text = criterion.instructions.replace("{{", "{ {").replace("}}", "} }")
    text += f"\n\nThe value is {criterion.scale.describe()}\n\n"
    text += "inputs: {{ inputs }}\noutputs: {{ outputs }}"
    return text + "\nexpectations: {{ expectations }}" * expects


def _value_type(scale: Scale) -> Any:
    """Return the type of a scale's values, as MLflow's judges are told it."""
    if isinstance(scale, Numeric):
        return int if scale.integer else float
    return bool if isinstance(scale, Boolean) else Literal[tuple(scale.choices)]


def _write_trace(episodes: list[Episode], criterion: Criterion) -> str:
    """Write an example as a trace, with the episodes on it as human assessments."""
    import mlflow
    from mlflow.entities import AssessmentSource, Expectation, Feedback

    example = episodes[0].example
    with mlflow.start_span("judged_example") as span:
        span.set_inputs(example.inputs)
        span.set_outputs(example.outputs)
        mlflow.update_current_trace(tags={_EXAMPLE_KEY: example.id})
    # Assessments are written at once, and the trace has to be there before them.
    mlflow.flush_trace_async_logging()
    for one in episodes:
        at_ms, made_of = int(one.given_at.timestamp() * 1000), {_EPISODE_KEY: one.id}
        if one.feedback_id is not None:
            made_of[_FEEDBACK_KEY] = one.feedback_id
        word = Feedback(
            name=criterion.name,
            value=one.value,
            rationale=one.rationale,
            source=AssessmentSource("HUMAN", one.author or _NOBODY),
            metadata=made_of,
            create_time_ms=at_ms,
            last_update_time_ms=at_ms,
        )
        mlflow.log_assessment(span.trace_id, word)
    references = example.reference_outputs
    named = references if isinstance(references, dict) else {_EXPECTED: references}
    for name, value in named.items():
        if value is not None:
            mlflow.log_assessment(span.trace_id, Expectation(name=name, value=value))
    return str(span.trace_id)


class ImportedMemory(ImportedFeedback):
    """What was found in a judge of MLflow's MemAlign."""

    lines: list[str] = Field(default_factory=list)
    """The memory as lines of JSON, for `JudgeMemory.import_jsonl`."""
    missing_trace_ids: list[str] = Field(default_factory=list)
    """Traces that the judge names and that are not there any more."""


def memory_from_mlflow(
    judge: Any, criterion: Criterion, *, traces: Iterable[Any] | None = None
) -> ImportedMemory:
    """Read what a judge of MLflow's MemAlign has learned.

    ```python
    judge = mlflow.genai.scorers.get_scorer(name="support_tone")
    memory.import_jsonl(memory_from_mlflow(judge, criterion).lines)
    ```

    Guidelines keep their sources: the episodes of the traces that MLflow distilled them from. So
    what is forgotten later takes its guidelines along. Reading the same judge twice gives the same.
    The criterion's name may differ from the judge's, which may be its `model_dump()`. `traces` are
    the judge's, where they are at hand; unless given they are fetched from MLflow.
    """
    dumped = judge.model_dump() if hasattr(judge, "model_dump") else judge
    data = dumped.get(_MEMORY) if isinstance(dumped, Mapping) else None
    if not isinstance(data, Mapping):
        raise InvalidInputError(
            "judge: give a judge that MLflow's MemAlign aligned, or what its model_dump() returns: "
            f"this value of type {type(judge).__name__} has no memory."
        )
    wanted = list(dict.fromkeys(data.get("episodic_trace_ids") or []))
    if traces is None and wanted:
        with needs_extra("mlflow", "memory_from_mlflow without `traces`"):
            import mlflow
        traces = filter(None, [mlflow.get_trace(key, silent=True) for key in wanted])
    found = ImportedMemory()
    by_trace: dict[str, list[Episode]] = {}
    for trace in _read_traces(traces or ()):
        if _id_of(trace) in wanted:
            known = len(found.feedback)
            _read_feedback(found, trace, criterion, str(dumped.get("name")))
            said = found.feedback[known:]
            by_trace[_id_of(trace)] = [Episode.from_feedback(word, "distilled") for word in said]
    found.missing_trace_ids.extend(key for key in wanted if key not in by_trace)
    # Reading twice gives the same: guidelines, too, are as old as the newest feedback.
    newest = max((word.given_at for word in found.feedback), default=datetime.fromtimestamp(0, UTC))
    items = [{"type": "memory", "format": FORMAT, "criterion": criterion.to_json(), "version": ""}]
    for number, given in enumerate(data.get("semantic_memory") or []):
        traced = (by_trace.get(key, ()) for key in given.get("source_trace_ids") or [])
        sources = {episode.id for group in traced for episode in group}
        try:
            text = check_guideline_text(given.get("guideline_text"))
        except InvalidInputError as error:
            reject(found, None, f"guideline {number + 1}: {error}")
            continue
        guideline = Guideline(
            id=digest(["mlflow guideline", text]),
            text=text,
            episode_ids=sorted(sources),
            origin="distilled" if sources else "expert",
            position=int(newest.timestamp() * 1_000_000) + number,
            created_at=newest,
            updated_at=newest,
        )
        items.append({"type": "guideline", **guideline.to_json()})
    for episode in sorted(chain(*by_trace.values()), key=lambda one: one.given_at):
        at = {"created_at": episode.given_at, "updated_at": episode.given_at}
        items.append({"type": "episode", **episode.model_copy(update=at).to_json()})
    found.lines.extend(json.dumps(item, ensure_ascii=False) for item in items)
    return found
