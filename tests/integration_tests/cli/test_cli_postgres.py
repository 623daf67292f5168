"""The command line with a memory in Postgres."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from memalign_graph.local import open_checkpointer, open_store
from tests import postgres
from tests.integration_tests.cli.support import ANN, BOB, Shell

pytestmark = pytest.mark.postgres


@pytest.fixture
def url(postgres_server: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The URL of an empty database, with an unused password."""
    with postgres.database(postgres_server, empty=True) as uri:
        secret = uri.replace("postgres:@", "postgres:s3cret@")
        monkeypatch.setenv("MEMALIGN_STORE", secret)
        yield secret


def test_memory_in_postgres_is_created_used_shown_and_exported(shell: Shell, url: str) -> None:
    ran = shell.memory("list")
    name = url.partition("?")[0].replace("postgres:s3cret@", "")
    assert ran.status == 2
    assert ran.error.startswith(f"--memory: {name} has no memory: `memalign align` makes one")
    ran = shell.align(ANN, BOB)
    assert ran.status == 0, ran.err
    assert f"memory {name} (namespace memalign" in ran.err
    assert "s3cret" not in ran.err + ran.out
    ran = shell.judge({name: ANN[name] for name in ("inputs", "outputs")}, options=["--json"])
    assert ran.lines[0]["judgment"]["guideline_ids"] == [shell.ids()["guideline"]]
    [first, *_] = shell.memory("history", "--json").document["commits"]
    assert shell.memory("forget", shell.ids()["bob"], "--yes").status == 0
    document = shell.memory("rollback", first["version"], "--json").document
    assert document["version_before"] != document["version"] == first["version"]
    assert shell.memory("export", "memory.jsonl").status == 0
    ran = shell.memory("import", "memory.jsonl", "--memory", "copy.db", "--json")
    assert ran.document["version"] == first["version"]
    ran = shell.memory("list", "--namespace", "elsewhere")
    assert "It has: memalign.support_tone." in ran.error
    assert not (shell.folder / "memalign.db").exists()


def test_purge_erases_threads_in_the_same_database(shell: Shell, url: str) -> None:
    with open_store(url) as store, open_checkpointer(url) as checkpointer:
        shell.review_on_a_thread(store, checkpointer)
        output = shell.memory("forget", "--author", "ann", "--purge", "--yes", "--json")
        assert output.status == 0, output.err
        assert output.document["purged"]["thread_ids"] == ["t-1"]
        assert "(PostgreSQL: VACUUM FULL, and backups)" in output.err
        assert list(checkpointer.list(None)) == []


def test_concurrent_commands_set_up_an_empty_database(url: str) -> None:
    def put(number: int) -> None:
        with open_store(url) as store:
            store.put(("a",), str(number), {"n": number})

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(put, range(6)))
    with open_store(url) as store:
        assert len(store.search(("a",))) == 6


@pytest.mark.parametrize("opening", [open_store, open_checkpointer])
def test_role_that_may_not_create_tables_uses_those_of_an_admin(url: str, opening: Any) -> None:
    import psycopg

    with opening(url):
        pass
    with psycopg.connect(url, autocommit=True) as admin:
        admin.execute("CREATE ROLE app LOGIN")
        try:
            admin.execute("REVOKE CREATE ON SCHEMA public FROM public")
            admin.execute("GRANT SELECT ON ALL TABLES IN SCHEMA public TO app")
            with opening(url.replace("postgres:s3cret@", "app@")):
                pass
        finally:
            admin.execute("DROP OWNED BY app")
            admin.execute("DROP ROLE app")


def test_setup_leaves_no_lock_on_a_connection_that_a_pooler_keeps(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import psycopg

    kept: list[psycopg.Connection] = []
    with monkeypatch.context() as pooler:
        pooler.setattr(psycopg.Connection, "close", lambda self: kept.append(self))  # noqa: PLW0108
        with open_store(url):
            pass
    with psycopg.connect(url) as other:
        locks = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'"
        assert other.execute(locks).fetchone() == (0,)
    for connection in kept:
        connection.close()


def test_closed_connection_is_replaced(url: str) -> None:
    import psycopg

    with open_store(url) as store, psycopg.connect(url, autocommit=True) as other:
        store.put(("a",), "1", {})
        query = (
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()"
        )
        assert len(other.execute(f"{query} AND datname = current_database()").fetchall()) > 0
        assert len(store.search(("a",))) == 1


@pytest.mark.parametrize(
    ("port", "says"), [("1", "connection failed"), ("port", "connection is bad")]
)
def test_unreachable_server(shell: Shell, port: str, says: str) -> None:
    url = f"postgresql://me:s3cret@127.0.0.1:{port}/x"
    for ran in (shell.memory("list", "-m", url), shell.align(ANN, options=["-m", url])):
        assert ran.status == 2
        assert ran.error.startswith(f"--memory: the database can't be used: {says}")
        assert "s3cret" not in ran.err
