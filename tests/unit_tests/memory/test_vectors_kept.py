"""A text is embedded once; whoever opens the memory later reads its vector from the store."""

import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from langgraph.store.base import SearchOp
from langgraph.store.memory import InMemoryStore
from langgraph.store.sqlite import SqliteStore

from memalign_graph import JudgeMemory
from tests.loopback import LoopbackServer
from tests.unit_tests.memory.support import (
    CRITERION,
    EVERYTHING,
    ROOT,
    Bench,
    Opener,
    connect,
    hashed,
    said,
)

Reopen = Callable[[], None]

FRESH_PROCESS = """
import sys
from tests.unit_tests.memory.support import CRITERION, connect
from langgraph.store.sqlite import SqliteStore
from memalign_graph import JudgeMemory

store = SqliteStore(connect(sys.argv[1]))
memory = JudgeMemory(store, CRITERION, embeddings="openai:text-embedding-3-small")
found = memory.recall({"inputs": "a new question", "outputs": "a"}, k=9)
print(memory.version(), *sorted(one.example.inputs for one in found))
"""


async def test_a_reopened_memory_embeds_the_query_alone(bench: Bench, reopen: Reopen) -> None:
    await bench.remember(*map(said, ("one", "two", "three")))
    bench.embedded()
    reopen()
    assert set(await bench.recall("a new question")) == {"one", "two", "three"}
    assert bench.embedded() == ["a new question\n\na"]


async def test_recalling_a_stored_example_embeds_nothing(bench: Bench, reopen: Reopen) -> None:
    await bench.remember(*map(said, ("one", "two", "three")))
    bench.embedded()
    assert (await bench.recall("two"))[0] == "two"
    reopen()
    assert (await bench.recall("two"))[0] == "two"
    assert bench.embedded() == []


async def test_recalling_right_after_remembering_embeds_nothing_again(bench: Bench) -> None:
    for name in ("one", "two", "three"):
        await bench.remember(said(name))
        await bench.recall(name)
    assert bench.embedded() == ["one\n\na", "two\n\na", "three\n\na"]


async def test_another_experts_word_on_a_stored_example_embeds_nothing(bench: Bench) -> None:
    await bench.remember(said(author="ann"))
    bench.embedded()
    await bench.remember(said(author="bob"), said(author="eve"))
    assert bench.embedded() == []


async def test_a_fresh_process_embeds_the_query_alone(
    server: LoopbackServer, opener: Opener, tmp_path: Path
) -> None:
    memory = JudgeMemory(opener(), CRITERION, embeddings=server.embedder())
    memory.remember([said("one"), said("two")])
    server.embeddings.clear()
    command = [sys.executable, "-W", "error", "-c", FRESH_PROCESS, str(tmp_path / "store.db")]
    environment = os.environ | server.environment
    done = subprocess.run(  # noqa: ASYNC221 - our own code
        command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.stderr == ""
    assert done.stdout.split() == [memory.version(), "one", "two"]
    assert [request.texts for request in server.embeddings] == [["a new question\n\na"]]


async def test_another_embedder_embeds_anew_once_and_says_so(
    bench: Bench, reopen: Reopen, caplog: pytest.LogCaptureFixture
) -> None:
    await bench.remember(said("one"), said("two"))
    bench.embedded()
    other = bench.memory(embeddings=bench.server.embedder(model="text-embedding-3-large"))
    assert set(await bench.recall("new", memory=other)) == {"one", "two"}
    assert sorted(bench.embedded()) == ["new\n\na", "one\n\na", "two\n\na"]
    [record] = [one for one in caplog.records if one.name.startswith("memalign_graph")]
    assert record.levelname == "WARNING"
    assert "2 example(s) without vectors of the embeddings openai:text-embedding-3-large" in (
        record.getMessage()
    )
    caplog.clear()
    await bench.recall("newer", memory=other)
    reopen()
    await bench.recall("newest", memory=other)
    assert bench.embedded() == ["newer\n\na", "newest\n\na"]
    assert caplog.records == []


async def test_two_embedders_do_not_mix_their_vectors(bench: Bench) -> None:
    small = bench.memory(embeddings=bench.server.embedder(model="small", dimensions=16))
    await bench.remember(said("one"))
    await bench.remember(said("two"), memory=small)
    for memory in (None, small):
        assert set(await bench.recall("new", memory=memory)) == {"one", "two"}
    assert await bench.do("version") == await bench.do("version", memory=small)


async def test_vectors_lie_apart_and_compact(bench: Bench) -> None:
    await bench.remember(said("one"), said("two"))
    items = await bench.items("vectors")
    assert len(items) == 2
    for item in items:
        assert len(item.value["vector"]) < 64 * 4 * 4 / 3 + 4
        assert item.value["embedder"] == "openai:text-embedding-3-small"
    assert len({item.namespace for item in items}) == 1


class Untouched:
    """Embeddings of a store, which memories must leave alone."""

    def __call__(self, texts: object) -> list[list[float]]:
        raise AssertionError(f"The store embedded {texts}")


def test_a_store_with_an_index_of_its_own_does_not_embed_our_items() -> None:
    store = InMemoryStore(index={"dims": 64, "embed": Untouched()})
    memory = JudgeMemory(store, CRITERION, embeddings=hashed)
    one = memory.remember(said("one"))
    memory.add_guideline("Be warm.")
    assert memory.recall(one.example) != []
    memory.forget(one.id)


@pytest.mark.skipif(
    not hasattr(sqlite3.Connection, "enable_load_extension"), reason="needs sqlite extensions"
)
def test_an_sqlite_store_with_an_index_of_its_own_embeds_nothing(tmp_path: Path) -> None:
    connection = connect(tmp_path / "store.db")
    store = SqliteStore(connection, index={"dims": 64, "embed": Untouched()})
    memory = JudgeMemory(store, CRITERION, embeddings=hashed)
    one = memory.remember(said("one"))
    assert memory.recall(one.example) != []
    connection.close()


def test_a_lost_vector_is_embedded_anew(
    near: Bench, reopen: Reopen, caplog: pytest.LogCaptureFixture
) -> None:
    memory = near.memory()
    memory.remember([said("one"), said("two")])
    near.embedded()
    [items] = near.store.batch([SearchOp(("memalign", "tone", "vectors"), limit=EVERYTHING)])
    lost = items[0]  # type: ignore[index]
    near.store.delete(lost.namespace, lost.key)  # type: ignore[union-attr]
    reopen()
    assert len(memory.recall({"inputs": "new", "outputs": "a"})) == 2
    assert len(near.embedded()) == 2
    assert "1 example(s) without vectors" in caplog.text
