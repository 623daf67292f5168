"""A change is written whole or not at all: vectors first, then words, then one fact."""

from collections.abc import Sequence
from typing import Any

import pytest
from langgraph.store.base import PutOp

from memalign_graph import EmbeddingError, JudgeMemory
from tests.loopback import LoopbackServer, error
from tests.unit_tests.memory.support import (
    CRITERION,
    QUERY,
    Bench,
    WatchedStore,
    hashed,
    is_content,
    learn,
    op,
    said,
)


@pytest.fixture
def store() -> WatchedStore:
    return WatchedStore()


@pytest.fixture
def memory(store: WatchedStore) -> JudgeMemory:
    return JudgeMemory(store, CRITERION, embeddings=hashed)


def test_vectors_are_written_first_then_words_then_the_fact(
    store: WatchedStore, memory: JudgeMemory
) -> None:
    memory.remember([said("one"), said("two")])
    vectors, words, fact = store.writes
    assert not any(map(is_content, vectors))
    assert [put.namespace[-1] for put in words] == ["words", "words"]
    assert [put.namespace[-1] for put in fact] == ["facts", "head"]


def test_every_change_is_one_fact_written_last(store: WatchedStore, memory: JudgeMemory) -> None:
    one, two = memory.remember([said("one"), said("two")])
    learn(memory, op("add", one, text="Of one."), op("add", one, two, text="Of both."))
    rule = memory.add_guideline("Be warm.")
    memory.edit_guideline(rule.id, "Be kind.")
    memory.remember(said("two", "Another word."))
    memory.forget(one.id)
    memory.remove_guideline(rule.id)
    memory.rollback("0" * 32)
    kinds = [[put.namespace[-1] for put in batch] for batch in store.writes]
    assert [kind for kind in kinds if "facts" in kind] == [["facts", "head"]] * 8


def test_no_batch_both_reads_and_writes(store: WatchedStore, memory: JudgeMemory) -> None:
    one = memory.remember(said("one"))
    memory.recall(QUERY)
    memory.forget(one.id)
    kinds = [{isinstance(one, PutOp) for one in batch} for batch in store.batches]
    assert {frozenset(kind) for kind in kinds} == {frozenset({True}), frozenset({False})}


def test_no_item_is_given_to_an_index_of_the_store(
    store: WatchedStore, memory: JudgeMemory
) -> None:
    one = memory.remember(said("one"))
    memory.add_guideline("Be warm.")
    memory.forget(one.id)
    assert {put.index for batch in store.writes for put in batch} == {False}


def test_reading_writes_nothing(store: WatchedStore, memory: JudgeMemory) -> None:
    memory.remember(said("one"))
    store.batches.clear()
    memory.recall(QUERY)
    memory.episodes()
    memory.guidelines()
    memory.version()
    assert store.writes == []


def test_a_change_tried_again_embeds_nothing_again(server: LoopbackServer) -> None:
    store = WatchedStore()
    memory = JudgeMemory(store, CRITERION, embeddings=server.embedder())
    store.failing = True
    with pytest.raises(OSError, match="The disk is full"):
        memory.remember([said("one"), said("two")])
    store.failing = False
    memory.remember([said("one"), said("two")])
    memory.recall(said("one").example)
    assert [request.texts for request in server.embeddings] == [["one\n\na", "two\n\na"]]


def test_an_orphan_vector_is_never_recalled(server: LoopbackServer, reopen: Any) -> None:
    store = WatchedStore()
    memory = JudgeMemory(store, CRITERION, embeddings=server.embedder())
    memory.remember(said("kept"))
    store.failing = True
    with pytest.raises(OSError, match="The disk is full"):
        memory.remember(said("orphan"))
    reopen()
    found = memory.recall(said("orphan").example, k=1)
    assert [one.example.inputs for one in found] == ["kept"]


async def test_a_failing_embedding_call_stores_nothing(bench: Bench) -> None:
    bench.embeddings = bench.server.embedder(max_retries=0)
    await bench.remember(said("one"))
    size = len(await bench.items())
    bench.server.script_embeddings(error(500))
    with pytest.raises(EmbeddingError, match="openai:text-embedding-3-small failed: Internal"):
        await bench.remember(said("one", "Another word."), said("two"))
    assert len(await bench.items()) == size
    assert [one.rationale for one in await bench.do("episodes")] == ["Too cold."]
    await bench.remember(said("two"))
    assert set(await bench.recall("one")) == {"one", "two"}


async def test_a_failing_embedding_call_fails_the_recall(bench: Bench) -> None:
    bench.embeddings = bench.server.embedder(max_retries=0)
    await bench.remember(said("one"))
    bench.server.script_embeddings(error(401))
    with pytest.raises(EmbeddingError, match="check the API key"):
        await bench.recall("new")
    assert await bench.recall("new") == ["one"]


NAN = float("nan")


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        ([[1.0, 0.0]], r"an array of shape \(1, 2\) for 2 texts"),
        ([[1.0, 0.0]] * 3, r"an array of shape \(3, 2\) for 2 texts"),
        ([], r"an array of shape \(0,\) for 2 texts"),
        ([[], []], r"an array of shape \(2, 0\)"),
        ([[0.0, 0.0], [1.0, 0.0]], "a vector that is zero or not finite"),
        ([[NAN, 1.0], [1.0, 0.0]], "a vector that is zero or not finite"),
        ([[float("inf"), 1.0], [1.0, 0.0]], "a vector that is zero or not finite"),
        ([[1.0, 0.0], [1.0]], "vectors of different lengths, or no numbers"),
        ([["a", "b"], ["c", "d"]], "vectors of different lengths, or no numbers"),
        (None, r"an array of shape \(\) for 2 texts"),
    ],
)
def test_vectors_that_can_not_be_used_store_nothing(
    store: WatchedStore, answer: Any, problem: str
) -> None:
    memory = JudgeMemory(store, CRITERION, embeddings=lambda _: answer)
    with pytest.raises(EmbeddingError, match=problem) as caught:
        memory.remember([said("one"), said("two")])
    assert "\n" not in str(caught.value)
    assert store.writes == []


def test_a_query_of_another_dimension_is_one_clear_error(near: Bench) -> None:
    size = 64

    def changing(texts: Sequence[str]) -> list[list[float]]:
        return [vector[:size] for vector in hashed(texts)]

    memory = JudgeMemory(near.store, CRITERION, embeddings=changing)
    memory.remember(said("one"))
    size = 32
    with pytest.raises(EmbeddingError, match=r"vectors of 32 dimensions, but .* holds 64"):
        memory.recall(QUERY)
    size = 64
    assert len(memory.recall(QUERY)) == 1
