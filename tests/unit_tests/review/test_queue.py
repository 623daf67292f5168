"""The review queue: order of the cases, and leases."""

from datetime import datetime, timedelta
from typing import Any

import pytest
from langgraph.store.memory import InMemoryStore

from memalign_graph import Example, Judge, JudgeMemory
from memalign_graph.review import queue as queue_module
from memalign_graph.review.leases import Leases, holder_of
from memalign_graph.review.queue import ReviewQueue
from memalign_graph.review.tasks import Reviewer
from tests.builders import keep_reviewed
from tests.conftest import CRITERION

KEPT: dict[str, list[Any]] = {
    "other 1": [],
    "other 2": ["unsure"],
    "drawn 1": ["unsure", "sample"],
    "other 3": [],
    "drawn 2": ["sample"],
}
"""Why an expert is asked about each case, oldest first."""


@pytest.mark.parametrize(("limit", "shown"), [(100, ["drawn 1", "drawn 2"]), (1, ["drawn 1"])])
async def test_random_sample_comes_first_and_all_is_by_age(
    monkeypatch: pytest.MonkeyPatch, limit: int, shown: list[str]
) -> None:
    monkeypatch.setattr(queue_module, "_MAX_LISTED", limit)
    store = InMemoryStore()
    for name, reasons in KEPT.items():
        example = Example(inputs=name, outputs="a")
        keep_reviewed(JudgeMemory(store, CRITERION).access, example, *reasons)
    queue = ReviewQueue([Judge(criterion=CRITERION)], store=store)
    tasks, count = await queue.list_tasks(Reviewer("ann"))
    others = ["other 1", "other 2", "other 3"] if limit > 1 else []
    assert ([task.inputs for task in tasks], count) == ([*shown, *others], 5)


async def test_first_lease_counts_for_ten_minutes_at_a_time() -> None:
    store = InMemoryStore()
    leases = Leases(lambda: store)

    async def holder_after(**time: float) -> str | None:
        for lease in await leases.all():
            seen = datetime.fromisoformat(lease.value["seen"]) - timedelta(**time)
            value = {**lease.value, "seen": seen.isoformat()}
            await store.aput(("memalign_review", "leases"), lease.key, value)
        return holder_of("j-1", await leases.all(), "bob")

    await leases.renew("ann", "j-1")
    assert await holder_after(minutes=9, seconds=50) == "ann"
    await leases.renew("ann", "j-1")
    assert await holder_after(seconds=20) == "ann"
    assert await holder_after(minutes=10) is None
    await leases.renew("ann", "j-1")
    await leases.release("ann", "j-1", skip=True)
    assert await holder_after() is None
    names = ("bob", "ann", "bob")  # the last is a heartbeat
    assert [await leases.renew(name, "j-1") for name in names] == [None, "bob", None]
