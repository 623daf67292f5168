"""The cache of memories: loading, eviction, and consistency with the store."""

import asyncio
import gc
import sqlite3
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from itertools import count
from typing import Any
from unittest.mock import Mock

import pytest
from langgraph.store.base import GetOp, Op, Result, SearchOp
from langgraph.store.memory import InMemoryStore
from langgraph.store.sqlite import SqliteStore

from memalign_graph import InvalidInputError, JudgeMemory, StoreError, create_judge_graph
from memalign_graph.io import ASYNC, SYNC, run_sync
from memalign_graph.memory import access, memory_state, view
from memalign_graph.memory.feedback import remember
from memalign_graph.memory.recall import recall
from tests.loopback import ChatRequest, LoopbackServer, ReplyLike
from tests.unit_tests.memory.driver import memories, recalled
from tests.unit_tests.memory.stores import (
    CutOffError,
    Opener,
    WatchedStore,
    commits,
    in_memory,
    interleave,
    reads_of,
)
from tests.unit_tests.memory.support import CRITERION, QUERY, comment, hashed, learn, op


def judge_memory(store: Any, name: str = "memalign") -> JudgeMemory:
    return JudgeMemory(store, CRITERION, namespace=name, embeddings=hashed)


def words_in(memory: JudgeMemory) -> set[str | None]:
    matches = memory.recall(QUERY, k=9)
    return {episode.rationale for match in matches for episode in match.episodes}


def cached() -> list[view.MemoryView]:
    return [value for views in view._cache.cached.values() for value in views.values()]


def test_changes_of_other_processes_are_seen_with_a_bounded_cache_of_many_memories(
    monkeypatch: pytest.MonkeyPatch, reopen: Callable[[], None]
) -> None:
    reopen()
    monkeypatch.setattr(view, "_CHECK_EVERY_S", 0)
    here = WatchedStore()
    there = in_memory(here)()
    names = [f"team {number}" for number in range(60)]
    judge_memory(there, names[0]).remember(comment("one"))
    monkeypatch.setenv(view.CACHE_BYTES, str(bound := 20 * cached()[0].nbytes))
    for name in names:
        judge_memory(there, name).remember(comment("one", f"Word of {name}."))
        assert words_in(judge_memory(here, name)) == {f"Word of {name}."}
        assert sum(item.nbytes for item in cached()) <= bound
    assert 5 < len(cached()) < 30
    for name in (names[0], names[-1]):  # evicted long ago, and still stored
        judge_memory(there, name).remember(comment("two", "Another."))
        assert words_in(judge_memory(here, name)) == {f"Word of {name}.", "Another."}
    here.batches.clear()
    words_in(judge_memory(here, names[-1]))
    assert reads_of(here.batches) == ["head"]


def test_memory_used_last_is_cached_and_one_in_use_is_shared(
    monkeypatch: pytest.MonkeyPatch, reopen: Callable[[], None]
) -> None:
    reopen()
    monkeypatch.setattr(view, "_CHECK_EVERY_S", 0)
    store = InMemoryStore()
    first, second, third = (judge_memory(store, f"team {number}") for number in range(3))
    for memory in (first, second):
        memory.remember(comment("one"))
    first.recall(QUERY)
    retained = first.access.view
    monkeypatch.setenv(view.CACHE_BYTES, str(int(2.5 * retained.nbytes)))
    third.remember(comment("one"))
    third.recall(QUERY)
    assert cached() == [retained, third.access.view]

    access = first.access
    assert access.view is retained
    monkeypatch.setenv(view.CACHE_BYTES, "1")
    third.remember(comment("two"))
    assert cached() == [third.access.view]  # whatever its size
    assert first.access.view is retained
    del access, retained
    third.recall(QUERY)
    gc.collect()
    assert len(words_in(first)) == 1


def test_memory_that_is_dropped_during_a_recall_is_read_by_it(
    monkeypatch: pytest.MonkeyPatch, reopen: Callable[[], None]
) -> None:
    async def dropped_meanwhile(*args: Any) -> Any:
        found = await recall(*args)
        reopen()
        return found

    memory = judge_memory(InMemoryStore())
    memory.remember(comment("one"))
    monkeypatch.setattr("memalign_graph.memory.judge_memory.recall", dropped_meanwhile)
    assert len(memory.recall(QUERY)) == 1


