"""Sync and async without writing anything twice, and what a chat model that is asked replies.

An operation is an `async def` that is handed an `IO`, its only way to the outside. The methods of
`BLOCKING` never suspend, so `run` finishes such an operation in one step; those of `AWAITING` do.
Whatever counts or caches is an `IO` around another.
"""

import asyncio
import json
import re
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import update_wrapper
from inspect import signature
from typing import Any, Concatenate, ParamSpec, TypeVar

from langchain_core.embeddings import Embeddings
from langchain_core.messages import BaseMessage
from langchain_core.outputs import ChatGeneration
from langchain_core.runnables import Runnable
from langchain_core.runnables.config import ContextThreadPoolExecutor
from langgraph.store.base import BaseStore, Op
from langgraph.store.memory import InMemoryStore

from memalign_graph.errors import ChatModelError, MemAlignError, StoreError, excerpt

T = TypeVar("T")
P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True)
class ChatReply:
    """What came back from a chat model that was asked for an answer in the shape of a schema."""

    answer: dict[str, Any] | None
    text: str  # as the model wrote it
    problem: str | None = None  # why there is no answer
    model: str | None = None  # as it names itself
    input_tokens: int | None = None
    output_tokens: int | None = None
    is_refusal: bool = False  # a content filter stopped it, or the model refused
    logprobs: Any = None  # of the answer's tokens, if they were asked for and the model tells


@dataclass(frozen=True)
class StructuredModel:
    """A chat model bound to a schema."""

    runnable: Runnable[Any, Any]  # takes messages, gives a message, or what `_read_output` reads
    parser: Any  # reads the message; None where the runnable does all
    name: str
    key: str  # names the model with its settings, and the schema
    purpose: str = "judge"  # what it is asked for, as traces name it
    is_json: bool = True  # whether an answer in text has to be a JSON object

    def invoke(self, messages: Sequence[BaseMessage]) -> ChatReply:
        """Ask; an answer that is no use is a reply, too, and a call that failed raises."""
        try:
            return self._read(self.runnable.invoke(list(messages)))
        except Exception as error:  # noqa: BLE001 - providers share no base class
            return self._read_failure(error)

    async def ainvoke(self, messages: Sequence[BaseMessage]) -> ChatReply:
        try:
            return self._read(await self.runnable.ainvoke(list(messages)))
        except Exception as error:  # noqa: BLE001 - likewise
            return self._read_failure(error)

    def _read(self, output: Any) -> ChatReply:
        if self.parser is None:
            return _read_output(**output, is_json=self.is_json)
        try:
            # What its `invoke` does, without a run of its own in every trace.
            parsed = self.parser.parse_result([ChatGeneration(message=output)])
        except Exception as error:  # noqa: BLE001 - a parser's error is told to the model
            return _read_output(output, None, error)
        return _read_output(output, parsed, is_json=self.is_json)

    def _read_failure(self, error: Exception) -> ChatReply:
        if isinstance(error, MemAlignError):
            raise error
        kind = type(error).__name__
        if kind not in _STOPPED:
            failure = ChatModelError(f"The chat model {self.name} failed: {describe_error(error)}")
            failure.is_refusal = _is_refusal(error)
            raise failure from error
        completion = getattr(error, "completion", None)
        usage = getattr(completion, "usage", None)
        return ChatReply(
            answer=None,
            text=(completion.choices[0].message.content or "") if completion else "",
            problem=_STOPPED[kind],
            is_refusal=_STOPPED[kind] == _FILTERED,
            input_tokens=getattr(usage, "prompt_tokens", None),
            output_tokens=getattr(usage, "completion_tokens", None),
        )


class IO:
    """The way to the outside: that of another `IO`, where a method is not overridden."""

    def __init__(self, io: "IO | None" = None) -> None:
        self.io = io or self

    async def batch(self, store: BaseStore, ops: Sequence[Op]) -> Any:
        """Have a store carry out operations; returns their results, in order."""
        return await self.io.batch(store, ops)

    async def chat(self, model: StructuredModel, messages: Sequence[BaseMessage]) -> ChatReply:
        return await self.io.chat(model, messages)

    async def mark_usable(self, reply: ChatReply) -> None:
        """Be told that a chat model's reply could be used."""
        if self.io is not self:
            await self.io.mark_usable(reply)

    async def embed(self, embeddings: Embeddings, texts: Sequence[str]) -> list[list[float]]:
        return await self.io.embed(embeddings, texts)

    async def gather(self, operations: Sequence[Coroutine[Any, Any, T]], limit: int) -> list[T]:
        """Carry out operations concurrently, at most `limit` at a time; returns their results."""
        return await self.io.gather(operations, limit)

    async def call_either(
        self, blocking: Callable[[], T], awaiting: Callable[[], Awaitable[T]]
    ) -> T:
        """Do what only an object's own methods do, such as a checkpointer's."""
        return await self.io.call_either(blocking, awaiting)


