"""What memory tests share: stores opened anew, a store that is watched, feedback in one line."""

import json
import sqlite3
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from langchain_core.embeddings import Embeddings
from langchain_core.messages import BaseMessage
from langgraph.store.base import BaseStore, Op, PutOp, Result, SearchItem, SearchOp
from langgraph.store.memory import InMemoryStore
from langgraph.store.sqlite import SqliteStore

from memalign_graph import Criterion, Episode, Example, Feedback, JudgeMemory
from memalign_graph.io import AWAITING, BLOCKING, IO, ChatReply, StructuredModel, run
from memalign_graph.memory import learning
from memalign_graph.memory.learning import GuidelineOperation
from tests.loopback import LoopbackServer
from tests.loopback.embedding import embed

CRITERION = Criterion(name="tone", instructions="Is the reply appropriate?")
QUERY = Example(inputs="Something else entirely", outputs="No idea")
EVERYTHING = 1_000_000
STORES = ("memory-sync", "memory-async", "sqlite-sync", "sqlite-async", "aiosqlite-async")
EVERY_STORE = pytest.mark.every_way(*STORES)
"""For what may differ between stores, or between blocking and awaited calls."""
ROOT = Path(__file__).parents[3]

Operation = Callable[[IO], Coroutine[Any, Any, Any]]
"""What is carried out with the `IO` it is given."""

Opener = Callable[[], BaseStore]
"""Opens one more store object on the same data."""


def said(inputs: Any = "q", rationale: str | None = "Too cold.", **fields: Any) -> Feedback:
    """An expert's word."""
    return Feedback.model_validate(
        {"inputs": inputs, "outputs": "a", "rationale": rationale, **fields}
    )


def hashed(texts: Iterable[str]) -> list[list[float]]:
    """Embeddings that need no server."""
    return [list(embed(text, 64)) for text in texts]


def op(action: Any, *episodes: Episode | str, **fields: Any) -> GuidelineOperation:
    """An operation as distilling proposes it."""
    ids = [one if isinstance(one, str) else one.id for one in episodes]
    return GuidelineOperation(action=action, episode_ids=ids, **fields)


def learn(
    memory: JudgeMemory, *operations: GuidelineOperation, author: str | None = None
) -> dict[str, Any]:
    """Learn as the graphs do, from all episodes as they stand."""
    words = {one.id: one.word for one in memory.episodes()}
    return run(
        learning.learn(BLOCKING, memory.access, operations, words, author=author, relearn=True)
    )


def connect(path: Path | str) -> sqlite3.Connection:
    """A connection as two processes on one file need it."""
    connection = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
    connection.execute("PRAGMA busy_timeout=30000")
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=OFF")  # a test needs no safety from power cuts
    return connection


Asked = Sequence[Op] | Embeddings | StructuredModel
"""What is asked of the outside: of a store, or of a model."""


class Meanwhile(IO):
    """Does something else once, before the first such call, or after it."""

    def __init__(
        self, when: Callable[[Asked], bool], then: Callable[[], object], *, after: bool = False
    ) -> None:
        super().__init__(BLOCKING)
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


def interleaved(
    operation: Operation,
    when: Callable[[Asked], bool],
    then: Callable[[], object],
    *,
    after: bool = False,
) -> Any:
    """Carry out an operation, and once in it, at its first such call, something else."""
    meanwhile = Meanwhile(when, then, after=after)
    result = run(operation(meanwhile))
    assert meanwhile.done
    return result


def commits(asked: Any) -> bool:
    """Whether a call writes a fact."""
    ops = asked if isinstance(asked, Sequence) else ()
    return any(isinstance(one, PutOp) and one.namespace[-1] == "facts" for one in ops)


def asks(asked: Asked) -> bool:
    """Whether a call asks a chat model."""
    return isinstance(asked, StructuredModel)


@contextmanager
def opening(path: Path) -> Iterator[Opener]:
    """Open any number of stores on one file; they are closed at the end."""
    connections: list[sqlite3.Connection] = []

    def opener() -> BaseStore:
        connections.append(connect(path))
        return SqliteStore(connections[-1])

    yield opener
    for connection in connections:
        connection.close()


def in_memory() -> Opener:
    """Open any number of stores on the same data in memory."""
    first = InMemoryStore()

    def opener() -> BaseStore:
        store = InMemoryStore()
        store._data = first._data
        return store

    return opener