def test_size_of_small_memories_is_counted_and_not_at_each_load(
    monkeypatch: pytest.MonkeyPatch, reopen: Callable[[], None]
) -> None:
    store = InMemoryStore()
    memories = [judge_memory(store, f"team {number}") for number in range(40)]
    for memory in memories:
        memory.remember(comment("one"))
    memories[0].recall(QUERY)  # imports what is not counted
    reopen()
    monkeypatch.setattr(view, "_CHECK_EVERY_S", 3600, raising=False)
    size: Any = view.MemoryView.nbytes
    counted = Mock(side_effect=size.fget)
    monkeypatch.setattr(view.MemoryView, "nbytes", property(counted))
    tracemalloc.start()
    for number in range(40):
        judge_memory(store, f"team {number}").recall(QUERY)
    gc.collect()
    real, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert counted.call_count == 1
    assert len(cached()) == 40
    assert 0.5 < sum(each.nbytes for each in cached()) / real < 2


def test_cache_limit_must_be_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(view.CACHE_BYTES, "2 GiB")
    with pytest.raises(InvalidInputError, match="MEMALIGN_CACHE_BYTES: '2 GiB' is not a number"):
        judge_memory(InMemoryStore()).version()


class SlowStore(InMemoryStore):
    """Counts initial loads and blocks each until released; some fail."""

    def __init__(self) -> None:
        super().__init__()
        self.readings = 0
        self.failing = 0
        self.entered, self.released = threading.Event(), threading.Event()

    def batch(self, ops: Iterable[Op]) -> list[Result]:
        operations = list(ops)
        if "words" in reads_of([operations]) and isinstance(operations[0], SearchOp):
            self.readings += 1
            self.entered.set()
            assert self.released.wait(10)
            if self.failing:
                self.failing -= 1
                raise CutOffError
        return super().batch(operations)

    async def abatch(self, ops: Iterable[Op]) -> list[Result]:
        return await asyncio.to_thread(self.batch, list(ops))


@pytest.fixture
def slow() -> Iterator[SlowStore]:
    store, filled = SlowStore(), InMemoryStore()
    judge_memory(filled).remember(comment("one"))
    store._data = filled._data
    yield store
    store.released.set()


async def test_one_caller_loads_a_memory_while_the_others_wait(slow: SlowStore) -> None:
    tasks = [asyncio.create_task(judge_memory(slow).aversion())]
    await asyncio.to_thread(slow.entered.wait)
    tasks += [asyncio.create_task(judge_memory(slow).aversion()) for _ in range(10)]
    with ThreadPoolExecutor(10) as threads:
        blocked = [threads.submit(judge_memory(slow).version) for _ in range(10)]
        await asyncio.sleep(0.05)
        slow.released.set()
        versions = {*await asyncio.gather(*tasks)}
        versions |= {await asyncio.wrap_future(item) for item in blocked}
    assert len(versions) == 1
    assert versions != {"0" * 32}
    assert slow.readings == 1


async def test_next_caller_loads_if_the_first_fails_or_is_cancelled(slow: SlowStore) -> None:
    slow.failing = 1
    first = asyncio.create_task(judge_memory(slow).aversion())
    await asyncio.to_thread(slow.entered.wait)
    others = [asyncio.create_task(judge_memory(slow).aversion()) for _ in range(5)]
    slow.released.set()
    with pytest.raises(CutOffError):
        await first
    [version] = set(await asyncio.gather(*others))
    assert slow.readings == 2

    fresh = SlowStore()
    fresh._data = slow._data
    first, second = (asyncio.create_task(judge_memory(fresh).aversion()) for _ in "12")
    await asyncio.to_thread(fresh.entered.wait)
    first.cancel()
    fresh.released.set()
    assert await second == version
    assert first.cancelled()


async def test_loading_on_two_event_loops(slow: SlowStore, monkeypatch: pytest.MonkeyPatch) -> None:
    first = asyncio.create_task(judge_memory(slow).aversion())
    await asyncio.to_thread(slow.entered.wait)
    there = in_memory(slow)()
    judge_memory(there).remember(comment("two"))
    second = asyncio.create_task(judge_memory(slow).access.refresh(ASYNC))
    slow.released.set()
    # The loop is blocked by its own thread and by one it waits for.
    version = judge_memory(slow).version()
    monkeypatch.setattr(access, "_WAIT_TIMEOUT_S", 0.01)
    with ThreadPoolExecutor(1) as threads:
        assert threads.submit(judge_memory(slow).version).result() == version
    await first
    assert len((await second).rows()) == 2  # also what was written during the load


def test_work_that_was_done_just_before_the_lock_was_taken_is_not_repeated() -> None:
    looks, lock = iter([False, True]), threading.Lock()
    # Without the second look it would do the work, which is none.
    run_sync(access.do_once(SYNC, lock, lambda: next(looks), pytest.fail))
    assert not lock.locked()