_IN_MEMORY_STORE_LOCK = threading.RLock()


class _SyncIO(IO):
    """Does everything with blocking calls."""

    async def batch(self, store: BaseStore, ops: Sequence[Op]) -> Any:
        # InMemoryStore walks through a dict that another thread's batch would change meanwhile.
        with (
            _IN_MEMORY_STORE_LOCK if isinstance(store, InMemoryStore) else nullcontext(),
            store_errors(store),
        ):
            return store.batch(ops)

    async def chat(self, model: StructuredModel, messages: Sequence[BaseMessage]) -> ChatReply:
        return model.invoke(messages)

    async def embed(self, embeddings: Embeddings, texts: Sequence[str]) -> list[list[float]]:
        return embeddings.embed_documents(list(texts))

    async def gather(self, operations: Sequence[Coroutine[Any, Any, T]], limit: int) -> list[T]:
        try:
            with ContextThreadPoolExecutor(max_workers=limit) as executor:
                return list(executor.map(run_sync, operations))
        finally:
            for operation in operations:
                operation.close()  # those that a failed one kept from being started

    async def call_either(
        self,
        blocking: Callable[[], T],
        awaiting: Callable[[], Awaitable[T]],  # noqa: ARG002 - for the async twin
    ) -> T:
        return blocking()


class _AsyncIO(IO):
    """Does everything with awaited calls."""

    async def batch(self, store: BaseStore, ops: Sequence[Op]) -> Any:
        with store_errors(store):
            if isinstance(store, InMemoryStore) and type(store).abatch is InMemoryStore.abatch:
                with (
                    _IN_MEMORY_STORE_LOCK
                ):  # nothing of ours is embedded by it, so that it waits for nothing
                    return store.batch(ops)
            return await _shielded(_abatch(store, ops))

    async def chat(self, model: StructuredModel, messages: Sequence[BaseMessage]) -> ChatReply:
        return await model.ainvoke(messages)

    async def embed(self, embeddings: Embeddings, texts: Sequence[str]) -> list[list[float]]:
        return await embeddings.aembed_documents(list(texts))

    async def gather(self, operations: Sequence[Coroutine[Any, Any, T]], limit: int) -> list[T]:
        semaphore = asyncio.Semaphore(limit)

        async def bounded(operation: Coroutine[Any, Any, T]) -> T:
            async with semaphore:
                return await operation

        tasks = [asyncio.ensure_future(bounded(operation)) for operation in operations]
        try:
            return await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for operation in operations:
                operation.close()

    async def call_either(
        self,
        blocking: Callable[[], T],  # noqa: ARG002 - for the sync twin
        awaiting: Callable[[], Awaitable[T]],
    ) -> T:
        return await awaiting()


class BoundedIO(IO):
    """An `IO` that calls models at most `limit` at a time, however calls are nested."""

    def __init__(self, io: IO, limit: int, *, awaits: bool) -> None:
        super().__init__(io)
        self._awaits = awaits
        self._threads = threading.Semaphore(limit)
        self._tasks = asyncio.Semaphore(limit)

    async def chat(self, model: StructuredModel, messages: Sequence[BaseMessage]) -> ChatReply:
        if self._awaits:
            async with self._tasks:
                return await super().chat(model, messages)
        with self._threads:
            return await super().chat(model, messages)

    async def embed(self, embeddings: Embeddings, texts: Sequence[str]) -> list[list[float]]:
        if self._awaits:
            async with self._tasks:
                return await super().embed(embeddings, texts)
        with self._threads:
            return await super().embed(embeddings, texts)


SYNC = _SyncIO()
ASYNC = _AsyncIO()


def run_sync(operation: Coroutine[Any, Any, T]) -> T:
    try:
        operation.send(None)
    except StopIteration as stop:
        result: T = stop.value
        return result
    operation.close()
    raise RuntimeError("A blocking operation waited: it was handed an IO that awaits.")


def sync_async_methods(
    operation: Callable[Concatenate[T, IO, P], Coroutine[Any, Any, R]],
) -> tuple[Callable[Concatenate[T, P], R], Callable[Concatenate[T, P], Coroutine[Any, Any, R]]]:
    """Make a blocking method and its async twin of a method that is handed an `IO`."""
    return _sync_async(operation, 1)


