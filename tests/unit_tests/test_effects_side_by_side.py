"""Operations that are carried out side by side."""

import asyncio
import contextvars
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from langgraph.store.base import BaseStore, GetOp, PutOp
from langgraph.store.memory import InMemoryStore

from memalign_graph import EmbeddingError
from memalign_graph.effects import Batch, Call, Embed, Gather, Operation, arun, run
from memalign_graph.models import resolve_embeddings

Drive = Callable[[Operation[Any]], Any]


@pytest.fixture(params=[run, lambda operation: asyncio.run(arun(operation))], ids=["run", "arun"])
def drive(request: pytest.FixtureRequest) -> Drive:
    driver: Drive = request.param
    return driver


def put_and_get(store: BaseStore) -> Operation[Any]:
    yield Batch(store, [PutOp(("a",), "key", {"n": 1})])
    [item] = yield Batch(store, [GetOp(("a",), "key")])
    return item.value


def embed(function: Any, texts: Sequence[str] = ("abc",)) -> Operation[Any]:
    return (yield Embed(resolve_embeddings(function), texts))


def sync_numbers(texts: Sequence[str]) -> list[list[float]]:
    return [[float(len(text))] for text in texts]


def broken_sync(texts: Sequence[str]) -> list[list[float]]:
    raise OSError("no network")


class Together:
    """Operations that tell how many of them are under way at a time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.now = self.most = self.started = 0

    def operation(self, result: Any) -> Operation[Any]:
        with self._lock:
            self.now += 1
            self.started += 1
            self.most = max(self.most, self.now)
        yield Call(lambda: time.sleep(0.05), lambda: asyncio.sleep(0.05))
        with self._lock:
            self.now -= 1
        if isinstance(result, Exception):
            raise result
        return result


def gather(operations: Sequence[Operation[Any]], limit: int) -> Operation[Any]:
    return (yield Gather(operations, limit))


@pytest.mark.parametrize(("limit", "most"), [(1, 1), (3, 3), (99, 7)])
def test_gathered_operations_run_side_by_side_up_to_a_limit(
    drive: Drive, limit: int, most: int
) -> None:
    together = Together()
    results = drive(gather([together.operation(number) for number in range(7)], limit))
    assert results == list(range(7))
    assert together.most == most


def test_nothing_gathered_is_nothing(drive: Drive) -> None:
    assert drive(gather([], 3)) == []


def test_first_failure_of_gathered_operations_comes_out(drive: Drive) -> None:
    together = Together()
    wrong = [together.operation(KeyError(number)) for number in range(2)]
    with pytest.raises(KeyError):
        drive(gather([together.operation(0), *wrong], 2))
    # Nothing is left under way.
    time.sleep(0.1)
    assert together.now <= 1


def test_failure_of_gathered_operations_can_be_handled(drive: Drive) -> None:
    def careful() -> Operation[Any]:
        try:
            yield Gather([embed(broken_sync)], 2)
        except EmbeddingError as caught:
            said = str(caught)
        return said, (yield Gather([put_and_get(InMemoryStore())], 2))

    said, found = drive(careful())
    assert "OSError" in said
    assert found == [{"n": 1}]


def test_operations_that_do_not_get_their_turn_are_not_started(drive: Drive) -> None:
    together = Together()
    given = [together.operation(LookupError("stop")), *map(together.operation, range(20))]
    with pytest.raises(LookupError):
        drive(gather(given, 1))
    assert together.started <= 2


def test_gathered_operations_gather_in_turn(drive: Drive) -> None:
    def outer(number: int) -> Operation[Any]:
        return (yield Gather([embed(sync_numbers, ["a" * number] * 2)] * 1, 2))

    assert drive(gather([outer(number) for number in (1, 2, 3)], 2)) == [
        [[[float(number)]] * 2] for number in (1, 2, 3)
    ]


def test_gathered_operations_see_the_context_of_the_call(drive: Drive) -> None:
    """LangGraph keeps a run's config, and its callbacks, in context variables."""
    name: contextvars.ContextVar[str] = contextvars.ContextVar("name", default="none")

    def ask() -> Operation[str]:
        yield from ()
        return name.get()

    def outer() -> Operation[Any]:
        token = name.set("run")
        found = yield Gather([ask(), ask()], 2)
        name.reset(token)
        return found

    assert drive(outer()) == ["run", "run"]


async def test_cancelling_reaches_gathered_operations() -> None:
    started, cancelled = asyncio.Event(), []

    async def slow(texts: Sequence[str]) -> list[list[float]]:
        started.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.append(texts)
            raise
        return []

    task = asyncio.create_task(arun(gather([embed(slow), embed(slow)], 2)))
    await started.wait()
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert len(cancelled) == 2