def test_judgment_reads_the_head_once_and_uses_the_version_it_names(server: LoopbackServer) -> None:
    store = WatchedStore()
    there = in_memory(store)()
    models: Any = {"model": server.chat_model(), "embeddings": server.embedder()}
    memory, other = (
        JudgeMemory(value, CRITERION, embeddings=models["embeddings"]) for value in (store, there)
    )
    feedback = [comment(f"case {number}", value=number % 2 == 0) for number in range(30)]
    memory.remember(feedback[:20])
    graph = create_judge_graph(CRITERION, decide="evidence", **models).compile(store=store)
    case = {"inputs": "case 1, again", "outputs": "a"}
    graph.invoke(case)
    store.batches.clear()
    graph.invoke(case)
    assert reads_of(store.batches) == ["head"]

    before = memory.version()
    judge = server.responder

    def meanwhile(chat: ChatRequest) -> ReplyLike:
        other.remember(feedback[20:])
        memory.version()
        return judge(chat)

    server.responder = meanwhile
    judgment = graph.invoke(case)["judgment"]
    assert (judgment["memory_version"], judgment["evidence"]["cases"]) == (before, 20)
    assert judgment["warnings"] == []
    server.responder = judge
    judgment = graph.invoke(case)["judgment"]
    assert (judgment["memory_version"], judgment["evidence"]["cases"]) == (other.version(), 30)


def test_memories_go_on_after_a_clock_far_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    start, year = 1_800_000_000_000_000, 365 * 86_400_000_000
    now = count(start + year, 1_000)
    monkeypatch.setattr(time, "time_ns", lambda: next(now) * 1000)
    here, other = memories(in_memory(), 2)
    wrong = here.remember(comment("wrong clock"))
    now = count(start, 1_000)
    here.remember(comment("later"))
    for minutes in (1, 20, 40):
        now = count(start + minutes * 60_000_000, 1_000)
        other.remember(comment(f"elsewhere {minutes}"))
        assert len(here.episodes()) == len(other.episodes())
    here.forget(wrong.id)
    assert len(other.episodes()) == len(here.episodes()) == 4
    *newer, first = here.history()
    assert {commit.at.year for commit in newer} == {2027}
    assert first.at.year == 2028


def set_clock(patch: pytest.MonkeyPatch, seconds: float) -> None:
    """Let the clock run ahead, or behind."""
    right, shift_ns = time.time_ns, int(seconds * 1e9)
    patch.setattr(time, "time_ns", lambda: right() + shift_ns)


def test_what_is_given_within_one_tick_of_the_clock_keeps_its_order(
    any_opener: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "time_ns", lambda: 1_800_000_000_000_000_000)
    here, there = memories(any_opener, 2)
    for number in range(8):
        memory = here if number % 3 else there
        memory.add_guideline(f"Rule {number}.", author=str(number))
        memory.remember(comment("one", f"Comment {number}."))
    for memory in (here, there):
        assert [rule.text for rule in memory.guidelines()] == [f"Rule {n}." for n in range(8)]
        assert [rule.author for rule in memory.history() if rule.author] == [*"76543210"]
        assert [episode.rationale for episode in memory.episodes()] == ["Comment 7."]
    there.remove_guideline(there.guidelines()[0].id)
    again = here.add_guideline("Rule 0.")
    assert there.guidelines()[-1] == again


def test_feedback_after_a_clock_far_ahead_does_not_count_as_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    memory = judge_memory(InMemoryStore())
    with monkeypatch.context() as patch:
        set_clock(patch, 86_400)
        memory.remember(comment("a day ahead"))
    said = memory.remember(comment("one"))
    before = datetime.now(UTC)
    memory.forget(said.id)
    assert before < memory.access.view.forgotten_at(said.id) <= datetime.now(UTC)


