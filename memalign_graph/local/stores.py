"""A store and a checkpointer in one SQLite file, safe to share between processes.

The file is made with its parent folders if it is not there. A connection is closed when its block
ends, after what is under way. Beside the file stays an empty one, `<path>.lock`.
`open_store` and its like also take the URL of a Postgres database.
"""

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    asynccontextmanager,
    closing,
    contextmanager,
    suppress,
)
from pathlib import Path
from typing import TYPE_CHECKING, Any

from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.store.base import BaseStore

from memalign_graph.errors import require_extra
from memalign_graph.local import postgres

if TYPE_CHECKING:
    from langgraph.checkpoint.sqlite import SqliteSaver
    from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
    from langgraph.store.sqlite import AsyncSqliteStore, SqliteStore

BUSY_TIMEOUT_S = 30.0
"""How long a write waits for another process's, and closing for what is under way."""

_OWN_TRANSACTIONS, _SQLITES_TRANSACTIONS = None, "DEFERRED"
"""The isolation level of a store, which opens its transactions itself, and of a checkpointer."""


def open_store(place: str | Path) -> AbstractContextManager[BaseStore]:
    """Open a LangGraph store: in a file, or in Postgres where a `postgresql://` URL is given."""
    if postgres.is_postgres(place):
        return postgres.open_postgres_store(str(place))
    return open_local_store(place)


def open_store_async(place: str | Path) -> AbstractAsyncContextManager[BaseStore]:
    """Open a LangGraph store for async use; else the same as `open_store`."""
    if postgres.is_postgres(place):
        return postgres.open_postgres_store_async(str(place))
    return open_local_store_async(place)


def open_checkpointer(place: str | Path) -> AbstractContextManager[BaseCheckpointSaver[Any]]:
    """Open a LangGraph checkpointer where `open_store` opens a store."""
    if postgres.is_postgres(place):
        return postgres.open_postgres_checkpointer(str(place))
    return open_local_checkpointer(place)


@contextmanager
def open_local_store(path: str | Path) -> Iterator["SqliteStore"]:
    """Open a LangGraph store in a file; many threads and processes may have it open."""
    with require_extra("local", "open_local_store"):
        from langgraph.store.sqlite import SqliteStore

    with _opened(path, SqliteStore, _OWN_TRANSACTIONS) as store:
        yield store


@contextmanager
def open_local_checkpointer(path: str | Path) -> Iterator["SqliteSaver"]:
    """Open a LangGraph checkpointer in a file, which may be a store's."""
    with require_extra("local", "open_local_checkpointer"):
        from langgraph.checkpoint.sqlite import SqliteSaver

    with _opened(path, SqliteSaver, _SQLITES_TRANSACTIONS) as saver:
        yield saver


@asynccontextmanager
async def open_local_store_async(path: str | Path) -> AsyncIterator["AsyncSqliteStore"]:
    """Open a LangGraph store for async use; else the same as `open_local_store`."""
    await asyncio.to_thread(_make, open_local_store, path)
    from langgraph.store.sqlite import AsyncSqliteStore

    async with _opened_async(path, AsyncSqliteStore, _OWN_TRANSACTIONS) as store:
        yield store


@asynccontextmanager
async def open_local_checkpointer_async(path: str | Path) -> AsyncIterator["AsyncSqliteSaver"]:
    """Open a LangGraph checkpointer for async use; else the same as `open_local_checkpointer`."""
    await asyncio.to_thread(_make, open_local_checkpointer, path)
    from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

    async with _opened_async(path, AsyncSqliteSaver, _SQLITES_TRANSACTIONS) as saver:
        yield saver


@contextmanager
def _opened(
    path: str | Path, kind: Callable[[sqlite3.Connection], Any], isolation_level: Any
) -> Iterator[Any]:
    owner = kind(_connect(path, isolation_level))
    try:
        # One process at a time makes the tables, which is many steps and no transaction.
        with closing(_connect(f"{path}.lock", _OWN_TRANSACTIONS)) as lock:
            lock.execute("BEGIN EXCLUSIVE")
            owner.conn.execute("PRAGMA journal_mode=WAL").close()
            owner.setup()
        yield owner
    finally:
        # Closing a connection that a thread is in crashes the process. Who holds the lock for
        # longer, such as `list()` left half-way, refers to the connection, too, which then closes
        # itself when the last reference to it goes.
        if owner.lock.acquire(timeout=BUSY_TIMEOUT_S):
            try:
                owner.conn.close()
            finally:
                owner.lock.release()


@asynccontextmanager
async def _opened_async(
    path: str | Path, kind: Callable[[Any], Any], isolation_level: Any
) -> AsyncIterator[Any]:
    import aiosqlite

    async with aiosqlite.connect(
        path, timeout=BUSY_TIMEOUT_S, isolation_level=isolation_level
    ) as connection:
        owner = kind(connection)
        try:
            await owner.setup()
            yield owner
        finally:
            # Not while a task is between two of its statements.
            with suppress(TimeoutError):
                async with asyncio.timeout(BUSY_TIMEOUT_S), owner.lock:
                    await connection.close()


def _make(opening: Callable[[str | Path], Any], path: str | Path) -> None:
    with opening(path):
        pass


def _connect(path: str | Path, isolation_level: Any) -> sqlite3.Connection:
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    return sqlite3.connect(
        path,
        timeout=BUSY_TIMEOUT_S,
        check_same_thread=False,  # Both have locks of their own.
        isolation_level=isolation_level,
    )
