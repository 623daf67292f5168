"""Shared fixtures: a loopback server, stores, checkpointers, sync and async graph calls."""

import gc
import signal
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.errors import is_invalid_resume
from langgraph.graph import StateGraph
from langgraph.graph.state import CompiledStateGraph
from langgraph.store.base import BaseStore
from langgraph.store.memory import InMemoryStore
from langgraph.store.sqlite import SqliteStore
from langgraph.store.sqlite.aio import AsyncSqliteStore
from langgraph.types import Command, StateSnapshot

from memalign_graph import (
    Criterion,
    Episode,
    Feedback,
    Guideline,
    JudgeMemory,
    create_judge_graph,
    create_review_graph,
)
from memalign_graph.evidence import confidence
from memalign_graph.io import SYNC, run_sync
from memalign_graph.memory.guidelines import GuidelineOperation
from memalign_graph.memory.learning import commit_lesson
from tests import postgres
from tests.loopback import ChatRequest, LoopbackServer, error

# A shell that runs the tests in the background makes them and their children ignore Ctrl-C.
signal.signal(signal.SIGINT, signal.default_int_handler)
# The default threshold spends a tenth of the time on scanning what the imports made.
gc.set_threshold(20_000)

QUESTION = "Is the reply appropriate for the customer?"
CRITERION = Criterion(name="support_tone", instructions=QUESTION)
CASE = {"inputs": "My order never came.", "outputs": "Check the tracking page."}
OTHER = {"inputs": "The cup arrived broken.", "outputs": "Send us a photo."}
DOWN = error(500, "It broke.", retry_after=0)
COLD: dict[str, Any] = {"value": False, "rationale": "Too cold: it must say sorry first."}

Graph = CompiledStateGraph[Any, Any, Any, Any]

POSTGRES_WAYS = tuple(
    pytest.param(way, marks=pytest.mark.postgres, id=way)
    for way in ("postgres-sync", "postgres-async")
)
WAYS = ("memory-sync", "memory-async", "sqlite-sync", "sqlite-async", *POSTGRES_WAYS)
EVERY_WAY = pytest.mark.every_way
"""For what may differ between stores, or between blocking and awaited calls."""


def thread(name: str | None) -> Any:
    return {} if name is None else {"configurable": {"thread_id": name}}


def judgings(server: LoopbackServer) -> list[ChatRequest]:
    """The requests for a verdict."""
    return [chat for chat in server.chats if chat.schema_name == "judgment"]


def distillings(server: LoopbackServer) -> list[ChatRequest]:
    """The requests to distill feedback."""
    return [chat for chat in server.chats if chat.schema_name == "guideline_operations"]


def system_of(chat: ChatRequest) -> str:
    [text] = [message["content"] for message in chat.messages if message["role"] == "system"]
    return str(text)


def operations(*items: Mapping[str, Any]) -> dict[str, Any]:
    """A distiller's answer."""
    blank = {"guideline": "", "text": "", "feedback": ["F1"]}
    return {"operations": [{**blank, **item} for item in items]}


