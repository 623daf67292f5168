"""The review queue: order of the cases, and leases."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

import numpy as np
from langgraph.store.memory import InMemoryStore

from memalign_graph import Example, Feedback, Judge, JudgeMemory
from memalign_graph.memory.judgments import utc_now
from memalign_graph.review.queue import ReviewQueue, cover_order
from memalign_graph.review.tasks import Leases, Reviewer, holder_of
from tests.builders import keep_reviewed
from tests.conftest import CRITERION

GROUPS = {"rare": 90.0, "common": 0.0, "known": 180.0}


def at(degrees: float) -> Any:
    return np.array([np.cos(np.radians(degrees)), np.sin(np.radians(degrees))], dtype=np.float32)


def on_circle(texts: Sequence[str]) -> list[list[float]]:
    names = [next(name for name in GROUPS if name in text) for text in texts]
    return [at(GROUPS[name]).tolist() for name in names]


def test_representative_and_novel_cases_come_first() -> None:
    waiting = [at(90), at(0), at(2), at(-2), at(180), at(181)]
    first, second = cover_order(waiting, [at(180)], 2)
    assert first in (1, 2, 3)
    assert second == 0
    assert cover_order(waiting, [at(0)], 1)[0] in (4, 5)
    assert sorted(cover_order(waiting, [], 100)) == [*range(6)]
    assert cover_order([], [at(0)], 3) == []


def keep(memory: JudgeMemory, name: str, degrees: float | None, *reasons: Any) -> None:
    """Keep a judgment about which an expert is asked for the reasons."""
    example = Example(inputs=name, outputs="a")
    vector = None if degrees is None else memory.access.dump_vector(at(degrees))
    keep_reviewed(memory.access, example, *reasons, vector=vector, id=name.replace(" ", ""))


async def listed(store: InMemoryStore) -> tuple[list[Any], int]:
    queue = ReviewQueue([Judge(criterion=CRITERION, embeddings=on_circle)], store=store)
    return await queue.list_tasks(Reviewer(name="ann"))


async def test_random_sample_comes_first_by_age() -> None:
    store = InMemoryStore()
    memory = JudgeMemory(store, CRITERION, embeddings=on_circle)
    example = Example(inputs="known 0", outputs="a")
    memory.remember(Feedback(example=example, value=True))
    keep(memory, "known 1", 180)
    keep(memory, "no vector", None)
    keep(memory, "rare 1", 90, "unsure")
    keep(memory, "common 1", 1)
    keep(memory, "common 2", 0, "unsure")
    keep(memory, "common 3", -1)
    keep(memory, "known 2", 181, "unsure", "sample")
    keep(memory, "known 3", 179, "sample")
    kept_by = utc_now()
    tasks, count = await listed(store)
    assert count == 8
    assert all(task.asked_at <= kept_by for task in tasks)
    inputs = [task.inputs for task in tasks]
    assert inputs[:2] == ["known 2", "known 3"]
    assert [name.split()[0] for name in inputs[2:4]] == ["common", "rare"]
    assert inputs[-1] == "no vector"


async def test_oldest_hundred_of_a_larger_random_sample_are_listed() -> None:
    store = InMemoryStore()
    memory = JudgeMemory(store, CRITERION, embeddings=on_circle)
    for number in range(3):
        keep(memory, f"common {number}", number, "unsure")
    sampled = [f"rare {number}" for number in range(1, 104)]
    for name in sampled:
        keep(memory, name, 90, "sample")
    tasks, count = await listed(store)
    assert count == 106
    assert [task.inputs for task in tasks] == sampled[:100]


NAMESPACE = ("memalign_review", "leases")


class Clock:
    """Leases in a store with a controllable clock."""

    def __init__(self) -> None:
        self.store = InMemoryStore()
        self.leases = Leases(lambda: self.store)

    async def holder_after(self, **time: float) -> str | None:
        for lease in await self.leases.all():
            seen = datetime.fromisoformat(lease.value["seen"]) - timedelta(**time)
            value = {**lease.value, "seen": seen.isoformat()}
            await self.store.aput(NAMESPACE, lease.key, value)
        return holder_of("j-1", await self.leases.all(), "bob")


async def test_lease_lasts_ten_minutes() -> None:
    clock = Clock()
    await clock.leases.renew("ann", "j-1")
    assert await clock.holder_after(minutes=9, seconds=50) == "ann"
    assert await clock.holder_after(seconds=10) is None
    await clock.leases.renew("ann", "j-1")
    await clock.leases.release("ann", "j-1", skip=True)
    assert await clock.holder_after() is None
    await clock.leases.renew("ann", "j-1")
    await clock.holder_after(minutes=11)
    assert await clock.leases.renew("bob", "j-1") is None
    assert await clock.leases.renew("ann", "j-1") == "bob"


async def test_first_lease_holder_is_kept() -> None:
    clock = Clock()
    names = ("bob", "ann", "bob")  # the last is a heartbeat
    assert [await clock.leases.renew(name, "j-1") for name in names] == [None, "bob", None]
