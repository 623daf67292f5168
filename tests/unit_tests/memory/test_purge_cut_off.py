"""A purge cut off at any of its writes: made again, it ends clean."""

from collections.abc import Callable
from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver

from memalign_graph import JudgeMemory
from memalign_graph.memory import access
from tests.unit_tests.memory.purging import ask, fill, planted, threads_in
from tests.unit_tests.memory.stores import CutOffError, Failing
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
    every = 1 if before == "live" and not awaits else 3
    for number in (None, *range(0, MOST, every)):
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
