"""Stores that record, fail, or run another operation in the middle of one."""

import sqlite3
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

from langchain_core.embeddings import Embeddings
from langchain_core.messages import BaseMessage
from langgraph.store.base import BaseStore, GetOp, Op, PutOp, Result, SearchOp
from langgraph.store.memory import InMemoryStore
from langgraph.store.sqlite import SqliteStore

from memalign_graph.io import IO, SYNC, run_sync
from memalign_graph.replies import ChatReply, StructuredModel

Operation = Callable[[IO], Coroutine[Any, Any, Any]]
"""What is carried out with the `IO` it is given."""


Opener = Callable[[], BaseStore]
"""Opens one more store object on the same data."""


def connect(path: Path | str) -> sqlite3.Connection:
    """A connection for several processes on one file."""
    connection = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
    connection.execute("PRAGMA busy_timeout=30000")
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=OFF")  # a test needs no safety from power cuts
    return connection


Asked = Sequence[Op] | Embeddings | StructuredModel
"""What is asked of the outside: of a store, or of a model."""


class Meanwhile(IO):
    """Runs another operation once, before or after the first matching call."""

    def __init__(
        self, when: Callable[[Asked], bool], then: Callable[[], object], *, after: bool = False
    ) -> None:
        super().__init__(SYNC)
        self._when = when
        self._then = then
        self._after = after
        self.done = False

    async def batch(self, store: BaseStore, ops: Sequence[Op]) -> Any:
        with self._beside(ops):
            return await super().batch(store, ops)

    async def embed(self, embeddings: Embeddings, texts: Sequence[str]) -> list[list[float]]:
        with self._beside(embeddings):
            return await super().embed(embeddings, texts)

    async def chat(self, model: StructuredModel, messages: Sequence[BaseMessage]) -> ChatReply:
        with self._beside(model):
            return await super().chat(model, messages)

    @contextmanager
    def _beside(self, asked: Asked) -> Iterator[None]:
        now = not self.done and self._when(asked)
        self.done = self.done or now
        if now and not self._after:
            self._then()
        yield
        if now and self._after:
            self._then()


def interleave(
    operation: Operation,
    when: Callable[[Asked], bool] | int,
    other: Callable[[], object],
    *,
    after: bool = False,
    or_later: bool = False,
) -> Any:
    """Run an operation, and another once in its midst: at its n-th call, or its first such call.

    `or_later` runs the other at the end of an operation that makes no such call.
    """
    calls = count(1)
    is_now = when if callable(when) else lambda _: next(calls) == when
    meanwhile = Meanwhile(is_now, other, after=after)
    result = run_sync(operation(meanwhile))
    if or_later and not meanwhile.done:
        other()
    assert meanwhile.done or or_later
    return result


def commits(asked: Any) -> bool:
    ops = asked if isinstance(asked, Sequence) else ()
    return any(isinstance(op, PutOp) and op.namespace[-1] == "facts" for op in ops)


def reads_head(asked: Any) -> bool:
    return isinstance(asked[0], GetOp) and asked[0].namespace[-1] == "head"


def reads_of(batches: Iterable[list[Op]]) -> list[str]:
    """The number of reads by namespace kind."""
    spaces = [
        op.namespace if isinstance(op, GetOp) else op.namespace_prefix
        for ops in batches
        for op in ops
        if isinstance(op, GetOp | SearchOp)
    ]
    return [space[-1] for space in spaces]


def asks(asked: Asked) -> bool:
    return isinstance(asked, StructuredModel)


@contextmanager
def opening(path: Path) -> Iterator[Opener]:
    """Open any number of stores on one file."""
    connections: list[sqlite3.Connection] = []

    def opener() -> BaseStore:
        connections.append(connect(path))
        return SqliteStore(connections[-1])

    yield opener
    for connection in connections:
        connection.close()


def in_memory(first: InMemoryStore | None = None) -> Opener:
    """Open any number of stores on the same data in memory."""
    first = InMemoryStore() if first is None else first

    def opener() -> BaseStore:
        store = InMemoryStore()
        store._data = first._data
        return store

    return opener


class WatchedStore(InMemoryStore):
    """Records its batches, and can fail when feedback is written."""

    def __init__(self) -> None:
        super().__init__()
        self.batches: list[list[Op]] = []
        self.failing = False

    def batch(self, ops: Iterable[Op]) -> list[Result]:
        operations = list(ops)
        puts = [op for op in operations if isinstance(op, PutOp)]
        if self.failing and any("vectors" not in put.namespace for put in puts):
            raise OSError("The disk is full.")
        self.batches.append(operations)
        return super().batch(operations)

    @property
    def writes(self) -> list[list[PutOp]]:
        """The batches that write, as the puts in them."""
        puts = [[op for op in ops if isinstance(op, PutOp)] for ops in self.batches]
        return [batch for batch in puts if batch]


class CutOffError(BaseException):
    """Simulates a crash."""


class Failing(InMemoryStore):
    """Writes one put at a time and crashes before one of them."""

    def __init__(self) -> None:
        super().__init__()
        self.puts_left: int | None = None

    def batch(self, ops: Iterable[Op]) -> list[Result]:
        operations = list(ops)
        if not isinstance(operations[0], PutOp):
            return super().batch(operations)
        for put in operations:
            if self.puts_left == 0:
                self.puts_left = None
                raise CutOffError
            if self.puts_left is not None:
                self.puts_left -= 1
            super().batch([put])
        return [None] * len(operations)

    async def abatch(self, ops: Iterable[Op]) -> list[Result]:
        return self.batch(ops)
