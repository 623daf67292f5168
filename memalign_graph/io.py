"""Sync and async without writing anything twice.

An operation is an `async def` that is handed an `IO`, its only way to the outside. The methods of
`BLOCKING` never suspend, so `run` finishes such an operation in one step; those of `AWAITING` do.
Whatever counts or caches is an `IO` around another.
"""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import nullcontext
from functools import update_wrapper
from inspect import signature
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from langchain_core.embeddings import Embeddings
from langchain_core.messages import BaseMessage
from langchain_core.runnables.config import ContextThreadPoolExecutor
from langgraph.store.base import BaseStore, Op
from langgraph.store.memory import InMemoryStore

if TYPE_CHECKING:
    from memalign_graph.models import ChatReply, StructuredModel

T = TypeVar("T")
P = ParamSpec("P")
R = TypeVar("R")


class IO:
    """The way to the outside: that of another `IO`, where a method is not overridden."""

    def __init__(self, io: "IO | None" = None) -> None:
        self.io = io or self

    async def batch(self, store: BaseStore, ops: Sequence[Op]) -> Any:
        """Have a store carry out operations; returns their results, in order."""
        return await self.io.batch(store, ops)

    async def chat(self, model: "StructuredModel", messages: Sequence[BaseMessage]) -> "ChatReply":
        """Ask a chat model."""
        return await self.io.chat(model, messages)

    async def keep(self, reply: "ChatReply") -> None:
        """Be told that a chat model's reply could be used."""
        if self.io is not self:
            await self.io.keep(reply)

    async def embed(self, embeddings: Embeddings, texts: Sequence[str]) -> list[list[float]]:
        """Embed texts."""
        return await self.io.embed(embeddings, texts)

    async def gather(self, operations: Sequence[Coroutine[Any, Any, T]], limit: int) -> list[T]:
        """Carry out operations concurrently, at most `limit` at a time; returns their results."""
        return await self.io.gather(operations, limit)

    async def call(self, blocking: Callable[[], T], awaiting: Callable[[], Awaitable[T]]) -> T:
        """Do what only an object's own methods do, such as a checkpointer's."""
        return await self.io.call(blocking, awaiting)


_IN_MEMORY = threading.RLock()


class _Blocking(IO):
    """Does everything with blocking calls."""

    async def batch(self, store: BaseStore, ops: Sequence[Op]) -> Any:
        # InMemoryStore walks through a dict that another thread's batch would change meanwhile.
        with _IN_MEMORY if isinstance(store, InMemoryStore) else nullcontext():
            return store.batch(ops)

    async def chat(self, model: "StructuredModel", messages: Sequence[BaseMessage]) -> "ChatReply":
        return model.invoke(messages)

    async def embed(self, embeddings: Embeddings, texts: Sequence[str]) -> list[list[float]]:
        return embeddings.embed_documents(list(texts))

    async def gather(self, operations: Sequence[Coroutine[Any, Any, T]], limit: int) -> list[T]:
        try:
            with ContextThreadPoolExecutor(max_workers=limit) as executor:
                return list(executor.map(run, operations))
        finally:
            for operation in operations:
                operation.close()  # those that a failed one kept from being started

    async def call(self, blocking: Callable[[], T], awaiting: Callable[[], Awaitable[T]]) -> T:  # noqa: ARG002 - the other side's
        return blocking()


class _Awaiting(IO):
    """Does everything with awaited calls."""

    async def batch(self, store: BaseStore, ops: Sequence[Op]) -> Any:
        return await _shielded(_abatch(store, ops))

    async def chat(self, model: "StructuredModel", messages: Sequence[BaseMessage]) -> "ChatReply":
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

    async def call(self, blocking: Callable[[], T], awaiting: Callable[[], Awaitable[T]]) -> T:  # noqa: ARG002 - the other side's
        return await awaiting()


BLOCKING = _Blocking()
AWAITING = _Awaiting()


def run(operation: Coroutine[Any, Any, T]) -> T:
    """Finish an operation that was handed a blocking `IO`."""
    try:
        operation.send(None)
    except StopIteration as stop:
        result: T = stop.value
        return result
    operation.close()
    raise RuntimeError("A blocking operation waited: it was handed an IO that awaits.")


def twins(
    operation: Callable[Concatenate[T, IO, P], Coroutine[Any, Any, R]],
) -> tuple[Callable[Concatenate[T, P], R], Callable[Concatenate[T, P], Coroutine[Any, Any, R]]]:
    """Make a blocking method and its async twin of a method that is handed an `IO`."""

    def method(self: T, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return run(operation(self, BLOCKING, *args, **kwargs))

    async def twin(self: T, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return await operation(self, AWAITING, *args, **kwargs)

    _name(operation, method, twin)
    return method, twin


def twin_functions(
    operation: Callable[Concatenate[IO, P], Coroutine[Any, Any, R]],
) -> tuple[Callable[P, R], Callable[P, Coroutine[Any, Any, R]]]:
    """Make a blocking function and its async twin of a function that is handed an `IO`."""

    def function(*args: P.args, **kwargs: P.kwargs) -> R:
        return run(operation(BLOCKING, *args, **kwargs))

    async def twin(*args: P.args, **kwargs: P.kwargs) -> R:
        return await operation(AWAITING, *args, **kwargs)

    _name(operation, function, twin)
    return function, twin


def _name(operation: Callable[..., Any], *twins: Callable[..., Any]) -> None:
    """Name twins by the operation they are made of, and show its parameters but for the `IO`."""
    shown = [it for name, it in signature(operation).parameters.items() if name != "io"]
    name = operation.__name__.removeprefix("_")
    for function, its_name in zip(twins, (name, f"a{name}"), strict=True):
        update_wrapper(function, operation)
        function.__name__ = its_name
        function.__qualname__ = operation.__qualname__.replace(operation.__name__, its_name)
        vars(function)["__signature__"] = signature(operation).replace(parameters=shown)
        function.__annotations__.pop("io", None)
    twins[-1].__doc__ = f"Async twin of `{name}`."


async def _abatch(store: BaseStore, ops: Sequence[Op]) -> Any:
    try:
        return await store.abatch(ops)
    except NotImplementedError:
        # SqliteStore has no async calls of its own.
        return await asyncio.to_thread(store.batch, ops)


async def _shielded(batch: Coroutine[Any, Any, T]) -> T:
    """Let a batch that has begun end, however often its caller is cancelled meanwhile.

    Cancelled in the middle a store may be left with half a batch, or with an open transaction.
    """
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
