"""Each process's knowledge of a memory is kept in step with the store, whoever writes and when."""

import asyncio
import random
import sqlite3
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import aiosqlite
import pytest
from langgraph.store.base import GetOp
from langgraph.store.sqlite import SqliteStore
from langgraph.store.sqlite.aio import AsyncSqliteStore

from memalign_graph import JudgeMemory
from memalign_graph.io import SYNC, run_sync
from memalign_graph.memory import access, feedback, learning, memory_state
from memalign_graph.memory.facts import Fact
from memalign_graph.memory.memory_state import MemoryState, build_state
from memalign_graph.memory.operations import (
    GuidelineOperation,
    normalize_text,
)
from memalign_graph.memory.recall import recall
from memalign_graph.memory.view import MemoryView
from tests.unit_tests.memory.driver import KINDS, Actor, check_same, memories, recalled
from tests.unit_tests.memory.stores import (
    Meanwhile,
    Opener,
    Operation,
    commits,
    in_memory,
    interleaved,
)
from tests.unit_tests.memory.support import CRITERION, QUERY, Bench, hashed, op, said


def lesson(memory: JudgeMemory, *changes: GuidelineOperation) -> Operation:
    """Learn from what the changes come from, as it stands."""
    words = {one.id: one.word for one in memory.episodes()}
    read = {key: words[key] for change in changes for key in change.episode_ids}
    return lambda io: learning.learn(io, memory.access, changes, read)


class Shifted:
    """A clock that runs ahead or behind."""

    def __init__(self, seconds: float) -> None:
        self.shift_us = int(seconds * 1_000_000)

    def now_us(self, ticks: int = 1) -> int:
        return time.time_ns() // 1000 + self.shift_us


async def test_an_async_and_a_sync_store_are_kept_in_step(opener: Opener, tmp_path: Path) -> None:
    [here] = memories(opener, 1)
    one = here.remember(said("one"))
    async with aiosqlite.connect(tmp_path / "store.db", isolation_level=None) as connection:
        there = JudgeMemory(AsyncSqliteStore(connection), CRITERION, embeddings=hashed)
        assert len(await there.arecall(QUERY)) == 1
        await there.aremember(said("two"))
        assert {name for name, _ in recalled(here)} == {"one", "two"}
        here.forget(one.id)
        [found] = await there.arecall(QUERY)
        assert found.example.inputs == "two"
        assert await there.aversion() == here.version()


@pytest.mark.parametrize("seconds", [3600, -30, -300])
def test_a_writer_with_another_time_hides_no_commit(
    any_opener: Opener, monkeypatch: pytest.MonkeyPatch, seconds: float
) -> None:
    shifted, reader, writer = memories(any_opener, 3)
    reader.remember(said("one"))
    with monkeypatch.context() as patch:
        patch.setattr("memalign_graph.memory.access.clock", Shifted(seconds))
        shifted.remember(said("two"))
    assert len(recalled(reader)) == 2
    for number in range(3):
        writer.remember(said(f"later {number}"))
        assert len(recalled(reader)) == len(recalled(shifted)) == 3 + number
    assert reader.version() == writer.version()


def test_what_is_kept_in_step_is_the_fold_of_all_facts_in_any_order() -> None:
    for seed in range(4):
        order, opener = random.Random(seed), in_memory()  # noqa: S311 - a test's choices
        warm = memories(opener, 3)
        kinds = f"{KINDS} purge"
        actors = [Actor(memory, f"{seed} {name}", kinds) for name, memory in enumerate(warm)]
        for _ in range(80):
            one, other = order.sample(actors, 2)
            beside = Meanwhile(commits, partial(act, other))
            run_sync(one.act(beside if order.random() < 0.5 else SYNC))
        [cold] = memories(opener, 1)
        check_same(warm, cold)

        facts, words = cold.access.view.facts()
        facts.sort(key=lambda fact: fact.id)
        assert len(facts) > 20
        for _ in range(3):
            view, arrived = MemoryView("test"), list[Fact]()
            late = order.sample(facts, len(facts)) if order.random() < 0.5 else facts
            while len(arrived) < len(facts):
                chunk = late[len(arrived) :][: order.randint(1, 6)]
                arrived += chunk
                view.add([*chunk, *order.sample(arrived, 1)], words)
                check_in_step(view, build_state(arrived, words, "test"))
            assert view.version == cold.version()


