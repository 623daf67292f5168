"""A store and a checkpointer in a Postgres database (extra `postgres`), by its URL.

A pool tries a connection before it is lent, so that one that was cut is replaced.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from memalign_graph.errors import require_extra

if TYPE_CHECKING:
    from langgraph.checkpoint.postgres import PostgresSaver
    from langgraph.store.postgres import AsyncPostgresStore, PostgresStore

POOL_SIZE = 8
"""How many connections a store has at most."""

_SETTING_UP = 0x6D656D61
"""The advisory lock of who makes the tables."""


def is_postgres(place: object) -> bool:
    """Tell whether this is the URL of a Postgres database, and no path."""
    return str(place).startswith(("postgres://", "postgresql://"))


def without_secrets(url: str) -> str:
    """Return the URL of a database without user, password and options."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


@contextmanager
def open_postgres_store(url: str) -> Iterator["PostgresStore"]:
    """Open a LangGraph store, and make its tables where they are not there."""
    with require_extra("postgres", "a memory in Postgres"):
        from langgraph.store.postgres import PostgresStore
        from psycopg_pool import ConnectionPool

    pool: Any = {"max_size": POOL_SIZE, "check": ConnectionPool.check_connection}
    with _alone(url), PostgresStore.from_conn_string(url) as store:
        store.setup()
    with PostgresStore.from_conn_string(url, pool_config=pool) as store:
        yield store


@contextmanager
def open_postgres_checkpointer(url: str) -> Iterator["PostgresSaver"]:
    """Open a LangGraph checkpointer, and make its tables where they are not there."""
    with require_extra("postgres", "a checkpointer in Postgres"):
        from langgraph.checkpoint.postgres import PostgresSaver

    with PostgresSaver.from_conn_string(url) as saver:
        with _alone(url):
            saver.setup()
        yield saver


@asynccontextmanager
async def open_postgres_store_async(url: str) -> AsyncIterator["AsyncPostgresStore"]:
    """Open a LangGraph store for async use; else the same as `open_postgres_store`."""
    await asyncio.to_thread(_make, open_postgres_store, url)
    from langgraph.store.postgres import AsyncPostgresStore
    from psycopg_pool import AsyncConnectionPool

    check = AsyncConnectionPool.check_connection
    pool: Any = {"max_size": POOL_SIZE, "check": check, "open": False}
    async with AsyncPostgresStore.from_conn_string(url, pool_config=pool) as store:
        yield store


def has_table(url: str, name: str) -> bool:
    """Tell whether a database has a table."""
    with require_extra("postgres", "a memory in Postgres"):
        import psycopg

    with psycopg.connect(url, autocommit=True) as connection:
        return connection.execute("SELECT to_regclass(%s)", (name,)).fetchone() != (None,)


@contextmanager
def _alone(url: str) -> Iterator[None]:
    """Let one process at a time make tables, which is many steps and no transaction."""
    import psycopg

    with psycopg.connect(url, autocommit=True) as connection:
        # A statement that waited for the lock would hold up `CREATE INDEX CONCURRENTLY`.
        trying = "SELECT pg_try_advisory_lock(%s)"
        while connection.execute(trying, (_SETTING_UP,)).fetchone() != (True,):
            time.sleep(0.05)
        yield


def _make(opening: Callable[[str], Any], url: str) -> None:
    with opening(url):
        pass
