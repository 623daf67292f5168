"""Fixtures: every kind of store, sync and async, and reopened memories."""

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, closing
from pathlib import Path

import aiosqlite
import pytest
from langgraph.store.base import BaseStore
from langgraph.store.memory import InMemoryStore
from langgraph.store.sqlite import SqliteStore
from langgraph.store.sqlite.aio import AsyncSqliteStore

from memalign_graph import JudgeMemory
from memalign_graph.memory import view
from tests.conftest import open_postgres
from tests.loopback import LoopbackServer
from tests.unit_tests.memory.stores import Opener, connect, in_memory, opening
from tests.unit_tests.memory.support import CRITERION, Bench, hashed


@pytest.fixture
async def bench(
    request: pytest.FixtureRequest, server: LoopbackServer, tmp_path: Path
) -> AsyncIterator[Bench]:
    """A memory in the default store, or in every kind of store with `EVERY_STORE`."""
    kind, _, way = getattr(request, "param", "memory-sync").partition("-")
    async with AsyncExitStack() as stack:
        store: BaseStore
        if kind == "memory":
            store = InMemoryStore()
        elif kind == "sqlite":
            store = SqliteStore(stack.enter_context(closing(connect(tmp_path / "store.db"))))
        elif kind == "postgres":
            uri = request.getfixturevalue("postgres_uri")
            store, _ = await open_postgres(uri, stack, awaits=way == "async")
        else:
            connecting = aiosqlite.connect(tmp_path / "store.db", isolation_level=None)
            connection = await stack.enter_async_context(connecting)
            await connection.execute("PRAGMA synchronous=OFF")
            store = AsyncSqliteStore(connection)
        yield Bench(server, store, awaits=way == "async")


@pytest.fixture
def near(server: LoopbackServer) -> Bench:
    return Bench(server, InMemoryStore(), awaits=False)


@pytest.fixture
def memory() -> JudgeMemory:
    """A memory that needs no server."""
    return JudgeMemory(InMemoryStore(), CRITERION, embeddings=hashed)


@pytest.fixture
def opener(tmp_path: Path) -> Iterator[Opener]:
    with opening(tmp_path / "store.db") as opened:
        yield opened


@pytest.fixture(params=["memory", "sqlite"])
def any_opener(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Opener]:
    """Open another store on the same data, in memory or in a file."""
    if request.param == "memory":
        yield in_memory()
    else:
        with opening(tmp_path / "store.db") as opened:
            yield opened


@pytest.fixture
def reopen(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Clear this process's cache of memories."""

    def forget_views() -> None:
        monkeypatch.setattr(view, "_cache", view._Cache())

    return forget_views
