"""Criterion, purpose, memory version and tokens in traces, events and usage."""

import json
from collections.abc import Iterator
from typing import Any
from uuid import UUID

import pytest
from langchain_core.caches import InMemoryCache
from langchain_core.outputs import LLMResult
from langchain_core.tracers import LangChainTracer
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import Command
from langsmith import Client

from memalign_graph import (
    ChatModelError,
    Criterion,
    JudgeNodes,
    MemAlignContext,
    Uncertain,
    UsageLedger,
    add_quality_gate,
    create_panel_graph,
    tracing,
)
from memalign_graph.state import ReviewState
from tests.conftest import CASE, COLD, CRITERION, EVERY_WAY, OTHER, Bench, Graph
from tests.loopback import error

ANSWERS = Criterion(name="support_answer", instructions="Does the reply answer the question?")
TONE, ANSWER = CRITERION.name, ANSWERS.name


def counted(ledger: UsageLedger) -> dict[tuple[str, str], int]:
    rows = ledger.rows()
    assert all(row["input_tokens"] and row["output_tokens"] for row in rows)
    assert {row["model"] for row in rows} <= {"gpt-4.1-mini"}
    return {(row["criterion"], row["purpose"]): row["calls"] for row in rows}


@EVERY_WAY("memory-sync", "memory-async")
async def test_usage_is_counted_by_criterion_and_purpose(bench: Bench) -> None:
    ledger, server = UsageLedger(), bench.server

    async def run(graph: Graph, *inputs: Any, on: str = "t") -> None:
        config: Any = {"configurable": {"thread_id": on}, "callbacks": [ledger]}
        await graph.abatch([*inputs], config) if bench.awaits else graph.batch([*inputs], config)

    await run(bench.judge_graph(confidence=True, samples=2), CASE, OTHER)
    usage = counted(ledger)
    assert usage == {(TONE, "judge"): 2, (TONE, "confidence"): len(server.chats) - 2}

    review = bench.review_graph()
    await run(review, CASE, on="asked")
    await run(review, Command(resume=COLD), on="asked")
    usage |= {(TONE, "judge"): 3, (TONE, "distil"): 1}
    assert counted(ledger) == usage

    cached = server.chat_model(cache=InMemoryCache())
    panel = bench.compile(create_panel_graph([CRITERION, ANSWERS], **bench.models(model=cached)))
    usage |= {(TONE, "judge"): 4, (ANSWER, "judge"): 1}
    for _ in ("asked", "answered from the cache"):
        await run(panel, CASE)
        assert counted(ledger) == usage

    builder = StateGraph(MessagesState)
    builder.add_node("writer", lambda _: {"messages": [("ai", "Sorry to hear that.")]})
    builder.add_edge(START, "writer")
    add_quality_gate(builder, ANSWERS, after="writer", revise="writer", **bench.models())
    await run(bench.compile(builder), {"messages": [("human", "My order never came.")]}, on="gate")
    usage |= {(ANSWER, "judge"): 2}
    assert counted(ledger) == usage

    server.script(error(429, "Slow down."))
    with pytest.raises(ChatModelError):
        await run(bench.judge_graph(model=server.chat_model(max_retries=0)), OTHER)
    server.chat_model().invoke("Well?", {"callbacks": [ledger]})  # not of a judge
    assert counted(ledger) == usage
    started = {tracing.CRITERION: TONE, tracing.PURPOSE: "judge"}
    for empty in (LLMResult(generations=[]), LLMResult(generations=[[]])):
        ledger.on_chat_model_start(run_id=UUID(int=1), metadata=started)
        ledger.on_llm_end(empty, run_id=UUID(int=1))
    assert (counted(ledger), ledger._pending_calls) == (usage, {})


