"""The sync and async IO: calls, errors, cancellation and concurrency."""

import asyncio
import contextvars
import inspect
import json
import threading
import time
from binascii import Error as Base64Error
from collections.abc import Coroutine, Sequence
from contextlib import ExitStack
from http import HTTPStatus
from json import JSONDecodeError
from pathlib import Path
from typing import Any

import httpx
import pytest
from langchain_core.runnables import RunnableLambda
from langgraph.store.base import BaseStore, GetOp, PutOp, SearchOp
from langgraph.store.memory import InMemoryStore
from langgraph.store.sqlite import SqliteStore
from langsmith import traceable
from langsmith.run_helpers import tracing_context

from memalign_graph import ChatModelError, EmbeddingError
from memalign_graph import io as io_module
from memalign_graph.io import ASYNC, IO, SYNC, run_sync, sync_async_methods
from memalign_graph.models import embed_texts, resolve_embeddings
from memalign_graph.replies import StructuredModel
from memalign_graph.tracing import MeteredIO, Usage
from tests.loopback import LoopbackServer, Raw, answer, error, truncated
from tests.unit_tests.support import Barrier, Drive, blocking, say

pytestmark = pytest.mark.every_way


async def put_and_get(io: IO, store: BaseStore) -> Any:
    await io.batch(store, [PutOp(("a",), "key", {"n": 1})])
    [item] = await io.batch(store, [GetOp(("a",), "key")])
    return item.value


async def embed(io: IO, function: Any, texts: Sequence[str] = ("abc",)) -> Any:
    return await embed_texts(io, resolve_embeddings(function), texts)


def sync_numbers(texts: Sequence[str]) -> list[list[float]]:
    return [[float(len(text))] for text in texts]


def broken(texts: Sequence[str]) -> list[list[float]]:
    raise OSError("no network")


def test_external_failures_and_truncated_answers(drive: Drive, server: LoopbackServer) -> None:
    with pytest.raises(EmbeddingError, match="OSError: no network") as failed:
        drive(lambda io: embed(io, broken))
    assert isinstance(failed.value.__cause__, OSError)
    server.script(truncated('{"val'), error(500, "It broke.", retry_after=0))
    reply = drive(lambda io: say(io, server))
    assert (reply.answer, reply.text) == (None, '{"val')
    assert "cut off" in reply.problem
    with pytest.raises(ChatModelError, match="It broke") as caught:
        drive(lambda io: say(io, server))
    assert caught.value.__cause__ is not None


class SlowStore(InMemoryStore):
    """Blocks in the middle of a batch, where it can be cancelled."""

    def __init__(self) -> None:
        super().__init__()
        self.started, self.go_on = asyncio.Event(), asyncio.Event()

    async def abatch(self, ops: Any) -> Any:
        first, *others = ops
        done = await super().abatch([first])
        self.started.set()
        await self.go_on.wait()
        return done + await super().abatch(others)


class WatchingStore(InMemoryStore):
    """Records whether its lock is held during calls."""

    def __init__(self) -> None:
        super().__init__()
        self.locked: list[bool] = []

    def batch(self, ops: Any) -> Any:
        lock: Any = io_module._IN_MEMORY_STORE_LOCK
        self.locked.append(lock._is_owned())
        return super().batch(ops)


def test_sync_and_async_calls_lock_a_subclassed_in_memory_store(drive: Drive) -> None:
    store = WatchingStore()
    drive(lambda io: put_and_get(io, store))
    assert store.locked == [True, True]


async def test_started_batch_is_finished_despite_cancellation() -> None:
    """A store may not outlast being cancelled: AsyncSqliteStore keeps its transaction open.

    LangGraph cancels its tasks twice; in a thread, a batch given up would outlive its store.
    """
    store = SlowStore()

    async def puts(io: IO) -> Any:
        await io.batch(store, [PutOp(("a",), key, {"n": 1}) for key in ("one", "two", "three")])

    task = asyncio.create_task(puts(ASYNC))
    await store.started.wait()
    for _ in range(3):
        task.cancel()
        await asyncio.sleep(0.01)
    store.go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert sorted(item.key for item in store.search(("a",))) == ["one", "three", "two"]


async def test_failure_of_a_cancelled_batch_causes_no_warning() -> None:
    class Failing(SlowStore):
        async def abatch(self, ops: Any) -> Any:
            self.started.set()
            await self.go_on.wait()
            raise LookupError("the disk is full")

    store = Failing()
    task = asyncio.create_task(put_and_get(ASYNC, store))
    await store.started.wait()
    task.cancel()
    store.go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await task


class Counted:
    """Operations that record their concurrency and wait for each other."""

    def __init__(self, count: int = 1) -> None:
        self._lock = threading.Lock()
        self._together = Barrier(count)
        self.now = self.most = self.started = 0

    async def operation(self, io: IO, result: Any) -> Any:
        with self._lock:
            self.now += 1
            self.started += 1
            self.most = max(self.most, self.now)
        try:
            await self._together.wait(io)
            # A limit exceeded by one would be seen.
            await io.call_either(lambda: time.sleep(0.05), lambda: asyncio.sleep(0.05))
            if isinstance(result, Exception):
                raise result
            return result
        finally:
            with self._lock:
                self.now -= 1


