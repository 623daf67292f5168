"""Each process's cached state stays consistent with the store."""

import asyncio
import sqlite3
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import aiosqlite
import pytest
from langgraph.store.base import GetOp
from langgraph.store.sqlite import SqliteStore
from langgraph.store.sqlite.aio import AsyncSqliteStore

from memalign_graph import JudgeMemory
from memalign_graph.memory import access, memory_state
from memalign_graph.memory.recall import recall
from tests.unit_tests.memory.driver import memories, recalled
from tests.unit_tests.memory.stores import Opener, in_memory, interleave
from tests.unit_tests.memory.support import CRITERION, QUERY, Bench, hashed, said


class Shifted:
    """A clock that runs ahead or behind."""

    def __init__(self, seconds: float) -> None:
        self.shift_us = int(seconds * 1_000_000)

    def now_us(self, ticks: int = 1) -> int:
        return time.time_ns() // 1000 + self.shift_us


async def test_sync_and_async_stores_see_the_same_memory(opener: Opener, tmp_path: Path) -> None:
    [here] = memories(opener, 1)
    episode = here.remember(said("one"))
    async with aiosqlite.connect(tmp_path / "store.db", isolation_level=None) as connection:
        there = JudgeMemory(AsyncSqliteStore(connection), CRITERION, embeddings=hashed)
        assert len(await there.arecall(QUERY)) == 1
        await there.aremember(said("two"))
        assert {name for name, _ in recalled(here)} == {"one", "two"}
        here.forget(episode.id)
        [result] = await there.arecall(QUERY)
        assert result.example.inputs == "two"
        assert await there.aversion() == here.version()


@pytest.mark.parametrize("seconds", [3600, -30, -300])
def test_writer_with_a_skewed_clock_hides_no_commit(
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


def test_example_forgotten_during_a_recall_takes_no_result_place() -> None:
    [memory] = memories(in_memory(), 1)
    episode, _ = memory.remember([said("one"), said("two")])

    def reads_vectors(asked: Any) -> bool:
        return isinstance(asked[0], GetOp) and "vectors" in asked[0].namespace

    def forget() -> None:
        memory.forget(episode.id)
        memory.version()

    interleave(lambda io: recall(io, memory.access, QUERY, 5), reads_vectors, forget)
    assert len(memory.recall(episode.example, k=1)) == 1


def test_history_hashes_a_guideline_only_when_it_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    [memory] = memories(in_memory(), 1)
    for number in range(20):
        memory.add_guideline(f"Rule {number}.")
    versions = [memory.version()]
    for number in range(30):
        memory.remember(said(f"case {number}"))
        versions.append(memory.version())
    weigh = Mock(side_effect=memory_state._guideline_hash_term)
    monkeypatch.setattr(memory_state, "_guideline_hash_term", weigh)
    commits = memory.history()
    assert [commit.version for commit in commits[:31]] == versions[::-1]
    assert [commit.guidelines.added for commit in commits[::-1]] == [1] * 20 + [0] * 30
    assert weigh.call_count == 20
    weigh.reset_mock()
    assert len(memory.at(versions[10]).episodes) == 10
    memory.rollback(versions[20])
    # Once per change, and once per replay of the whole log.
    assert weigh.call_count <= 3 * 20


def test_lessons_are_applied_once(monkeypatch: pytest.MonkeyPatch) -> None:
    [memory] = memories(in_memory(), 1)
    for number in range(60):
        memory.remember(said(f"q{number}", "Cold.", value=False))
    for episode in memory.episodes()[:40]:
        memory.revise(episode.id, {"rationale": "Rude."})
    facts, feedback_records = memory.access.view.facts()
    reapply = Mock()
    monkeypatch.setattr(memory_state.MemoryState, "_reapply_lessons", reapply)
    folded = memory_state.build_state(facts, feedback_records, memory.access.embedder.id)
    assert folded.version == memory.version()
    assert reapply.call_count <= 1


@pytest.mark.parametrize("bench", ["memory-async", "sqlite-async"], indirect=True)
async def test_concurrent_writers_lose_nothing(bench: Bench, reopen: Any) -> None:
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


def test_memory_may_exceed_sqlites_variable_limit(
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
