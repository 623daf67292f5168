"""A store and a checkpointer in one SQLite file, safe to share between processes."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from memalign_graph.extras import needs_extra

if TYPE_CHECKING:
    from langgraph.checkpoint.sqlite import SqliteSaver
    from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
    from langgraph.store.sqlite import AsyncSqliteStore, SqliteStore

BUSY_TIMEOUT_S = 30.0
"""How long a write waits for another process's, before it fails as locked."""


@contextmanager
def open_local_store(path: str | Path) -> Iterator["SqliteStore"]:
    """Open a LangGraph store in a file, made with its parent folders if it is not there.

    It is ready to use, has no vector index, may be used from many threads, and may be open in many
    processes at once. One file can hold a store and a checkpointer. Beside it stays an empty file,
    `<path>.lock`.

    Args:
        path: The file.

    Yields:
        The store; its connection is closed when the block ends.

    Raises:
        ImportError: If the extra `local` is not installed.
        OSError: If the parent folder cannot be made.
        sqlite3.Error: If the file cannot be opened, or is no SQLite file.
    """
    with needs_extra("local", "open_local_store"):
        from langgraph.store.sqlite import SqliteStore

    with closing(_connect(path, autocommit=True)) as connection:
        store = SqliteStore(connection)
        with _alone(path):
            _use_wal(connection)
            store.setup()
        yield store


@contextmanager
def open_local_checkpointer(path: str | Path) -> Iterator["SqliteSaver"]:
    """Open a LangGraph checkpointer in a file, made with its parent folders if it is not there.

    Args:
        path: The file; it may be a store's.

    Yields:
        The checkpointer, ready to use; its connection is closed when the block ends.

    Raises:
        ImportError: If the extra `local` is not installed.
        OSError: If the parent folder cannot be made.
        sqlite3.Error: If the file cannot be opened, or is no SQLite file.
    """
    with needs_extra("local", "open_local_checkpointer"):
        from langgraph.checkpoint.sqlite import SqliteSaver

    with closing(_connect(path, autocommit=False)) as connection:
        saver = SqliteSaver(connection)
        with _alone(path):
            _use_wal(connection)
            saver.setup()
        yield saver


@asynccontextmanager
async def open_local_store_async(path: str | Path) -> AsyncIterator["AsyncSqliteStore"]:
    """Open a LangGraph store for async use; else the same as `open_local_store`.

    Args:
        path: The file.

    Yields:
        The store; its connection is closed when the block ends.

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
        await store.setup()
        yield store


@asynccontextmanager
async def open_local_checkpointer_async(path: str | Path) -> AsyncIterator["AsyncSqliteSaver"]:
    """Open a LangGraph checkpointer for async use; else the same as `open_local_checkpointer`.

    Args:
        path: The file; it may be a store's.

    Yields:
        The checkpointer; its connection is closed when the block ends.

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
        await saver.setup()
        yield saver


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
