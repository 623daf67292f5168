"""What the tests ask of the real MLflow: a process of its own, for it needs an older `openai`.

Started with a step's name and a JSON object of arguments; prints what the step found as JSON, in
its last line. MLflow and its threads, warnings and databases stay in here.
"""

import asyncio
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlflow
from langchain_openai import OpenAIEmbeddings
from langgraph.store.memory import InMemoryStore
from mlflow.entities import AssessmentSource, Feedback
from mlflow.genai.judges import make_judge
from mlflow.genai.judges.optimizers import MemAlignOptimizer
from mlflow.genai.scorers import get_scorer

from memalign_graph import Criterion, JudgeMemory
from memalign_graph.integrations import (
    aexport_to_mlflow,
    export_to_mlflow,
    feedback_from_mlflow,
    memory_from_mlflow,
)

EXPERIMENT = "support"
MODEL = "openai:/gpt-4.1-mini"


def memory_of(criterion: dict[str, Any], lines: list[str] | None = None) -> JudgeMemory:
    """A memory in RAM, with what the lines hold."""
    embeddings = OpenAIEmbeddings(model="text-embedding-3-small", check_embedding_ctx_length=False)
    memory = JudgeMemory(
        InMemoryStore(), Criterion.model_validate(criterion), embeddings=embeddings
    )
    if lines:
        memory.import_jsonl(lines)
    return memory


def export(
    criterion: dict[str, Any], lines: list[str], *, awaits: bool, register: bool
) -> dict[str, Any]:
    """Export a memory, and say what MLflow makes of it."""
    experiment = mlflow.set_experiment(EXPERIMENT)
    memory = memory_of(criterion, lines)
    exported = asyncio.run(aexport_to_mlflow(memory)) if awaits else export_to_mlflow(memory)
    if register:
        exported.judge.register(experiment_id=experiment.experiment_id)
    return {
        "type": type(exported.judge).__name__,
        "instructions": exported.judge.instructions,
        "value_type": str(exported.judge.feedback_value_type),
        "dump": exported.judge.model_dump()["memory_augmented_judge_data"],
        "trace_ids": exported.trace_ids,
        "left_out": exported.left_out,
    }


def judge(case: dict[str, Any]) -> dict[str, Any]:
    """Load the judge that another process registered, as anybody would, and ask it."""
    experiment = mlflow.set_experiment(EXPERIMENT)
    loaded = get_scorer(name="support_tone", experiment_id=experiment.experiment_id)
    answer = loaded(**case)
    return {"value": answer.value, "metadata": answer.metadata}


def come_back(criterion: dict[str, Any]) -> dict[str, Any]:
    """Read the registered judge into a fresh memory, twice."""
    experiment = mlflow.set_experiment(EXPERIMENT)
    loaded = get_scorer(name="support_tone", experiment_id=experiment.experiment_id)
    imported = memory_from_mlflow(loaded, Criterion.model_validate(criterion))
    memory = memory_of(criterion, imported.lines)
    once = memory.version()
    memory.import_jsonl(memory_from_mlflow(loaded, memory.criterion).lines)
    return {
        "lines": imported.lines,
        "rejected": [one.model_dump() for one in imported.rejected],
        "missing": imported.missing_trace_ids,
        "same_twice": memory.version() == once,
        "episodes": [one.to_json() for one in memory.episodes()],
        "guidelines": [one.to_json() for one in memory.guidelines()],
    }


def align_there(criterion: dict[str, Any], records: list[dict[str, Any]]) -> dict[str, Any]:
    """Align a judge with MLflow's own MemAlign, then read what it learned."""
    mlflow.set_experiment(EXPERIMENT)
    base = make_judge(
        name="support_tone",
        instructions="Is it right? {{ inputs }} {{ outputs }}",
        model=MODEL,
        feedback_value_type=bool,
    )
    traces = [mlflow.get_trace(_log(record)) for record in records]
    aligned = base.align(traces=traces, optimizer=MemAlignOptimizer(reflection_lm=MODEL))
    imported = memory_from_mlflow(aligned, Criterion.model_validate(criterion))
    memory = memory_of(criterion, imported.lines)
    before = [one.text for one in memory.guidelines()]
    sources = [one.episode_ids for one in memory.guidelines()]
    memory.forget(author="ann")
    return {
        "theirs": [one["guideline_text"] for one in _semantic(aligned)],
        "guidelines": before,
        "sources": sources,
        "episodes": [one.to_json() for one in imported.episodes],
        "after_forgetting": [one.text for one in memory.guidelines()],
    }


