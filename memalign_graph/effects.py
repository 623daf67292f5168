"""Sync and async without writing anything twice.

An operation is a generator: it yields what it needs from the outside (`Batch`, `Chat`, `Embed` and
others), gets the result sent back or the failure thrown in, and returns its result. `run` carries
an operation out with blocking calls, `arun` with awaited ones; everything else in the package is
written once, as operations and pure functions.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Generator, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, TypeVar

from langchain_core.embeddings import Embeddings
from langchain_core.messages import BaseMessage
from langchain_core.runnables.config import ContextThreadPoolExecutor
from langgraph.store.base import BaseStore, Op

from memalign_graph.errors import MemAlignError
from memalign_graph.models import StructuredModel
from memalign_graph.replies import ChatReply, chat_failure, embedding_failure, read_output

T = TypeVar("T")


@dataclass(frozen=True)
class Batch:
    """Ask a store to carry out some operations; answered with their results, in order."""

    store: BaseStore
    ops: Sequence[Op]


@dataclass(frozen=True)
class Chat:
    """Ask a chat model for an answer in the shape of a schema; answered with a `ChatReply`."""

    model: StructuredModel
    messages: Sequence[BaseMessage]


@dataclass(frozen=True)
class Embed:
    """Ask for the embeddings of some texts; answered with one vector a text."""

    embeddings: Embeddings
    texts: Sequence[str]


@dataclass(frozen=True)
class Gather:
    """Ask for some operations to be carried out side by side; answered with their results."""

    operations: Sequence["Operation[Any]"]
    """The operations, not yet started."""

    limit: int
    """How many are under way at a time."""


@dataclass(frozen=True)
class Call:
    """Ask for what only an object's own methods do, such as a checkpointer's."""

    blocking: Callable[[], Any]
    """Does it with blocking calls."""

    awaited: Callable[[], Awaitable[Any]]
    """Does it with awaited ones."""


Effect = Batch | Chat | Embed | Gather | Call
"""Anything an operation can ask for."""

Operation = Generator[Effect, Any, T]
"""Yields effects, is sent their results, returns a T."""


def run(operation: Operation[T]) -> T:
    """Carry out an operation with blocking calls."""
    try:
        effect = next(operation)
        while True:
            try:
                result = _perform(effect)
            except Exception as error:  # noqa: BLE001 - the operation decides what becomes of it
                effect = operation.throw(error)
            else:
                effect = operation.send(result)
    except StopIteration as stop:
        value: T = stop.value
        return value


async def arun(operation: Operation[T]) -> T:
    """Carry out an operation with awaited calls."""
    try:
        effect = next(operation)
        while True:
            try:
                result = await _aperform(effect)
            except Exception as error:  # noqa: BLE001 - the operation decides what becomes of it
                effect = operation.throw(error)
            else:
                effect = operation.send(result)
    except StopIteration as stop:
        value: T = stop.value
        return value


def _perform(effect: Effect) -> Any:
    match effect:
        case Batch(store, ops):
            return store.batch(ops)
        case Chat(model, messages):
            try:
                return _read(model, model.runnable.invoke(list(messages)))
            except Exception as error:  # noqa: BLE001 - providers share no base class
                return _reply_to(error, model)
        case Embed(embeddings, texts):
            try:
                return embeddings.embed_documents(list(texts))
            except Exception as error:  # noqa: BLE001 - likewise
                _raise_as(embedding_failure(error, embeddings), error)
        case Gather(operations, limit):
            with ContextThreadPoolExecutor(max_workers=limit) as executor:
                return list(executor.map(run, operations))
        case Call(blocking):
            return blocking()


async def _aperform(effect: Effect) -> Any:
    match effect:
        case Batch(store, ops):
            return await _finish(_abatch(store, ops))
        case Chat(model, messages):
            try:
                return _read(model, await model.runnable.ainvoke(list(messages)))
            except Exception as error:  # noqa: BLE001 - providers share no base class
                return _reply_to(error, model)
        case Embed(embeddings, texts):
            try:
                return await embeddings.aembed_documents(list(texts))
            except Exception as error:  # noqa: BLE001 - likewise
                _raise_as(embedding_failure(error, embeddings), error)
        case Gather(operations, limit):
            return await _gather(operations, limit)
        case Call(awaited=awaited):
            return await awaited()


async def _abatch(store: BaseStore, ops: Sequence[Op]) -> Any:
    try:
        return await store.abatch(ops)
    except NotImplementedError:
        # SqliteStore has no async calls of its own.
        return await asyncio.to_thread(store.batch, ops)


async def _finish(awaitable: Coroutine[Any, Any, T]) -> T:
    """Let a batch that has begun end, however often its caller is cancelled meanwhile."""
    task = asyncio.ensure_future(awaitable)
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


async def _gather(operations: Sequence[Operation[Any]], limit: int) -> list[Any]:
    semaphore = asyncio.Semaphore(limit)

    async def one(operation: Operation[Any]) -> Any:
        async with semaphore:
            return await arun(operation)

    tasks = [asyncio.ensure_future(one(operation)) for operation in operations]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _read(model: StructuredModel, output: Any) -> ChatReply:
    if model.parser is None:
        return read_output(output)
    try:
        parsed, problem = model.parser.invoke(output), None
    except Exception as error:  # noqa: BLE001 - a parser's error is told to the model
        parsed, problem = None, error
    return read_output({"raw": output, "parsed": parsed, "parsing_error": problem})


def _reply_to(error: Exception, model: StructuredModel) -> ChatReply:
    """Tell an answer that is no use, which is a reply, from a call that failed, which raises."""
    outcome = chat_failure(error, model)
    if isinstance(outcome, MemAlignError):
        _raise_as(outcome, error)
    return outcome


def _raise_as(failure: MemAlignError, error: Exception) -> NoReturn:
    if failure is error:
        raise error
    raise failure from error
