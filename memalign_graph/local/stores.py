"""LangGraph's store and checkpointer in one SQLite file, or in Postgres (extra `postgres`).

An SQLite file and its parent folders are created if missing, and processes may share it. Next to it
stays an empty `<path>.lock`. A connection is closed when its block ends, after running statements.
"""

import asyncio
import sqlite3
import time
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

from memalign_graph.errors import InvalidInputError, require_extra

if TYPE_CHECKING:  # lazily, so that `memalign --help` stays fast
    from langgraph.checkpoint.base import BaseCheckpointSaver
    from langgraph.checkpoint.sqlite import SqliteSaver
    from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
    from langgraph.store.base import BaseStore
    from langgraph.store.sqlite import AsyncSqliteStore, SqliteStore

BUSY_TIMEOUT_S = 30.0
"""How long a write waits for another process, and closing for running statements."""

POOL_SIZE = 8
"""The most connections of a Postgres store."""

_OWN_TRANSACTIONS, _SQLITES_TRANSACTIONS = None, "DEFERRED"
"""Isolation levels: a store starts its transactions itself, a checkpointer does not."""

_SETUP_LOCK_ID = 0x6D656D61
"""The Postgres advisory lock for creating tables."""


def is_postgres(place: object) -> bool:
    """Return whether this is the URL of a Postgres database, and not a path."""
    scheme, is_url, _ = str(place).partition("://")
    if is_url and scheme not in ("postgres", "postgresql"):  # it would become folders
        raise InvalidInputError(
            f"store: {without_secrets(str(place))} is not the URL of a Postgres database. Use the "
            "path of a file, or a URL that begins with postgresql://."
        )
    return bool(is_url)


def without_secrets(url: str) -> str:
    """Return the URL of a database without user, password and options, and a path as it is."""
    scheme, is_url, rest = url.partition("://")
    if not is_url:
        return url
    user, _, place = rest.rpartition("@")
    # A "?" before an "@" begins the options or is part of the password.
    return f"{scheme}://{'...' if '?' in user else place.partition('?')[0]}"


def open_store(place: str | Path) -> AbstractContextManager["BaseStore"]:
    """Open a LangGraph store in a file, or in Postgres by a `postgresql://` URL."""
    return _open_postgres_store(str(place)) if is_postgres(place) else open_local_store(place)


def open_store_async(place: str | Path) -> AbstractAsyncContextManager["BaseStore"]:
    """Open a LangGraph store as `open_store` does, for async use."""
    if is_postgres(place):
        return _open_postgres_store_async(str(place))
    return open_local_store_async(place)


def open_checkpointer(place: str | Path) -> AbstractContextManager["BaseCheckpointSaver[Any]"]:
    """Open a LangGraph checkpointer where `open_store` opens a store."""
    if is_postgres(place):
        return _open_postgres_checkpointer(str(place))
    return open_local_checkpointer(place)


def open_local_store(path: str | Path) -> AbstractContextManager["SqliteStore"]:
    """Open a LangGraph store in a file, which threads and processes may share."""
    with require_extra("local", "open_local_store"):
        from langgraph.store.sqlite import SqliteStore

    return _open_sqlite(path, SqliteStore, _OWN_TRANSACTIONS)


def open_local_checkpointer(path: str | Path) -> AbstractContextManager["SqliteSaver"]:
    """Open a LangGraph checkpointer in a file, which may be a store's."""
    with require_extra("local", "open_local_checkpointer"):
        from langgraph.checkpoint.sqlite import SqliteSaver

    return _open_sqlite(path, SqliteSaver, _SQLITES_TRANSACTIONS)


@asynccontextmanager
async def open_local_store_async(path: str | Path) -> AsyncIterator["AsyncSqliteStore"]:
    """Open a LangGraph store as `open_local_store` does, for async use."""
    await asyncio.to_thread(_create_tables, open_local_store, path)
    from langgraph.store.sqlite import AsyncSqliteStore

    async with _open_sqlite_async(path, AsyncSqliteStore, _OWN_TRANSACTIONS) as store:
        yield store


@asynccontextmanager
async def open_local_checkpointer_async(path: str | Path) -> AsyncIterator["AsyncSqliteSaver"]:
    """Open a LangGraph checkpointer as `open_local_checkpointer` does, for async use."""
    await asyncio.to_thread(_create_tables, open_local_checkpointer, path)
    from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

    async with _open_sqlite_async(path, AsyncSqliteSaver, _SQLITES_TRANSACTIONS) as saver:
        yield saver


def _create_tables(opening: Callable[[Any], Any], place: str | Path) -> None:
    with opening(place):
        pass


