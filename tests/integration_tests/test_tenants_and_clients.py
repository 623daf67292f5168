"""Contexts and namespaces, event loops, embedding names and concurrency limits."""

import asyncio
import gc
import os
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from langchain_core.embeddings import Embeddings
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.cache.memory import InMemoryCache
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.store.memory import InMemoryStore
from langgraph.types import CachePolicy

from memalign_graph import (
    Criterion,
    InvalidInputError,
    JudgeMemory,
    JudgeNodes,
    MemAlignContext,
    add_quality_gate,
    create_alignment_graph,
    create_judge_graph,
    create_panel_graph,
)
from memalign_graph.models import embedder_id
from memalign_graph.state import ExampleInput, JudgeState, ReviewState
from tests.conftest import CASE, COLD, CRITERION, OTHER, Bench, thread
from tests.integration_tests.test_judge_answers import REVIEW_NODES, nodes_graph
from tests.loopback import LoopbackServer, Together

ACME = {"namespace": ["acme"]}


def gated(bench: Bench, **options: Any) -> Any:
    builder: Any = StateGraph(MessagesState)
    builder.add_node("write", lambda _: {"messages": [AIMessage("Check the page.")]})
    builder.add_edge(START, "write")
    add_quality_gate(builder, CRITERION, after="write", **bench.models(**options))
    return bench.compile(builder)


