"""The store and the checkpointer in one SQLite file."""

import asyncio
import multiprocessing
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import TypedDict

import pytest
from langchain_core.runnables import RunnableConfig
from langgraph.graph import END, START, StateGraph

from memalign_graph.local.stores import (
    open_local_checkpointer,
    open_local_checkpointer_async,
    open_local_store,
    open_local_store_async,
)

SPACE = ("memalign", "tone", "episodes")


class State(TypedDict):
    count: int


def counting() -> "StateGraph[State, None, State, State]":
    builder = StateGraph(State)
    builder.add_node("add", lambda state: {"count": state["count"] + 1})
    builder.add_edge(START, "add")
    builder.add_edge("add", END)
    return builder


def pragma(connection: sqlite3.Connection, name: str) -> object:
    return connection.execute(f"PRAGMA {name}").fetchone()[0]


def test_store_keeps_items_in_a_new_folder(tmp_path: Path) -> None:
    path = tmp_path / "new" / "m.db"
    with open_local_store(path) as store:
        store.put(SPACE, "1", {"text": "cold"})
    with open_local_store(str(path)) as store:
        item = store.get(SPACE, "1")
        assert item is not None
        assert item.value == {"text": "cold"}


def test_files_use_wal_and_wait_30_s(tmp_path: Path) -> None:
    with open_local_store(tmp_path / "a.db") as store:
        assert pragma(store.conn, "journal_mode") == "wal"
        assert pragma(store.conn, "busy_timeout") == 30_000
    with open_local_checkpointer(tmp_path / "b.db") as saver:
        assert pragma(saver.conn, "journal_mode") == "wal"
        assert pragma(saver.conn, "busy_timeout") == 30_000


def test_connection_is_closed_after_the_block(tmp_path: Path) -> None:
    with open_local_store(tmp_path / "m.db") as store:
        pass
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        store.put(SPACE, "1", {})


def test_only_an_empty_lock_is_left_beside_the_file(tmp_path: Path) -> None:
    with open_local_store(tmp_path / "m.db") as store:
        store.put(SPACE, "1", {})
    assert sorted(item.name for item in tmp_path.iterdir()) == ["m.db", "m.db.lock"]
    assert (tmp_path / "m.db.lock").stat().st_size == 0


def test_one_file_holds_store_and_checkpoints(tmp_path: Path) -> None:
    path = tmp_path / "m.db"
    config: RunnableConfig = {"configurable": {"thread_id": "t"}}
    with open_local_store(path) as store, open_local_checkpointer(path) as saver:
        graph = counting().compile(store=store, checkpointer=saver)
        assert graph.invoke(State(count=1), config)["count"] == 2
        store.put(SPACE, "1", {})
    with open_local_checkpointer(path) as saver:
        graph = counting().compile(checkpointer=saver)
        assert graph.get_state(config).values == {"count": 2}


def test_store_may_be_used_from_many_threads(tmp_path: Path) -> None:
    with open_local_store(tmp_path / "m.db") as store, ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda i: store.put(SPACE, str(i), {"i": i}), range(100)))
        assert len(store.search(SPACE, limit=1000)) == 100


def test_a_file_that_is_no_database_is_told(tmp_path: Path) -> None:
    path = tmp_path / "m.db"
    path.write_text("certainly no database, but long enough to be read as one" * 20)
    with pytest.raises(sqlite3.DatabaseError), open_local_store(path):
        pass


async def test_async_twins_share_the_file(tmp_path: Path) -> None:
    path = tmp_path / "m.db"
    config: RunnableConfig = {"configurable": {"thread_id": "t"}}
    async with open_local_store_async(path) as store, open_local_checkpointer_async(path) as saver:
        graph = counting().compile(store=store, checkpointer=saver)
        result = await graph.ainvoke(State(count=1), config)
        assert result["count"] == 2
        await store.aput(SPACE, "1", {"text": "cold"})
        async with store.conn.execute("PRAGMA busy_timeout") as cursor:
            row = await cursor.fetchone()
        assert row is not None
        assert row[0] == 30_000
    with open_local_store(path) as plain:
        assert await asyncio.to_thread(plain.get, SPACE, "1") is not None


def _open_at_once(barrier: Barrier, folder: str, number: int) -> None:
    for turn in range(8):
        path = Path(folder) / f"{turn}.db"
        barrier.wait(60)
        try:
            if number % 3 == 0:
                with open_local_checkpointer(path) as saver:
                    saver.get_tuple({"configurable": {"thread_id": "t", "checkpoint_ns": ""}})
            else:
                with open_local_store(path) as store:
                    store.put(SPACE, str(number), {"n": number})
        except sqlite3.Error:
            barrier.abort()
            raise


def test_many_processes_may_open_the_same_new_file_at_once(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(6)
    workers = [
        context.Process(target=_open_at_once, args=(barrier, str(tmp_path), number), daemon=True)
        for number in range(6)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(120)
    assert [worker.exitcode for worker in workers] == [0] * 6
    for turn in range(8):
        with open_local_store(tmp_path / f"{turn}.db") as store:
            assert len(store.search(SPACE, limit=100)) == 4
