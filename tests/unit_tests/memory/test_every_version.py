"""Random changes of every kind: each version that ever was can be read and restored, exactly."""

import random
from typing import Any

import pytest

from tests.unit_tests.memory.support import Bench, op, said

STEPS = 60


class Trial:
    """A memory, and what it held at each version that was seen."""

    def __init__(self, bench: Bench, seed: int) -> None:
        self.bench = bench
        self.random = random.Random(seed)  # noqa: S311 - a test's choices
        self.seen: dict[str, tuple[list[Any], list[Any], dict[str, str]]] = {}
        self.rollbacks = 0
        self.exports: list[str] = []

    async def record(self) -> None:
        version = await self.bench.do("version")
        now = (
            await self.bench.do("episodes"),
            await self.bench.do("guidelines", ),
            await self.bench.contents(),
        )
        assert self.seen.setdefault(version, now) == now

    async def step(self) -> None:
        kinds = (
            "remember remember forget learn learn reword supersede revise add edit remove "
            "roll_back export bring_in"
        )
        await getattr(self, self.random.choice(kinds.split()))()

    def some(self, among: Any, most: int) -> list[Any]:
        return self.random.sample(list(among), min(self.random.randint(0, most), len(among)))

    async def remember(self) -> None:
        def one() -> Any:
            return said(
                f"case {self.random.randrange(8)}",
                f"Word {self.random.randrange(3)}.",
                author=self.random.choice(("ann", None)),
            )

        await self.bench.remember(one(), one())

    async def forget(self) -> None:
        episodes = self.some(await self.bench.do("episodes"), 2)
        await self.bench.do("forget", [one.id for one in episodes])

    async def revise(self) -> None:
        for one in self.some(await self.bench.do("episodes"), 1):
            word = {"rationale": f"Word {self.random.randrange(3)}."}
            await self.bench.do("revise", one.id, word)

    async def learn(self) -> None:
        sources = self.some(await self.bench.do("episodes"), 3)
        text = f"Lesson {self.random.randrange(6)}."
        await self.bench.learn(*([op("add", *sources, text=text)] if sources else []))

    async def reword(self) -> None:
        for rule in await self.bench.do("guidelines", ):
            if rule.status == "pending":
                change = op("revise", *rule.episode_ids, guideline_id=rule.id, text=f"{rule.id}.")
                await self.bench.learn(change)

    async def supersede(self) -> None:
        rules = self.some(await self.bench.do("guidelines"), 2)
        if len(rules) == 2:
            kind = self.random.choice(("merge", "retire"))
            change = op(kind, guideline_id=rules[0].id, superseded_by=rules[1].id)
            await self.bench.learn(change)

    async def add(self) -> None:
        await self.bench.do("add_guideline", f"By hand {self.random.randrange(5)}.")

    async def edit(self) -> None:
        for rule in self.some(await self.bench.do("guidelines"), 1):
            await self.bench.do("edit_guideline", rule.id, f"Edit {self.random.random()}.")

    async def remove(self) -> None:
        for rule in self.some(await self.bench.do("guidelines"), 1):
            await self.bench.do("remove_guideline", rule.id)

    async def roll_back(self) -> None:
        version = self.random.choice(list(self.seen))
        await self.bench.do("rollback", version)
        self.rollbacks += 1
        assert await self.bench.do("version") == version
        assert await self.bench.contents() == self.seen[version][2]

    async def export(self) -> None:
        self.exports.append(await self.bench.do("export_jsonl"))

    async def bring_in(self) -> None:
        for text in self.some(self.exports, 1):
            await self.bench.do("import_jsonl", text)


@pytest.mark.parametrize("seed", [1, 2])
async def test_every_version_ever_seen_can_be_read_and_restored(
    bench: Bench, reopen: Any, seed: int
) -> None:
    trial = Trial(bench, seed)
    await trial.record()
    for _ in range(STEPS):
        await trial.step()
        await trial.record()
    reopen()
    assert len(trial.seen) > STEPS / 3
    assert trial.rollbacks > 1
    for version, (episodes, guidelines, _) in trial.seen.items():
        then = await bench.do("at", version)
        assert (then.episodes, then.guidelines, then.missing) == (episodes, guidelines, [])
    for version in trial.random.sample(list(trial.seen), 8):
        await bench.do("rollback", version)
        assert await bench.contents() == trial.seen[version][2]
        assert await bench.do("version") == version
    told = {one.version for one in await bench.do("history")}
    assert set(trial.seen) <= {*told, "0" * 32}
