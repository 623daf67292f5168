"""Named and random operations for tests of the memory."""

import random
from collections.abc import Callable, Coroutine, Sequence
from functools import cache
from itertools import count
from typing import Any

from langgraph.store.memory import InMemoryStore

from memalign_graph import Episode, InvalidInputError, JudgeMemory, Judgment
from memalign_graph.io import IO, SYNC, run_sync
from memalign_graph.memory import feedback, history, jsonl, learning, purge
from memalign_graph.memory.access import MemoryAccess
from memalign_graph.memory.guidelines import GuidelineOperation, guideline_id
from memalign_graph.memory.purge import Selection
from tests.unit_tests.memory.stores import Opener, in_memory
from tests.unit_tests.memory.support import CRITERION, QUERY, comment, hashed, hashes, op

EMPTY = "0" * 32
"""The version of an empty memory."""

Operation = Callable[[IO, MemoryAccess], Coroutine[Any, Any, Any]]


def memories(opener: Opener, count: int) -> list[JudgeMemory]:
    """One memory opened through several stores, as in several processes."""
    return [JudgeMemory(opener(), CRITERION, embeddings=hashed) for _ in range(count)]


def recalled(memory: JudgeMemory) -> set[tuple[Any, str | None]]:
    matches = memory.recall(QUERY, k=100)
    return {
        (match.example.inputs, episode.rationale) for match in matches for episode in match.episodes
    }


def content_of(memory: JudgeMemory) -> Any:
    """The content of a memory without dates and ids that depend on them."""
    guidelines = [
        (guideline.text, guideline.question, guideline.status, sorted(guideline.episode_ids))
        for guideline in memory.guidelines()
    ]
    episodes = sorted(
        (episode.id, episode.rationale, episode.status, episode.judgment is None)
        for episode in memory.episodes()
    )
    return episodes, sorted(guidelines, key=str), memory.access.view.answers(), recalled(memory)


def check_same(warm: Sequence[JudgeMemory], cold: JudgeMemory) -> None:
    """Assert that all processes see the same memory, and that its version can be read."""
    version, episodes, guidelines = cold.version(), cold.episodes(), cold.guidelines()
    answers, recalled_examples = cold.access.view.answers(), recalled(cold)
    for memory in warm:
        assert memory.version() == version
        assert memory.episodes() == episodes
        assert memory.guidelines() == guidelines
        assert memory.access.view.answers() == answers
        assert recalled(memory) == recalled_examples
    then = warm[-1].at(version)
    assert then.missing == []
    assert (then.episodes, then.guidelines) == (episodes, guidelines)


FEEDBACK = [
    comment("one", "zqxone", author="zqxann"),
    comment("two", "Two."),
    comment("three", "Three."),
]
ONE, TWO, THREE = map(Episode.from_feedback, FEEDBACK)
NUMBERS = count(1)
OF_ONE, OF_BOTH, OF_TWO, OLD = map(guideline_id, ("Of zqxone.", "Of both.", "Of two.", "Old."))


def judge(io: IO, access: MemoryAccess) -> Coroutine[Any, Any, None]:
    rationale = f"Seen {next(NUMBERS)}."
    fields: dict[str, Any] = {"criterion": "tone", "value": True, "rationale": rationale}
    keys = (ONE.example_id, THREE.example_id)
    judgments = {key: Judgment(example_id=key, memory_version="", **fields) for key in keys}
    return feedback.record_judgments(io, access, judgments)