def assess(criterion: dict[str, Any], folder: str) -> dict[str, Any]:
    """Read assessments of every kind, in every form that MLflow gives traces in."""
    mlflow.set_experiment(EXPERIMENT)
    trace_id = _log({"inputs": {"question": "Where is it?"}, "outputs": "Look it up."})
    ann, bob = AssessmentSource("HUMAN", "ann"), AssessmentSource("HUMAN", "bob")
    machine = AssessmentSource("LLM_JUDGE", "gpt")
    log = mlflow.log_feedback
    first = log(trace_id=trace_id, name="Support_Tone ", value=True, source=ann)
    mlflow.override_feedback(
        trace_id=trace_id,
        assessment_id=first.assessment_id,
        value=False,
        rationale="Too cold.",
        source=ann,
    )
    given = mlflow.log_assessment(
        trace_id,
        Feedback(
            name="support_tone",
            value="yes",
            source=bob,
            create_time_ms=1_700_000_000_000,
            last_update_time_ms=1_700_000_000_000,
        ),
    )
    log(trace_id=trace_id, name="support_tone", value=True, source=machine, rationale="I, robot.")
    log(trace_id=trace_id, name="helpfulness", value=1.0, source=ann)
    log(trace_id=trace_id, name="support_tone", value=0.6, source=AssessmentSource("HUMAN", "cem"))
    log(trace_id=trace_id, name="support_tone", value=[1, "a"], source=AssessmentSource("HUMAN"))
    log(
        trace_id=trace_id, name="support_tone", rationale="Words.", source=AssessmentSource("HUMAN")
    )
    log(trace_id=trace_id, name="support_tone", error=ValueError("x"), source=ann)
    mlflow.log_expectation(trace_id=trace_id, name="expected_response", value="We are sorry.")
    mlflow.log_expectation(trace_id=trace_id, name="facts", value=["late", "lost"])
    with mlflow.start_span("support") as span:
        span.set_inputs({"question": "Outer?"})
        with mlflow.start_span("tool") as inner:
            inner.set_inputs({"query": "Inner?"})
            inner.set_outputs("Found.")
    mlflow.flush_trace_async_logging()
    on_a_span = span.trace_id
    log(trace_id=on_a_span, name="support_tone", value=True, source=ann, span_id=inner.span_id)
    log(trace_id=on_a_span, name="support_tone", value=True, source=bob)
    traces = [mlflow.get_trace(one) for one in (trace_id, on_a_span)]
    table = mlflow.search_traces()
    wanted = {"objects": traces, "dicts": [one.to_dict() for one in traces]}
    texts = [one.to_json() for one in traces]
    Path(folder, "traces.jsonl").write_text("\n".join(texts), encoding="utf-8")
    wanted |= {"texts": texts, "column": list(table["trace"])}
    asked = Criterion.model_validate(criterion)
    found = {name: feedback_from_mlflow(some, asked) for name, some in wanted.items()}
    refused = ""
    try:
        feedback_from_mlflow(table, asked)
    except ValueError as error:
        refused = str(error)
    return {
        **{name: one.model_dump(mode="json") for name, one in found.items()},
        "bob": given.assessment_id,
        "table": refused,
    }


def _log(record: dict[str, Any]) -> str:
    with mlflow.start_span("support") as span:
        span.set_inputs(record["inputs"])
        span.set_outputs(record["outputs"])
    mlflow.flush_trace_async_logging()
    if "author" in record:
        mlflow.log_feedback(
            trace_id=span.trace_id,
            name="support_tone",
            value=record["value"],
            rationale=record["rationale"],
            source=AssessmentSource("HUMAN", record["author"]),
        )
    return str(span.trace_id)


def _semantic(aligned: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = aligned.model_dump()["memory_augmented_judge_data"][
        "semantic_memory"
    ]
    return found


STEPS: dict[str, Callable[..., dict[str, Any]]] = {
    "align_there": align_there,
    "assess": assess,
    "come_back": come_back,
    "export": export,
    "judge": judge,
}

if __name__ == "__main__":
    step, arguments = sys.argv[1:]
    print(json.dumps(STEPS[step](**json.loads(arguments))))  # noqa: T201 - what the test reads
