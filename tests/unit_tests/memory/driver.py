"""Named and random operations for tests of the memory."""

import random
from collections.abc import Callable, Coroutine, Sequence
from functools import cache
from itertools import count
from typing import Any

from langgraph.store.memory import InMemoryStore

from memalign_graph import Episode, Feedback, InvalidInputError, JudgeMemory, Judgment
from memalign_graph.io import IO, SYNC, run_sync
from memalign_graph.memory import feedback, history, jsonl, learning, purge
from memalign_graph.memory.access import MemoryAccess
from memalign_graph.memory.guidelines import GuidelineOperation, guideline_id
from memalign_graph.memory.purge import Selection
from tests.unit_tests.memory.stores import Opener, in_memory
from tests.unit_tests.memory.support import CRITERION, QUERY, hashed, hashes, op, said

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


def check_same(warm: Sequence[JudgeMemory], cold: JudgeMemory) -> None:
    """Assert that all processes see the same memory, and that its version can be read."""
    version, episodes, guidelines = cold.version(), cold.episodes(), cold.guidelines()
    answers, found = cold.access.view.answers(), recalled(cold)
    for memory in warm:
        assert memory.version() == version
        assert memory.episodes() == episodes
        assert memory.guidelines() == guidelines
        assert memory.access.view.answers() == answers
        assert recalled(memory) == found
    then = warm[-1].at(version)
    assert then.missing == []
    assert (then.episodes, then.guidelines) == (episodes, guidelines)


FEEDBACK = [said("one", "zqxone", author="zqxann"), said("two", "Two."), said("three", "Three.")]
ONE, TWO, THREE = map(Episode.from_feedback, FEEDBACK)
NUMBERS = count(1)
OF_ONE, OF_BOTH, OF_TWO, OLD = map(guideline_id, ("Of zqxone.", "Of both.", "Of two.", "Old."))


def judge(io: IO, access: MemoryAccess) -> Coroutine[Any, Any, None]:
    fields: dict[str, Any] = {
        "criterion": "tone",
        "value": True,
        "rationale": f"Seen {next(NUMBERS)}.",
    }
    judgments = {
        key: Judgment(example_id=key, memory_version="", **fields)
        for key in (ONE.example_id, THREE.example_id)
    }
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
    forgotten = memory.remember([said(f"forgotten {n}") for n in range(3)])
    exported = memory.export_jsonl().split("\n")
    memory.forget([item.id for item in forgotten])
    memory.remember(said("four"))
    return store, version, exported


