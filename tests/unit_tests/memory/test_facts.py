"""The log: each change is one immutable fact that is written last."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any
from unittest.mock import Mock

import pytest
from langgraph.store.base import PutOp
from langgraph.store.memory import InMemoryStore

from memalign_graph import (
    EmbeddingError,
    InvalidInputError,
    JudgeMemory,
    MemAlignError,
    StoreError,
    create_judge_graph,
)
from memalign_graph.io import SYNC, run_sync
from memalign_graph.memory.facts import packed, unpacked
from memalign_graph.memory.feedback import remember
from memalign_graph.memory.index import encode_vector, normalize_vectors
from memalign_graph.memory.recall import recall
from tests.loopback import LoopbackServer
from tests.unit_tests.memory.driver import Actor, memories
from tests.unit_tests.memory.purging import everything_in
from tests.unit_tests.memory.stores import WatchedStore, in_memory
from tests.unit_tests.memory.support import (
    CRITERION,
    QUERY,
    Bench,
    comment,
    dump,
    hashed,
    learn,
    op,
)


def test_every_change_is_one_fact_written_last() -> None:
    store = WatchedStore()
    memory = JudgeMemory(store, CRITERION, embeddings=hashed)
    episode, two = memory.remember([comment("one"), comment("two")])
    learn(memory, op("add", episode, text="Of one."), op("add", episode, two, text="Of both."))
    guideline = memory.add_guideline("Be warm.")
    memory.edit_guideline(guideline.id, "Be kind.")
    memory.remember(comment("two", "Another word."))
    memory.forget(episode.id)
    memory.remove_guideline(guideline.id)
    memory.rollback("0" * 32)
    kinds = [[put.namespace[-1] for put in batch] for batch in store.writes]
    assert [kind for kind in kinds if "facts" in kind] == [["facts", "head"]] * 8
    assert kinds[1:3] == [["words", "words"], ["facts", "head"]]
    assert {put.index for batch in store.writes for put in batch} == {False}
    store_calls = [{isinstance(item, PutOp) for item in batch} for batch in store.batches]
    assert {frozenset(call) for call in store_calls} == {frozenset({True}), frozenset({False})}
    store.batches.clear()
    memory.recall(QUERY)
    memory.episodes()
    memory.version()
    assert store.writes == []


async def test_facts_are_never_changed(bench: Bench) -> None:
    actor, before = Actor(bench.memory(), seed=3), dict[tuple[Any, ...], Any]()
    for _ in range(40):
        run_sync(actor.act(SYNC))
        items = [*await bench.items("facts"), *await bench.items("words")]
        now = {(*item.namespace, item.key): item.value for item in items}
        assert {key: now[key] for key in before} == before
        before = now


def test_version_depends_on_content_and_not_on_history() -> None:
    given_at = datetime(2026, 1, 1, tzinfo=UTC)
    here, there = (JudgeMemory(InMemoryStore(), CRITERION, embeddings=hashed) for _ in "12")
    one, two, three = (comment(name, given_at=given_at) for name in ("one", "two", "three"))
    here.remember([one, two])
    for episode in (three, two, one):
        there.remember(episode)
    assert here.version() != there.version()
    there.forget(three.episode_id)
    assert here.version() == there.version()
    for memory in (here, there):
        memory.forget(where=lambda _: True)
        assert memory.version() == "0" * 32


def test_retried_change_reuses_its_vector(server: LoopbackServer, reopen: Any) -> None:
    store = WatchedStore()
    memory = JudgeMemory(store, CRITERION, embeddings=server.embedder())
    memory.remember(comment("kept"))
    store.failing = True
    with pytest.raises(StoreError, match="The disk is full"):
        memory.remember([comment("one"), comment("two")])
    store.failing = False
    reopen()
    recalled = memory.recall(comment("one").example)
    assert [item.example.inputs for item in recalled] == ["kept"]
    memory.remember([comment("one"), comment("two")])
    assert [len(request.texts) for request in server.embeddings] == [1, 2, 1]


def test_password_of_a_stores_url_is_in_no_error() -> None:
    url = "redis://:s3cret@host:6379/0"

    class Unreachable(InMemoryStore):
        def batch(self, ops: Any) -> Any:
            raise OSError(f"Error 111 connecting to {url}: refused.")

    memory = JudgeMemory(Unreachable(), CRITERION, embeddings=hashed)
    with pytest.raises(StoreError, match=r"connecting to \.\.\. refused") as caught:
        memory.remember(comment("one"))
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize("answer", [[[1.0, 0.0]], [[], []], [[1.0, 0.0], [1.0]], None])
def test_invalid_vectors_store_nothing(answer: Any) -> None:
    store, embed = WatchedStore(), Mock(return_value=answer)
    embed.name = "unusable"
    memory = JudgeMemory(store, CRITERION, embeddings=embed)
    with pytest.raises(EmbeddingError, match="did not return 2 vector"):
        memory.remember([comment("one"), comment("two")])
    assert store.writes == []


def test_zero_vector_is_not_stored(caplog: pytest.LogCaptureFixture) -> None:
    embedded: list[str] = []

    def partly_zero(texts: Sequence[str]) -> list[list[float]]:
        embedded.extend(texts)
        return [[0.0, 0.0] if "odd" in text else [1.0, 0.0] for text in texts]

    vars(partly_zero)["name"] = "partly-zero"
    memory = JudgeMemory(InMemoryStore(), CRITERION, embeddings=partly_zero)
    _, odd = memory.remember([comment("one"), comment("odd")])
    assert [each.example.inputs for each in memory.recall(QUERY)] == ["one"]
    assert "a vector that is zero or not finite" in caplog.text
    assert odd.id in caplog.text
    embedded.clear()
    memory.remember(comment("odd", author="bob"))  # it is not sent again
    assert embedded == []


def test_vectors_of_another_dimension_raise_and_store_nothing(reopen: Any) -> None:
    size, store = 64, WatchedStore()

    def changing(texts: Sequence[str]) -> list[list[float]]:
        return [vector[:size] for vector in hashed(texts)]

    vars(changing)["name"] = "hashed"
    memory = JudgeMemory(store, CRITERION, embeddings=changing)
    memory.remember(comment("one"))
    store.batches.clear()
    size = 32
    with pytest.raises(EmbeddingError, match=r"vectors of 32 dimensions, but .* 64"):
        memory.recall(QUERY)
    with pytest.raises(EmbeddingError, match="32 dimensions"):
        memory.remember(comment("two"))
    assert store.writes == []
    size = 64
    assert len(memory.recall(QUERY)) == 1
    memory.forget(where=lambda _: True)  # its vector stays
    reopen()
    size = 32
    with pytest.raises(EmbeddingError, match=r"vectors of 32 dimensions, but .* 64"):
        memory.remember(comment("two"))


def test_known_vector_is_not_embedded(bench: Bench) -> None:
    item, [vector] = comment("one"), normalize_vectors(hashed(["one"]), 1, "hashed")
    known = {item.example.id: vector}
    run_sync(remember(SYNC, bench.memory().access, [item], known_vectors=known))
    access = bench.memory().access
    recalled = run_sync(recall(SYNC, access, item.example, 1))
    loaded = access.load_vector(recalled.vector)
    assert loaded is not None
    assert list(loaded) == list(vector)
    assert access.load_vector(encode_vector(vector)) is None  # of an earlier version
    assert bench.embedded() == []


def test_what_postgres_would_change_is_stored_as_text() -> None:
    item = {"a": {"z": 1, "b": 2}, "b": [{"z": 1, "b": 2}], "c": 1e16, "d": "text", "e": None}
    stored = packed(item)
    assert stored is not None
    assert {name for name, part in stored.items() if not isinstance(part, str)} == {"e", "packed"}
    assert dump(unpacked(stored)) == dump(item)


def test_unreadable_feedback_is_refused_at_each_attempt() -> None:
    here, there = memories(in_memory(InMemoryStore()), 2)
    here.remember([comment("one"), comment("two")])
    item = here.access.store.search(here.access.layout.of("words"))[0]
    record = {**unpacked(item.value), "episode": {"value": True}}
    here.access.store.put(item.namespace, item.key, record)
    for _ in range(2):
        with pytest.raises(MemAlignError, match=f"The feedback record '{item.key}' .* can't be"):
            there.episodes()


def test_unknown_version_raises_one_sentence(memory: JudgeMemory) -> None:
    memory.remember(comment())
    before = everything_in(memory.access.store)
    for version in ("nope", "", "0" * 31, None, 3, ["0"], "f" * 32):
        for name in ("at", "diff", "rollback"):
            with pytest.raises(InvalidInputError) as caught:
                getattr(memory, name)(version)
            assert str(caught.value).startswith(
                f"version: the memory of 'tone' never had the version {version!r}. `history()`"
            )
    with pytest.raises(InvalidInputError, match="author"):
        memory.rollback("0" * 32, author=["ann"])  # type: ignore[arg-type]
    assert everything_in(memory.access.store) == before


def test_judgment_during_a_commit_names_the_version_it_used(bench: Bench) -> None:
    result: list[str] = []

    def embed(texts: Sequence[str]) -> list[list[float]]:
        if texts[0].startswith("asked"):
            result.extend(texts)
            memory.add_guideline("Second.")
            memory.version()
        return hashed(texts)

    vars(embed)["name"] = "hashed"
    memory = bench.memory(embeddings=embed)
    memory.remember(comment("one"))
    memory.add_guideline("First.")
    builder = create_judge_graph(CRITERION, model=bench.server.chat_model(), embeddings=embed)
    fields = {"inputs": "asked", "outputs": "a"}
    judgment = builder.compile(store=bench.store).invoke(fields)["judgment"]
    then = memory.at(judgment["memory_version"])
    assert [guideline.text for guideline in then.guidelines] == ["First.", "Second."]
    assert [guideline.id for guideline in then.guidelines] == judgment["guideline_ids"]
    assert len(result) == 1
