"""Runs: progress, subgraphs, contexts, options, several on one thread and at once."""

import asyncio
import threading
import time
from typing import Any

import pytest
from langgraph.graph import END, START, StateGraph
from langgraph.store.base import PutOp
from langgraph.store.memory import InMemoryStore
from typing_extensions import TypedDict

from memalign_graph import (
    MemAlignContext,
)
from tests.conftest import EVERY_WAY, Bench, thread
from tests.integration_tests.alignment_support import (
    BOTH_WAYS,
    COMPARE,
    DISTIL,
    Model,
    align,
    alignment,
    asked,
    builder,
    by_text,
    each_its_words,
    progress_of,
    record,
    records,
    rules_by_topic,
    said,
)
from tests.loopback import ChatRequest, Together, error

pytestmark = EVERY_WAY


async def test_progress_is_streamed_until_all_is_done(bench: Bench) -> None:
    bench.server.responder = Model()
    graph = alignment(bench, batch_size=3)
    events = await bench.stream(graph, {"feedback": records(12)}, stream_mode="custom")
    assert {one["type"] for one in events} == {"alignment_progress"}
    assert progress_of(events, "remember") == [(0, 12), (12, 12)]
    assert sorted(progress_of(events, "distill")) == [(1, 4), (2, 4), (3, 4), (4, 4)]
    assert progress_of(events, "consolidate") == [(0, 1), (1, 1)]
    assert progress_of(events, "commit") == [(1, 1)]
    batches = [one["batch"] for one in events if one["stage"] == "distill"]
    assert sorted(batches) == [1, 2, 3, 4]
    order = [one["stage"] for one in events]
    assert order == sorted(order, key=["remember", "distill", "consolidate", "commit"].index)


@BOTH_WAYS
async def test_progress_counts_a_batch_that_was_tried_twice_once(bench: Bench) -> None:
    faults = [error(500, retry_after=0)]

    def distil(chat: ChatRequest) -> Any:
        return faults.pop() if faults and "case 1" in chat.text else rules_by_topic(chat)

    bench.server.responder = Model(distil=distil)
    graph = alignment(bench, batch_size=3, model=bench.server.chat_model(max_retries=0))
    events = await bench.stream(graph, {"feedback": records(9)}, stream_mode="custom")
    assert sorted(progress_of(events, "distill")) == [(1, 3), (2, 3), (3, 3)]


@BOTH_WAYS
@pytest.mark.parametrize("elsewhere", [False, True], ids=["same-graph", "another-process"])
async def test_progress_reaches_the_end_when_a_failed_run_goes_on(
    bench: Bench,
    elsewhere: bool,  # noqa: FBT001
) -> None:
    down = error(500, retry_after=0)
    bench.server.responder = Model(
        distil=lambda chat: down if "case 1" in chat.text else rules_by_topic(chat)
    )
    options: Any = {"batch_size": 3, "model": bench.server.chat_model(max_retries=0)}
    graph = alignment(bench, **options)
    with pytest.raises(Exception, match="failed"):
        await align(bench, records(9), graph)
    bench.server.responder = Model()
    events = await bench.stream(
        alignment(bench, **options) if elsewhere else graph, None, stream_mode="custom"
    )
    assert progress_of(events, "distill")[-1] == (3, 3)


class FullDisk(InMemoryStore):
    """Refuses to keep the draft of one batch, once."""

    def __init__(self) -> None:
        super().__init__()
        self.drafts = 0

    def batch(self, ops: Any) -> Any:
        self._check(ops)
        return super().batch(ops)

    async def abatch(self, ops: Any) -> Any:
        self._check(ops)
        return await super().abatch(ops)

    def _check(self, ops: Any) -> None:
        if isinstance(ops[0], PutOp) and "drafts" in ops[0].namespace:
            self.drafts += 1
            if self.drafts == 3:
                raise OSError("The disk is full.")


@pytest.mark.parametrize("bench", ["memory-sync", "memory-async"], indirect=True)
async def test_progress_reaches_the_end_after_a_crash(bench: Bench) -> None:
    """Another process goes on with what the checkpoint has of the batches."""
    bench.server.responder = Model()
    bench.store = FullDisk()
    with pytest.raises(OSError, match="disk is full"):
        await align(bench, records(9), alignment(bench, batch_size=3))
    events = await bench.stream(alignment(bench, batch_size=3), None, stream_mode="custom")
    assert progress_of(events, "distill")[-1] == (3, 3)
    assert len(await bench.guidelines()) == 9