def sync_async_functions(
    operation: Callable[Concatenate[IO, P], Coroutine[Any, Any, R]],
) -> tuple[Callable[P, R], Callable[P, Coroutine[Any, Any, R]]]:
    """Make a blocking function and its async twin of a function that is handed an `IO`."""
    return _sync_async(operation, 0)


def _sync_async(
    operation: Callable[..., Any], before: int
) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Make twins, named by the operation and with its parameters, of which so many come first."""

    def blocking(*args: Any, **kwargs: Any) -> Any:
        return run_sync(operation(*args[:before], SYNC, *args[before:], **kwargs))

    async def awaiting(*args: Any, **kwargs: Any) -> Any:
        return await operation(*args[:before], ASYNC, *args[before:], **kwargs)

    shown = [it for name, it in signature(operation).parameters.items() if name != "io"]
    name = operation.__name__.removeprefix("_")
    for function, its_name in ((blocking, name), (awaiting, f"a{name}")):
        update_wrapper(function, operation)
        function.__name__ = its_name
        function.__qualname__ = operation.__qualname__.replace(operation.__name__, its_name)
        vars(function)["__signature__"] = signature(operation).replace(parameters=shown)
        function.__annotations__.pop("io", None)
    awaiting.__doc__ = f"Async twin of `{name}`."
    return blocking, awaiting


_PROGRAMMING_ERRORS = (AssertionError, AttributeError, NameError, TypeError)
"""What no store fails with: to do the same again would be no mend."""


@contextmanager
def store_errors(store: object) -> Iterator[None]:
    """Turn what a store fails with into a sentence."""
    try:
        yield
    except (MemAlignError, *_PROGRAMMING_ERRORS):
        raise
    except Exception as error:
        again = "doing the same again is safe, nothing is stored twice"
        reason = describe_error(error, _STORE_HINTS).rstrip(".")
        raise StoreError(f"The {type(store).__name__} failed: {reason}; {again}.") from error


async def _abatch(store: BaseStore, ops: Sequence[Op]) -> Any:
    try:
        return await store.abatch(ops)
    except NotImplementedError:
        # SqliteStore has no async calls of its own.
        return await asyncio.to_thread(store.batch, ops)


async def _shielded(batch: Coroutine[Any, Any, T]) -> T:
    """Let a batch that has begun end when its caller is cancelled: half of one may corrupt."""
    task = asyncio.ensure_future(batch)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is None:
        return task.result()
    if not task.cancelled():
        task.exception()  # looked at, so that nobody warns of it
    raise cancelled


# What to do about a failed call, by the name of the client's error or one of its bases. The openai
# client and langchain-core put `API` or `Model` before most of these.
_HINTS = {
    "TimeoutError": "it did not answer in time; raise the model's timeout, or try later.",
    "ConnectionError": "is the server up, and its base_url right?",
    "AuthenticationError": "check the API key.",
    "NotFoundError": "check the model's name and base_url.",
    "RateLimitError": "it stayed over its rate limit; try later, or raise max_retries.",
    "ContextOverflowError": "set the model's profile={'max_input_tokens': ...} to its window.",
    "InternalServerError": "the provider failed; try later.",
    "ModelAPIError": "the provider failed; try later.",
}

# The same of a store's, by the names of psycopg's, sqlite3's and Python's own errors.
_STORE_HINTS = {
    "PoolTimeout": "is the database up? If it is: raise the pool's max_size, or do less at once.",
    "ReadOnlySqlTransaction": "LangGraph's store writes to read by key: give it the primary.",
    "UndefinedTable": "make its tables: call the store's setup().",
    "InsufficientPrivilege": "grant the role what it needs on the store's tables.",
    "DiskFull": "make room in the database.",
    "OperationalError": "is the database up, its URL or path right, and held by nobody else? A "
    "store on a single connection that was cut has to be opened again.",
    "ConnectionError": "is the database up, and its URL right?",
}

# Why an answer is no use, by the reason it ended for, and by the client's error that says so.
_CUT_OFF = "it was cut off at the output limit: answer more briefly"
_FILTERED = "a content filter stopped it"
_STOP_FIELDS = ("finish_reason", "stop_reason", "done_reason", "stopReason", "incomplete_details")
"""Where providers tell why an answer ended: OpenAI and Gemini, Anthropic, Ollama, Bedrock, and
OpenAI's responses."""
_STOPPED = {
    **dict.fromkeys(("length", "max_tokens", "max_output_tokens"), _CUT_OFF),
    **dict.fromkeys(("content_filter", "content_filtered", "safety", "refusal"), _FILTERED),
    **dict.fromkeys(("guardrail_intervened", "prohibited_content", "blocklist"), _FILTERED),
    "LengthFinishReasonError": _CUT_OFF,
    "ContentFilterFinishReasonError": _FILTERED,
}
_FENCED = re.compile(r"```(?:json)?\s*(.*?)(?:```|\Z)", re.DOTALL | re.IGNORECASE)


