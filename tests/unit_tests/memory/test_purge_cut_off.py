"""A purge cut off at any of its writes: made again, it ends clean."""

from collections.abc import Callable
from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver

from memalign_graph import JudgeMemory
from memalign_graph.memory import access
from tests.unit_tests.memory.purging import (
    MARK,
    ask,
    everything_in,
    fill,
    left_in,
    planted,
    threads_in,
)
from tests.unit_tests.memory.support import (
    CRITERION,
    CutOffError,
    Failing,
    hashed,
    learn,
    op,
    said,
)
from tests.unit_tests.memory.test_purge import check_clean

MOST = 120
"""More writes than a purge here makes."""


class FailingSaver(InMemorySaver):
    """Stops before it deletes a thread."""

    failing = False

    def delete_thread(self, thread_id: str) -> None:
        if self.failing:
            raise CutOffError
        super().delete_thread(thread_id)

    async def adelete_thread(self, thread_id: str) -> None:
        self.delete_thread(thread_id)


def threads() -> FailingSaver:
    """One thread that carries the episode, one its case, one nothing."""
    saver = FailingSaver()
    ask(saver, "episode", planted().episode_id)
    ask(saver, "case", f"zqxwhy, of {planted().example.id}")
    ask(saver, "clean", "Something else altogether.")
    return saver


BEFORE: dict[str, Callable[[JudgeMemory, str], Any]] = {
    "live": lambda _memory, _key: None,
    "forgotten": lambda memory, key: memory.forget(key),
    "revised": lambda memory, key: memory.revise(key, {"rationale": "Now nothing is planted."}),
    "forgotten and said again": lambda memory, key: (
        memory.forget(key),
        memory.remember(planted("nothing")),
    ),
}


@pytest.mark.parametrize(("before", "awaits"), [*((one, False) for one in BEFORE), ("live", True)])
async def test_at_each_write_and_at_the_checkpointer(
    monkeypatch: pytest.MonkeyPatch, before: str, *, awaits: bool
) -> None:
    monkeypatch.setattr(access, "BATCH_ITEMS", 4)
    for number in (None, *range(MOST)):
        store = Failing()
        memory, one = fill(store)
        BEFORE[before](memory, one.id)
        saver = threads()
        store.puts_left, saver.failing = number, number is None
        is_over = True
        for _ in range(2):
            try:
                options: dict[str, Any] = {"purge": True, "checkpointer": saver}
                if awaits:
                    await memory.aforget(one.id, **options)
                else:
                    memory.forget(one.id, **options)
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


def test_of_more_than_two_thousand_words_again_and_again() -> None:
    store = Failing()
    memory = JudgeMemory(store, CRITERION, embeddings=hashed)
    kept = memory.remember(said("kept"))
    spoken = [said(f"{MARK} {number}", MARK, author="zqxann") for number in range(2_100)]
    episodes = memory.remember(spoken)
    learn(memory, *(op("add", one, text=f"{MARK} {one.id}.") for one in episodes[:1_100:50]))
    cuts = 0
    while True:
        store.puts_left = 900 * cuts + 1
        try:
            JudgeMemory(store, CRITERION, embeddings=hashed).forget(author="zqxann", purge=True)
        except CutOffError:
            cuts += 1
        else:
            break
    assert cuts > 2
    assert left_in(everything_in(store)) == []
    assert memory.guidelines() == []
    assert [(one.id, one.status) for one in memory.episodes()] == [(kept.id, "pending")]
    assert MARK not in memory.export_jsonl()
