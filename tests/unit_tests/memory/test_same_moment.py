"""Two writers at the same moment, neither of whom sees the other: what each did is kept."""

import asyncio
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
from langgraph.store.base import PutOp, SearchOp
from langgraph.store.memory import InMemoryStore

from memalign_graph import Episode, JudgeMemory
from memalign_graph.io import AWAITING, BLOCKING, run
from memalign_graph.memory import history, operations, purge
from memalign_graph.memory import learning as lessons
from tests.unit_tests.memory.support import (
    CRITERION,
    Opener,
    Operation,
    dump,
    hashed,
    interleaved,
    learn,
    op,
    said,
)

Pair = tuple[JudgeMemory, JudgeMemory]


@pytest.fixture
def pair(any_opener: Opener) -> Pair:
    """The same memory through two stores, as in two processes."""
    here, there = (JudgeMemory(any_opener(), CRITERION, embeddings=hashed) for _ in "12")
    return here, there


def commits(asked: Any) -> bool:
    """Whether a call writes a fact."""
    return any(isinstance(one, PutOp) and one.namespace[-1] == "facts" for one in asked)


def learning(memory: JudgeMemory, episode: Episode, **fields: Any) -> Operation:
    change = op(fields.pop("action", "add"), episode, **fields)
    return lambda io: lessons.learn(io, memory.access, [change], {episode.id: episode.word})


def check_agreement(pair: Pair) -> None:
    """Both see the same; the version that stands is found, and holds what is there."""
    here, there = pair
    assert here.version() == there.version()
    then = here.at(there.version())
    assert then.missing == []
    assert then.episodes == here.episodes() == there.episodes()
    assert then.guidelines == there.guidelines()


@pytest.fixture
def both(pair: Pair) -> Iterator[Pair]:
    yield pair
    check_agreement(pair)
    pair[0].remember(said("one more"))
    check_agreement(pair)


@pytest.mark.parametrize("words", ["Say sorry.", "SAY  sorry"])
def test_two_that_learn_the_same_words_keep_both_sources(both: Pair, words: str) -> None:
    here, there = both
    one, two = here.remember([said("one"), said("two")])
    there.version()
    interleaved(
        learning(here, one, text="Say sorry."),
        commits,
        lambda: run(learning(there, two, text=words)(BLOCKING)),
    )
    [rule] = there.guidelines()
    assert set(rule.episode_ids) == {one.id, two.id}


async def test_two_that_learn_in_step_on_one_event_loop_come_to_an_end() -> None:
    store = InMemoryStore()
    here, there = (JudgeMemory(store, CRITERION, embeddings=hashed) for _ in "12")
    one, two = here.remember([said("one"), said("two")])
    async with asyncio.timeout(60):
        await asyncio.gather(
            learning(here, one, text="Say sorry.")(AWAITING),
            learning(there, two, text="Say sorry.")(AWAITING),
        )
    [rule] = there.guidelines()
    assert set(rule.episode_ids) == {one.id, two.id}


def test_the_same_word_remembered_twice_is_one_episode(both: Pair) -> None:
    here, there = both
    interleaved(
        lambda io: operations.remember(io, here.access, [said(thread_id="a"), said("two")]),
        commits,
        lambda: there.remember([said(thread_id="b"), said("three")]),
    )
    assert len(here.episodes()) == 3


def test_what_an_expert_says_while_the_old_word_is_learned_from_is_kept(both: Pair) -> None:
    here, there = both
    one = here.remember(said("one", "Word 1."))
    there.version()
    interleaved(
        learning(here, one, text="Of word 1."),
        commits,
        lambda: there.remember(said("one", "Word 2.")),
    )
    [episode] = there.episodes()
    assert (episode.rationale, episode.status) == ("Word 2.", "pending")
    assert there.guidelines() == []


def taking_back(how: str, memory: JudgeMemory, one: Episode) -> Operation:
    access, selection = memory.access, operations.Selection(episode_ids=[one.id])
    ways: dict[str, Operation] = {
        "forget": lambda io: operations.forget(io, access, selection),
        "purge": lambda io: purge.purge(io, access, selection, None),
        "another word": lambda io: operations.remember(io, access, [said("one", "Word 2.")]),
        "revise": lambda io: operations.revise(io, access, one.id, {"rationale": "Word 2."}),
        "roll back": lambda io: history.rollback(io, access, "0" * 32),
    }
    return ways[how]


