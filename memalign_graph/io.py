"""Store, model and embedding code, written once for sync and async.

An operation is a coroutine that takes an `IO` and makes every external call through it. With a
`SyncIO` no call suspends, so `run_sync` completes the operation in one step; with an `AsyncIO`
calls are awaited. An `IO` that counts or caches wraps another.
"""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import update_wrapper
from inspect import signature
from typing import Any, Concatenate, ParamSpec, TypeVar

from langchain_core.embeddings import Embeddings
from langchain_core.messages import BaseMessage
from langchain_core.runnables.config import ContextThreadPoolExecutor
from langgraph.store.base import BaseStore, Op
from langgraph.store.memory import InMemoryStore

from memalign_graph.errors import MemAlignError, StoreError, without_urls
from memalign_graph.replies import ChatReply, StructuredModel, describe_error

T = TypeVar("T")
P = ParamSpec("P")
R = TypeVar("R")


class IO:
    """External calls; a wrapper forwards what it does not override to the wrapped `io`."""

    def __init__(self, io: "IO | None" = None) -> None:
        self.io = io or self

    async def batch(self, store: BaseStore, ops: Sequence[Op]) -> Any:
        """Run store operations and return their results in order."""
        return await self.io.batch(store, ops)

    async def chat(self, model: StructuredModel, messages: Sequence[BaseMessage]) -> ChatReply:
        return await self.io.chat(model, messages)

    async def mark_usable(self, reply: ChatReply) -> None:
        """Report that a chat model's reply was valid."""
        if self.io is not self:
            await self.io.mark_usable(reply)

    async def embed(self, embeddings: Embeddings, texts: Sequence[str]) -> list[list[float]]:
        return await self.io.embed(embeddings, texts)

    async def gather(self, operations: Sequence[Coroutine[Any, Any, T]], limit: int) -> list[T]:
        """Run operations concurrently, at most `limit` at a time, and return their results."""
        return await self.io.gather(operations, limit)

    async def call_either(
        self, blocking: Callable[[], T], awaiting: Callable[[], Awaitable[T]]
    ) -> T:
        """Call the blocking or the async method of an object, such as a checkpointer."""
        return await self.io.call_either(blocking, awaiting)


_IN_MEMORY_STORE_LOCK = threading.RLock()


class SyncIO(IO):
    """Blocking calls; at most `limit` concurrent model calls, also of nested operations."""

    def __init__(self, limit: int | None = None) -> None:
        super().__init__()
        self._slots: AbstractContextManager[Any] = (
            nullcontext() if limit is None else threading.Semaphore(limit)
        )

    async def batch(self, store: BaseStore, ops: Sequence[Op]) -> Any:
        # InMemoryStore iterates over a dict that another thread's batch may change.
        is_in_memory = isinstance(store, InMemoryStore)
        with _IN_MEMORY_STORE_LOCK if is_in_memory else nullcontext(), store_errors(store):
            return store.batch(ops)

    async def chat(self, model: StructuredModel, messages: Sequence[BaseMessage]) -> ChatReply:
        with self._slots:
            return model.invoke(messages)

    async def embed(self, embeddings: Embeddings, texts: Sequence[str]) -> list[list[float]]:
        with self._slots:
            return embeddings.embed_documents(list(texts))

    async def gather(self, operations: Sequence[Coroutine[Any, Any, T]], limit: int) -> list[T]:
        try:
            with ContextThreadPoolExecutor(max_workers=limit) as executor:
                return list(executor.map(run_sync, operations))
        finally:
            for operation in operations:
                operation.close()  # those not started since another failed

    async def call_either(
        self,
        blocking: Callable[[], T],
        awaiting: Callable[[], Awaitable[T]],  # noqa: ARG002 - for AsyncIO
    ) -> T:
        return blocking()


class AsyncIO(IO):
    """Awaited calls; at most `limit` concurrent model calls, also of nested operations."""

    def __init__(self, limit: int | None = None) -> None:
        super().__init__()
        self._slots = nullcontext() if limit is None else asyncio.Semaphore(limit)

    async def batch(self, store: BaseStore, ops: Sequence[Op]) -> Any:
        with store_errors(store):
            if isinstance(store, InMemoryStore) and type(store).abatch is InMemoryStore.abatch:
                with _IN_MEMORY_STORE_LOCK:  # held briefly: our items are not embedded by the store
                    return store.batch(ops)
            return await _shielded(_abatch(store, ops))

    async def chat(self, model: StructuredModel, messages: Sequence[BaseMessage]) -> ChatReply:
        async with self._slots:
            return await model.ainvoke(messages)

    async def embed(self, embeddings: Embeddings, texts: Sequence[str]) -> list[list[float]]:
        async with self._slots:
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
        blocking: Callable[[], T],  # noqa: ARG002 - for SyncIO
        awaiting: Callable[[], Awaitable[T]],
    ) -> T:
        return await awaiting()


