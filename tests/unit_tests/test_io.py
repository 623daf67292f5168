"""The sync and async IO: calls, errors, cancellation and concurrency."""

import asyncio
import contextvars
import inspect
import json
import threading
import time
from binascii import Error as Base64Error
from collections.abc import Coroutine, Sequence
from dataclasses import replace
from functools import partial
from http import HTTPStatus
from json import JSONDecodeError
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from langchain_core.exceptions import ModelRefusalError
from langchain_core.messages import AIMessage
from langchain_core.output_parsers import JsonOutputParser
from langchain_core.runnables import RunnableLambda
from langgraph.store.base import BaseStore, GetOp, PutOp
from langgraph.store.memory import InMemoryStore
from langgraph.store.sqlite import SqliteStore
from langsmith import traceable
from langsmith.run_helpers import tracing_context
from openai.types.responses import ResponseError

from memalign_graph import ChatModelError, EmbeddingError, StoreError
from memalign_graph import io as io_module
from memalign_graph.evidence.confidence import logprob_model
from memalign_graph.io import ASYNC, IO, SYNC, run_sync, sync_async_methods
from memalign_graph.models import embed_texts, resolve_embeddings
from memalign_graph.replies import StructuredModel
from tests.loopback import LoopbackServer, Raw, error, truncated
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


class RefusingStore(InMemoryStore):
    """Refuses a filter, as MongoDBStore does."""

    def batch(self, ops: Any) -> Any:
        raise ValueError("Invalid filter key '$gte'.")


def test_what_a_store_refuses_is_not_to_be_retried(drive: Drive) -> None:
    with pytest.raises(StoreError, match=r"RefusingStore failed: .*a retry does not help\.$"):
        drive(lambda io: io.batch(RefusingStore(), [GetOp(("a",), "key")]))


@pytest.mark.parametrize(
    ("name", "fix"),
    [
        ("QueryCanceled", "raise the role's statement_timeout"),
        ("DuplicatePreparedStatement", "prepare_threshold=None"),
        ("InvalidSqlStatementName", "prepare_threshold=None"),
    ],
)
def test_database_error_names_its_fix(name: str, fix: str) -> None:
    with pytest.raises(StoreError, match=fix), io_module.store_errors(None):
        raise type(name, (OSError,), {})(name)


class SlowStore(InMemoryStore):
    """Blocks in the middle of a batch, where it can be cancelled."""

    def __init__(self, *, fails: bool) -> None:
        super().__init__()
        self.fails, self.started, self.go_on = fails, asyncio.Event(), asyncio.Event()

    async def abatch(self, ops: Any) -> Any:
        first, *others = ops
        done = await super().abatch([first])
        self.started.set()
        await self.go_on.wait()
        if self.fails:
            raise LookupError("the disk is full")
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


@pytest.mark.parametrize("fails", [False, True])
async def test_started_batch_is_finished_despite_cancellation(*, fails: bool) -> None:
    """A store may not outlast being cancelled: AsyncSqliteStore keeps its transaction open.

    LangGraph cancels its tasks twice; in a thread, a batch given up would outlive its store.
    """
    store = SlowStore(fails=fails)

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
    stored = ["one"] if fails else ["one", "three", "two"]
    assert sorted(item.key for item in store.search(("a",))) == stored


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


RUN: contextvars.ContextVar[str] = contextvars.ContextVar("run", default="none")


@pytest.mark.parametrize(("limit", "most"), [(1, 1), (3, 3), (99, 7)])
def test_gathered_operations_have_a_limit_and_the_context_of_the_call(
    drive: Drive, limit: int, most: int
) -> None:
    """LangGraph keeps a run's config in context variables."""
    counted = Counted(most)

    async def operation(io: IO, number: int) -> str:
        return f"{await counted.operation(io, number)} {RUN.get()}"

    async def outer(io: IO) -> Any:
        RUN.set("own")
        return await io.gather([operation(io, number) for number in range(7)], limit)

    context = contextvars.copy_context()
    assert context.run(drive, outer) == [f"{number} own" for number in range(7)]
    assert counted.most == most