@pytest.mark.parametrize(
    ("context", "message"),
    [
        (ACME, "'namespace' is next to 'memalign'"),
        ({"memalign": {"k": 3}, **ACME}, "'namespace' is next to 'memalign'"),
        ({"memalign": MemAlignContext(k=3), **ACME}, "'namespace' is next to 'memalign'"),
        ({"namespaces": ["acme"]}, "'namespaces' is next to 'memalign'"),
        ({"Name_Space": ["acme"]}, "'Name_Space' is next to 'memalign'"),
        ({"namespce": ["acme"]}, "'namespce' is next to 'memalign'"),
        ({"Memalign": ACME}, "did you mean 'memalign'"),
        ({"mem_align": ACME}, "did you mean 'memalign'"),
        ({"memaling": ACME}, "did you mean 'memalign'"),
        ({"memalign": {"namespce": ["acme"]}}, "namespce"),
    ],
)
async def test_context_needs_the_judges_key(bench: Bench, context: Any, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        await bench.invoke(gated(bench), {"messages": [HumanMessage("Hi")]}, context=context)
    assert bench.server.chats == []


@pytest.mark.parametrize(
    "context",
    [
        {"memalign": ACME, "customer": "Jo"},
        {"customer": "Jo", "alignment": 3, "namespace_id": 7},
        {"namespace": None},
        None,
    ],
)
async def test_other_fields_of_a_context_are_ignored(bench: Bench, context: Any) -> None:
    state = {"messages": [HumanMessage("Hi")]}
    done = await bench.invoke(gated(bench), state, context=context)
    assert done["quality_gate"]["status"] == "accepted"


async def test_missing_required_namespace_raises(bench: Bench) -> None:
    graph = bench.judge_graph(require_namespace=True)
    with pytest.raises(InvalidInputError, match="require_namespace=True"):
        await bench.invoke(graph, CASE)
    assert (await bench.invoke(graph, CASE, context=ACME))["judgment"]["value"] is True
    gate = gated(bench, require_namespace=True)
    with pytest.raises(InvalidInputError, match="require_namespace=True"):
        await bench.invoke(gate, {"messages": [HumanMessage("Hi")]}, "g")


@pytest.mark.parametrize(
    ("models", "chosen", "message"),
    [
        (None, "local", "would download a model"),
        ((), "openai:gpt-dear", "only the judge's own"),
        (("openai:gpt-a",), "openai:gpt-dear", "'openai:gpt-a'"),
    ],
)
async def test_only_allowed_models(bench: Bench, models: Any, chosen: str, message: str) -> None:
    graph = bench.judge_graph(models=models)
    with pytest.raises(InvalidInputError, match=message):
        await bench.invoke(graph, CASE, context={"model": chosen})


async def test_the_own_model_is_allowed(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in bench.server.environment.items():
        monkeypatch.setenv(name, value)
    model = "openai:gpt-4.1-nano"
    graph = bench.judge_graph(model=model, models=())
    await bench.invoke(graph, CASE, context={"model": model})
    assert [chat.model for chat in bench.server.chats] == ["gpt-4.1-nano"]


def test_served_graphs_let_no_context_choose_a_model() -> None:
    from memalign_graph import studio

    assert {judge.models for judge in studio.judges} == {()}


def test_loop_closes_its_clients(server: LoopbackServer, monkeypatch: pytest.MonkeyPatch) -> None:
    def count_sockets() -> int:
        return sum(map(_is_socket, Path("/proc/self/fd").iterdir()))

    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    store = InMemoryStore()
    JudgeMemory(store, CRITERION, embeddings="openai:e").remember([{**CASE, "value": True}])
    graph = create_judge_graph(CRITERION, embeddings="openai:e").compile(store=store)
    gc.disable()  # nothing is left to it
    try:
        asyncio.run(graph.ainvoke(CASE))
        at_first = count_sockets()
        for _ in range(5):
            asyncio.run(graph.ainvoke(CASE))
        deadline = time.monotonic() + 10
        while count_sockets() > at_first and time.monotonic() < deadline:
            time.sleep(0.05)  # the server closes its ends in its own threads
        assert count_sockets() <= at_first
    finally:
        gc.enable()
    clients = graph.nodes["judge"].bound.resources.clients  # type: ignore[attr-defined] # a Node
    for kept in (clients._chat_models, clients._bound):
        [(_, loops)] = kept._made.values()
        assert len(loops) == 1


def test_dropped_loops_are_bounded(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("memalign_graph.models._MAX_LOOPS", 2)
    graph: Any = bench.judge_graph()
    loops = [asyncio.new_event_loop() for _ in range(3)]
    clients = graph.nodes["judge"].bound.resources.clients
    try:
        for number in (0, 1, 0, 2, 1):
            loops[number].run_until_complete(graph.ainvoke(CASE, thread("a")))
        for kept in (clients._chat_models, clients._bound):
            [(_, by_loop)] = kept._made.values()
            assert list(by_loop) == [loops[2], loops[1]]
    finally:
        for loop in loops:
            loop.close()


_FORKED = """
import os, signal, threading
from langgraph.store.memory import InMemoryStore
from memalign_graph import Criterion, create_judge_graph
from memalign_graph.models import Embedder

criterion = Criterion(name="t", instructions="Is it right?")
graph = create_judge_graph(criterion, model="openai:m", embeddings="openai:e").compile(
    store=InMemoryStore()
)
graph.invoke({"inputs": "Parent.", "outputs": "x"})
never, embeds = threading.Event(), threading.Event()

def embed(texts):
    embeds.set()
    if texts == ["Waits."]:
        never.wait()
    return [[1.0] for _ in texts]

embed.name = "embed"
embedder = Embedder(embed)

embed_all = embedder.embeddings.embed_documents
threading.Thread(target=embed_all, args=(["Waits."],), daemon=True).start()
embeds.wait()
with embedder.embeddings._lock:  # as if another thread had it at the fork
    children = [os.fork()]
    if children[0]:
        children.append(os.fork())
    if not all(children):
        signal.alarm(20)
        embedder.embeddings.embed_documents(["Child."])
        graph.invoke({"inputs": "Child.", "outputs": "x"})
        os._exit(0)
assert [os.waitpid(child, 0)[1] for child in children] == [0, 0]
graph.invoke({"inputs": "Parent again.", "outputs": "x"})
os._exit(0)
"""


def test_forked_processes_share_no_connection_and_no_lock(server: LoopbackServer) -> None:
    connections = list[threading.Thread]()

    def judge(chat: Any) -> Any:
        connections.append(threading.current_thread())  # one for each connection
        return server.judge(chat)

    server.responder = judge
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", _FORKED]
    environment = {**os.environ, **server.environment}
    subprocess.run(command, check=True, timeout=60, env=environment)
    parent, *children, parent_again = connections
    assert parent is parent_again
    assert len({parent, *children}) == 3


async def test_models_that_contexts_name_are_bounded(
    server: LoopbackServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("memalign_graph.models._MAX_VALUES", 2)
    server.responder = Together(6, server.judge)
    graph = create_judge_graph(CRITERION, embeddings="openai:e").compile(store=InMemoryStore())
    for _ in range(2):  # the second time, all but two models are made again
        names = [f"m{number}" for number in range(6)]
        contexts: list[Any] = [{"model": f"openai:{name}"} for name in names]
        await asyncio.gather(*(graph.ainvoke(CASE, context=context) for context in contexts))
    assert sorted(chat.model for chat in server.chats) == sorted(names * 2)
    resources = graph.nodes["judge"].bound.resources  # type: ignore[attr-defined] # a Node
    clients = resources.clients
    for kept in (clients._chat_models, clients._bound, resources._judge_keys):
        [(_, loops)] = kept._made.values()
        [by_key] = loops.values()
        assert len(by_key) == 2


def _is_socket(descriptor: Path) -> bool:
    try:
        return descriptor.readlink().name.startswith("socket:")
    except OSError:  # the descriptor of the directory listing itself
        return False


class Support(ReviewState):
    customer: str


def own_graph(bench: Bench, **options: Any) -> Any:
    """A graph with a writer and two judges in sequence."""
    builder: Any = StateGraph(Support)
    builder.add_node("write", lambda state: {"outputs": f"Check the page for {state['inputs']}"})
    names = ["write"]
    for name in ("tone", "facts"):
        criterion = Criterion(name=name, instructions="Is it right?")
        nodes = JudgeNodes(criterion, **bench.models(**options))
        for step in ("retrieve_episodes", "assemble_guidelines", "judge"):
            builder.add_node(f"{name}_{step}", getattr(nodes, step))
            names.append(f"{name}_{step}")
    builder.add_node("send", lambda state: {"customer": f"sent: {state['outputs']}"})
    for before, after in zip([START, *names], [*names, "send"], strict=True):
        builder.add_edge(before, after)
    return bench.compile(builder)


async def test_nodes_may_be_reused_without_exposing_memory(bench: Bench) -> None:
    secret = {"inputs": "Card 4111 of Ann Lee.", "outputs": "Check.", "author": "bob@firm"}
    for name in ("tone", "facts"):
        criterion = Criterion(name=name, instructions="Is it right?")
        memory = JudgeMemory(bench.store, criterion, embeddings=bench.server.embedder())
        memory.remember({**secret, "value": False, "rationale": "Zqx."})
        memory.add_guideline("Never say zqx.")
    graph = own_graph(bench)
    fields = {"inputs": "my order", "customer": "Jo"}
    done = await bench.invoke(graph, fields)
    assert done["customer"] == "sent: Check the page for my order"
    assert done["judgment"]["criterion"] == "facts"
    assert "4111" in bench.server.chats[-1].text
    assert "Check the page for my order" in bench.server.chats[-1].text
    modes: Any = ["values", "updates"]
    streamed = str([chunk async for chunk in graph.astream(fields, thread("s"), stream_mode=modes)])
    for text in (str(done), streamed):
        assert not any(secret in text.lower() for secret in ("4111", "bob@firm", "zqx"))


@pytest.mark.parametrize("shows", [False, True])
async def test_tokens_are_streamed_only_on_request(bench: Bench, *, shows: bool) -> None:
    graph = own_graph(bench, stream_tokens=shows)
    fields = {"inputs": "my order", "customer": "Jo"}
    parts = graph.astream(fields, thread("s"), stream_mode="messages")
    messages = [message.text async for message, _ in parts]
    assert bool("".join(messages)) is shows


async def test_node_cache_after_retrieval_keeps_memories_apart(bench: Bench) -> None:
    await bench.add_guideline("Say sorry.", namespace=("acme",))
    nodes = JudgeNodes(CRITERION, **bench.models())
    builder: Any = StateGraph(JudgeState)
    builder.add_node("retrieve_episodes", nodes.retrieve_episodes)
    for name in ("assemble_guidelines", "judge"):
        builder.add_node(name, getattr(nodes, name), cache_policy=CachePolicy())
    builder.add_edge(START, "retrieve_episodes")
    builder.add_edge("retrieve_episodes", "assemble_guidelines")
    builder.add_edge("assemble_guidelines", "judge")
    graph = builder.compile(store=bench.store, cache=InMemoryCache())
    for namespace, guidelines, calls in (("acme", 1, 1), ("globex", 0, 2), ("acme", 1, 2)):
        context = {"memalign": {"namespace": [namespace]}}
        judgment = (await bench.invoke(graph, CASE, None, context=context))["judgment"]
        assert (len(judgment["guideline_ids"]), len(bench.server.chats)) == (guidelines, calls)


class Answered(JudgeState):
    feedback: Any


class Unjudged(ExampleInput):
    judge_run: Any
    judge_memory: Any
    feedback: Any
    judge_lesson: Any


@pytest.mark.parametrize(
    ("state", "missing"),
    [(JudgeState, "feedback"), (Answered, "judge_lesson"), (Unjudged, "judgment")],
)
async def test_state_needs_a_reply_channel(bench: Bench, state: Any, missing: str) -> None:
    graph = nodes_graph(bench, state, *REVIEW_NODES)
    with pytest.raises(InvalidInputError, match=f"the channel '{missing}' is missing"):
        await bench.invoke(graph, CASE)
    assert (await bench.state(graph)).interrupts == ()


class Wrapped(Embeddings):
    def __init__(self, model_id: str = "m", inner: Embeddings | None = None) -> None:
        self.model_id, self.inner, self.calls = model_id, inner, 0

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        self.calls += 1
        return [[1.0] for _ in texts]

    def embed_query(self, text: str) -> list[float]:
        return self.embed_documents([text])[0]


def enclosing(value: Any) -> Any:
    return lambda texts: [[float(len(value))] for _ in texts]


def with_default(value: Any) -> Any:
    return lambda texts, scale=value: [[scale] for _ in texts]


def at_the_top(texts: Sequence[str]) -> list[list[float]]:
    return [[1.0] for _ in texts]


def test_embeddings_that_differ_have_different_names() -> None:
    used, named = Wrapped("a"), [enclosing("a"), enclosing("a")]
    used.embed_query("x")
    assert embedder_id(Wrapped("a")) == embedder_id(used)
    for number, function in enumerate(named):
        function.name = f"v{number}"
    different = [
        *(Wrapped(model_id, inner) for model_id in "ab" for inner in (Wrapped("a"), Wrapped("b"))),
        *(*named, used, at_the_top, lambda _: [[1.0]], lambda _: [[2.0]]),
        # The next ones differ in what is inside a comprehension, or in an operator alone.
        lambda texts: [[len(text) % 5] for text in texts],
        lambda texts: [[len(text) % 3] for text in texts],
        lambda texts: [[len(text) // 3] for text in texts],
        lambda texts: [[text in {"a", "b"}] for text in texts],
        lambda texts: [[text in {"a", "c"}] for text in texts],
    ]
    assert len(set(map(embedder_id, different))) == len(different)
    assert embedder_id(at_the_top).endswith("at_the_top")


@pytest.mark.parametrize("value", [3, "a", object()])
def test_embedding_function_with_mutable_state_needs_a_name(value: Any) -> None:
    part: Any = partial(at_the_top)
    method: Any = Wrapped().embed_documents
    for function in (enclosing(value), method, part, with_default(1)):
        with pytest.raises(InvalidInputError, match=r"Give it a name, such as `embed\.name = "):
            JudgeMemory(InMemoryStore(), CRITERION, embeddings=function)
    named = enclosing(value)
    named.name = "mine-v1"
    assert embedder_id(named).endswith(".mine-v1")


async def test_max_concurrency_limits_the_calls(bench: Bench) -> None:
    bench.server.responder = Together(2, lambda _: {"rationale": "Fine.", "value": True})
    bench.server.latency_s = 0.05  # so that calls overlap
    criteria = [Criterion(name=f"c{number}", instructions="?") for number in range(4)]
    graph = bench.compile(create_panel_graph(criteria, **bench.models(confidence=True, samples=4)))
    await bench.invoke(graph.with_config(max_concurrency=2), CASE)
    assert bench.server.peak_chats == 2


async def test_no_thread_is_leaked(bench: Bench) -> None:
    def running() -> set[threading.Thread]:
        """The running threads except those of the server and the event loop's pool."""
        others = ("loopback", "asyncio")
        return {thread for thread in threading.enumerate() if not thread.name.startswith(others)}

    async def use(number: int) -> None:
        on, feedback = f"{number}", {**CASE, **COLD, "inputs": f"Order {number} never came."}
        align = bench.compile(create_alignment_graph(CRITERION, **bench.models()))
        await bench.invoke(align, {"feedback": [feedback]}, f"align {on}")
        await bench.invoke(bench.judge_graph(), CASE, on)
        bench.memory().recall(OTHER)

    await use(0)
    before = running()
    for number in range(1, 5):
        await use(number)
    assert running() <= before
