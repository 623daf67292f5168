"""The two drivers: what operations ask for, and what goes wrong outside them."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import HumanMessage
from langgraph.store.base import BaseStore, GetOp, PutOp
from langgraph.store.memory import InMemoryStore
from langgraph.store.sqlite import SqliteStore
from langgraph.store.sqlite.aio import AsyncSqliteStore

from memalign_graph import ChatModelError, EmbeddingError
from memalign_graph.effects import Batch, Call, Chat, Embed, Operation, arun, run
from memalign_graph.models import resolve_embeddings, with_schema
from memalign_graph.replies import ChatReply
from tests.loopback import LoopbackServer, error, truncated

SCHEMA = {
    "title": "verdict",
    "type": "object",
    "properties": {"value": {"type": "boolean"}},
    "required": ["value"],
    "additionalProperties": False,
}

Drive = Callable[[Operation[Any]], Any]


@pytest.fixture(params=[run, lambda operation: asyncio.run(arun(operation))], ids=["run", "arun"])
def drive(request: pytest.FixtureRequest) -> Drive:
    driver: Drive = request.param
    return driver


class BrokenStore(InMemoryStore):
    """Fails as a store can: with an error of its own."""

    def batch(self, ops: Any) -> Any:
        raise LookupError("the disk is full")

    async def abatch(self, ops: Any) -> Any:
        raise LookupError("the disk is full")


def put_and_get(store: BaseStore) -> Operation[Any]:
    yield Batch(store, [PutOp(("a",), "key", {"n": 1})])
    [item] = yield Batch(store, [GetOp(("a",), "key")])
    return item.value


def embed(function: Any, texts: Sequence[str] = ("abc",)) -> Operation[Any]:
    return (yield Embed(resolve_embeddings(function), texts))


def say(server: LoopbackServer) -> Operation[ChatReply]:
    model = with_schema(server.chat_model(max_retries=0), SCHEMA)
    reply: ChatReply = yield Chat(model, [HumanMessage("Well?")])
    return reply


def test_operation_without_effects_returns_its_result(drive: Drive) -> None:
    def nothing() -> Operation[int]:
        yield from ()
        return 7

    assert drive(nothing()) == 7


def test_batches_are_carried_out_in_order(drive: Drive) -> None:
    assert drive(put_and_get(InMemoryStore())) == {"n": 1}


def test_store_without_async_calls_works_under_both(drive: Drive, tmp_path: Path) -> None:
    with SqliteStore.from_conn_string(str(tmp_path / "store.db")) as store:
        store.setup()
        assert drive(put_and_get(store)) == {"n": 1}


def test_failure_is_thrown_into_the_operation_and_can_be_handled(drive: Drive) -> None:
    def careful() -> Operation[Any]:
        try:
            yield from put_and_get(BrokenStore())
        except LookupError as caught:
            said = str(caught)
        return said, (yield from put_and_get(InMemoryStore()))

    assert drive(careful()) == ("the disk is full", {"n": 1})


def test_failure_that_nobody_handles_comes_out(drive: Drive) -> None:
    with pytest.raises(LookupError, match="disk is full"):
        drive(put_and_get(BrokenStore()))


def test_operation_is_closed_when_it_fails(drive: Drive) -> None:
    closed = []

    def careful() -> Operation[Any]:
        try:
            return (yield from put_and_get(BrokenStore()))
        finally:
            closed.append(True)

    with pytest.raises(LookupError):
        drive(careful())
    assert closed == [True]


def test_error_of_the_operation_itself_comes_out(drive: Drive) -> None:
    def wrong() -> Operation[Any]:
        yield from put_and_get(InMemoryStore())
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        drive(wrong())


def sync_numbers(texts: Sequence[str]) -> list[list[float]]:
    return [[float(len(text))] for text in texts]


def test_embeddings_are_made(drive: Drive) -> None:
    assert drive(embed(sync_numbers, ["a", "bcd"])) == [[1.0], [3.0]]


def test_failed_embedding_is_an_embedding_error(drive: Drive) -> None:
    def broken(texts: Sequence[str]) -> list[list[float]]:
        raise OSError("no network")

    with pytest.raises(EmbeddingError, match="OSError: no network") as caught:
        drive(embed(broken))
    assert isinstance(caught.value.__cause__, OSError)


def test_answer_is_read(drive: Drive, server: LoopbackServer) -> None:
    server.script({"value": False})
    assert drive(say(server)).answer == {"value": False}


def test_cut_off_answer_is_a_reply_and_no_failure(drive: Drive, server: LoopbackServer) -> None:
    server.script(truncated('{"val'))
    reply = drive(say(server))
    assert (reply.answer, reply.text) == (None, '{"val')
    assert "cut off" in reply.problem


def test_failed_call_is_a_chat_model_error(drive: Drive, server: LoopbackServer) -> None:
    server.script(error(500, "It broke.", retry_after=0))
    with pytest.raises(ChatModelError, match="It broke") as caught:
        drive(say(server))
    assert caught.value.__cause__ is not None


async def test_cancelling_reaches_the_operation() -> None:
    started = asyncio.Event()

    async def slow(texts: Sequence[str]) -> list[list[float]]:
        started.set()
        await asyncio.sleep(60)
        return []

    task = asyncio.create_task(arun(embed(slow)))
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


class SlowStore(InMemoryStore):
    """Takes its time over a batch, and can be cancelled half-way through it."""

    def __init__(self) -> None:
        super().__init__()
        self.started = asyncio.Event()

    async def abatch(self, ops: Any) -> Any:
        done = []
        for one in ops:
            done += await super().abatch([one])
            self.started.set()
            await asyncio.sleep(0.05)
        return done


async def test_batch_that_has_begun_is_finished_when_cancelled() -> None:
    """A store may not outlast being cancelled: AsyncSqliteStore keeps its transaction open."""
    store = SlowStore()

    def puts() -> Operation[Any]:
        yield Batch(store, [PutOp(("a",), key, {"n": 1}) for key in ("one", "two", "three")])

    task = asyncio.create_task(arun(puts()))
    await store.started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert sorted(one.key for one in store.search(("a",))) == ["one", "three", "two"]


async def test_batch_that_has_begun_is_finished_however_often_it_is_cancelled() -> None:
    """LangGraph cancels its tasks twice; in a thread, a batch given up would outlive its store."""
    store = SlowStore()

    def puts() -> Operation[Any]:
        yield Batch(store, [PutOp(("a",), key, {"n": 1}) for key in ("one", "two", "three")])

    task = asyncio.create_task(arun(puts()))
    await store.started.wait()
    for _ in range(3):
        task.cancel()
        await asyncio.sleep(0.01)
    with pytest.raises(asyncio.CancelledError):
        await task
    assert sorted(one.key for one in store.search(("a",))) == ["one", "three", "two"]


async def test_store_is_usable_after_a_cancelled_batch(tmp_path: Path) -> None:
    async with AsyncSqliteStore.from_conn_string(str(tmp_path / "store.db")) as store:
        await store.setup()

        def puts(number: int) -> Operation[Any]:
            yield Batch(store, [PutOp((f"n{number}",), str(key), {}) for key in range(50)])

        for number in range(40):
            task = asyncio.create_task(arun(puts(number)))
            for _ in range(number):
                await asyncio.sleep(0)
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
            found = await store.asearch((f"n{number}",), limit=100)
            assert len(found) in (0, 50)


async def test_failure_of_a_batch_that_is_cancelled_is_no_warning() -> None:
    class Failing(SlowStore):
        async def abatch(self, ops: Any) -> Any:
            self.started.set()
            await asyncio.sleep(0.05)
            raise LookupError("the disk is full")

    store = Failing()
    task = asyncio.create_task(arun(put_and_get(store)))
    await store.started.wait()
    task.cancel()
    with pytest.raises((asyncio.CancelledError, LookupError)):
        await task


def test_call_goes_the_way_of_its_driver(drive: Drive) -> None:
    async def awaited() -> str:
        return "awaited"

    def ask() -> Operation[str]:
        found: str = yield Call(lambda: "blocking", awaited)
        return found

    assert drive(ask()) == ("blocking" if drive is run else "awaited")


def test_failure_of_a_call_is_thrown_into_the_operation(drive: Drive) -> None:
    async def awaited() -> None:
        raise LookupError("gone")

    def blocking() -> None:
        raise LookupError("gone")

    def careful() -> Operation[str]:
        try:
            yield Call(blocking, awaited)
        except LookupError as caught:
            return str(caught)
        return "no failure"

    assert drive(careful()) == "gone"
