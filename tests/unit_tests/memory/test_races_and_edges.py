"""Writers at the same moment, clocks that differ, and values at the edge of what is allowed."""

import sqlite3
from collections.abc import Sequence
from typing import Any

import pytest
from langgraph.store.base import GetOp
from langgraph.store.memory import InMemoryStore
from langgraph.store.sqlite import SqliteStore

from memalign_graph import (
    EmbeddingError,
    Episode,
    Example,
    InvalidInputError,
    JudgeMemory,
    Numeric,
)
from memalign_graph.io import BLOCKING, run
from memalign_graph.memory import learning
from memalign_graph.memory.recall import recall
from tests.unit_tests.memory.support import (
    CRITERION,
    QUERY,
    Opener,
    Operation,
    hashed,
    interleaved,
    learn,
    op,
    said,
    writes,
)
from tests.unit_tests.memory.test_in_step import Shifted, recalled


def nested(levels: int) -> Any:
    value: Any = "deep"
    for _ in range(levels):
        value = [value]
    return value


def memories(opener: Opener, count: int = 2) -> list[JudgeMemory]:
    return [JudgeMemory(opener(), CRITERION, embeddings=hashed) for _ in range(count)]


@pytest.fixture
def memory() -> JudgeMemory:
    return JudgeMemory(InMemoryStore(), CRITERION, embeddings=hashed)