async def gather(io: IO, operations: Sequence[Coroutine[Any, Any, Any]], limit: int) -> Any:
    return await io.gather(operations, limit)


@pytest.mark.parametrize(("limit", "most"), [(1, 1), (3, 3), (99, 7)])
def test_gathered_operations_have_a_limit(drive: Drive, limit: int, most: int) -> None:
    counted = Counted(most)
    results = drive(
        lambda io: gather(io, [counted.operation(io, number) for number in range(7)], limit)
    )
    assert results == list(range(7))
    assert counted.most == most


def test_gathered_operations_see_the_context_of_the_call(drive: Drive) -> None:
    """LangGraph keeps a run's config in context variables."""
    name: contextvars.ContextVar[str] = contextvars.ContextVar("name", default="none")

    async def ask() -> str:
        return name.get()

    async def outer(io: IO) -> Any:
        token = name.set("run")
        result = await io.gather([ask(), ask()], 2)
        name.reset(token)
        return result

    assert drive(outer) == ["run", "run"]


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

    task = asyncio.create_task(gather(ASYNC, [embed(ASYNC, slow), embed(ASYNC, slow)], 2))
    await started.wait()
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert len(cancelled) == 2


async def test_failure_is_raised_after_the_cleanup_of_the_others() -> None:
    cleaned = []

    async def slow() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0)
            cleaned.append("slow")

    async def fail() -> None:
        raise LookupError("stop")

    with pytest.raises(LookupError, match="stop"):
        await gather(ASYNC, [slow(), fail()], 2)
    assert cleaned == ["slow"]


async def test_blocking_calls_are_made_within_a_running_event_loop() -> None:
    result = run_sync(gather(SYNC, [put_and_get(SYNC, InMemoryStore()) for _ in range(3)], 2))
    assert result == [{"n": 1}] * 3


def test_first_failure_is_raised_and_unstarted_operations_are_closed(drive: Drive) -> None:
    counted = Counted()
    retained: list[Any] = []

    async def outer(io: IO) -> Any:
        results = [0, LookupError("stop"), LookupError("later"), *range(200)]
        retained.extend(counted.operation(io, result) for result in results)
        return await io.gather(retained, 1)

    with pytest.raises(LookupError, match="stop"):
        drive(outer)
    assert {inspect.getcoroutinestate(operation) for operation in retained} == {"CORO_CLOSED"}
    # A thread continues until the waiting one has seen the failure.
    assert counted.started <= (100 if drive is blocking else 3)
    assert counted.now == 0


def test_wrapper_passes_everything_on(drive: Drive, server: LoopbackServer, tmp_path: Path) -> None:
    server.script({"value": True})
    opened = ExitStack()
    # A store without async calls.
    store = opened.enter_context(SqliteStore.from_conn_string(str(tmp_path / "store.db")))
    store.setup()

    async def awaited() -> str:
        return "awaited"

    async def everything(io: IO) -> list[Any]:
        reply = await say(io, server)
        return [
            await put_and_get(io, store),
            reply.answer,
            await embed(io, sync_numbers),
            await io.gather([io.gather([embed(io, sync_numbers)], 1)], 2),
            await io.gather([], 3),
            await io.call_either(lambda: "blocking", awaited),
        ]

    way = "blocking" if drive is blocking else "awaited"
    wanted = [{"n": 1}, {"value": True}, [[3.0]], [[[[3.0]]]], [], way]
    with opened:
        assert drive(lambda io: everything(IO(io))) == wanted


class Adder:
    async def _add(self, io: IO, number: int) -> int:
        return number + 1

    add, aadd = sync_async_methods(_add)


async def test_langsmith_traces_both_forms_of_a_method() -> None:
    with tracing_context(enabled=False):
        assert traceable(Adder().add)(1) == 2
        assert await traceable(Adder().aadd)(1) == 2


def test_threads_share_a_store_in_memory() -> None:
    """Without the lock, a search would iterate over a dict that a put changes."""
    store = InMemoryStore()

    async def put_and_search(io: IO, number: int) -> int:
        for count in range(200):
            await io.batch(store, [PutOp((f"n{number}", str(count)), "key", {})])
            await io.batch(store, [SearchOp((f"n{number}",))])
        return number

    operations = [put_and_search(SYNC, number) for number in range(8)]
    assert run_sync(SYNC.gather(operations, 8)) == list(range(8))


def test_programming_error_is_not_a_store_error(drive: Drive, tmp_path: Path) -> None:
    with SqliteStore.from_conn_string(str(tmp_path / "store.db")) as store:
        store.setup()
        with pytest.raises(TypeError):
            drive(lambda io: io.batch(store, [PutOp(("a",), "key", {"n": object()})]))


