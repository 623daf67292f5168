"""Similar cases looked for by pgvector: what FAISS finds, from a table that follows the log."""

import sqlite3
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack
from typing import Any
from zlib import crc32

import numpy as np
import pytest
from langgraph.store.base import BaseStore
from langgraph.store.memory import InMemoryStore
from langgraph.store.postgres import PostgresStore
from langgraph.store.sqlite import SqliteStore
from psycopg import connect

from memalign_graph import Example, InvalidInputError, JudgeMemory, create_judge_graph
from memalign_graph.errors import EmbeddingError
from memalign_graph.io import BLOCKING, run
from memalign_graph.local.postgres import open_postgres_store, open_postgres_store_async
from memalign_graph.memory.index import pgvector
from tests.conftest import open_postgres
from tests.loopback import LoopbackServer
from tests.unit_tests.memory.support import CRITERION, Bench, hashed, said
from tests.unit_tests.memory.worker import remember_there, start

pytestmark = pytest.mark.postgres

QUERIES = [Example(inputs=f"parcel {number} is late", outputs="a") for number in range(12)]


@pytest.fixture(params=["blocking", "awaited", "awaited-blocking", "pool", "awaited-pool"])
async def bench(
    request: pytest.FixtureRequest, server: LoopbackServer, postgres_uri: str
) -> AsyncIterator[Bench]:
    """A store on one connection or on a pool, called in one way; or blocking, but awaited."""
    way = request.param
    async with AsyncExitStack() as stack:
        store: BaseStore
        if way == "pool":
            store = stack.enter_context(open_postgres_store(postgres_uri))
        elif way == "awaited-pool":
            store = await stack.enter_async_context(open_postgres_store_async(postgres_uri))
        else:
            store, _ = await open_postgres(postgres_uri, stack, awaits=way == "awaited")
        made = Bench(server, store, awaits=way.startswith("awaited"))
        made.embeddings = hashed
        yield made


def words(numbers: Iterable[int]) -> list[Any]:
    kinds = ("late", "lost", "broken", "wet", "open", "doubled", "empty")
    return [said(f"parcel {one} is {kinds[one % len(kinds)]} {one // 11}") for one in numbers]


def rows(uri: str) -> int:
    with connect(uri, autocommit=True) as connection:
        [[count]] = connection.execute("SELECT count(*) FROM memalign_vectors")
    return int(count)


def do(uri: str, statement: Any) -> None:
    with connect(uri, autocommit=True) as connection:
        connection.execute(statement)


async def check_alike(bench: Bench, memory: JudgeMemory) -> list[str]:
    """Check that both kinds recall the same; returns the ids of the episodes."""
    ids = []
    for query in QUERIES:
        alike = []
        for one in (memory, bench.memory()):
            found = await bench.do("recall", query, 7, memory=one)
            alike.append([(case.example.id, pytest.approx(case.similarity)) for case in found])
            ids += [episode.id for case in found for episode in case.episodes]
        assert alike[0] == alike[1]
        assert len(alike[0]) == 7
    return list(dict.fromkeys(ids))


