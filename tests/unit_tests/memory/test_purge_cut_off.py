"""A purge cut off at any of its writes: made again, it ends clean."""

from collections.abc import Callable, Iterable
from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.store.base import Op, PutOp, Result
from langgraph.store.memory import InMemoryStore

from memalign_graph import JudgeMemory
from memalign_graph.memory import access
from tests.unit_tests.memory.purging import MARK, everything_in, fill, left_in, planted
from tests.unit_tests.memory.support import CRITERION, hashed, learn, op, said
from tests.unit_tests.memory.test_purge import check_clean
from tests.unit_tests.memory.test_purge_threads import small_graph

MOST = 60
"""More writes than a purge here makes."""


class CutOffError(Exception):
    """The machine stops."""


class Failing(InMemoryStore):
    """Stops before a write."""

    def __init__(self) -> None:
        super().__init__()
        self.writes_left: int | None = None

    def batch(self, ops: Iterable[Op]) -> list[Result]:
        given = list(ops)
        if self.writes_left is not None and any(isinstance(one, PutOp) for one in given):
            if self.writes_left == 0:
                self.writes_left = None
                raise CutOffError
            self.writes_left -= 1
        return super().batch(given)

    async def abatch(self, ops: Iterable[Op]) -> list[Result]:
        return self.batch(ops)


class FailingSaver(InMemorySaver):
    """Stops before it deletes a thread."""

    failing = False

    def delete_thread(self, thread_id: str) -> None:
        if self.failing:
            raise CutOffError
        super().delete_thread(thread_id)

    async def adelete_thread(self, thread_id: str) -> None:
        self.delete_thread(thread_id)


def threads(saver: InMemorySaver) -> InMemorySaver:
    """One thread that carries the episode, one its case, one nothing."""
    texts = {
        "episode": planted().episode_id,
        "case": f"zqxwhy, of {planted().example.id}",
        "clean": "Something else altogether.",
    }
    for name, text in texts.items():
        small_graph(saver).invoke({"question": text}, {"configurable": {"thread_id": name}})
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


def check_threads(saver: InMemorySaver) -> None:
    left = {one.config["configurable"]["thread_id"] for one in saver.list(None)}
    assert left == {"clean"}


@pytest.mark.parametrize("items", [1, 1_000])
@pytest.mark.parametrize("before", BEFORE)
def test_at_each_write(monkeypatch: pytest.MonkeyPatch, before: str, items: int) -> None:
    monkeypatch.setattr(access, "BATCH_ITEMS", items)
    for number in range(MOST):
        store = Failing()
        memory, one = fill(store)
        BEFORE[before](memory, one.id)
        saver = threads(InMemorySaver())
        store.writes_left = number
        try:
            memory.forget(one.id, purge=True, checkpointer=saver)
        except CutOffError:
            memory.forget(one.id, purge=True, checkpointer=saver)
        else:
            assert number > 2
            return
        check_threads(saver)
        check_clean(memory)
        assert {each.example.inputs for each in memory.episodes()} <= {"kept", "other"}
    pytest.fail("The purge never ended.")


async def test_at_each_write_of_an_async_one() -> None:
    for number in range(MOST):
        store = Failing()
        memory, one = fill(store)
        await memory.aforget(one.id)
        saver = threads(InMemorySaver())
        store.writes_left = number
        try:
            await memory.aforget(one.id, purge=True, checkpointer=saver)
        except CutOffError:
            await memory.aforget(one.id, purge=True, checkpointer=saver)
        else:
            return
        check_threads(saver)
        check_clean(memory)


@pytest.mark.parametrize("before", BEFORE)
def test_at_the_checkpointer(before: str) -> None:
    memory, one = fill(InMemoryStore())
    BEFORE[before](memory, one.id)
    saver = FailingSaver()
    threads(saver)
    saver.failing = True
    with pytest.raises(CutOffError):
        memory.forget(one.id, purge=True, checkpointer=saver)
    saver.failing = False
    memory.forget(one.id, purge=True, checkpointer=saver)
    check_threads(saver)
    check_clean(memory)


def test_of_more_than_two_thousand_words_again_and_again() -> None:
    store = Failing()
    memory = JudgeMemory(store, CRITERION, embeddings=hashed)
    kept = memory.remember(said("kept"))
    spoken = [said(f"{MARK} {number}", MARK, author="zqxann") for number in range(2_100)]
    episodes = memory.remember(spoken)
    learn(memory, *(op("add", one, text=f"{MARK} {one.id}.") for one in episodes[:1_100:50]))
    cuts = 0
    while True:
        store.writes_left = cuts + 1
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
