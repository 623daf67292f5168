"""The store and the checkpointer in one SQLite file."""

import asyncio
import multiprocessing
import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import AsyncExitStack, ExitStack
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any, TypedDict

import pytest
from langchain_core.runnables import RunnableConfig
from langgraph.graph import END, START, StateGraph
from langgraph.store.base import PutOp

from memalign_graph import InvalidInputError
from memalign_graph.local import stores
from memalign_graph.local.stores import (
    open_local_checkpointer,
    open_local_checkpointer_async,
    open_local_store,
    open_local_store_async,
    open_store,
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
    # Nothing but an empty lock is left beside the file.
    sizes = {item.name: item.stat().st_size for item in path.parent.iterdir()}
    assert sizes.keys() == {"m.db", "m.db.lock"}
    assert sizes["m.db.lock"] == 0
    with open_local_store(str(path)) as store, open_local_checkpointer(path) as saver:
        assert len(store.search(SPACE)) == 1
        for connection in (store.conn, saver.conn):
            assert pragma(connection, "journal_mode") == "wal"
            assert pragma(connection, "busy_timeout") == 30_000


class Hold:
    """Blocks an SQLite connection in its next statement until released."""

    def __init__(self) -> None:
        self.begun = threading.Event()
        self.let_go = threading.Event()

    def __call__(self) -> int:
        self.begun.set()
        self.let_go.wait(60)
        return 0


def test_close_waits_for_a_statement_of_another_thread(tmp_path: Path) -> None:
    def works(opened: ExitStack, is_store: bool) -> tuple[sqlite3.Connection, Any]:  # noqa: FBT001
        if is_store:
            store = opened.enter_context(open_local_store(tmp_path / "m.db"))
            return store.conn, lambda: store.put(SPACE, "1", {"text": "cold"})
        saver = opened.enter_context(open_local_checkpointer(tmp_path / "m.db"))
        return saver.conn, lambda: saver.delete_thread("t")

    for is_store in (True, False):
        opened, hold = ExitStack(), Hold()
        connection, work = works(opened, is_store)
        connection.set_progress_handler(hold, 1)
        with ThreadPoolExecutor(2) as pool:
            working = pool.submit(work)
            assert hold.begun.wait(60)
            closing = pool.submit(opened.close)
            assert wait([closing], 0.2).not_done
            hold.let_go.set()
            working.result(60)
            closing.result(60)
        with pytest.raises(sqlite3.ProgrammingError, match="closed"):
            work()
    with open_local_store(tmp_path / "m.db") as again:
        assert again.get(SPACE, "1") is not None


def test_closing_during_a_listing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stores, "BUSY_TIMEOUT_S", 0.1)
    with open_local_checkpointer(tmp_path / "m.db") as saver:
        graph = counting().compile(checkpointer=saver)
        graph.invoke(State(count=1), {"configurable": {"thread_id": "t"}})
        listing: Any = saver.list(None)
        newest = next(listing)
    assert next(listing) != newest
    listing.close()
    saver.conn.close()


async def test_close_waits_for_a_batch_of_another_task(tmp_path: Path) -> None:
    opened, hold = AsyncExitStack(), Hold()
    store = await opened.enter_async_context(open_local_store_async(tmp_path / "m.db"))
    await store.conn.set_progress_handler(hold, 1)
    writing = asyncio.create_task(store.abatch([PutOp(SPACE, "1", {"text": "cold"})]))
    assert await asyncio.to_thread(hold.begun.wait, 60)
    closing = asyncio.create_task(opened.aclose())
    await asyncio.sleep(0.05)
    hold.let_go.set()
    await asyncio.gather(writing, closing)
    async with open_local_store_async(tmp_path / "m.db") as again:
        assert await again.aget(SPACE, "1") is not None


async def test_sync_and_async_stores_share_the_file(tmp_path: Path) -> None:
    path = tmp_path / "m.db"
    config: RunnableConfig = {"configurable": {"thread_id": "t"}}
    async with open_local_store_async(path) as store, open_local_checkpointer_async(path) as saver:
        graph = counting().compile(store=store, checkpointer=saver)
        assert (await graph.ainvoke(State(count=1), config))["count"] == 2
        await store.aput(SPACE, "1", {"text": "cold"})
        async with store.conn.execute("PRAGMA busy_timeout") as cursor:
            assert await cursor.fetchone() == (30_000,)
    with open_local_store(path) as plain, open_local_checkpointer(path) as same:
        assert await asyncio.to_thread(plain.get, SPACE, "1") is not None
        again = counting().compile(checkpointer=same)
        assert (await asyncio.to_thread(again.get_state, config)).values == {"count": 2}


def _open_at_once(barrier: Barrier, folder: str, number: int) -> None:
    for turn in range(6):
        path = Path(folder) / f"{turn}.db"
        barrier.wait(300)
        try:
            if number == 0:
                with open_local_checkpointer(path) as saver:
                    saver.get_tuple({"configurable": {"thread_id": "t", "checkpoint_ns": ""}})
            else:
                with open_local_store(path) as store:
                    store.put(SPACE, str(number), {"n": number})
        except sqlite3.Error:
            barrier.abort()
            raise


def test_concurrent_processes_can_create_the_same_file(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(4)
    workers = [
        context.Process(target=_open_at_once, args=(barrier, str(tmp_path), number), daemon=True)
        for number in range(4)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(300)
    assert [worker.exitcode for worker in workers] == [0] * 4
    for path in tmp_path.glob("*.db"):
        with open_local_store(path) as store:
            assert len(store.search(SPACE)) == 3


def test_store_without_a_file_leaves_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with open_local_store(":memory:") as store:
        store.put(SPACE, "1", {"text": "cold"})
    assert list(tmp_path.iterdir()) == []


def test_another_database_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for url in ("sqlite:///x.db", "mysql://u:secret@h/x"):
        with pytest.raises(InvalidInputError, match="is not the URL of a Postgres") as caught:
            open_store(url)
        assert "secret" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []
