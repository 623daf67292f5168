"""Judgments kept on cases at the very moment that another writer changes them."""

from typing import Any

import pytest

from memalign_graph import Episode, JudgeMemory, Judgment
from memalign_graph.io import BLOCKING, run
from memalign_graph.memory.learning import learn
from memalign_graph.memory.operations import note_judgments
from tests.unit_tests.memory.stores import Operation, commits, in_memory, interleaved
from tests.unit_tests.memory.support import CRITERION, dump, hashed, op, said


@pytest.fixture
def pair() -> tuple[JudgeMemory, JudgeMemory]:
    """The same memory through two stores, as in two processes."""
    opener = in_memory()
    here, there = (JudgeMemory(opener(), CRITERION, embeddings=hashed) for _ in "12")
    return here, there


def judgment(example_id: str, *, value: Any = True) -> Judgment:
    return Judgment(
        criterion="tone", example_id=example_id, value=value, rationale="Seen.", memory_version=""
    )


def noting(memory: JudgeMemory, *episodes: Episode, value: Any = True) -> Operation:
    judgments = {one.example_id: judgment(one.example_id, value=value) for one in episodes}
    return lambda io: note_judgments(io, memory.access, judgments)


def learning(memory: JudgeMemory, episode: Episode) -> Operation:
    rules = [op("add", episode, text="Say sorry.")]
    return lambda io: learn(io, memory.access, rules, {episode.id: episode.word})


def test_what_is_learned_from_meanwhile_stays_learned(pair: Any) -> None:
    here, there = pair
    one, two = here.remember([said("one"), said("two")])
    there.version()
    interleaved(noting(here, one), commits, lambda: run(learning(there, one)(BLOCKING)))
    # A judgment that is noted while it is learned from may be lost, no more.
    interleaved(learning(here, two), commits, lambda: run(noting(there, two)(BLOCKING)))
    for memory in pair:
        judged = {episode.id: episode.judgment for episode in memory.episodes()}
        assert judged[one.id] is not None
        assert {episode.status for episode in memory.episodes()} == {"distilled"}
        assert {one.id, two.id} == {key for rule in memory.guidelines() for key in rule.episode_ids}
    assert here.version() == there.version()


@pytest.mark.parametrize("purge", [False, True])
def test_what_is_taken_back_or_said_anew_meanwhile_stays_so(pair: Any, *, purge: bool) -> None:
    here, there = pair
    words = ("one", "Secretly cold."), ("two", "Cold."), ("three", "Word 1.")
    one, two, three = here.remember([said(*each) for each in words])
    there.version()
    interleaved(noting(here, one, two), commits, lambda: there.forget(one.id, purge=purge))
    newer = {"rationale": "Word 2."}
    interleaved(noting(here, three), commits, lambda: there.revise(three.id, newer))
    for memory in pair:
        found = {episode.id: episode for episode in memory.episodes()}
        assert found.keys() == {two.id, three.id}
        assert found[two.id].judgment is not None
        assert (found[three.id].rationale, found[three.id].status) == ("Word 2.", "pending")
    items = here.access.store.search((), limit=1_000)
    assert ("Secretly" in dump([item.value for item in items])) is not purge


def test_of_two_judgments_one_is_kept_by_both(pair: Any) -> None:
    here, there = pair
    one = here.remember(said("one"))
    there.version()
    other = noting(there, one, value=False)
    interleaved(noting(here, one), commits, lambda: run(other(BLOCKING)))
    assert here.version() == there.version()
    assert here.episodes() == there.episodes()
    assert here.episodes()[0].judgment is not None