def call(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Operation:
    return lambda io, access: function(io, access, *args, **kwargs)


def learn(*changes: GuidelineOperation) -> Operation:
    sources = {key for change in changes for key in change.episode_ids}
    hashes_read = {value.id: value.word for value in (ONE, TWO, THREE) if value.id in sources}
    return call(learning.commit_lesson, changes, hashes_read)


@cache
def begun() -> tuple[InMemoryStore, str, list[str]]:
    """A filled store with an earlier version and export of its memory."""
    store = InMemoryStore()
    [memory] = memories(lambda: store, 1)
    memory.remember(FEEDBACK)
    guidelines = [
        op("add", ONE, text="Of zqxone."),
        op("add", ONE, TWO, text="Of both.", question="Is it zqxone?"),
        op("add", TWO, text="Of two."),
        op("add", TWO, text="Old."),
    ]
    run_sync(learn(*guidelines)(SYNC, memory.access))
    run_sync(learn(op("retire", guideline_id=OLD, superseded_by=OF_TWO))(SYNC, memory.access))
    version = memory.version()
    forgotten = memory.remember([comment(f"forgotten {n}") for n in range(3)])
    exported = memory.export_jsonl().split("\n")
    memory.forget([item.id for item in forgotten])
    memory.remember(comment("four"))
    return store, version, exported


OPERATIONS: dict[str, Operation] = {
    "say another word": lambda io, access: feedback.remember(
        io, access, [comment("one", "Word 2.", author="zqxann")]
    ),
    "say something new": lambda io, access: feedback.remember(
        io, access, [comment(f"new {n}") for n in range(3)]
    ),
    "revise one": call(feedback.revise, ONE.id, {"rationale": "Word 3."}),
    "revise two": call(feedback.revise, TWO.id, {"rationale": "Word 4."}),
    "forget one": call(purge.forget, Selection(episode_ids=[ONE.id])),
    "forget two": call(purge.forget, Selection(episode_ids=[TWO.id])),
    "purge one": call(purge.purge, Selection(episode_ids=[ONE.id]), None),
    "learn from one": learn(op("add", ONE, text="Again of zqxone.")),
    "learn from three": learn(op("add", THREE, text="Of three.")),
    "reword of two": learn(op("revise", THREE, guideline_id=OF_TWO, text="Of two and three.")),
    "merge": learn(op("merge", guideline_id=OF_TWO, superseded_by=OF_BOTH)),
    "merge the other way": learn(op("merge", guideline_id=OF_BOTH, superseded_by=OF_TWO)),
    "retire": learn(op("retire", guideline_id=OF_TWO, superseded_by=OF_ONE)),
    "word by hand": call(learning.edit_guideline, OF_TWO, "By hand.", author=None),
    "take away by hand": call(learning.remove_guideline, OF_TWO, author=None),
    "write by hand": call(learning.add_guideline, "New.", author=None),
    "ask": call(learning.record_questions, {"Of two.": "Is it of two?", "Of both.": "Is it?"}),
    "check": call(learning.record_check_answers, {"q": {ONE.example_id: 0.5}}),
    "judge": judge,
    "roll back to nothing": call(history.rollback, EMPTY),
    "roll back": lambda io, access: history.rollback(io, access, begun()[1]),
    "import": lambda io, access: jsonl.import_jsonl(io, access, begun()[2]),
}
"""By name, on the memory that `start` makes."""


def start(store: InMemoryStore | None = None) -> list[JudgeMemory]:
    """Fill a store; returns its memory in two warm processes and a cold one."""
    store = InMemoryStore() if store is None else store
    store._data.update({key: dict(items) for key, items in begun()[0]._data.items()})
    here, there, cold = memories(in_memory(store), 3)
    here = JudgeMemory(store, CRITERION, embeddings=hashed)
    here.version()
    there.version()
    return [here, there, cold]


LASTING = sorted(OPERATIONS.keys() - {"purge one", "roll back"})
"""Operations after which every earlier version can be restored."""


class Actor:
    """A writer that performs operations, lessons and rollbacks in random order."""

    def __init__(
        self, memory: JudgeMemory, seed: object, operations: Sequence[str] = LASTING
    ) -> None:
        self.access = memory.access
        self.random = random.Random(str(seed))  # noqa: S311 - a test's choices
        self.versions = [EMPTY]
        self.done: list[str] = []
        self._operations = [*operations, *["learn"] * 6, *["return"] * 2]

    async def act(self, io: IO) -> None:
        """Perform one operation if possible."""
        self.done.append(name := self.random.choice(self._operations))
        try:
            match name:
                case "learn":
                    await self._learn(io)
                case "return":
                    version = self.random.choice(self.versions[-15:])
                    await history.rollback(io, self.access, version)
                case _:
                    await OPERATIONS[name](io, self.access)
        except InvalidInputError as error:
            # Its target was removed, or existed only in a race.
            assert any(phrase in str(error) for phrase in ("has no", "already", "never had"))  # noqa: PT017
        self.versions.append((await self.access.refresh(io)).version)

    async def _learn(self, io: IO) -> None:
        episodes = await self.access.all_episodes(io)
        action: Any = self.random.choice(("add", "add", "revise", "retire", "merge"))
        one, other = (*self._some(await self.access.guidelines(io), 2), None, None)[:2]
        change = op(
            action,
            *self._some([] if action == "merge" else episodes, 3),
            text=f"Lesson {self.random.randrange(8)}.",
            guideline_id=one and one.id,
            superseded_by=other and other.id,
        )
        is_redistilling = self.random.random() < 0.5
        await learning.commit_lesson(
            io, self.access, [change], hashes(episodes), is_redistilling=is_redistilling
        )

    def _some(self, among: Any, most: int) -> list[Any]:
        return self.random.sample(list(among), min(self.random.randint(1, most), len(among)))