@contextmanager
def _open_sqlite(
    path: str | Path, kind: Callable[[sqlite3.Connection], Any], isolation_level: Any
) -> Iterator[Any]:
    store_or_saver = kind(_connect(path, isolation_level))
    try:
        # Creating tables takes several transactions: one process at a time.
        lock_path = path if str(path) == ":memory:" else f"{path}.lock"
        with closing(_connect(lock_path, _OWN_TRANSACTIONS)) as lock:
            lock.execute("BEGIN EXCLUSIVE")
            store_or_saver.conn.execute("PRAGMA journal_mode=WAL").close()
            store_or_saver.setup()
        yield store_or_saver
    finally:
        # Closing a connection that another thread uses crashes the process. A holder that keeps the
        # lock for longer, such as an unfinished `list()`, also keeps the connection alive. It is
        # closed with its last reference.
        if store_or_saver.lock.acquire(timeout=BUSY_TIMEOUT_S):
            store_or_saver.conn.close()
            store_or_saver.lock.release()


@asynccontextmanager
async def _open_sqlite_async(
    path: str | Path, kind: Callable[[Any], Any], isolation_level: Any
) -> AsyncIterator[Any]:
    import aiosqlite

    async with aiosqlite.connect(
        path, timeout=BUSY_TIMEOUT_S, isolation_level=isolation_level
    ) as connection:
        store_or_saver = kind(connection)
        try:
            await store_or_saver.setup()
            yield store_or_saver
        finally:
            # Not while a task is between two of its statements.
            with suppress(TimeoutError):
                async with asyncio.timeout(BUSY_TIMEOUT_S), store_or_saver.lock:
                    await connection.close()


def _connect(path: str | Path, isolation_level: Any) -> sqlite3.Connection:
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    return sqlite3.connect(
        path,
        timeout=BUSY_TIMEOUT_S,
        check_same_thread=False,  # stores and checkpointers have their own locks
        isolation_level=isolation_level,
    )


@contextmanager
def _open_postgres_store(url: str) -> Iterator["BaseStore"]:
    with require_extra("postgres", "a memory in Postgres"):
        from langgraph.store.postgres import PostgresStore
        from psycopg_pool import ConnectionPool

    # Each connection is tested before use, and replaced if it is broken.
    pool: Any = {"max_size": POOL_SIZE, "check": ConnectionPool.check_connection}
    _set_up(url, PostgresStore, "store_migrations")
    with PostgresStore.from_conn_string(url, pool_config=pool) as store:
        yield store


@asynccontextmanager
async def _open_postgres_store_async(url: str) -> AsyncIterator["BaseStore"]:
    await asyncio.to_thread(_create_tables, _open_postgres_store, url)
    from langgraph.store.postgres import AsyncPostgresStore
    from psycopg_pool import AsyncConnectionPool

    check = AsyncConnectionPool.check_connection
    pool: Any = {"max_size": POOL_SIZE, "check": check, "open": False}
    async with AsyncPostgresStore.from_conn_string(url, pool_config=pool) as store:
        yield store


@contextmanager
def _open_postgres_checkpointer(url: str) -> Iterator["BaseCheckpointSaver[Any]"]:
    with require_extra("postgres", "a checkpointer in Postgres"):
        from langgraph.checkpoint.postgres import PostgresSaver

    _set_up(url, PostgresSaver, "checkpoint_migrations")
    with PostgresSaver.from_conn_string(url) as saver:
        yield saver


def _set_up(url: str, kind: Any, migrations: str) -> None:
    """Create the tables that are missing, one process at a time; it takes several transactions."""
    import psycopg

    with psycopg.connect(url, prepare_threshold=None) as connection:
        # The lock ends with its transaction: a pooler would keep that of a session. Waiting for it
        # inside a statement, or a snapshot, which a statement with parameters also keeps, would
        # block `CREATE INDEX CONCURRENTLY`.
        connection.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
        if has_postgres_table(url, migrations):
            # A role that may not create tables can use complete ones.
            query = f"SELECT max(v) >= %s FROM {migrations}"  # noqa: S608 - a constant
            if connection.execute(query, (len(kind.MIGRATIONS) - 1,)).fetchone() == (True,):
                return
            connection.rollback()
        query = f"SELECT pg_try_advisory_xact_lock({_SETUP_LOCK_ID})"
        while connection.execute(query).fetchone() != (True,):
            connection.rollback()
            time.sleep(0.05)
        with kind.from_conn_string(url) as made:
            made.setup()


def has_postgres_table(url: str, name: str) -> bool:
    with require_extra("postgres", "a memory in Postgres"):
        import psycopg

    with psycopg.connect(url, autocommit=True) as connection:
        return connection.execute("SELECT to_regclass(%s)", (name,)).fetchone() != (None,)
