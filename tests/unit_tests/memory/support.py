"""Helpers for memory tests."""

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import pytest
from langgraph.store.base import BaseStore, SearchItem, SearchOp

from memalign_graph import Criterion, Episode, Example, Feedback, JudgeMemory
from memalign_graph.io import ASYNC, SYNC, run_sync
from memalign_graph.memory import learning
from memalign_graph.memory.guidelines import GuidelineOperation
from tests.conftest import WAYS
from tests.loopback import LoopbackServer
from tests.loopback.embedding import embed
from tests.unit_tests.memory.stores import Operation

CRITERION = Criterion(name="tone", instructions="Is the reply appropriate?")
QUERY = Example(inputs="Something else entirely", outputs="No idea")
NO_LIMIT = 1_000_000
STORES = (*WAYS, "aiosqlite-async")
EVERY_STORE = pytest.mark.every_way(*STORES)
"""For what may differ between stores, or between blocking and awaited calls."""


def comment(inputs: Any = "q", rationale: str | None = "Too cold.", **fields: Any) -> Feedback:
    written = {"inputs": inputs, "outputs": "a", "rationale": rationale}
    return Feedback.model_validate({**written, **fields})


def hashed(texts: Iterable[str]) -> list[list[float]]:
    return [list(embed(text, 64)) for text in texts]


def op(action: Any, *episodes: Episode | str, **fields: Any) -> GuidelineOperation:
    """An operation as proposed by distilling."""
    ids = [episode if isinstance(episode, str) else episode.id for episode in episodes]
    return GuidelineOperation(action=action, episode_ids=ids, **fields)


def hashes(episodes: Iterable[Episode]) -> dict[str, str]:
    return {episode.id: episode.word for episode in episodes}


def learn(
    memory: JudgeMemory, *operations: GuidelineOperation, author: str | None = None
) -> dict[str, Any]:
    options: Any = {"author": author, "is_redistilling": True}
    read = hashes(memory.episodes())
    return run_sync(learning.commit_lesson(SYNC, memory.access, operations, read, **options))


def lesson(memory: JudgeMemory, *operations: GuidelineOperation) -> Operation:
    """Commit a lesson from exactly the sources of some operations."""
    hashes_read = hashes(memory.episodes())
    read = {key: hashes_read[key] for change in operations for key in change.episode_ids}
    return lambda io: learning.commit_lesson(io, memory.access, operations, read)


def learn_from(memory: JudgeMemory, *operations: GuidelineOperation) -> Any:
    return run_sync(lesson(memory, *operations)(SYNC))


def dump(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


@dataclass
class Bench:
    """A memory in one kind of store with sync or async calls."""

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
        target = memory or self.memory()
        if self.awaits:
            return await getattr(target, f"a{name}")(*args, **kwargs)
        return getattr(target, name)(*args, **kwargs)

    async def remember(self, *feedback: Feedback, **options: Any) -> list[Episode]:
        episodes: list[Episode] = await self.do("remember", list(feedback), **options)
        return episodes

    async def recall(self, inputs: Any, outputs: Any = "a", **options: Any) -> list[Any]:
        example = Example(inputs=inputs, outputs=outputs)
        return [option.example.inputs for option in await self.do("recall", example, **options)]

    async def learn(self, *operations: GuidelineOperation) -> dict[str, Any]:
        io, access = ASYNC if self.awaits else SYNC, self.memory().access
        hashes_read = hashes(await self.do("episodes"))
        options: Any = {"read": hashes_read, "is_redistilling": True}
        return await learning.commit_lesson(io, access, operations, **options)

    async def guidelines(self) -> dict[str, set[str]]:
        guidelines = await self.do("guidelines")
        return {guideline.text: set(guideline.episode_ids) for guideline in guidelines}

    async def items(self, kind: str | None = None) -> list[SearchItem]:
        search = [SearchOp(("memalign",), limit=NO_LIMIT)]
        try:
            [items] = await self.store.abatch(search)
        except NotImplementedError:
            [items] = self.store.batch(search)
        return [item for item in items if kind is None or kind in item.namespace]  # type: ignore[union-attr,misc]

    async def contents(self) -> list[Any]:
        kinds = [await self.do(kind) for kind in ("episodes", "guidelines")]
        return [item.to_json() for items in kinds for item in items]

    def embedded(self) -> list[str]:
        texts = [text for request in self.server.embeddings for text in request.texts]
        self.server.embeddings.clear()
        return texts