class PagedStore(InMemoryStore):
    """Leaves the last item of a search of some namespaces out."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind

    def batch(self, ops: Iterable[Op]) -> list[Result]:
        operations = list(ops)
        results: list[Any] = super().batch(operations)
        for asked, result in zip(operations, results, strict=True):
            if isinstance(asked, SearchOp) and asked.namespace_prefix[-1] == self.kind:
                del result[-1:]
        return results


@pytest.mark.parametrize("kind", ["facts", "words"])
def test_store_that_returns_a_part_of_a_search_is_not_believed(kind: str) -> None:
    store = PagedStore("none")
    judge_memory(store).remember(comment("one"))
    cold = PagedStore(kind)
    cold._data = store._data
    for _ in range(2):
        with pytest.raises(StoreError, match="PagedStore does not return all items of a search"):
            judge_memory(cold).episodes()
    assert len(judge_memory(store).episodes()) == 1


def test_running_process_does_not_believe_such_a_store_either() -> None:
    store, other = PagedStore("none"), InMemoryStore()
    other._data = store._data
    reader = judge_memory(store)
    reader.remember(comment("one"))
    store.kind = "facts"
    judge_memory(other).remember(comment("two"))
    with pytest.raises(StoreError, match="PagedStore does not return all items of a search"):
        reader.episodes()


@pytest.mark.parametrize("seconds", [119, 3600])
def test_commit_dated_earlier_is_read(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """As by a writer that waits for a lock, beside one whose clock is ahead."""
    ahead, behind, reader = memories(in_memory(), 3)

    def write_ahead() -> None:
        with monkeypatch.context() as patch:
            set_clock(patch, seconds)
            ahead.remember(comment("ahead"))
        assert len(recalled(reader)) == 1

    interleave(lambda io: remember(io, behind.access, [comment("behind")]), commits, write_ahead)
    assert len(recalled(reader)) == 2


def test_example_forgotten_during_a_recall_takes_no_result_place() -> None:
    [memory] = memories(in_memory(), 1)
    episode, _ = memory.remember([comment("one"), comment("two")])

    def reads_vectors(asked: Any) -> bool:
        return isinstance(asked[0], GetOp) and "vectors" in asked[0].namespace

    def forget() -> None:
        memory.forget(episode.id)
        memory.version()

    interleave(lambda io: recall(io, memory.access, QUERY, 5), reads_vectors, forget)
    assert len(memory.recall(episode.example, k=1)) == 1


def test_what_is_derived_while_a_memory_changes_is_derived_again() -> None:
    memory = view.MemoryView("test")

    def change_meanwhile() -> str:
        memory.add_vectors({})
        return "old"

    assert memory.derive("key", change_meanwhile) == "old"
    assert memory.derive("key", lambda: "new") == "new"


def test_log_is_replayed_in_linear_time(monkeypatch: pytest.MonkeyPatch) -> None:
    [memory] = memories(in_memory(), 1)
    for number in range(20):
        memory.add_guideline(f"Rule {number}.")
    versions = [memory.version()]
    for number in range(30):
        memory.remember(comment(f"case {number}"))
        versions.append(memory.version())
    weigh = Mock(side_effect=memory_state._guideline_hash_term)
    monkeypatch.setattr(memory_state, "_guideline_hash_term", weigh)
    commits = memory.history()
    assert [commit.version for commit in commits[:31]] == versions[::-1]
    assert [commit.guidelines.added for commit in commits[::-1]] == [1] * 20 + [0] * 30
    assert weigh.call_count == 20

    episodes = memory.episodes()
    learn(memory, *(op("add", episode, text=f"Of {episode.id}.") for episode in episodes))
    for episode in episodes:
        memory.revise(episode.id, {"rationale": "Rude."})
    reapply = Mock()
    monkeypatch.setattr(memory_state.MemoryState, "_reapply_lessons", reapply)
    memory_state.build_state(*memory.access.view.facts())
    assert reapply.call_count == 1


def test_threads_that_write_and_recall_on_one_store_lose_nothing(opener: Opener) -> None:
    [memory] = memories(opener, 1)

    def work(worker: int) -> None:
        for number in range(8):
            episode = memory.remember(comment(f"case{worker}x{number}"))
            assert memory.recall(episode.example, k=1)[0].episodes == [episode]
            if number % 4 == 3:
                memory.forget(episode.id)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
    [cold] = memories(opener, 1)
    assert len(recalled(memory)) == len(recalled(cold)) == 48
    assert memory.version() == cold.version()


def test_memory_may_exceed_sqlites_variable_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    assert access.BATCH_ITEMS <= 1_000
    monkeypatch.setattr(access, "BATCH_ITEMS", access.BATCH_ITEMS // 10)
    connection = sqlite3.connect(":memory:", check_same_thread=False, isolation_level=None)
    connection.setlimit(sqlite3.SQLITE_LIMIT_VARIABLE_NUMBER, 32_766 // 10)
    memory = JudgeMemory(SqliteStore(connection), CRITERION, embeddings=hashed)
    memory.remember([comment(f"case {number}") for number in range(700)])
    assert len(memory.episodes()) == 700
    connection.close()
