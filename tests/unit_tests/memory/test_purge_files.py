"""Purging removes bytes from SQLite files, or warns if it cannot."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import aiosqlite
import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.store.base import BaseStore, Op, Result
from langgraph.store.memory import InMemoryStore
from langgraph.store.sqlite import SqliteStore
from langgraph.store.sqlite.aio import AsyncSqliteStore

from memalign_graph import JudgeMemory
from memalign_graph.local import open_local_checkpointer, open_local_store
from memalign_graph.memory.purge import Forgotten
from tests.unit_tests.memory.purging import (
    MARK,
    ask,
    fill,
    holding,
    keep_deleted,
    planted,
    threads_in,
)
from tests.unit_tests.memory.support import CRITERION, QUERY, comment, hashed

IN_USE = "The SQLite file of the {} is in use by another connection"
CASE = planted(inputs="It is about zqxin-7, she says.")
CARRIED = f"{CASE.example.inputs} {CASE.episode_id}"


def open_file(path: Path, **options: Any) -> sqlite3.Connection:
    opened: sqlite3.Connection = sqlite3.connect(
        path, check_same_thread=False, **{"isolation_level": None, **options}
    )
    opened.execute("PRAGMA secure_delete=OFF")
    return opened


@pytest.fixture
def connection(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    with closing(open_file(tmp_path / "store.db", timeout=0.2)) as opened:
        yield opened


def opened_memory(store: BaseStore) -> JudgeMemory:
    return JudgeMemory(store, CRITERION, embeddings=hashed)


def check(forgotten: Forgotten, *warnings: str, threads: Any = ()) -> None:
    """Check the purged ids and the beginnings of the warnings."""
    assert forgotten.purged is not None
    assert forgotten.purged.thread_ids == [*threads]
    result = forgotten.purged.warnings
    assert len(result) == len(warnings)
    assert all(item.startswith(warning) for item, warning in zip(result, warnings, strict=True))


@pytest.mark.parametrize("mode", ["DELETE", "WAL"])
def test_purge_leaves_no_byte(connection: sqlite3.Connection, tmp_path: Path, mode: str) -> None:
    connection.execute(f"PRAGMA journal_mode={mode}")
    memory, one = fill(SqliteStore(connection))
    memory.remember([comment(f"case {number}", "x" * 3_000) for number in range(20)])
    memory.remember(planted(inputs=f"{MARK} at length " * 4_000, id="long", author="zqxlong"))
    memory.forget(author="zqxlong")
    assert "store.db" in "".join(holding(tmp_path))
    for author in (one.author, "zqxlong"):
        check(memory.forget(author=author, purge=True, checkpointer=InMemorySaver()))
    assert holding(tmp_path) == []
    assert len(memory.recall(QUERY, k=100)) == 22
    assert connection.execute("PRAGMA journal_mode").fetchone()[0].upper() == mode


@pytest.mark.parametrize("one_file", [True, False])
async def test_purge_of_the_local_store_and_checkpointer(tmp_path: Path, *, one_file: bool) -> None:
    store_file = tmp_path / "store.db"
    threads_file = store_file if one_file else tmp_path / "threads.db"
    with open_local_store(store_file) as store, open_local_checkpointer(threads_file) as saver:
        await keep_deleted(store, saver)
        memory = opened_memory(store)
        ask(saver, "t", CARRIED)
        ask(saver, "clean", "Something else altogether.")
        memory.remember(CASE)
        assert len(holding(tmp_path)) > 0
        forgotten = memory.forget(author="zqxann", purge=True, checkpointer=saver)
        check(forgotten, threads=["t"])
        assert holding(tmp_path) == []
        assert threads_in(saver) == {"clean"}


async def test_purge_of_sync_files_from_an_event_loop(tmp_path: Path) -> None:
    store_file, saver_file = str(tmp_path / "store.db"), str(tmp_path / "threads.db")
    with (
        SqliteStore.from_conn_string(store_file) as store,
        SqliteSaver.from_conn_string(saver_file) as saver,
    ):
        store.setup()
        await keep_deleted(store, saver)
        memory = opened_memory(store)
        ask(saver, "t", CARRIED)
        await memory.aremember(CASE)
        forgotten = await memory.aforget(author="zqxann", purge=True, checkpointer=saver)
        check(forgotten, threads=["t"])
    assert holding(tmp_path) == []


async def test_open_reader_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "threads.db"
    async with aiosqlite.connect(path, isolation_level=None, timeout=0.2) as connection:
        await connection.execute("PRAGMA journal_mode=WAL")
        await connection.execute("PRAGMA secure_delete=OFF")
        memory = opened_memory(AsyncSqliteStore(connection))
        await memory.aremember(CASE)
        with closing(open_file(path, timeout=0.2)) as opened:
            saver = SqliteSaver(opened)
            ask(saver, "t", CARRIED)
            options: Any = {"author": "zqxann", "purge": True, "checkpointer": saver}
            with closing(open_file(path)) as reader:
                reader.execute("BEGIN")
                reader.execute("SELECT * FROM checkpoints").fetchone()
                forgotten = await memory.aforget(**options)
                check(forgotten, *map(IN_USE.format, ("store", "checkpointer")), threads=["t"])
                assert holding(tmp_path) != []
            check(await memory.aforget(**options))
            assert holding(tmp_path) == []


class Kept(InMemorySaver):
    """A store known to be in memory."""


class Elsewhere(BaseStore):
    """A store of an unknown kind."""

    def __init__(self) -> None:
        self._inner = InMemoryStore()

    def batch(self, ops: Any) -> list[Result]:
        operations: list[Op] = list(ops)
        return self._inner.batch(operations)

    async def abatch(self, ops: Any) -> list[Result]:
        return self.batch(ops)


@pytest.mark.parametrize("awaits", [False, True])
async def test_store_of_an_unknown_kind_is_purged_with_a_warning(*, awaits: bool) -> None:
    memory, one = fill(Elsewhere())
    options: dict[str, Any] = {"purge": True, "checkpointer": Kept()}
    done = await memory.aforget(one.id, **options) if awaits else memory.forget(one.id, **options)
    check(done, "Elsewhere: the items are deleted. Whether their bytes are gone")
    assert MARK not in memory.export_jsonl()