def act(actor: Actor) -> None:
    run_sync(actor.act(SYNC))


def check_in_step(view: MemoryView, scratch: MemoryState) -> None:
    rules = sorted(scratch.guidelines.values(), key=lambda one: (one.position, one.id))
    assert view.version == scratch.version
    assert view.guidelines == [scratch.guideline(one) for one in rules]
    assert view.answers() == scratch.answers
    assert view.pending() == sorted(scratch.pending)
    assert view.rows() == [scratch.rows[key] for key in sorted(scratch.rows)]
    texts = {row.vector_key for row in view.rows()}
    assert view.missing_texts().keys() == texts
    at = {row.id for key in texts for row in view.rows_for_vector(key)}
    assert at == scratch.rows.keys()


def test_an_example_forgotten_while_a_recall_is_under_way_takes_no_place_later() -> None:
    [memory] = memories(in_memory(), 1)
    one, _ = memory.remember([said("one"), said("two")])

    def reads_vectors(asked: Any) -> bool:
        return isinstance(asked[0], GetOp) and "vectors" in asked[0].namespace

    def forget() -> None:
        memory.forget(one.id)
        memory.version()

    interleaved(lambda io: recall(io, memory.access, QUERY, 5), reads_vectors, forget)
    assert len(memory.recall(one.example, k=1)) == 1


def test_a_version_from_before_an_earlier_fact_arrived_is_found(any_opener: Opener) -> None:
    first, second, reader = memories(any_opener, 3)
    first.remember(said("known"))
    first.version()
    versions: list[str] = []

    def meanwhile() -> None:
        for number in range(3):
            seen = second.remember(said(f"seen {number}", "Newer."))
            run_sync(lesson(second, op("add", seen, text=f"Be warm {number}."))(SYNC))
            versions.append(second.version())

    words = said("late", value=False), said("late as well")
    interleaved(partial(feedback.remember, access=first.access, feedback=words), commits, meanwhile)
    second.remember(said("last"))
    for number, version in enumerate(versions):
        then = reader.at(version)
        assert then.version == version
        seen = [one.example.inputs for one in then.episodes]
        assert seen == ["known", *(f"seen {one}" for one in range(number + 1))]
        assert len(then.guidelines) == number + 1
    now = reader.version()
    rolled = reader.rollback(versions[1])
    assert {reader.version(), second.version(), rolled.version} == {versions[1]}
    assert len(reader.episodes()) == 3
    reader.rollback(now)
    assert first.version() == now


def test_looking_back_weighs_a_guideline_when_it_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    [memory] = memories(in_memory(), 1)
    for number in range(20):
        memory.add_guideline(f"Rule {number}.")
    versions = [memory.version()]
    for number in range(30):
        memory.remember(said(f"case {number}"))
        versions.append(memory.version())
    weigh = Mock(side_effect=memory_state.guideline_hash_term)
    monkeypatch.setattr(memory_state, "guideline_hash_term", weigh)
    commits = memory.history()
    assert [commit.version for commit in commits[:31]] == versions[::-1]
    assert [commit.guidelines.added for commit in commits[::-1]] == [1] * 20 + [0] * 30
    assert weigh.call_count == 20
    weigh.reset_mock()
    assert len(memory.at(versions[10]).episodes) == 10
    memory.rollback(versions[20])
    # At each once, and as often as the memory is folded from its beginning.
    assert weigh.call_count <= 3 * 20


def test_of_two_words_said_at_once_the_newer_counts(any_opener: Opener) -> None:
    here, there = memories(any_opener, 2)
    here.remember(said("one", "First."))
    there.version()
    older, newer = said("one", "Older."), said("one", "Newer.")
    looks = count(1)

    def looks_last(asked: Any) -> bool:
        is_head = isinstance(asked[0], GetOp) and asked[0].namespace[-1] == "head"
        return is_head and next(looks) == 2

    interleaved(
        partial(feedback.remember, access=here.access, feedback=[older]),
        looks_last,
        partial(there.remember, newer),
        after=True,
    )
    assert [commit.reason for commit in here.history()] == ["remember"] * 3
    for memory in (here, there):
        assert [episode.rationale for episode in memory.episodes()] == ["Newer."]


