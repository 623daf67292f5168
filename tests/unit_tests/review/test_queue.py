"""The review queue: order of the cases, and leases."""

from datetime import datetime, timedelta
from typing import Any

from langgraph.store.memory import InMemoryStore

from memalign_graph import Example, Judge, JudgeMemory
from memalign_graph.memory.judgments import utc_now
from memalign_graph.review.leases import Leases, holder_of
from memalign_graph.review.queue import ReviewQueue
from memalign_graph.review.tasks import Reviewer
from tests.builders import keep_reviewed
from tests.conftest import CRITERION


def keep(memory: JudgeMemory, name: str, *reasons: Any) -> None:
    """Keep a judgment about which an expert is asked for the reasons."""
    example = Example(inputs=name, outputs="a")
    keep_reviewed(memory.access, example, *reasons, id=name.replace(" ", ""))


async def listed(store: InMemoryStore) -> tuple[list[Any], int]:
    queue = ReviewQueue([Judge(criterion=CRITERION)], store=store)
    return await queue.list_tasks(Reviewer(name="ann"))


async def test_random_sample_comes_first_and_all_is_by_age() -> None:
    store = InMemoryStore()
    memory = JudgeMemory(store, CRITERION)
    keep(memory, "other 1")
    keep(memory, "other 2", "unsure")
    keep(memory, "drawn 1", "unsure", "sample")
    keep(memory, "other 3")
    keep(memory, "drawn 2", "sample")
    kept_by = utc_now()
    tasks, count = await listed(store)
    assert count == 5
    assert all(task.asked_at <= kept_by for task in tasks)
    listed_inputs = ", ".join(task.inputs for task in tasks)
    assert listed_inputs == "drawn 1, drawn 2, other 1, other 2, other 3"


async def test_oldest_hundred_of_a_larger_random_sample_are_listed() -> None:
    store = InMemoryStore()
    memory = JudgeMemory(store, CRITERION)
    for number in range(3):
        keep(memory, f"other {number}", "unsure")
    sampled = [f"drawn {number}" for number in range(1, 104)]
    for name in sampled:
        keep(memory, name, "sample")
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
            since = datetime.fromisoformat(lease.value["since"]) - timedelta(**time)
            value = {**lease.value, "since": since.isoformat()}
            await self.store.aput(NAMESPACE, lease.key, value)
        return holder_of("j-1", await self.leases.all(), "bob")


async def test_lease_lasts_half_an_hour() -> None:
    clock = Clock()
    await clock.leases.take("ann", "j-1")
    assert await clock.holder_after(minutes=29, seconds=50) == "ann"
    assert await clock.holder_after(seconds=10) is None
    await clock.leases.take("ann", "j-1")
    await clock.leases.release("ann", "j-1", skip=True)
    assert await clock.holder_after() is None
    await clock.leases.take("ann", "j-1")
    await clock.holder_after(minutes=31)
    assert await clock.leases.take("bob", "j-1") is None
    assert await clock.leases.take("ann", "j-1") == "bob"


async def test_first_lease_holder_is_kept() -> None:
    clock = Clock()
    names = ("bob", "ann", "bob")  # who loads the page again
    assert [await clock.leases.take(name, "j-1") for name in names] == [None, "bob", None]
