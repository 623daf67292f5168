"""Helpers for tests of the alignment graph."""

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from langgraph.graph import StateGraph

from memalign_graph import Criterion, Guideline, create_alignment_graph
from tests.conftest import CRITERION, Bench, Graph
from tests.loopback import ChatRequest

START = datetime(2026, 1, 1, tzinfo=UTC)


def record(number: int, topic: Any = None, **fields: Any) -> dict[str, Any]:
    """Feedback on one case. The comment names its topic."""
    topic = number if topic is None else topic
    return {
        "inputs": f"Question {number}: where is order {number}?",
        "outputs": f"Answer {number}: it is on its way, number {number}.",
        "value": bool(number % 2),
        "rationale": f"On #{topic} the reply has to name the order; so said of case {number}.",
        "author": "ann",
        "given_at": (START + timedelta(minutes=number)).isoformat(),
        **fields,
    }


def records(count: int, topics: int | None = None, first: int = 0) -> list[dict[str, Any]]:
    """Feedback on distinct cases; `topics` limits the number of topics."""
    numbers = range(first, first + count)
    return [record(number, number % topics if topics else None) for number in numbers]


def comment(number: int, text: str, **fields: Any) -> dict[str, Any]:
    return record(number, rationale=text, **fields)


def asked(bench: Bench, purpose: str) -> list[ChatRequest]:
    return [chat for chat in bench.server.chats if chat.schema_name == purpose]


def alignment(bench: Bench, criterion: Criterion = CRITERION, **options: Any) -> Graph:
    return bench.compile(builder(bench, criterion, **options))


def builder(
    bench: Bench, criterion: Criterion = CRITERION, **options: Any
) -> StateGraph[Any, Any, Any, Any]:
    return create_alignment_graph(criterion, **bench.models(**options))


async def align(
    bench: Bench, feedback: Any, graph: Graph | None = None, on: str | None = "t", **options: Any
) -> dict[str, Any]:
    result = await bench.invoke(graph or alignment(bench), {"feedback": feedback}, on, **options)
    assert set(result) == {"report"}
    report: dict[str, Any] = result["report"]
    return report


async def settle(bench: Bench, graph: Graph, *choices: str, on: str = "t") -> dict[str, Any]:
    """Answer which guideline of each conflict stays; returns the report."""
    [interrupt] = (await bench.state(graph, on)).interrupts
    names = [request["args"]["conflict"] for request in interrupt.value["action_requests"]]
    result = await bench.resume(graph, dict(zip(names, choices, strict=True)), on)
    return dict(result["report"])


def by_text(changes: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    return {change["text"]: len(change["episode_ids"]) for change in changes}


def sources(guidelines: Iterable[Guideline]) -> dict[str, int]:
    return {guideline.text: len(guideline.episode_ids) for guideline in guidelines}


async def version(bench: Bench, **options: Any) -> str:
    return str(await bench.call(bench.memory(**options), "version"))


async def commits(bench: Bench) -> int:
    return len(await bench.call(bench.memory(), "history"))


def embedded(bench: Bench) -> list[str]:
    return [text for request in bench.server.embeddings for text in request.texts]


def progress_of(events: Iterable[Any], stage: str) -> list[tuple[int, int]]:
    return [
        (event["done"], event["of"])
        for event in events
        if event.get("type") == "alignment_progress" and event["stage"] == stage
    ]