async def test_failure_or_cancellation_ends_gathered_operations_before_it_is_raised() -> None:
    started, ended = asyncio.Event(), []

    async def slow() -> None:
        started.set()
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0)
            ended.append("slow")

    async def fail() -> None:
        raise LookupError("stop")

    with pytest.raises(LookupError, match="stop"):
        await ASYNC.gather([slow(), fail()], 2)
    assert ended == ["slow"]
    started.clear()
    task = asyncio.create_task(gather(ASYNC, [slow(), slow()], 2))
    await started.wait()
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended == ["slow"] * 3


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


def test_store_without_async_calls(drive: Drive, tmp_path: Path) -> None:
    with SqliteStore.from_conn_string(str(tmp_path / "store.db")) as store:
        store.setup()
        assert drive(lambda io: put_and_get(IO(io), store)) == {"n": 1}
        with pytest.raises(TypeError):  # a programming error is not a StoreError
            drive(lambda io: io.batch(store, [PutOp(("a",), "key", {"n": object()})]))


class Adder:
    async def _add(self, io: IO, number: int) -> int:
        return number + 1

    add, aadd = sync_async_methods(_add)


async def test_langsmith_traces_both_forms_of_a_method() -> None:
    with tracing_context(enabled=False):
        assert traceable(Adder().add)(1) == 2
        assert await traceable(Adder().aadd)(1) == 2


def failure(message: str = "The prompt is not allowed.", **attributes: Any) -> Exception:
    """An error as a provider's client raises it."""
    error = RuntimeError(message)
    vars(error).update(attributes)
    return error


def botocores(code: str, status: int) -> Exception:
    metadata = {"HTTPStatusCode": status}
    return failure(response={"Error": {"Code": code}, "ResponseMetadata": metadata})


def httpxs(status: int) -> Exception:
    return failure(response=httpx.Response(status))


@pytest.mark.parametrize(
    ("error", "cause", "is_refusal"),
    [
        (botocores("ValidationException", 400), None, True),
        (botocores("ServiceQuotaExceededException", 400), None, False),
        (botocores("ThrottlingException", 429), None, False),
        (failure(code=HTTPStatus.BAD_REQUEST), None, True),  # google.api_core
        (failure(code=400), None, True),  # google.genai
        (failure(code=HTTPStatus.TOO_MANY_REQUESTS), None, False),
        (failure("API key not valid. Please pass a valid API key.", code=400), None, False),
        (failure("Invalid argument"), failure(code=400), True),  # langchain_google_genai
        (failure("Unavailable"), failure(code=503), False),
        (failure("Your credit balance is too low to use the API.", status_code=400), None, False),
        (failure("You have reached your specified API usage limits.", code=400), None, False),
        (failure("The model `a` has been decommissioned.", status_code=400), None, False),
        (failure("User location is not supported for the API use.", code=400), None, False),
        (failure("This model does not support `json_schema`.", status_code=400), None, False),
        (failure("This language does not support the word.", status_code=400), None, True),
        (failure("json_validate_failed: 'No API key works.'", status_code=400), None, True),
        (failure("Organization has been restricted.", status_code=400), None, False),
        (failure("Your bill about a restricted account.", status_code=400), None, True),
        (failure("Request too large: rate_limit_exceeded", status_code=413), None, True),
        (failure("Request too large: Limit 3, Requested 4.", status_code=429), None, True),
        (httpxs(422), None, True),
        (httpxs(503), None, False),
        (ValueError("The prompt was blocked."), None, True),
        (ValueError({"code": 400, "message": "No."}), None, True),
        (ValueError({"code": 429, "message": "Later."}), None, False),
        (ValueError({"code": "400", "message": "No."}), None, True),
        (ValueError({"code": "429", "message": "Later."}), None, False),
        (ValueError({"message": "Later.", "type": "engine_error"}), None, False),
        (ValueError({"code": "context_length_exceeded", "message": "No."}), None, True),
        (ValueError({"code": "content_filter", "message": "No."}), None, True),
        (ValueError(ResponseError(code="server_error", message="Later.")), None, False),
        (ValueError(ResponseError(code="invalid_prompt", message="No.")), None, True),
        (JSONDecodeError("Expecting value", "<html>", 0), None, False),
        (ValueError("No embedding data received"), None, False),
        (ValueError("No data received from Ollama stream."), None, False),
        (Base64Error("Incorrect padding"), None, False),
        (ValueError("buffer size must be a multiple of element size"), None, False),
        (ValueError("an async function but no sync function"), None, False),  # langgraph
        (RuntimeError("It broke."), None, False),
    ],
)
def test_refused_prompt_and_outage_are_distinguished_for_each_client(
    drive: Drive, error: Exception, cause: Exception | None, *, is_refusal: bool
) -> None:
    def fail(_: Any) -> Any:
        raise error from cause

    model = StructuredModel(RunnableLambda(fail), None, "model", "key")
    with pytest.raises(ChatModelError) as caught:
        drive(lambda io: io.chat(model, []))
    assert caught.value.is_refusal is is_refusal