TAKING_BACK = ("forget", "purge", "another word", "revise", "roll back")


@pytest.mark.parametrize("how", TAKING_BACK)
def test_what_is_learned_while_its_source_is_taken_back_does_not_stay(both: Pair, how: str) -> None:
    here, there = both
    one = here.remember(said("one", "Planted."))
    there.version()
    interleaved(
        taking_back(how, here, one), commits, lambda: learn(there, op("add", one, text="Planted."))
    )
    assert there.guidelines() == []
    assert "Planted." not in {each.rationale for each in there.episodes()}


@pytest.mark.parametrize("how", TAKING_BACK)
def test_what_is_taken_back_while_it_is_learned_from_does_not_stay(both: Pair, how: str) -> None:
    here, there = both
    one = here.remember(said("one", "Planted."))
    there.version()
    interleaved(
        learning(here, one, text="Planted."),
        commits,
        lambda: run(taking_back(how, there, one)(BLOCKING)),
    )
    assert there.guidelines() == []
    assert "Planted." not in {each.rationale for each in there.episodes()}


@pytest.mark.parametrize("first", ["learn", "purge"])
def test_a_purge_beside_a_learner_leaves_nothing_of_it_anywhere(pair: Pair, first: str) -> None:
    here, there = pair
    one = here.remember(said("one", "Planted."))
    learn(here, op("add", one, text="Planted."))
    two = here.remember(said("two"))
    there.version()
    if first == "learn":
        [rule] = here.guidelines()
        operation = learning(here, two, action="revise", guideline_id=rule.id, text="Planted two.")
        interleaved(operation, commits, lambda: there.forget(one.id, purge=True))
    else:
        words = {one.id: one.word, two.id: two.word}
        change = op("add", one, two, text="Planted two.")
        interleaved(
            taking_back("purge", here, one),
            commits,
            lambda: run(lessons.learn(BLOCKING, there.access, [change], words, relearn=True)),
        )
    found = here.access.store.search(("memalign",), limit=1_000)
    assert [item.namespace for item in found if "lanted" in dump(item.value)] == []


def test_two_that_edit_one_item_have_versions_that_are_found(both: Pair) -> None:
    here, there = both
    here.remember(said("one", "Word 1."))
    there.version()
    interleaved(
        lambda io: operations.remember(io, here.access, [said("one", "Of here.")]),
        commits,
        lambda: there.remember(said("one", "Of there.")),
    )
    here.remember(said("two"))
    version, contents = here.version(), here.episodes()
    there.forget(where=lambda _: True)
    there.rollback(version)
    assert here.episodes() == contents


def test_each_version_of_the_history_is_found(pair: Pair) -> None:
    here, there = pair
    for number in range(4):
        word = said(f"here {number}")
        interleaved(
            partial(operations.remember, access=here.access, feedback=[word]),
            commits,
            partial(there.remember, said(f"there {number}")),
        )
    found = here.history()
    assert len(found) == 8
    for count, commit in enumerate(reversed(found), start=1):
        assert len(there.at(commit.version).episodes) == count


def reads_facts(asked: Any) -> bool:
    return isinstance(asked[0], SearchOp)


@pytest.mark.parametrize("after", [False, True])
def test_a_reader_that_looks_while_another_commits_sees_a_version_that_was(
    pair: Pair, *, after: bool
) -> None:
    here, there = pair
    here.remember([said("one"), said("two")])
    there.version()
    here.remember(said("one", "Word 1."))
    second = [said("one", "Word 2."), said("two", "Word 2.")]
    interleaved(there.access.refresh, reads_facts, lambda: here.remember(second), after=after)
    then = here.at(there.access.view.version)
    assert {one.rationale for one in then.episodes} == (
        {"Word 1.", "Too cold."} if after else {"Word 2."}
    )
    check_agreement(pair)