OPERATIONS: dict[str, Operation] = {
    "say another word": lambda io, access: feedback.remember(
        io, access, [said("one", "Word 2.", author="zqxann")]
    ),
    "say something new": lambda io, access: feedback.remember(
        io, access, [said(f"new {n}") for n in range(3)]
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


KINDS = (
    "remember remember remember forget learn learn reword improve retire revise write edit "
    "take_away roll_back export bring_in ask check check"
)


class Actor:
    """A writer that performs random operations, including rollbacks and imports."""

    def __init__(self, memory: JudgeMemory, seed: object, kinds: str = KINDS) -> None:
        self.access = memory.access
        self.random = random.Random(str(seed))  # noqa: S311 - a test's choices
        self.versions = [EMPTY]
        self.exports: list[str] = []
        self.done: list[str] = []
        self._kinds = kinds.split()

    async def act(self, io: IO) -> None:
        """Perform one operation if possible."""
        self.done.append(self.random.choice(self._kinds))
        try:
            await getattr(self, self.done[-1])(io)
        except InvalidInputError as error:
            # Its target was removed, or existed only in a race.
            assert any(phrases in str(error) for phrases in ("has no", "already", "never had"))  # noqa: PT017
        self.versions.append((await self.access.refresh(io)).version)

    async def do(self, io: IO, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return await function(io, self.access, *args, **kwargs)

    def some(self, among: Any, most: int) -> list[Any]:
        return self.random.sample(list(among), min(self.random.randint(0, most), len(among)))

    async def episodes(self, io: IO, most: int) -> list[Episode]:
        return self.some(await self.access.all_episodes(io), most)

    async def rules(self, io: IO, most: int) -> list[Any]:
        return self.some(await self.access.guidelines(io), most)

    def rationale(self) -> str:
        return f"Word {self.random.randrange(3)}."

    def feedback(self) -> Feedback:
        return said(
            f"case {self.random.randrange(8)}",
            rationale := self.rationale(),
            value={"Word 0.": True, "Word 1.": False}.get(rationale),
            author=self.random.choice(("ann", None)),
            thread_id=self.random.choice(("t", None)),
        )

    async def remember(self, io: IO) -> None:
        await self.do(io, feedback.remember, [self.feedback() for _ in range(2)])

    async def forget(self, io: IO) -> None:
        ids = [episode.id for episode in await self.episodes(io, 2)]
        await self.do(io, purge.forget, Selection(episode_ids=[*ids, "no such"]))

    async def purge(self, io: IO) -> None:
        ids = [episode.id for episode in await self.episodes(io, 2)]
        await self.do(io, purge.purge, Selection(episode_ids=ids), None)

    async def revise(self, io: IO) -> None:
        for episode in await self.episodes(io, 1):
            rationale = self.random.choice((self.rationale(), episode.rationale))
            await self.do(io, feedback.revise, episode.id, {"rationale": rationale})

    def lesson(self) -> str:
        return f"Lesson {self.random.randrange(12)}."

    async def learn(self, io: IO) -> None:
        episodes, text = await self.episodes(io, 3), self.lesson()
        question = self.random.choice((None, f"Is it {text}?"))
        guidelines = [op("add", *episodes, text=text, question=question)] if episodes else []
        await self._learn(io, *guidelines)

    async def reword(self, io: IO) -> None:
        """Reword a pending guideline as redistilling does."""
        everything = await self.access.guidelines(io)
        for guideline in [item for item in everything if item.status == "pending"][:1]:
            text = self.lesson()
            await self._learn(
                io, op("revise", *guideline.episode_ids, guideline_id=guideline.id, text=text)
            )

    async def improve(self, io: IO) -> None:
        for guideline in await self.rules(io, 1):
            change = op(
                "revise", *await self.episodes(io, 2), guideline_id=guideline.id, text="Better."
            )
            await self._learn(io, change, is_redistilling=False)

    async def retire(self, io: IO) -> None:
        guidelines = await self.rules(io, 2)
        if len(guidelines) == 2:
            kind = self.random.choice(("merge", "retire"))
            sources = await self.episodes(io, 1) if kind == "retire" else []
            change = op(
                kind, *sources, guideline_id=guidelines[0].id, superseded_by=guidelines[1].id
            )
            await self._learn(io, change)

    async def write(self, io: IO) -> None:
        text = f"By hand {self.random.randrange(6)}."
        await self.do(io, learning.add_guideline, text, author=None)

    async def edit(self, io: IO) -> None:
        for guideline in await self.rules(io, 1):
            text = f"Edit {self.random.random()}."
            await self.do(io, learning.edit_guideline, guideline.id, text, author="ann")

    async def take_away(self, io: IO) -> None:
        for guideline in await self.rules(io, 1):
            await self.do(io, learning.remove_guideline, guideline.id, author=None)

    async def roll_back(self, io: IO) -> None:
        await self.do(io, history.rollback, self.random.choice(self.versions[-15:]))

    async def ask(self, io: IO) -> None:
        guidelines = await self.rules(io, 2)
        questions = {
            guideline.text: self.random.choice(("", f"{guideline.text}?"))
            for guideline in guidelines
        }
        await self.do(io, learning.record_questions, questions)

    async def check(self, io: IO) -> None:
        answers = {
            episode.example_id: self.random.random() for episode in await self.episodes(io, 4)
        }
        await self.do(io, learning.record_check_answers, {self.random.choice("ab"): answers})

    async def export(self, io: IO) -> None:
        self.exports.append(await jsonl.export_jsonl(io, self.access))

    async def bring_in(self, io: IO) -> None:
        for text in self.some(self.exports, 1):
            await self.do(io, jsonl.import_jsonl, text.split("\n"))

    async def _learn(
        self, io: IO, *changes: GuidelineOperation, is_redistilling: bool = True
    ) -> None:
        hashes_read = hashes(await self.access.all_episodes(io))
        await self.do(
            io, learning.commit_lesson, changes, hashes_read, is_redistilling=is_redistilling
        )