SYNC = SyncIO()
ASYNC = AsyncIO()


def run_sync(operation: Coroutine[Any, Any, T]) -> T:
    try:
        operation.send(None)
    except StopIteration as stop:
        result: T = stop.value
        return result
    operation.close()
    raise RuntimeError("A blocking operation suspended: it was given an AsyncIO.")


def sync_async_methods(
    operation: Callable[Concatenate[T, IO, P], Coroutine[Any, Any, R]],
) -> tuple[Callable[Concatenate[T, P], R], Callable[Concatenate[T, P], Coroutine[Any, Any, R]]]:
    """Make a sync and an async method from a method that takes an `IO` first."""
    return _sync_async(operation, 1)


def sync_async_functions(
    operation: Callable[Concatenate[IO, P], Coroutine[Any, Any, R]],
) -> tuple[Callable[P, R], Callable[P, Coroutine[Any, Any, R]]]:
    """Make a sync and an async function from a function that takes an `IO` first."""
    return _sync_async(operation, 0)


def _sync_async(
    operation: Callable[..., Any], io_position: int
) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Make both, named after the operation, with its parameters except `io`."""

    def blocking(*args: Any, **kwargs: Any) -> Any:
        return run_sync(operation(*args[:io_position], SYNC, *args[io_position:], **kwargs))

    async def awaiting(*args: Any, **kwargs: Any) -> Any:
        return await operation(*args[:io_position], ASYNC, *args[io_position:], **kwargs)

    parameters = signature(operation).parameters
    visible = [parameter for name, parameter in parameters.items() if name != "io"]
    name = operation.__name__.removeprefix("_")
    for function, new_name in ((blocking, name), (awaiting, f"a{name}")):
        update_wrapper(function, operation)
        function.__name__ = new_name
        function.__qualname__ = operation.__qualname__.replace(operation.__name__, new_name)
        vars(function)["__signature__"] = signature(operation).replace(parameters=visible)
        function.__annotations__.pop("io", None)
        # LangSmith's `traceable` follows it, and would take the blocking function for an async one.
        del vars(function)["__wrapped__"]
    awaiting.__doc__ = f"Async twin of `{name}`."
    return blocking, awaiting


_PROGRAMMING_ERRORS = (AssertionError, AttributeError, NameError, TypeError)
"""Not errors of a store: a retry would not help."""


_POOLER_HINT = "behind a pooler, set prepare_threshold=None in a pool's kwargs."

# What to do, by the name of an exception of psycopg, sqlite3 or Python.
_STORE_HINTS = {
    "PoolTimeout": "is the database up? If it is: raise the pool's max_size, or lower concurrency.",
    "ReadOnlySqlTransaction": "LangGraph's store writes to read by key: give it the primary.",
    "UndefinedTable": "make its tables: call the store's setup().",
    "InsufficientPrivilege": "grant the role what it needs on the store's tables.",
    "QueryCanceled": "raise the role's statement_timeout.",
    "DuplicatePreparedStatement": _POOLER_HINT,
    "InvalidSqlStatementName": _POOLER_HINT,
    "DiskFull": "free space on the database's disk.",
    "OperationalError": "is the database up, its URL or path right, and not locked by another "
    "process? If a store's only connection broke, open the store again.",
    "ConnectionError": "is the database up, and its URL right?",
}


@contextmanager
def store_errors(store: object) -> Iterator[None]:
    """Turn a store's exception into a `StoreError` that says what to do."""
    try:
        yield
    except (MemAlignError, *_PROGRAMMING_ERRORS):
        raise
    except Exception as error:
        again = "a retry is safe, nothing is stored twice"
        # Not a subclass, such as the `JSONDecodeError` of an outage.
        if type(error) in (NotImplementedError, ValueError):
            again = "the store refuses what a memory needs, and a retry does not help"
        reason = without_urls(describe_error(error, _STORE_HINTS)).rstrip(".")
        raise StoreError(f"The {type(store).__name__} failed: {reason}; {again}.") from error


async def _abatch(store: BaseStore, ops: Sequence[Op]) -> Any:
    try:
        return await store.abatch(ops)
    except NotImplementedError:
        # SqliteStore has no async calls.
        return await asyncio.to_thread(store.batch, ops)


async def _shielded(batch: Coroutine[Any, Any, T]) -> T:
    """Finish a started batch although its caller is cancelled: half a batch may corrupt a store."""
    task = asyncio.ensure_future(batch)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        _ = task.cancelled() or task.exception()  # retrieved, so that asyncio does not warn
        raise cancelled
    return task.result()
