"""Changes cut off at any put: there whole or not at all; made again, as if nothing had happened."""

from collections.abc import Callable
from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.store.memory import InMemoryStore

from memalign_graph import InvalidInputError, JudgeMemory
from memalign_graph.io import ASYNC, SYNC, run_sync
from memalign_graph.memory import access
from tests.unit_tests.memory.driver import OPERATIONS, check_same, memories, recalled, start
from tests.unit_tests.memory.purging import ask, fill, planted, threads_in
from tests.unit_tests.memory.stores import CutOffError, Failing, in_memory
from tests.unit_tests.memory.test_purge import check_clean

MOST = 60
"""More puts than any of these changes makes."""

CHANGES = [name for name in OPERATIONS if name not in {"purge one", "learn from one"}]
"""All but a purge, see below, and a lesson that changes nothing."""


def reopened(store: InMemoryStore) -> JudgeMemory:
    [memory] = memories(in_memory(store), 1)
    return memory


def picture(store: InMemoryStore) -> Any:
    """What a memory holds, but for dates and the ids that depend on them, to whoever opens it."""
    memory = reopened(store)
    rules = [
        (one.text, one.question, one.status, sorted(one.episode_ids)) for one in memory.guidelines()
    ]
    answers = memory.access.view.answers()
    episodes = sorted(
        (one.id, one.rationale, one.status, one.judgment is None) for one in memory.episodes()
    )
    return episodes, sorted(rules, key=str), answers, recalled(memory)


@pytest.mark.parametrize(
    ("name", "awaits"), [*((name, False) for name in CHANGES), ("say something new", True)]
)
async def test_at_each_put(monkeypatch: pytest.MonkeyPatch, name: str, *, awaits: bool) -> None:
    monkeypatch.setattr(access, "BATCH_ITEMS", 2)
    after: Any = None
    for puts in (None, *range(MOST)):
        memory, *_ = start(store := Failing())
        before, store.puts_left = picture(store), puts
        for attempt in (1, 2):
            try:
                if awaits:
                    await OPERATIONS[name](ASYNC, memory.access)
                else:
                    run_sync(OPERATIONS[name](SYNC, memory.access))
            except CutOffError:
                left = picture(store)
                assert left in (before, after)
                assert memory.at(memory.version()).missing == []
                continue
            except InvalidInputError as error:
                assert (attempt, left) == (2, after)
                assert "names no" in str(error)  # noqa: PT017 - it was removed at the first attempt
            break
        after = after or picture(store)
        assert after != before
        assert picture(store) == after
        check_same([memory], reopened(store))
        if puts is not None and attempt == 1:
            assert puts > 1
            return
    pytest.fail("It never ended.")


class FailingSaver(InMemorySaver):
    """Stops before it deletes a thread."""

    failing = False

    def delete_thread(self, thread_id: str) -> None:
        if self.failing:
            raise CutOffError
        super().delete_thread(thread_id)

    async def adelete_thread(self, thread_id: str) -> None:
        self.delete_thread(thread_id)


PURGED: dict[str, Callable[[JudgeMemory, str], Any]] = {
    "live": lambda _memory, _key: None,
    "revised": lambda memory, key: memory.revise(key, {"rationale": "Now nothing is planted."}),
    "forgotten and said again": lambda memory, key: (
        memory.forget(key),
        memory.remember(planted("nothing")),
    ),
}


@pytest.mark.parametrize(("before", "awaits"), [*((one, False) for one in PURGED), ("live", True)])
async def test_a_purge_cut_off_at_each_write_and_made_again_ends_clean(
    monkeypatch: pytest.MonkeyPatch, before: str, *, awaits: bool
) -> None:
    monkeypatch.setattr(access, "BATCH_ITEMS", 4)
    every = 1 if before == "live" and not awaits else 3
    for number in (None, *range(0, 2 * MOST, every)):
        memory, one = fill(store := Failing())
        PURGED[before](memory, one.id)
        saver = FailingSaver()
        ask(saver, "episode", planted().episode_id)
        ask(saver, "case", f"zqxwhy, of {planted().example.id}")
        ask(saver, "clean", "Something else altogether.")
        store.puts_left, saver.failing = number, number is None
        is_over = True
        for _ in range(2):
            try:
                if awaits:
                    await memory.aforget(one.id, purge=True, checkpointer=saver)
                else:
                    memory.forget(one.id, purge=True, checkpointer=saver)
            except CutOffError:
                is_over = saver.failing = False
            store.puts_left = None
        assert threads_in(saver) == {"clean"}
        check_clean(memory)
        assert {each.example.inputs for each in memory.episodes()} <= {"kept", "other"}
        if is_over:
            assert number is not None
            assert number > 2
            return
    pytest.fail("The purge never ended.")
