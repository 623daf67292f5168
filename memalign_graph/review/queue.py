"""The review queue: open tasks, from threads of an Agent Server and from kept judgments."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Any
from urllib.parse import quote, unquote

from langgraph.config import get_store
from langgraph.store.base import BaseStore

from memalign_graph.errors import InvalidInputError
from memalign_graph.graphs import create_feedback_graph
from memalign_graph.interrupts import case_payload
from memalign_graph.io import ASYNC
from memalign_graph.memory.access import MemoryAccess
from memalign_graph.memory.facts import DEFAULT_NAMESPACE
from memalign_graph.memory.judgments import KeptJudgment, find_judgment, readable
from memalign_graph.review import threads
from memalign_graph.review.answers import Answer, Answers
from memalign_graph.review.forms import CasePayload
from memalign_graph.review.leases import LEASE, Leases, holder_of
from memalign_graph.review.tasks import Reviewer, ReviewTask, make_task
from memalign_graph.runtime import JudgeResources
from memalign_graph.settings import Judge

_MAX_LISTED = 100
_LISTING_TTL_S = 5.0
_READ_SHARE = 50  # a source that takes 1 s to read is read once in 50 s

_Listed = tuple[list[ReviewTask], int]
"""The tasks to show, and how many there are in all."""


class NotOpenError(InvalidInputError):
    """The requested task is not open."""

    def __init__(self) -> None:
        super().__init__("This case is answered, no longer kept, or was never asked.")


class ReviewQueue:
    """The open tasks of some judges, and the answers to them."""

    def __init__(
        self,
        judges: Sequence[Judge],
        *,
        namespace: Sequence[str] = DEFAULT_NAMESPACE,
        store: BaseStore | None = None,
    ) -> None:
        """Serve the judges' memories in a store; by default the Agent Server's own."""
        self.judges = {judge.criterion.name: judge for judge in judges}
        self._criteria = case_payload("review", (judge.criterion for judge in judges))["criteria"]
        self.namespace = [*namespace]
        self._store = store
        self._resources = {name: JudgeResources(judge) for name, judge in self.judges.items()}
        builders = {
            name: create_feedback_graph(judge.criterion, **judge.options)
            for name, judge in self.judges.items()
        }
        self.leases = Leases(lambda: self.store)
        self.answers = Answers(self.access, lambda name: builders[name].compile(store=self.store))
        self._listings: dict[str, tuple[_Listed, float]] = {}
        """What each source listed, and until when that counts."""
        self._claiming = asyncio.Lock()

    @property
    def store(self) -> BaseStore:
        """The store with the memories."""
        return get_store() if self._store is None else self._store

    def access(self, name: str, namespace: Sequence[str] | None = None) -> MemoryAccess:
        if name not in self._resources:
            raise InvalidInputError(f"There is no criterion {name!r} here.")
        settings = {"namespace": self.namespace if namespace is None else [*namespace]}
        return self._resources[name].memory(self.store, settings)

    def distill_model(self, name: str) -> Any:
        return self._resources[name].clients.distill_model(self.judges[name])

    async def list_tasks(self, reviewer: Reviewer) -> _Listed:
        """Return the tasks for a reviewer, skipped ones last, and the number of all open tasks."""
        listings = [
            await self._listing(f"kept {name}", partial(self._list_kept_judgments, name))
            for name in self.judges
        ]
        if reviewer.client is not None:
            read = partial(threads.list_tasks, reviewer.client, self._criteria, _MAX_LISTED)
            listings.append(await self._listing(f"threads {reviewer.account}", read))
        listed = [task for listing, _ in listings for task in listing]
        # A kept judgment is one task with the interrupt of its thread.
        settled = {key for task in listed if task.id.startswith("t-") for key in task.judgment_ids}
        for name in self.judges:
            settled |= (await self.access(name).refresh(ASYNC)).answered_judgment_ids()
        leases, learning = await self.leases.all(), {*self.answers.learning.values()}
        skipped = {lease.key for lease in leases if lease.value["skipped"]}
        tasks = [
            replace(
                task,
                held_by=holder_of(task.id, leases, reviewer.name),
                skipped=f"{task.id}:{reviewer.name}" in skipped,
            )
            for task in listed
            if task.id not in learning
            and not (task.id.startswith("j-") and task.judgment_ids <= settled)
        ]
        tasks.sort(key=lambda task: (task.can_wait, task.asked_at, task.id))
        tasks.sort(key=lambda task: (task.skipped, bool(task.held_by)))
        total = sum(count for _, count in listings) - len(listed) + len(tasks)
        return tasks, max(total, len(tasks))

    async def claim_next(self, reviewer: Reviewer) -> str | None:
        """Lease the first task that nobody else has open; returns its id."""
        async with self._claiming:  # concurrent requests get different tasks
            tasks, _ = await self.list_tasks(reviewer)
            for task in tasks:
                if task.held_by is None:
                    await self.leases.renew(reviewer.name, task.id)
                    return task.id
        return None

    async def open(self, reviewer: Reviewer, task_id: str, *, late: bool = False) -> ReviewTask:
        """Open a task; raises NotOpenError if there is none or, unless `late`, it is answered.

        A page that is open already is late: it can be answered for as long as the store has the
        case, also after another expert has answered, or the judgment has expired.
        """
        case = await self._case(reviewer, task_id, late=late)
        if case is None:
            self._forget_listings()  # they may have it still
            raise NotOpenError
        holder = await self.leases.renew(reviewer.name, task_id)
        return replace(make_task(task_id, case), case=case, held_by=holder)

    async def answer(self, answer: Answer) -> None:
        """Store an answer, and learn from it in the background."""
        learning = await self.answers.submit(answer)
        if answer.thread_id:  # it has its interrupt until then
            learning.add_done_callback(self._forget_listings)
        await self.leases.release(answer.reviewer.name, answer.task_id)

    async def _case(self, reviewer: Reviewer, task_id: str, *, late: bool) -> CasePayload | None:
        source, _, rest = task_id.partition("-")
        if source != "j":
            return await threads.load_case(reviewer.client, task_id, self._criteria, late=late)
        name, _, judgment_id = rest.rpartition("-")
        with suppress(InvalidInputError):
            access = self.access(unquote(name))
            stored = await find_judgment(ASYNC, access, judgment_id, late=late)
            if late or judgment_id not in (await access.refresh(ASYNC)).answered_judgment_ids():
                case = case_payload("review", [access.criterion], stored.example, [stored.judgment])
                return {**case, "namespace": self.namespace}
        return None

    async def _listing(self, source: str, read: Callable[[], Awaitable[_Listed]]) -> _Listed:
        listings, began = self._listings, time.monotonic()
        listing, counts_until = listings.get(source, (None, 0.0))
        if listing is None or began > counts_until:
            listing = await read()
            ended = time.monotonic()
            counts_until = ended + max(_LISTING_TTL_S, _READ_SHARE * (ended - began))
            listings[source] = listing, counts_until
        return listing

    def _forget_listings(self, *_: Any) -> None:
        self._listings = {}  # a listing that is being read does not get into these

    async def _list_kept_judgments(self, name: str) -> _Listed:
        """List the kept judgments without an answer; only those that are shown are parsed."""
        # What expires while an expert has it open may be gone before it is answered.
        access, offered_until = self.access(name), datetime.now(UTC) + LEASE
        [items] = await access.search(ASYNC, access.layout.of("judgments"))
        answered = (await access.refresh(ASYNC)).answered_judgment_ids()
        pending = [
            item
            for item in items
            if item["judgment"]["id"] not in answered
            and datetime.fromisoformat(item["kept_until"]) > offered_until
        ]
        # The random sample comes first, so that its answers stay a random sample.
        pending.sort(key=lambda item: (not _is_drawn(item["judgment"]), item["kept_until"]))
        tasks, listed = [], pending[:_MAX_LISTED]
        for kept in readable(KeptJudgment, listed):
            case = case_payload("review", [access.criterion], kept.example, [kept.judgment])
            task = make_task(f"j-{quote(name, safe='')}-{kept.judgment.id}", case, kept.judged_at)
            [judgment] = case["judgments"].values()
            tasks.append(replace(task, can_wait=not _is_drawn(judgment)))
        return tasks, len(pending) - len(listed) + len(tasks)


def _is_drawn(judgment: Mapping[str, Any]) -> bool:
    """Return whether a kept judgment was drawn at random."""
    return "sample" in (judgment.get("review") or {}).get("reasons", ())