def _stop_problem(metadata: Mapping[str, Any]) -> str | None:
    """Return why an answer is no use by what a provider says of its end, if it says so."""
    reasons = [metadata.get(name) for name in _STOP_FIELDS]
    reasons = [reason.get("reason") if isinstance(reason, dict) else reason for reason in reasons]
    named = (_STOPPED.get(reason.lower()) for reason in reasons if isinstance(reason, str))
    return next(filter(None, named), None)


def _read_json(text: str) -> Any:
    """Read JSON, also in a code fence; never what is left of JSON that was cut off."""
    fenced = _FENCED.search(text) if not text.lstrip().startswith("{") else None
    return json.loads(fenced[1] if fenced else text, strict=False)


def _read_output(
    raw: Any, parsed: Any, parsing_error: BaseException | None = None, *, is_json: bool = True
) -> ChatReply:
    # A kept answer has usage that tells of nothing but its cost.
    usage: Mapping[str, Any] = raw.usage_metadata or {}
    metadata = raw.response_metadata
    refusal = raw.additional_kwargs.get("refusal")
    problem = _stop_problem(metadata)
    if isinstance(parsed, dict) and is_json and raw.text and not raw.tool_calls:
        try:  # once more: LangChain's parser completes what was cut off
            parsed = _read_json(raw.text)
        except ValueError as error:
            parsed, parsing_error = None, error
    if problem is None and not isinstance(parsed, dict):
        problem = "it is not the JSON object asked for"
        if refusal:
            problem = f"the model refused: {refusal}"
        elif parsing_error is not None:
            problem = f"it is not the JSON asked for ({first_line(parsing_error)})"
    return ChatReply(
        answer=parsed if problem is None else None,
        text=refusal or raw.text or (json.dumps(raw.tool_calls) if raw.tool_calls else ""),
        problem=problem,
        is_refusal=problem == _FILTERED or (problem is not None and bool(refusal)),
        model=metadata.get("model_name"),
        input_tokens=usage.get("input_tokens"),
        output_tokens=usage.get("output_tokens"),
        logprobs=metadata.get("logprobs"),
    )


_PROMPT_REFUSED = (400, 413, 422)  # by HTTP status


def _is_refusal(error: Exception) -> bool:
    """Return whether a provider refused one prompt: nothing that a hint says would mend it."""
    # Google tells a wrong key by the status 400, too.
    if _hint(error, _HINTS) or "api key" in str(error).lower():
        return False
    status = _http_status(error) or _http_status(error.__cause__)
    return isinstance(error, ValueError) if status is None else status in _PROMPT_REFUSED


def _http_status(error: BaseException | None) -> int | None:
    """Return the HTTP status in an exception of the client of OpenAI, httpx, botocore or Google."""
    response = getattr(error, "response", None)
    if isinstance(response, Mapping):  # botocore's
        # AWS tells quotas and expired keys by the status 400, too.
        is_about_prompt = response.get("Error", {}).get("Code") == "ValidationException"
        return response["ResponseMetadata"]["HTTPStatusCode"] if is_about_prompt else None
    places = ((error, "status_code"), (response, "status_code"), (error, "code"))
    statuses = [getattr(place, name, None) for place, name in places]
    return next((status for status in statuses if isinstance(status, int)), None)


def describe_error(error: Exception, hints: Mapping[str, str] = _HINTS) -> str:
    """Say why a call of a model or a store failed, and what to do about it."""
    hint = _hint(error, hints)
    return f"{type(error).__name__}: {first_line(error)}" + (f" ({hint})" if hint else "")


def _hint(error: Exception, hints: Mapping[str, str]) -> str | None:
    names = [kind.__name__ for kind in type(error).__mro__]
    # The openai client tells an overflow by its code; LangChain does not always see it.
    if getattr(error, "code", None) == "context_length_exceeded":
        names.insert(1, "ContextOverflowError")
    plain = [name if name in hints else re.sub("^(API|Model)", "", name) for name in names]
    return next((hints[name] for name in plain if name in hints), None)


def first_line(error: BaseException) -> str:
    return excerpt(str(error).strip().partition("\n")[0], 300)