async def test_recall_is_that_of_faiss_whatever_becomes_of_the_memory(
    bench: Bench, postgres_uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(*_: Any) -> bool:
        return False

    memory = bench.memory(vector_index="pgvector")
    await bench.do("remember", words(range(2_000)), memory=memory)
    near = await check_alike(bench, memory)
    assert rows(postgres_uri) == 2_000
    assert not vars(memory.access.view.index)["_table"]
    # What was taken back is looked past, also while others write, and gone with the next look.
    await bench.do("forget", near[:10], memory=bench.memory())
    with monkeypatch.context() as patched:
        patched.setattr(pgvector.VectorTable, "remove", refuse)
        await check_alike(bench, memory)
    assert rows(postgres_uri) == 2_000
    near = await check_alike(bench, memory)
    assert rows(postgres_uri) == 1_990
    # A purge takes rows with it, whoever purges.
    await bench.do("forget", near[:5], purge=True, memory=bench.memory())
    assert rows(postgres_uri) == 1_985
    near = await check_alike(bench, memory)
    # Another process takes something back, says it again, and adds more.
    process, pipe = start(remember_there, postgres_uri)
    pipe.send((near[:3], words(range(1_990, 2_050))))
    assert pipe.recv() == "remembered"
    process.join()
    await check_alike(bench, memory)
    assert rows(postgres_uri) == len(await bench.do("episodes")) == 2_035


async def test_lost_rows_are_made_anew_from_the_store_and_never_by_embedding(
    bench: Bench, postgres_uri: str
) -> None:
    bench.embeddings = bench.server.embedder()
    memory = bench.memory(vector_index="pgvector")
    given = words(range(300))
    await bench.do("remember", given, memory=memory)
    near = await check_alike(bench, memory)
    bench.embedded()
    for statement in ("DROP TABLE memalign_vectors", "DELETE FROM memalign_vectors"):
        do(postgres_uri, statement)
        await check_alike(bench, memory)
        assert rows(postgres_uri) == 300
    # Neither is a table missed that there is nothing to remove from.
    do(postgres_uri, "DROP TABLE memalign_vectors")
    await bench.do("forget", [(await bench.do("episodes"))[0].id], memory=bench.memory())
    await check_alike(bench, memory)
    assert rows(postgres_uri) == 299
    near = await check_alike(bench, memory)
    # Some rows that are lost, and some of nobody, are found by who opens the memory next.
    do(postgres_uri, "DELETE FROM memalign_vectors WHERE key < '8'")
    await bench.do("forget", near[:5], memory=bench.memory())
    with PostgresStore.from_conn_string(postgres_uri) as store:
        opened = JudgeMemory(store, CRITERION, embeddings=bench.embeddings, vector_index="pgvector")
        opened.recall(QUERIES[0], 7)
    assert rows(postgres_uri) == 294
    await check_alike(bench, memory)
    assert not {f"{one.example.inputs}\n\na" for one in given}.intersection(bench.embedded())


def clustered(texts: Iterable[str]) -> list[list[float]]:
    """Put texts into 40 clusters of the 64 dimensions."""
    made = []
    for text in texts:
        rng = np.random.default_rng(crc32(text.encode()))
        centre = np.random.default_rng(int(rng.integers(40))).normal(size=64)
        made.append(list(centre + rng.normal(size=64) * 0.5))
    return made


async def test_beyond_a_number_an_index_is_made_and_searched(
    bench: Bench, postgres_uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pgvector, "EXACT", 200)
    bench.embeddings = clustered
    memory = bench.memory(vector_index="pgvector")
    other = bench.memory(CRITERION.model_copy(update={"name": "length"}), vector_index="pgvector")
    await bench.do("remember", words(range(150)), memory=other)
    await bench.do("remember", words(range(2_000)), memory=memory)
    near = await bench.do("recall", QUERIES[0], 60, memory=memory)
    taken = [episode.id for case in near for episode in case.episodes]
    await bench.do("forget", taken[:40], memory=bench.memory())
    await bench.do("recall", QUERIES[0], 5, memory=other)

    async def share(memory: JudgeMemory) -> float:
        shared = []
        for number in range(40):
            query = Example(inputs=f"number {number}", outputs="a")
            found, wanted = [
                {case.example.id for case in await bench.do("recall", query, 5, memory=one)}
                for one in (memory, bench.memory())
            ]
            assert len(found) == 5
            shared.append(len(found & wanted) / 5)
        return sum(shared) / len(shared)

    index: Any = memory.access.view.index
    assert await share(memory) >= 0.95
    assert index.is_approximate
    assert not vars(other.access.view.index)["is_approximate"]
    with connect(postgres_uri, autocommit=True) as connection:
        plans = connection.execute(
            "SELECT indexrelid::regclass::text, indisvalid FROM pg_index "
            "WHERE indrelid = 'memalign_vectors'::regclass AND NOT indisprimary"
        ).fetchall()
        assert [valid for _, valid in plans] == [True]
        # One that was cut off while it was made is made again by who opens the memory next.
        connection.execute(
            "UPDATE pg_index SET indisvalid = false WHERE NOT indisprimary AND "
            "indrelid = 'memalign_vectors'::regclass"
        )
    with PostgresStore.from_conn_string(postgres_uri) as store:
        opened = JudgeMemory(store, CRITERION, embeddings=clustered, vector_index="pgvector")
        table = opened.access.table
        assert table is not None
        assert not run(table.has_index(BLOCKING))
        opened.recall(QUERIES[0], 5)
        assert run(table.has_index(BLOCKING))


def test_rows_stay_where_another_wrote_before_they_were_removed(postgres_uri: str) -> None:
    with PostgresStore.from_conn_string(postgres_uri) as store:
        memory = JudgeMemory(store, CRITERION, embeddings=hashed, vector_index="pgvector")
        memory.remember(words(range(20)))
        memory.recall(QUERIES[0])
        view, table = memory.access.view, memory.access.table
        assert table is not None
        keys, head = [row.vector_key for row in view.rows()], ("memalign.tone.head", "head")
        assert not run(table.remove(BLOCKING, keys, head, "0"))
        assert rows(postgres_uri) == 20
        assert run(table.remove(BLOCKING, keys[:3], head, str(view.head)))
        assert rows(postgres_uri) == 17


def test_a_memory_of_other_dimensions_is_refused(postgres_uri: str) -> None:
    def short(texts: Iterable[str]) -> list[list[float]]:
        return [one[:16] for one in hashed(texts)]

    short.__qualname__, short.__module__ = hashed.__qualname__, hashed.__module__
    with PostgresStore.from_conn_string(postgres_uri) as store:
        memory = JudgeMemory(store, CRITERION, embeddings=hashed, vector_index="pgvector")
        memory.remember(words(range(20)))
        memory.recall(QUERIES[0])
        again = JudgeMemory(store, CRITERION, embeddings=short, vector_index="pgvector")
        with pytest.raises(EmbeddingError, match="vectors of 16 dimensions, but this memory hold"):
            again.recall(QUERIES[0])


def test_what_holds_no_table_is_refused_before_a_model_is_called(
    postgres_uri: str, server: LoopbackServer
) -> None:
    options: Any = {"embeddings": server.embedder(), "vector_index": "pgvector"}
    judging = create_judge_graph(CRITERION, model=server.chat_model(), **options)
    case = {"inputs": "one", "outputs": "a"}
    for other in (InMemoryStore(), SqliteStore(sqlite3.connect(":memory:"))):
        with pytest.raises(InvalidInputError, match="give a PostgresStore or an Async"):
            JudgeMemory(other, CRITERION, **options)
        with pytest.raises(InvalidInputError, match="give a PostgresStore or an Async"):
            judging.compile(store=other).invoke(case)
    with PostgresStore.from_conn_string(postgres_uri) as store:
        connection: Any = store.conn
        connection.execute("CREATE ROLE plain")
        connection.execute("GRANT ALL ON ALL TABLES IN SCHEMA public TO plain")
        connection.execute("SET ROLE plain")
        with pytest.raises(InvalidInputError, match="needs the extension vector"):
            judging.compile(store=store).invoke(case)
        for statement in ("RESET ROLE", "DROP OWNED BY plain", "DROP ROLE plain"):
            connection.execute(statement)
    assert (server.chats, server.embeddings) == ([], [])
