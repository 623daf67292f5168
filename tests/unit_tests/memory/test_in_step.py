"""Two readers and writers of one memory: each sees what the other did, in its next call."""

import asyncio
import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import aiosqlite
import pytest
from langgraph.store.sqlite.aio import AsyncSqliteStore

from memalign_graph import JudgeMemory
from memalign_graph.io import BLOCKING, run
from memalign_graph.memory.facts import Fact
from memalign_graph.memory.standing import Standing, stand
from memalign_graph.memory.view import MemoryView
from tests.unit_tests.memory.acting import KINDS, Actor
from tests.unit_tests.memory.support import (
    CRITERION,
    QUERY,
    Bench,
    Meanwhile,
    Opener,
    hashed,
    interleaved,
    learn,
    op,
    said,
)
from tests.unit_tests.memory.test_same_moment import commits

AWAITED = ("memory-async", "sqlite-async", "aiosqlite-async")


def recalled(memory: JudgeMemory) -> set[tuple[Any, str | None]]:
    found = memory.recall(QUERY, k=100)
    return {(one.example.inputs, word.rationale) for one in found for word in one.episodes}


class Shifted:
    """A clock that runs ahead or behind."""

    def __init__(self, seconds: float) -> None:
        self.shift_us = int(seconds * 1_000_000)

    def now_us(self, ticks: int = 1) -> int:
        return time.time_ns() // 1000 + self.shift_us


@pytest.fixture
def pair(any_opener: Opener) -> tuple[JudgeMemory, JudgeMemory]:
    """The same memory through two stores, as in two processes; both have looked into it."""
    here, there = (JudgeMemory(any_opener(), CRITERION, embeddings=hashed) for _ in range(2))
    assert recalled(here) == recalled(there) == set()
    return here, there


def test_each_sees_what_the_other_remembers(pair: tuple[JudgeMemory, JudgeMemory]) -> None:
    here, there = pair
    here.remember(said("one"))
    assert recalled(there) == {("one", "Too cold.")}
    there.remember([said("two"), said("three")])
    assert len(recalled(here)) == 3
    assert here.version() == there.version()


def test_each_forgets_along_what_the_other_learned(pair: tuple[JudgeMemory, JudgeMemory]) -> None:
    here, there = pair
    one, two = here.remember([said("one"), said("two")])
    learn(there, op("add", one, text="Of one."), op("add", one, two, text="Of both."))
    here.forget(one.id)
    [rule] = there.guidelines()
    assert (rule.text, rule.status, rule.episode_ids) == ("Of both.", "pending", [two.id])
    assert there.version() == here.version()


async def test_an_async_and_a_sync_store_are_kept_in_step(opener: Opener, tmp_path: Path) -> None:
    here = JudgeMemory(opener(), CRITERION, embeddings=hashed)
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


@pytest.mark.parametrize("seconds", [3600, -30])
def test_a_writer_with_another_time_hides_no_commit(
    any_opener: Opener, monkeypatch: pytest.MonkeyPatch, seconds: float
) -> None:
    shifted, reader, writer = (
        JudgeMemory(any_opener(), CRITERION, embeddings=hashed) for _ in "123"
    )
    reader.remember(said("one"))
    with monkeypatch.context() as patch:
        patch.setattr("memalign_graph.memory.access.clock", Shifted(seconds))
        shifted.remember(said("two"))
    assert len(recalled(reader)) == 2
    for number in range(3):
        writer.remember(said(f"later {number}"))
        assert len(recalled(reader)) == 3 + number
    assert reader.version() == writer.version()


def test_eight_threads_opening_a_memory_all_recall(near: Bench, reopen: Any) -> None:
    near.memory().remember([said(f"case {number}") for number in range(20)])
    for _ in range(5):
        reopen()
        start = threading.Barrier(8)

        def look(_: int, start: threading.Barrier = start) -> int:
            start.wait()
            return len(near.memory().recall(QUERY, k=20))

        with ThreadPoolExecutor(8) as pool:
            assert list(pool.map(look, range(8))) == [20] * 8


