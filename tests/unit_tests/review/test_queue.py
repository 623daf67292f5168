"""The review queue: order of the cases, and leases."""

import asyncio
from datetime import datetime, timedelta
from typing import Any

import pytest
from langgraph.store.memory import InMemoryStore

from memalign_graph import Example, Judge, JudgeMemory
from memalign_graph.interrupts import case_payload
from memalign_graph.review import queue as queue_module
from memalign_graph.review import threads
from memalign_graph.review.leases import Leases, holder_of
from memalign_graph.review.queue import NotOpenError, ReviewQueue
from memalign_graph.review.tasks import Reviewer, ReviewTask, make_task
from tests.builders import keep_reviewed
from tests.conftest import CASE, CRITERION

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


async def test_listing_that_was_read_before_an_answer_does_not_count_after_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    began, may_end = asyncio.Event(), asyncio.Event()
    case = case_payload("review", [CRITERION], Example(**CASE))
    found = [make_task("t-1", case)]

    async def list_threads(*_: Any) -> tuple[list[ReviewTask], int]:
        read = [*found]
        began.set()
        await may_end.wait()
        return read, len(read)

    monkeypatch.setattr(threads, "list_tasks", list_threads)
    queue = ReviewQueue([Judge(criterion=CRITERION)], store=InMemoryStore())
    ann = Reviewer("ann", client=object())
    listing = asyncio.create_task(queue.list_tasks(ann))
    await began.wait()
    found.clear()
    with pytest.raises(NotOpenError):  # answered elsewhere
        await queue.open(Reviewer("bob"), "t-1")
    may_end.set()
    assert [task.id for task in (await listing)[0]] == ["t-1"]
    assert await queue.list_tasks(ann) == ([], 0)