async def test_opentelemetry_spans_have_the_request_and_the_decision(bench: Bench) -> None:
    trace = pytest.importorskip("opentelemetry.sdk.trace")
    exporting = pytest.importorskip("opentelemetry.sdk.trace.export")
    in_memory = pytest.importorskip("opentelemetry.sdk.trace.export.in_memory_span_exporter")
    await bench.add_guideline("Say sorry first.")
    provider, exporter = trace.TracerProvider(), in_memory.InMemorySpanExporter()
    provider.add_span_processor(exporting.SimpleSpanProcessor(exporter))
    client = Client(tracing_mode="otel", otel_tracer_provider=provider, api_key="none")
    graph = bench.judge_graph(confidence=True)
    callbacks: Any = [LangChainTracer(client=client)]
    config: Any = {"callbacks": callbacks, "configurable": {"thread_id": "t"}}
    judgment = graph.invoke(CASE, config)["judgment"]
    client.flush()
    finished = exporter.get_finished_spans()
    calls = [span.attributes for span in finished if span.name == "ChatOpenAI"]
    names = ("criterion", "memory_version", "judge_key", "purpose")
    metadata = {
        tuple(call[f"langsmith.metadata.memalign_{name}"] for name in names) for call in calls
    }
    version = judgment["memory_version"]
    expected = (TONE, version, judgment["judge_key"])
    assert metadata == {(*expected, "judge"), (*expected, "confidence")}
    assert all(call["gen_ai.usage.input_tokens"] > 0 for call in calls)
    spans = {span.name: span.attributes for span in finished}
    judged = json.loads(spans["judge"]["gen_ai.completion"])["judgment"]
    assert judged["evidence"]["decided_by"] == "verdict"
    assert judged["memory_version"] == version
    client.close()


logs = pytest.importorskip("opentelemetry.sdk._logs")
export = pytest.importorskip("opentelemetry.sdk._logs.export")


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The judgment events that an application's provider receives."""
    exporter = export.InMemoryLogRecordExporter()
    provider = logs.LoggerProvider()
    provider.add_log_record_processor(export.SimpleLogRecordProcessor(exporter))
    monkeypatch.setattr(tracing, "_event_logger", lambda: provider.get_logger("test"))
    yield lambda: [
        (item.log_record.event_name, dict(item.log_record.attributes))
        for item in exporter.get_finished_logs()
    ]
    provider.shutdown()


@EVERY_WAY("memory-sync", "memory-async")
async def test_each_judgment_is_one_event_with_its_review_status(bench: Bench, events: Any) -> None:
    judgment = (await bench.invoke(bench.judge_graph(), CASE))["judgment"]
    [(name, attributes)] = events()
    assert name == "gen_ai.evaluation.result"
    assert attributes == {
        "gen_ai.evaluation.name": CRITERION.name,
        "gen_ai.evaluation.score.label": "true",
        "gen_ai.evaluation.score.value": 1.0,
        "gen_ai.response.model": judgment["model"],
        "memalign.judgment_id": judgment["id"],
        "memalign.judge_key": judgment["judge_key"],
        "memalign.memory_version": judgment["memory_version"],
        "memalign.asked": False,
    }
    review = Uncertain(sample_share=0)
    await bench.invoke(bench.review_graph(review=review, confidence=True), CASE, "doubtful")
    await bench.invoke(bench.review_graph(), CASE, "always")
    graph = bench.review_graph(review=lambda judgment: not judgment.value)
    await bench.invoke(graph, CASE, "by a function")
    nodes = JudgeNodes(CRITERION, **bench.models(confidence=True))
    builder: Any = StateGraph(ReviewState, context_schema=MemAlignContext)
    names = ("retrieve_episodes", "assemble_guidelines", "judge")
    builder.add_sequence([(name, getattr(nodes, name)) for name in names])
    builder.add_edge(START, "retrieve_episodes")
    await bench.invoke(bench.compile(builder), CASE, "own", context={"review": "uncertain"})
    events_seen = [attributes for _, attributes in events()[1:]]
    assert [item.get("memalign.asked") for item in events_seen] == [True, True, None, None]
