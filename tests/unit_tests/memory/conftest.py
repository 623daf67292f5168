"""Fixtures: every kind of store, sync and async, and reopened memories."""

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from langgraph.store.memory import InMemoryStore

from memalign_graph import JudgeMemory
from memalign_graph.memory import view
from tests.conftest import open_way
from tests.loopback import LoopbackServer
from tests.unit_tests.memory.stores import Opener, in_memory, opening
from tests.unit_tests.memory.support import CRITERION, Bench, hashed


@pytest.fixture
async def bench(
    request: pytest.FixtureRequest, server: LoopbackServer, tmp_path: Path
) -> AsyncIterator[Bench]:
    """A memory in the default store, or in every kind of store with `EVERY_STORE`."""
    way = getattr(request, "param", "memory-sync")
    # `SqliteStore` has no async calls, and takes those of async methods, too.
    opened = {"sqlite-async": "sqlite-sync", "aiosqlite-async": "sqlite-async"}.get(way, way)
    async with AsyncExitStack() as stack:
        store, _ = await open_way(request, opened, tmp_path, stack)
        yield Bench(server, store, awaits=way.endswith("async"))


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