@pytest.mark.parametrize(
    "refused",
    [
        AIMessage([{"type": "refusal", "refusal": "No."}]),  # of OpenAI's Responses API
        AIMessage("", additional_kwargs={"refusal": "No."}),
    ],
)
def test_refusal_is_recognized_in_the_content_and_next_to_it(
    drive: Drive, refused: AIMessage, server: LoopbackServer
) -> None:
    def answer(_: Any) -> AIMessage:
        return refused

    letters = logprob_model(server.chat_model())
    assert letters is not None
    models = [
        StructuredModel(RunnableLambda(answer), JsonOutputParser(), "model", "key"),
        replace(letters, runnable=RunnableLambda(answer)),
    ]
    for model in models:
        reply = drive(partial(IO.chat, model=model, messages=[]))
        assert (reply.problem, reply.is_refusal) == ("the model refused: No.", True)


@pytest.mark.parametrize(
    ("key", "reason", "is_refusal"),
    [
        ("finish_reason", "RECITATION", True),
        ("finish_reason", "SPII", True),
        ("finish_reason", "model_length", False),
        ("finish_reason", "model_context_window_exceeded", False),
        ("finish_reason", "STOP", True),  # a prompt that Gemini blocks has no candidates
        ("stop_reason", "max_tokens", False),  # Anthropic
        ("done_reason", "length", False),  # Ollama
        ("stopReason", "max_tokens", False),  # Bedrock
        ("incomplete_details", {"reason": "max_output_tokens"}, False),  # OpenAI's Responses API
    ],
)
def test_why_other_providers_gave_no_answer(
    drive: Drive, key: str, reason: Any, *, is_refusal: bool
) -> None:
    def answer(_: Any) -> AIMessage:
        return AIMessage("", response_metadata={key: reason})

    def parse(_: Any) -> Any:
        raise ModelRefusalError("Model refused to produce the requested output")

    parser = SimpleNamespace(parse_result=parse)
    model = StructuredModel(RunnableLambda(answer), parser, "model", "key")
    reply = drive(partial(IO.chat, model=model, messages=[]))
    problem = "a content filter stopped it" if is_refusal else "it was cut off at the output limit"
    assert reply.is_refusal is is_refusal
    assert (reply.problem or "").startswith(problem)


YES = {"content": '{"value": true}'}


@pytest.mark.parametrize(
    ("model", "message", "wanted"),
    [
        (7, YES, ({"value": True}, "7", False)),
        ([], YES, ({"value": True}, None, False)),
        ("m\x00", YES, ({"value": True}, "m", False)),
        (None, {"content": None, "refusal": {"code": 3}}, (None, None, True)),
    ],
)
def test_unusual_answer_of_a_server_is_read(
    drive: Drive, server: LoopbackServer, model: Any, message: Any, wanted: Any
) -> None:
    body = {"model": model, "choices": [{"message": {"role": "assistant", **message}}]}
    server.responder = lambda _: Raw(200, json.dumps(body))
    reply = drive(lambda io: say(io, server))
    assert (reply.answer, reply.model, reply.is_refusal) == wanted
    assert reply.text == message["content"] or reply.text == "{'code': 3}"