def test_n_learners_of_one_rule_write_n_facts_and_keep_all_sources(any_opener: Opener) -> None:
    count = 5
    learners = memories(any_opener, count)
    episodes = learners[0].remember([said(f"case {number}") for number in range(count)])

    def learn(number: int) -> None:
        if number < count:
            operation = lesson(learners[number], op("add", episodes[number], text="Say sorry."))
            interleaved(operation, commits, lambda: learn(number + 1))

    learn(0)
    assert len(learners[0].history()) == 1 + count
    for memory in learners:
        [rule] = memory.guidelines()
        assert set(rule.episode_ids) == {one.id for one in episodes}
        assert memory.version() == learners[0].version()


@pytest.mark.parametrize("bench", ["memory-async", "sqlite-async"], indirect=True)
async def test_writers_at_once_lose_nothing(bench: Bench, reopen: Any) -> None:
    await asyncio.gather(*(bench.memory().aremember(said(f"case {n}")) for n in range(20)))
    assert len(await bench.do("episodes")) == 20
    version = await bench.do("version")
    assert len(await bench.recall("new", k=100)) == 20
    reopen()
    assert await bench.do("version") == version


def test_threads_that_write_and_recall_on_one_store_lose_nothing(opener: Opener) -> None:
    [memory] = memories(opener, 1)

    def work(worker: int) -> None:
        for number in range(8):
            episode = memory.remember(said(f"case{worker}x{number}"))
            assert memory.recall(episode.example, k=1)[0].episodes == [episode]
            if number % 4 == 3:
                memory.forget(episode.id)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
    [cold] = memories(opener, 1)
    assert len(recalled(memory)) == len(recalled(cold)) == 48
    assert memory.version() == cold.version()


def test_sqlites_limit_of_variables_does_not_limit_a_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert access.BATCH_ITEMS <= 1_000
    monkeypatch.setattr(access, "BATCH_ITEMS", access.BATCH_ITEMS // 10)
    connection = sqlite3.connect(":memory:", check_same_thread=False, isolation_level=None)
    connection.setlimit(sqlite3.SQLITE_LIMIT_VARIABLE_NUMBER, 32_766 // 10)
    memory = JudgeMemory(SqliteStore(connection), CRITERION, embeddings=hashed)
    memory.remember([said(f"case {number}") for number in range(700)])
    assert len(memory.episodes()) == 700
    connection.close()


SHARES = [((0, 1, 2, 3), (2, 3)), ((2, 3), (0, 1, 2, 3)), ((0, 1, 2), (1, 2, 3)), ((0, 1), (2, 3))]


def taught(memory: JudgeMemory) -> Counter[str]:
    return Counter(key for rule in memory.guidelines() for key in rule.episode_ids)


@pytest.mark.parametrize("text", ["Rule B.", "RULE  a"])
def test_of_two_that_learn_from_one_word_at_once_the_earlier_counts(text: str) -> None:
    for share in [*SHARES, *((one, one) for one, _ in SHARES)]:
        one, other = memories(in_memory(), 2)
        ids = [each.id for each in one.remember([said(f"q{number}") for number in range(4)])]
        mine, theirs = ([ids[number] for number in numbers] for numbers in share)
        interleaved(
            lesson(one, op("add", *mine, text="Rule A.")),
            commits,
            partial(run_sync, lesson(other, op("add", *theirs, text=text))(SYNC)),
        )
        assert taught(one) == taught(other) == dict.fromkeys({*mine, *theirs}, 1)
        statuses = {each.id: each.status for each in one.episodes()}
        assert {statuses[key] for key in (*mine, *theirs)} == {"distilled"}
        texts = [normalize_text(rule.text) for rule in one.guidelines()]
        assert len(set(texts)) == len(texts)