class WatchedStore(InMemoryStore):
    """Records its batches, and fails at will when something that was said is to be written."""

    def __init__(self) -> None:
        super().__init__()
        self.batches: list[list[Op]] = []
        self.failing = False

    def batch(self, ops: Iterable[Op]) -> list[Result]:
        given = list(ops)
        self._watch(given)
        return super().batch(given)

    async def abatch(self, ops: Iterable[Op]) -> list[Result]:
        given = list(ops)
        self._watch(given)
        return await super().abatch(given)

    def _watch(self, ops: list[Op]) -> None:
        if self.failing and any(isinstance(one, PutOp) and is_content(one) for one in ops):
            raise OSError("The disk is full.")
        self.batches.append(ops)

    @property
    def writes(self) -> list[list[PutOp]]:
        """The batches that write, as the puts in them."""
        puts = [[one for one in ops if isinstance(one, PutOp)] for ops in self.batches]
        return [batch for batch in puts if batch]


class CutOffError(Exception):
    """The machine stops."""


class Failing(InMemoryStore):
    """Writes put by put, and stops before one of them."""

    def __init__(self) -> None:
        super().__init__()
        self.puts_left: int | None = None

    def batch(self, ops: Iterable[Op]) -> list[Result]:
        given = list(ops)
        if not isinstance(given[0], PutOp):
            return super().batch(given)
        for put in given:
            if self.puts_left == 0:
                self.puts_left = None
                raise CutOffError
            if self.puts_left is not None:
                self.puts_left -= 1
            super().batch([put])
        return [None] * len(given)

    async def abatch(self, ops: Iterable[Op]) -> list[Result]:
        return self.batch(ops)


def is_content(put: PutOp) -> bool:
    """Whether a put writes a word or a fact."""
    return "vectors" not in put.namespace


def kind_of(item: SearchItem) -> str:
    """The kind of an item of the memory of `CRITERION`."""
    return item.namespace[2]


def dump(value: Any) -> str:
    """A value as text that can be searched."""
    return json.dumps(value, ensure_ascii=False)


@dataclass
class Bench:
    """A memory in one kind of store, called in one way."""

    server: LoopbackServer
    store: BaseStore
    awaits: bool
    embeddings: Any = field(init=False)

    def __post_init__(self) -> None:
        self.embeddings = self.server.embedder()

    def memory(self, criterion: Criterion = CRITERION, **options: Any) -> JudgeMemory:
        return JudgeMemory(self.store, criterion, **{"embeddings": self.embeddings, **options})

    async def do(
        self, name: str, *args: Any, memory: JudgeMemory | None = None, **kwargs: Any
    ) -> Any:
        """Call a method of the memory, or its async twin."""
        target = memory or self.memory()
        if self.awaits:
            return await getattr(target, f"a{name}")(*args, **kwargs)
        return getattr(target, name)(*args, **kwargs)

    async def remember(self, *feedback: Feedback, **options: Any) -> list[Episode]:
        found: list[Episode] = await self.do("remember", list(feedback), **options)
        return found

    async def recall(self, inputs: Any, outputs: Any = "a", **options: Any) -> list[Any]:
        """The inputs recalled, most similar first."""
        example = Example(inputs=inputs, outputs=outputs)
        return [one.example.inputs for one in await self.do("recall", example, **options)]

    async def learn(self, *operations: GuidelineOperation) -> dict[str, Any]:
        access = self.memory().access
        words = {one.id: one.word for one in await self.do("episodes")}
        if self.awaits:
            return await learning.learn(AWAITING, access, operations, words, relearn=True)
        return run(learning.learn(BLOCKING, access, operations, words, relearn=True))

    async def guidelines(self) -> dict[str, set[str]]:
        """The guidelines' sources by text."""
        return {one.text: set(one.episode_ids) for one in await self.do("guidelines")}

    async def statuses(self) -> dict[Any, str]:
        """The episodes' status by inputs."""
        return {one.example.inputs: one.status for one in await self.do("episodes")}

    async def items(self, kind: str | None = None) -> list[SearchItem]:
        """What the store holds, of one kind or all."""
        search = [SearchOp(("memalign",), limit=EVERYTHING)]
        try:
            [found] = await self.store.abatch(search)
        except NotImplementedError:
            [found] = self.store.batch(search)
        return [one for one in found if kind is None or kind in one.namespace]  # type: ignore[union-attr,misc]

    async def contents(self) -> list[Any]:
        """All that stands, word for word."""
        kinds = [await self.do(kind) for kind in ("episodes", "guidelines")]
        return [one.to_json() for items in kinds for one in items]

    async def holding(self, text: str) -> list[str]:
        """The kinds of items that hold a text, whatever its case."""
        return sorted(
            {
                kind_of(one)
                for one in await self.items()
                if text.casefold() in f"{one.key} {dump(one.value)}".casefold()
            }
        )

    def embedded(self) -> list[str]:
        """The texts embedded since the last look."""
        texts = [text for request in self.server.embeddings for text in request.texts]
        self.server.embeddings.clear()
        return texts