class Team(TypedDict, total=False):
    """A parent's state."""

    feedback: list[Any]
    report: dict[str, Any]


class TeamContext(TypedDict, total=False):
    """A parent's context, with settings for what is below it."""

    team: str
    memalign: dict[str, Any]


async def test_subgraph_of_a_parent_with_a_context_of_its_own(bench: Bench) -> None:
    bench.server.responder = Model()
    parent = StateGraph(Team, context_schema=TeamContext)
    parent.add_node("learn", builder(bench, batch_size=2).compile())
    parent.add_edge(START, "learn")
    parent.add_edge("learn", END)
    graph = bench.compile(parent)
    given = {"feedback": records(6, topics=3)}
    context: Any = {"team": "emea", "memalign": {"namespace": ["shop", "emea"]}}
    events: list[Any] = []
    parts = await bench.stream(
        graph, given, context=context, stream_mode=["custom", "values"], subgraphs=True
    )
    events = [part for _, mode, part in parts if mode == "custom"]
    assert sorted(progress_of(events, "distill")) == [(1, 3), (2, 3), (3, 3)]
    state = (await bench.state(graph)).values
    assert set(state) == {"feedback", "report"}
    assert len(state["report"]["guidelines"]["added"]) == 3
    assert await bench.guidelines() == []
    assert len(await bench.guidelines(namespace=("shop", "emea"))) == 3
    report = (await bench.invoke(graph, given, "u", context=context))["report"]
    assert report["feedback"]["unchanged"] == 6


@BOTH_WAYS
async def test_batches_of_a_subgraph_run_side_by_side(bench: Bench) -> None:
    bench.server.responder = Together(12, Model(), DISTIL)
    parent = StateGraph(Team)
    parent.add_node("learn", builder(bench, batch_size=1).compile())
    parent.add_edge(START, "learn")
    graph = bench.compile(parent)
    await bench.invoke(graph, {"feedback": records(12, topics=2)})
    assert bench.server.peak_chats == 12


@BOTH_WAYS
async def test_conflict_in_a_subgraph_is_asked_through_its_parent(bench: Bench) -> None:
    bench.server.responder = Model(distil=each_its_words)
    parent = StateGraph(Team)
    parent.add_node("learn", builder(bench, batch_size=1, conflicts="ask").compile())
    parent.add_edge(START, "learn")
    graph = bench.compile(parent)
    given = [said(1, "On #a always name it."), said(2, "On #a never name it.")]
    asked_for = await bench.invoke(graph, {"feedback": given})
    assert len(asked_for["__interrupt__"]) == 1
    chats = len(bench.server.chats)
    found = await bench.resume(graph, {"C1": "first"})
    assert list(by_text(found["report"]["guidelines"]["added"])) == ["On #a always name it."]
    assert len(bench.server.chats) == chats


@BOTH_WAYS
async def test_context_of_a_run_goes_before_the_graphs_options(bench: Bench) -> None:
    bench.server.responder = Model()
    context = MemAlignContext(namespace=("elsewhere",), k=1)
    report = await align(bench, records(2), context=context)
    assert report["feedback"]["new"] == 2
    assert await bench.episodes() == []
    assert len(await bench.episodes(namespace=("elsewhere",))) == 2


@BOTH_WAYS
async def test_another_distill_model(bench: Bench) -> None:
    bench.server.responder = Model()
    graph = alignment(bench, batch_size=2, distill_model=bench.server.chat_model(model="gpt-big"))
    await align(bench, records(4, topics=2), graph, context=MemAlignContext(model="openai:gpt-4o"))
    assert {chat.model for chat in bench.server.chats} == {"gpt-big"}
    assert (len(asked(bench, DISTIL)), len(asked(bench, COMPARE))) == (2, 1)