def test_a_writer_whose_clock_is_minutes_late_is_seen(
    any_opener: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    late, reader = memories(any_opener)
    reader.remember(said("one"))
    with monkeypatch.context() as patch:
        patch.setattr("memalign_graph.memory.access.clock", Shifted(-300))
        late.remember(said("two"))
    assert len(recalled(reader)) == 2


def test_a_process_whose_clock_is_ahead_sees_what_others_commit(
    any_opener: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    ahead, other = memories(any_opener)
    with monkeypatch.context() as patch:
        patch.setattr("memalign_graph.memory.access.clock", Shifted(3600))
        ahead.remember(said("one"))
        ahead.version()
    other.remember(said("two"))
    with monkeypatch.context() as patch:
        patch.setattr("memalign_graph.memory.access.clock", Shifted(3600))
        assert len(recalled(ahead)) == 2


def test_vectors_of_another_dimension_are_refused_before_anything_is_stored(
    any_opener: Opener,
) -> None:
    size = 64

    def changing(texts: Sequence[str]) -> list[list[float]]:
        return [vector[:size] for vector in hashed(texts)]

    memory = JudgeMemory(any_opener(), CRITERION, embeddings=changing)
    memory.remember(said("one"))
    size = 32
    with pytest.raises(EmbeddingError, match="32 dimensions"):
        memory.remember(said("two"))
    size = 64
    again = JudgeMemory(any_opener(), CRITERION, embeddings=changing)
    assert len(again.recall(QUERY)) == 1


def test_a_lesson_learned_again_does_not_overwrite_the_experts_wording(memory: JudgeMemory) -> None:
    one = memory.remember(said())
    learn(memory, op("add", one, text="Be warm."))
    [rule] = memory.guidelines()
    memory.edit_guideline(rule.id, "The expert's own words.")
    learn(memory, op("add", one, text="Be warm."))
    assert {rule.text for rule in memory.guidelines()} == {"The expert's own words.", "Be warm."}


@pytest.mark.parametrize("levels", [96, 98, 100])
def test_a_deep_example_that_is_taken_can_be_remembered_edited_and_forgotten(
    memory: JudgeMemory, levels: int
) -> None:
    try:
        Example(inputs=nested(levels), outputs="a")
    except ValueError:
        return
    one = memory.remember(said(nested(levels)))
    memory.remember(said(nested(levels), "Another word."))
    memory.forget(one.id)


@pytest.mark.parametrize(
    "fields",
    [
        {"thread_id": "a\x00b"},
        {
            "judgment": {
                "criterion": "tone",
                "example_id": "x",
                "value": True,
                "rationale": "a\x00b",
                "memory_version": "0",
            }
        },
        {
            "judgment": {
                "criterion": "tone",
                "example_id": "x",
                "value": True,
                "rationale": "x",
                "memory_version": "0",
                "confidence": float("nan"),
            }
        },
    ],
)
def test_feedback_no_store_can_keep_is_refused_by_name(memory: JudgeMemory, fields: Any) -> None:
    with pytest.raises(ValueError, match=r"NUL|less than"):
        memory.remember(said(**fields))


def test_a_scale_beyond_exact_numbers_is_refused() -> None:
    with pytest.raises(ValueError, match="within 2"):
        Numeric(minimum=0, maximum=1e30, integer=True)


def reads_vectors(asked: Any) -> bool:
    return isinstance(asked[0], GetOp) and "vectors" in asked[0].namespace


def test_an_example_forgotten_while_a_recall_is_under_way_takes_no_place_later(
    memory: JudgeMemory,
) -> None:
    one, _ = memory.remember([said("one"), said("two")])

    def forget() -> None:
        memory.forget(one.id)
        memory.version()

    interleaved(lambda io: recall(io, memory.access, QUERY, 5), reads_vectors, forget)
    assert len(memory.recall(one.example, k=1)) == 1


def test_two_that_revise_one_guideline_at_once_lose_no_source(memory: JudgeMemory) -> None:
    one, two, three = memory.remember([said("one"), said("two"), said("three")])
    run(learning.learn(BLOCKING, memory.access, [op("add", one, text="A.")], {one.id: one.word}))
    [rule] = memory.guidelines()

    def revise(episode: Episode, text: str) -> Operation:
        change = op("revise", episode, guideline_id=rule.id, text=text)
        return lambda io: learning.learn(io, memory.access, [change], {episode.id: episode.word})

    interleaved(revise(two, "B."), writes, lambda: run(revise(three, "C.")(BLOCKING)))
    sources = {key for rule in memory.guidelines() for key in rule.episode_ids}
    pending = {episode.id for episode in memory.episodes() if episode.status == "pending"}
    assert sources | pending == {one.id, two.id, three.id}


def test_what_a_reader_does_to_an_example_does_not_change_the_store(memory: JudgeMemory) -> None:
    memory.remember(said({"q": "as it was"}))
    inputs: Any = memory.episodes()[0].example.inputs
    inputs["q"] = "changed"
    assert memory.episodes()[0].example.inputs == {"q": "as it was"}


def test_sqlites_limit_of_variables_does_not_limit_a_memory() -> None:
    connection = sqlite3.connect(":memory:", check_same_thread=False, isolation_level=None)
    connection.setlimit(sqlite3.SQLITE_LIMIT_VARIABLE_NUMBER, 32_766)
    memory = JudgeMemory(SqliteStore(connection), CRITERION, embeddings=hashed)
    memory.remember([said(f"case {number}") for number in range(7_000)])
    assert len(memory.episodes()) == 7_000
    connection.close()


def test_an_edit_to_words_that_stand_makes_no_second_guideline(memory: JudgeMemory) -> None:
    memory.add_guideline("Be warm.")
    other = memory.add_guideline("Be kind.")
    with pytest.raises(InvalidInputError, match="already stand"):
        memory.edit_guideline(other.id, "Be warm.")


def test_zero_is_zero_whatever_its_sign() -> None:
    scale = Numeric(minimum=-1, maximum=1)
    assert str(scale.validate_value(-0.0)) == "0.0"


def test_underscores_are_no_digits() -> None:
    with pytest.raises(ValueError):
        Numeric(minimum=1, maximum=100, integer=True).validate_value("1_0")


def test_any_mapping_is_feedback(memory: JudgeMemory) -> None:
    from types import MappingProxyType

    memory.remember(MappingProxyType({"inputs": "q", "outputs": "a", "rationale": "x"}))
