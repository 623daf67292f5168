"""A store and a checkpointer in one SQLite file, safe to share between processes."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from memalign_graph.errors import needs_extra

if TYPE_CHECKING:
    from langgraph.checkpoint.sqlite import SqliteSaver
    from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
    from langgraph.store.sqlite import AsyncSqliteStore, SqliteStore

BUSY_TIMEOUT_S = 30.0
"""How long a write waits for another process's, and closing for what is under way."""


@contextmanager
def open_local_store(path: str | Path) -> Iterator["SqliteStore"]:
    """Open a LangGraph store in a file, made with its parent folders if it is not there.

    It is ready to use, has no vector index, may be used from many threads, and may be open in many
    processes at once. One file can hold a store and a checkpointer. Beside it stays an empty file,
    `<path>.lock`.

    Args:
        path: The file.

    Yields:
        The store; its connection is closed when the block ends, after what is under way.

    Raises:
        ImportError: If the extra `local` is not installed.
        OSError: If the parent folder cannot be made.
        sqlite3.Error: If the file cannot be opened, or is no SQLite file.
    """
    with needs_extra("local", "open_local_store"):
        from langgraph.store.sqlite import SqliteStore

    store = SqliteStore(_connect(path, autocommit=True))
    with _closing_when_idle(store):
        with _alone(path):
            _use_wal(store.conn)
            store.setup()
        yield store


@contextmanager
def open_local_checkpointer(path: str | Path) -> Iterator["SqliteSaver"]:
    """Open a LangGraph checkpointer in a file, made with its parent folders if it is not there.

    Args:
        path: The file; it may be a store's.

    Yields:
        The checkpointer, ready to use; its connection is closed when the block ends, after what is
        under way.

    Raises:
        ImportError: If the extra `local` is not installed.
        OSError: If the parent folder cannot be made.
        sqlite3.Error: If the file cannot be opened, or is no SQLite file.
    """
    with needs_extra("local", "open_local_checkpointer"):
        from langgraph.checkpoint.sqlite import SqliteSaver

    saver = SqliteSaver(_connect(path, autocommit=False))
    with _closing_when_idle(saver):
        with _alone(path):
            _use_wal(saver.conn)
            saver.setup()
        yield saver


@asynccontextmanager
async def open_local_store_async(path: str | Path) -> AsyncIterator["AsyncSqliteStore"]:
    """Open a LangGraph store for async use; else the same as `open_local_store`.

    Args:
        path: The file.

    Yields:
        The store; its connection is closed when the block ends, after what is under way.

    Raises:
        ImportError: If the extra `local` is not installed.
        OSError: If the parent folder cannot be made.
        sqlite3.Error: If the file cannot be opened, or is no SQLite file.
    """
    with needs_extra("local", "open_local_store_async"):
        import aiosqlite
        from langgraph.store.sqlite import AsyncSqliteStore

    await asyncio.to_thread(_make_store, path)
    async with aiosqlite.connect(path, timeout=BUSY_TIMEOUT_S, isolation_level=None) as connection:
        store = AsyncSqliteStore(connection)
        async with _closing_when_idle_async(store):
            await store.setup()
            yield store


@asynccontextmanager
async def open_local_checkpointer_async(path: str | Path) -> AsyncIterator["AsyncSqliteSaver"]:
    """Open a LangGraph checkpointer for async use; else the same as `open_local_checkpointer`.

    Args:
        path: The file; it may be a store's.

    Yields:
        The checkpointer; its connection is closed when the block ends, after what is under way.

    Raises:
        ImportError: If the extra `local` is not installed.
        OSError: If the parent folder cannot be made.
        sqlite3.Error: If the file cannot be opened, or is no SQLite file.
    """
    with needs_extra("local", "open_local_checkpointer_async"):
        import aiosqlite
        from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

    await asyncio.to_thread(_make_checkpointer, path)
    async with aiosqlite.connect(path, timeout=BUSY_TIMEOUT_S) as connection:
        saver = AsyncSqliteSaver(connection)
        async with _closing_when_idle_async(saver):
            await saver.setup()
            yield saver


@contextmanager
def _closing_when_idle(owner: "SqliteStore | SqliteSaver") -> Iterator[None]:
    """Close a connection once no thread is in it: closing it under one crashes the process."""
    try:
        yield
    finally:
        # Who holds the lock for longer, such as `list()` left half-way, refers to the connection,
        # too, which then closes itself when the last reference to it goes.
        if owner.lock.acquire(timeout=BUSY_TIMEOUT_S):
            try:
                owner.conn.close()
            finally:
                owner.lock.release()


@asynccontextmanager
async def _closing_when_idle_async(
    owner: "AsyncSqliteStore | AsyncSqliteSaver",
) -> AsyncIterator[None]:
    """Close a connection once no task is between two of its statements."""
    try:
        yield
    finally:
        with suppress(TimeoutError):
            async with asyncio.timeout(BUSY_TIMEOUT_S), owner.lock:
                await owner.conn.close()


def _make_store(path: str | Path) -> None:
    with open_local_store(path):
        pass


def _make_checkpointer(path: str | Path) -> None:
    with open_local_checkpointer(path):
        pass


def _connect(path: str | Path, *, autocommit: bool) -> sqlite3.Connection:
    """Open the file; a store opens its transactions itself, a checkpointer leaves it to sqlite3."""
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    return sqlite3.connect(
        path,
        timeout=BUSY_TIMEOUT_S,
        check_same_thread=False,  # Both have locks of their own.
        isolation_level=None if autocommit else "DEFERRED",
    )


def _use_wal(connection: sqlite3.Connection) -> None:
    connection.execute("PRAGMA journal_mode=WAL").close()


@contextmanager
def _alone(path: str | Path) -> Iterator[None]:
    """Let one process at a time make the tables, which is many steps and no transaction."""
    with closing(_connect(f"{path}.lock", autocommit=True)) as lock:
        lock.execute("BEGIN EXCLUSIVE")
        yield