@dataclass
class Bench:
    """Runs graphs on one store and checkpointer with sync or async calls."""

    server: LoopbackServer
    store: BaseStore
    saver: BaseCheckpointSaver[Any]
    awaits: bool

    def judge_graph(self, criterion: Criterion = CRITERION, **options: Any) -> Graph:
        return self.compile(create_judge_graph(criterion, **self.models(**options)))

    def review_graph(self, criterion: Criterion = CRITERION, **options: Any) -> Graph:
        return self.compile(create_review_graph(criterion, **self.models(**options)))

    def compile(self, builder: StateGraph[Any, Any, Any, Any]) -> Graph:
        return builder.compile(store=self.store, checkpointer=self.saver)

    async def invoke(
        self, graph: Graph, graph_input: Any, on: str | None = "t", **options: Any
    ) -> Any:
        if self.awaits:
            return await graph.ainvoke(graph_input, thread(on), **options)
        return graph.invoke(graph_input, thread(on), **options)

    async def resume(self, graph: Graph, reply: Any, on: str = "t", **options: Any) -> Any:
        return await self.invoke(graph, Command(resume=reply), on, **options)

    async def review(self, graph: Graph, reply: Any, case: Any = CASE, on: str = "t") -> Any:
        """Judge a case and resume with the expert's reply."""
        interrupted = await self.invoke(graph, case, on)
        assert "__interrupt__" in interrupted
        return await self.resume(graph, reply, on)

    async def refuse(self, graph: Graph, reply: Any, on: str = "t") -> str:
        """Resume with an invalid reply; returns the error message."""
        with pytest.raises(ValueError) as caught:
            await self.resume(graph, reply, on)
        assert is_invalid_resume(caught.value)
        return str(caught.value)

    async def stream(
        self, graph: Graph, graph_input: Any, on: str = "t", **options: Any
    ) -> list[Any]:
        if self.awaits:
            return [part async for part in graph.astream(graph_input, thread(on), **options)]
        return list(graph.stream(graph_input, thread(on), **options))

    async def state(self, graph: Graph, on: str = "t") -> StateSnapshot:
        return await graph.aget_state(thread(on)) if self.awaits else graph.get_state(thread(on))

    def memory(self, criterion: Criterion = CRITERION, **options: Any) -> JudgeMemory:
        options.setdefault("embeddings", self.server.embedder())
        return JudgeMemory(self.store, criterion, **options)

    async def remember(self, *feedback: Mapping[str, Any], **options: Any) -> list[Episode]:
        values = [Feedback.model_validate(feedback) for feedback in feedback]
        memory = self.memory(**options)
        return await memory.aremember(values) if self.awaits else memory.remember(values)

    async def episodes(self, **options: Any) -> list[Episode]:
        memory = self.memory(**options)
        return await memory.aepisodes() if self.awaits else memory.episodes()

    async def guidelines(self, **options: Any) -> list[Guideline]:
        memory = self.memory(**options)
        return await memory.aguidelines() if self.awaits else memory.guidelines()

    async def add_guideline(self, text: str, **options: Any) -> Guideline:
        memory = self.memory(**options)
        return await memory.aadd_guideline(text) if self.awaits else memory.add_guideline(text)

    def teach(self, text: str, *episodes: Episode, question: str | None = None) -> None:
        """Learn a guideline from some feedback."""
        read = {episode.id: episode.word for episode in episodes}
        lesson = GuidelineOperation(
            action="add", text=text, question=question, episode_ids=list(read)
        )
        run_sync(commit_lesson(SYNC, self.memory().access, [lesson], read))

    async def call(self, target: Any, method: str, *args: Any, **options: Any) -> Any:
        """Call the sync or the async method of a memory or store."""
        if self.awaits:
            return await getattr(target, f"a{method}")(*args, **options)
        return getattr(target, method)(*args, **options)

    def models(self, **options: Any) -> dict[str, Any]:
        """Return options with the server's models."""
        return {"model": self.server.chat_model(), "embeddings": self.server.embedder(), **options}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Parametrize a test marked `every_way` over all variants of its fixture, or the named ones."""
    marker = metafunc.definition.get_closest_marker("every_way")
    params_by_fixture = {
        "bench": WAYS,
        "drive": ("blocking", "awaiting"),
        "call": ("sync", "async"),
    }
    if marker is not None:
        for fixture in params_by_fixture.keys() & set(metafunc.fixturenames):
            metafunc.parametrize(fixture, marker.args or params_by_fixture[fixture], indirect=True)


@pytest.fixture(scope="session")
def running_server() -> Iterator[LoopbackServer]:
    with LoopbackServer() as running:
        yield running


@pytest.fixture(scope="session")
def closing_server() -> Iterator[LoopbackServer]:
    """A server that closes connections: clients of models from strings are never closed."""
    with LoopbackServer(keep_alive=False) as running:
        yield running


@pytest.fixture
def environment_server(
    closing_server: LoopbackServer, monkeypatch: pytest.MonkeyPatch
) -> Iterator[LoopbackServer]:
    """The server of models from strings."""
    closing_server.reset()
    for name, value in closing_server.environment.items():
        monkeypatch.setenv(name, value)
    yield closing_server
    assert closing_server.errors == []


@pytest.fixture(autouse=True)
def no_silent_models(monkeypatch: pytest.MonkeyPatch) -> None:
    """No earlier test's model is known to give no log-probabilities."""
    monkeypatch.setattr(confidence, "_without_logprobs", {})


@pytest.fixture
def server(running_server: LoopbackServer) -> Iterator[LoopbackServer]:
    running_server.reset()
    yield running_server
    errors = list(running_server.errors)
    running_server.reset()
    assert errors == []


@pytest.fixture
async def bench(
    request: pytest.FixtureRequest, server: LoopbackServer, tmp_path: Path
) -> AsyncIterator[Bench]:
    """A test bench for the default variant, or for every variant with `EVERY_WAY`."""
    way = getattr(request, "param", "memory-sync")
    async with AsyncExitStack() as stack:
        store, saver = await open_way(request, way, tmp_path, stack)
        yield Bench(server, store, saver, awaits=way.endswith("async"))


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[str]:
    with postgres.server() as uri:
        yield uri


@pytest.fixture
def postgres_uri(postgres_server: str) -> Iterator[str]:
    """The connection string of a new database that has the store's tables."""
    with postgres.database(postgres_server) as uri:
        yield uri


async def open_postgres(
    uri: str, stack: AsyncExitStack, *, awaits: bool
) -> tuple[BaseStore, BaseCheckpointSaver[Any]]:
    from langgraph.checkpoint.postgres import PostgresSaver
    from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
    from langgraph.store.postgres import AsyncPostgresStore, PostgresStore

    if not awaits:
        store = stack.enter_context(PostgresStore.from_conn_string(uri))
        return store, stack.enter_context(PostgresSaver.from_conn_string(uri))
    opened = await stack.enter_async_context(AsyncPostgresStore.from_conn_string(uri))
    return opened, await stack.enter_async_context(AsyncPostgresSaver.from_conn_string(uri))


_UNSAFE = "PRAGMA synchronous=OFF"
"""A test needs no safety from power cuts."""


async def open_way(
    request: pytest.FixtureRequest, way: str, folder: Path, stack: AsyncExitStack
) -> tuple[BaseStore, BaseCheckpointSaver[Any]]:
    """Open the store and the checkpointer of a variant."""
    if way.startswith("postgres"):
        uri = request.getfixturevalue("postgres_uri")
        return await open_postgres(uri, stack, awaits=way.endswith("async"))
    store_file, saver_file = str(folder / "store.db"), str(folder / "threads.db")
    if way == "sqlite-sync":
        store = stack.enter_context(SqliteStore.from_conn_string(store_file))
        saver = stack.enter_context(SqliteSaver.from_conn_string(saver_file))
        for connection in (store.conn, saver.conn):
            connection.execute(_UNSAFE)
        store.setup()
        return store, saver
    if way == "sqlite-async":
        opened = await stack.enter_async_context(AsyncSqliteStore.from_conn_string(store_file))
        awaited = await stack.enter_async_context(AsyncSqliteSaver.from_conn_string(saver_file))
        for lent in (opened.conn, awaited.conn):
            await lent.execute(_UNSAFE)
        await opened.setup()
        return opened, awaited
    return InMemoryStore(), InMemorySaver()
