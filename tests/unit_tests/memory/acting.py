"""A writer that does something to a memory at random, step after step."""

import random
from typing import Any

from memalign_graph import Episode, InvalidInputError, JudgeMemory
from memalign_graph.io import IO
from memalign_graph.memory import checking, history, learning, operations, portable, purge
from memalign_graph.memory.operations import Selection
from tests.unit_tests.memory.support import op, said

KINDS = (
    "remember remember remember forget learn learn reword retire revise write edit take_away "
    "roll_back export bring_in ask check check"
)


class Actor:
    """One writer; what it did before, it may undo or bring in again."""

    def __init__(self, memory: JudgeMemory, seed: object, kinds: str = KINDS) -> None:
        self.access = memory.access
        self.random = random.Random(str(seed))  # noqa: S311 - a test's choices
        self.versions = ["0" * 32]
        self.exports: list[str] = []
        self.done: list[str] = []
        self._kinds = kinds.split()

    async def act(self, io: IO) -> None:
        """Do one thing, if it can be done."""
        self.done.append(self.random.choice(self._kinds))
        try:
            await getattr(self, self.done[-1])(io)
        except InvalidInputError as error:
            # What it speaks of is gone meanwhile, or was never seen but in a race.
            assert any(words in str(error) for words in ("names no", "already", "never had"))  # noqa: PT017
        self.versions.append((await self.access.refresh(io)).version)

    def some(self, among: Any, most: int) -> list[Any]:
        return self.random.sample(list(among), min(self.random.randint(0, most), len(among)))

    async def episodes(self, io: IO, most: int) -> list[Episode]:
        return self.some(await self.access.all_episodes(io), most)

    async def rules(self, io: IO, most: int) -> list[Any]:
        return self.some(await self.access.guidelines(io), most)

    async def remember(self, io: IO) -> None:
        words = [
            said(
                f"case {self.random.randrange(8)}",
                f"Word {(number := self.random.randrange(3))}.",
                value=(True, False, None)[number],
                author=self.random.choice(("ann", None)),
                thread_id=self.random.choice(("t", None)),
            )
            for _ in range(2)
        ]
        await operations.remember(io, self.access, words)

    async def forget(self, io: IO) -> None:
        ids = [one.id for one in await self.episodes(io, 2)]
        await operations.forget(io, self.access, Selection(episode_ids=ids))

    async def purge(self, io: IO) -> None:
        ids = [one.id for one in await self.episodes(io, 2)]
        await purge.purge(io, self.access, Selection(episode_ids=ids), None)

    async def revise(self, io: IO) -> None:
        for one in await self.episodes(io, 1):
            word = {"rationale": f"Word {self.random.randrange(3)}."}
            await operations.revise(io, self.access, one.id, word)

    async def learn(self, io: IO) -> None:
        episodes = await self.episodes(io, 3)
        text = f"Lesson {self.random.randrange(6)}."
        question = self.random.choice((None, f"Is it {text}?"))
        rules = [op("add", *episodes, text=text, question=question)] if episodes else []
        await self._learned(io, *rules, relearn=True)

    async def reword(self, io: IO) -> None:
        for rule in await self.rules(io, 1):
            text = f"Lesson {self.random.randrange(6)}, reworded."
            if rule.status == "pending":
                change = op("revise", *rule.episode_ids, guideline_id=rule.id, text=text)
                await self._learned(io, change, relearn=True)
            else:
                sources = await self.episodes(io, 2)
                await self._learned(io, op("revise", *sources, guideline_id=rule.id, text=text))

    async def retire(self, io: IO) -> None:
        rules = await self.rules(io, 2)
        if len(rules) == 2:
            kind = self.random.choice(("merge", "retire"))
            sources = await self.episodes(io, 1) if kind == "retire" else []
            change = op(kind, *sources, guideline_id=rules[0].id, superseded_by=rules[1].id)
            await self._learned(io, change, relearn=True)

    async def write(self, io: IO) -> None:
        text = f"By hand {self.random.randrange(5)}."
        await operations.add_guideline(io, self.access, text, author=None)

    async def edit(self, io: IO) -> None:
        for rule in await self.rules(io, 1):
            text = f"Edit {self.random.random()}."
            await operations.edit_guideline(io, self.access, rule.id, text, author="ann")

    async def take_away(self, io: IO) -> None:
        for rule in await self.rules(io, 1):
            await operations.remove_guideline(io, self.access, rule.id, author=None)

    async def roll_back(self, io: IO) -> None:
        version = self.random.choice(self.versions[-15:])
        await history.rollback(io, self.access, version)

    async def ask(self, io: IO) -> None:
        rules = await self.rules(io, 2)
        questions = {rule.text: self.random.choice(("", f"{rule.text}?")) for rule in rules}
        await checking.note_questions(io, self.access, questions)

    async def check(self, io: IO) -> None:
        answers = {one.example_id: self.random.random() for one in await self.episodes(io, 4)}
        await checking.note_answers(io, self.access, {self.random.choice("ab"): answers})

    async def export(self, io: IO) -> None:
        self.exports.append(await portable.export_jsonl(io, self.access))

    async def bring_in(self, io: IO) -> None:
        for text in self.some(self.exports, 1):
            await portable.import_jsonl(io, self.access, text.split("\n"))

    async def _learned(self, io: IO, *changes: Any, relearn: bool = False) -> None:
        words = {one.id: one.word for one in await self.access.all_episodes(io)}
        await learning.learn(io, self.access, changes, words, relearn=relearn)