@pytest.mark.parametrize("seed", range(3))
def test_what_is_kept_in_step_is_the_fold_of_all_facts_in_any_order(
    any_opener: Opener, seed: int
) -> None:
    order = random.Random(seed)  # noqa: S311 - a test's choices
    memories = [JudgeMemory(any_opener(), CRITERION, embeddings=hashed) for _ in range(3)]
    kinds = f"{KINDS} purge"
    actors = [Actor(memory, f"{seed} {name}", kinds) for name, memory in enumerate(memories)]
    for _ in range(60):
        one, other = order.sample(actors, 2)
        beside = Meanwhile(commits, partial(beside_another, other))
        run(one.act(beside if order.random() < 0.5 else BLOCKING))
    cold = JudgeMemory(any_opener(), CRITERION, embeddings=hashed)
    for memory in memories:
        assert memory.version() == cold.version()
        assert memory.episodes() == cold.episodes()
        assert memory.guidelines() == cold.guidelines()
        assert recalled(memory) == recalled(cold)

    facts, words = cold.access.view.facts()
    assert len(facts) > 20
    for _ in range(3):
        view, arrived = MemoryView("test"), list[Fact]()
        late = order.sample(facts, len(facts)) if order.random() < 0.5 else facts
        while len(arrived) < len(facts):
            chunk = late[len(arrived) :][: order.randint(1, 6)]
            arrived += chunk
            view.add([*chunk, *order.sample(arrived, 1)], words)
            check_in_step(view, stand(arrived, words, "test"))
        assert view.version == cold.version()


def beside_another(actor: Actor) -> None:
    run(actor.act(BLOCKING))


def check_in_step(view: MemoryView, scratch: Standing) -> None:
    rules = sorted(scratch.guidelines.values(), key=lambda one: (one.position, one.id))
    assert view.version == scratch.version
    assert view.guidelines == [scratch.guideline(one) for one in rules]
    assert view.pending() == sorted(scratch.pending)
    assert view.rows() == [scratch.rows[key] for key in sorted(scratch.rows)]
    texts = {row.vector_key for row in view.rows()}
    assert view.missing_texts().keys() == texts
    at = {row.id for key in texts for row in view.rows_at(key)}
    assert at == scratch.rows.keys()


def test_a_slow_reader_brings_nothing_back(any_opener: Opener, reopen: Any) -> None:
    memory = JudgeMemory(any_opener(), CRITERION, embeddings=hashed)
    one, _ = memory.remember([said("one"), said("two")])
    reopen()

    def forget() -> None:
        memory.forget(one.id)
        memory.version()

    interleaved(memory.access.refresh, lambda _: True, forget, after=True)
    cold = JudgeMemory(any_opener(), CRITERION, embeddings=hashed)
    assert memory.version() == cold.version()
    assert recalled(memory) == {("two", "Too cold.")}


@pytest.mark.parametrize("bench", AWAITED, indirect=True)
async def test_eight_recalls_at_once_all_recall(bench: Bench, reopen: Any) -> None:
    await bench.remember(*(said(f"case {number}") for number in range(20)))
    reopen()
    found = await asyncio.gather(*(bench.memory().arecall(QUERY, 20) for _ in range(8)))
    assert [len(one) for one in found] == [20] * 8


@pytest.mark.parametrize("bench", AWAITED, indirect=True)
async def test_writers_at_once_lose_nothing(bench: Bench, reopen: Any) -> None:
    await asyncio.gather(*(bench.memory().aremember(said(f"case {n}")) for n in range(20)))
    assert len(await bench.do("episodes")) == 20
    version = await bench.do("version")
    assert len(await bench.recall("new", k=100)) == 20
    reopen()
    assert await bench.do("version") == version


def test_threads_that_write_and_recall_on_one_store_lose_nothing(opener: Opener) -> None:
    memory = JudgeMemory(opener(), CRITERION, embeddings=hashed)

    def work(worker: int) -> None:
        for number in range(8):
            episode = memory.remember(said(f"case{worker}x{number}"))
            assert memory.recall(episode.example, k=1)[0].episodes == [episode]
            if number % 4 == 3:
                memory.forget(episode.id)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
    cold = JudgeMemory(opener(), CRITERION, embeddings=hashed)
    assert len(recalled(memory)) == len(recalled(cold)) == 48
    assert memory.version() == cold.version()