@BOTH_WAYS
async def test_runs_on_one_thread_do_not_mix_their_reports(bench: Bench) -> None:
    bench.server.responder = Model(distil=each_its_words)
    graph = alignment(bench, batch_size=1)
    given = [said(1, "On #a always name it."), said(2, "On #a never name it."), None]
    first = await align(bench, given, graph)
    assert (len(first["conflicts"]), len(first["rejected"]), first["batches"]) == (1, 1, 2)
    start = time.time()
    second = await align(bench, [said(3, "On #b thank them.")], graph)
    assert second["feedback"] == {"new": 1, "changed": 0, "unchanged": 0, "rejected": 0}
    assert (second["conflicts"], second["rejected"], second["batches"]) == ([], [], 1)
    assert by_text(second["guidelines"]["added"]) == {"On #b thank them.": 1}
    assert second["guidelines"]["retired"] == second["guidelines"]["revised"] == []
    assert second["cost"]["chat_calls"] == second["cost"]["texts_embedded"] == 1
    assert second["cost"]["seconds"] <= time.time() - start
    assert second["memory_version_before"] == first["memory_version_after"]
    third = await align(bench, [], graph)
    assert (third["conflicts"], third["batches"], third["cost"]["chat_calls"]) == ([], 0, 0)
    assert third["guidelines"] == {"added": [], "revised": [], "retired": []}


@BOTH_WAYS
async def test_a_run_after_one_that_failed_on_the_same_thread(bench: Bench) -> None:
    down = error(500, retry_after=0)
    bench.server.responder = Model(distil=lambda _: down)
    graph = alignment(bench, batch_size=1, model=bench.server.chat_model(max_retries=0))
    with pytest.raises(Exception, match="failed"):
        await align(bench, records(2), graph)
    bench.server.responder = Model()
    report = await align(bench, [record(7)], graph)
    assert report["feedback"] == {"new": 1, "changed": 0, "unchanged": 0, "rejected": 0}
    assert len(report["guidelines"]["added"]) == 3
    assert (report["cost"]["texts_embedded"], report["cost"]["chat_calls"]) == (1, 4)


@BOTH_WAYS
async def test_two_alignments_at_once_on_one_graph(bench: Bench) -> None:
    bench.server.responder = Together(7, Model(), DISTIL)
    graph = alignment(bench, batch_size=2)
    namespaces = ("one", "two")
    given = {"one": records(8, topics=4), "two": records(6, topics=3, first=100)}
    reports: dict[str, Any] = {}

    async def arun(name: str) -> None:
        context = MemAlignContext(namespace=(name,))
        reports[name] = await align(bench, given[name], graph, name, context=context)

    if bench.awaits:
        await asyncio.gather(*map(arun, namespaces))
    else:

        def run(name: str) -> None:
            context = MemAlignContext(namespace=(name,))
            found = graph.invoke({"feedback": given[name]}, thread(name), context=context)
            reports[name] = found["report"]

        threads = [threading.Thread(target=run, args=(name,)) for name in namespaces]
        for one in threads:
            one.start()
        for one in threads:
            one.join()
    for name in namespaces:
        assert reports[name]["feedback"]["new"] == len(given[name])
        assert len(reports[name]["guidelines"]["added"]) == len(given[name]) // 2
        assert reports[name]["cost"]["texts_embedded"] == len(given[name])
        assert len(await bench.episodes(namespace=(name,))) == len(given[name])
    assert bench.server.peak_chats == 7


@BOTH_WAYS
async def test_two_alignments_at_once_on_one_memory(bench: Bench) -> None:
    """Disjoint feedback in one memory, from one process: nothing lost, nothing doubled."""
    bench.server.responder = Model()
    bench.server.latency_s = 0.05
    graph = alignment(bench, batch_size=5)
    halves = [records(20, topics=4), records(20, topics=4, first=100)]

    async def arun(number: int) -> None:
        await align(bench, halves[number], graph, f"t{number}")

    if bench.awaits:
        await asyncio.gather(arun(0), arun(1))
    else:
        threads = [
            threading.Thread(target=graph.invoke, args=({"feedback": half}, thread(f"t{n}")))
            for n, half in enumerate(halves)
        ]
        for one in threads:
            one.start()
        for one in threads:
            one.join()
    episodes = await bench.episodes()
    assert len(episodes) == 40
    assert {one.status for one in episodes} == {"distilled"}
    learned = [key for one in await bench.guidelines() for key in one.episode_ids]
    assert sorted(learned) == sorted(one.id for one in episodes)