class ClientError(Exception):
    """An error as botocore raises it."""

    def __init__(self, code: str, status: int) -> None:
        super().__init__(f"An error occurred ({code}) when calling the Converse operation")
        metadata = {"HTTPStatusCode": status}
        self.response = {"Error": {"Code": code}, "ResponseMetadata": metadata}


class InvalidArgument(Exception):  # noqa: N818 - Google's name
    """An error as google.api_core raises it, and with an integer as google.genai does."""

    def __init__(self, code: int, text: str = "The prompt is not allowed.") -> None:
        super().__init__(text)
        self.code = code


class ChatGoogleGenerativeAIError(Exception):
    """An error as langchain_google_genai raises it from Google's."""


def http_error(status: int) -> httpx.HTTPStatusError:
    request = httpx.Request("POST", "http://127.0.0.1/v1")
    return httpx.HTTPStatusError("No.", request=request, response=httpx.Response(status))


@pytest.mark.parametrize(
    ("failure", "cause", "is_refusal"),
    [
        (ClientError("ValidationException", 400), None, True),
        (ClientError("ServiceQuotaExceededException", 400), None, False),
        (ClientError("ThrottlingException", 429), None, False),
        (InvalidArgument(HTTPStatus.BAD_REQUEST), None, True),
        (InvalidArgument(400), None, True),
        (InvalidArgument(HTTPStatus.TOO_MANY_REQUESTS), None, False),
        (InvalidArgument(400, "API key not valid. Please pass a valid API key."), None, False),
        (ChatGoogleGenerativeAIError("Invalid argument"), InvalidArgument(400), True),
        (ChatGoogleGenerativeAIError("Unavailable"), InvalidArgument(503), False),
        (http_error(422), None, True),
        (http_error(503), None, False),
        (ValueError("The prompt was blocked."), None, True),
        (ValueError({"code": 400, "message": "No."}), None, True),
        (ValueError({"code": 429, "message": "Later."}), None, False),
        (JSONDecodeError("Expecting value", "<html>", 0), None, False),
        (ValueError("No embedding data received"), None, False),
        (Base64Error("Incorrect padding"), None, False),
        (ValueError("buffer size must be a multiple of element size"), None, False),
        (RuntimeError("It broke."), None, False),
    ],
)
def test_refused_prompt_and_outage_are_distinguished_for_each_client(
    drive: Drive, failure: Exception, cause: Exception | None, *, is_refusal: bool
) -> None:
    def fail(_: Any) -> Any:
        raise failure from cause

    model = StructuredModel(RunnableLambda(fail), None, "model", "key")
    with pytest.raises(ChatModelError) as caught:
        drive(lambda io: io.chat(model, []))
    assert caught.value.is_refusal is is_refusal


def test_a_page_in_place_of_an_answer_is_an_outage(drive: Drive, server: LoopbackServer) -> None:
    server.responder = lambda _: Raw(200, "<html>Down for maintenance.</html>", "text/html")
    with pytest.raises(ChatModelError) as caught:
        drive(lambda io: say(io, server))
    assert caught.value.is_refusal is False


@pytest.mark.parametrize(("name", "read"), [(7, "7"), ([], None), (None, None), ("m\x00", "m")])
def test_an_answer_counts_whatever_the_server_calls_its_model(
    drive: Drive, server: LoopbackServer, name: Any, read: str | None
) -> None:
    body = {"choices": [{"message": {"role": "assistant", "content": '{"value": true}'}}]}
    server.responder = lambda _: Raw(200, json.dumps({"model": name, **body}))
    reply = drive(lambda io: say(io, server))
    assert (reply.answer, reply.model) == ({"value": True}, read)


def test_a_refusal_may_be_any_json(drive: Drive, server: LoopbackServer) -> None:
    message = {"role": "assistant", "content": None, "refusal": {"code": 3}}
    server.responder = lambda _: Raw(200, json.dumps({"choices": [{"message": message}]}))
    reply = drive(lambda io: say(io, server))
    assert (reply.text, reply.is_refusal) == ("{'code': 3}", True)


def test_successful_calls_are_counted(drive: Drive, server: LoopbackServer) -> None:
    server.script(
        answer({"value": True}, prompt_tokens=11, completion_tokens=3),
        answer("Well.", prompt_tokens=20, completion_tokens=5),
        error(500, retry_after=0),
    )
    meters: list[MeteredIO] = []

    async def each(io: IO) -> None:
        meters.append(metered := MeteredIO(io))
        await say(metered, server)
        meters.append(inner := MeteredIO(metered))
        await say(inner, server)
        assert await embed(inner, sync_numbers, "ab") == [[1.0], [1.0]]
        with pytest.raises(EmbeddingError):
            await embed(metered, broken)
        await say(metered, server)

    with pytest.raises(ChatModelError):
        drive(each)
    outer, inner = (meter.usage for meter in meters)
    embedded = Usage(embedding_calls=1, texts_embedded=2)
    assert inner == Usage(chat_calls=1, input_tokens=20, output_tokens=5) + embedded
    assert outer == inner + Usage(chat_calls=1, input_tokens=11, output_tokens=3)
