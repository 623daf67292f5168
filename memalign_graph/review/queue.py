"""The review queue: open tasks, from threads of an Agent Server and from kept judgments."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
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
from memalign_graph.models import drop_oldest
from memalign_graph.review import threads
from memalign_graph.review.answers import Answer, Answers
from memalign_graph.review.tasks import (
    CasePayload,
    Leases,
    Reviewer,
    ReviewTask,
    holder_of,
    make_task,
)
from memalign_graph.runtime import JudgeResources
from memalign_graph.settings import Judge

_MAX_LISTED = 100
_LISTING_TTL_S = 5.0
_READ_SHARE = 50  # a source that takes 1 s to read is read once in 50 s
_MAX_OPENED = 1_000  # cases that browsers may have open

_Listed = tuple[list[ReviewTask], int]
"""The tasks to show, and how many there are in all."""


class NotOpenError(InvalidInputError):
    """The requested task is not open."""

    def __init__(self) -> None:
        super().__init__("This case is answered, no longer kept, or was never asked.")


@dataclass
class _CachedListing:
    """The tasks of one source, as last read."""

    tasks: list[ReviewTask] = field(default_factory=list)
    total: int = 0
    expires_at: float = float("-inf")
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


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
        self._listings: dict[str, _CachedListing] = {}
        self._opened: dict[tuple[str, str, str], tuple[CasePayload, set[str]]] = {}
        """The cases that are open in browsers, with the purges that were known then."""
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
        sources: dict[str, Callable[[], Awaitable[_Listed]]] = {
            f"kept {name}": partial(self._list_kept_judgments, name) for name in self.judges
        }
        if reviewer.client is not None:
            read = partial(threads.list_tasks, reviewer.client, self._criteria, _MAX_LISTED)
            sources[f"threads {reviewer.account}"] = read
        listings = [await self._listing(*source) for source in sources.items()]
        listed = [task for listing in listings for task in listing.tasks]
        # A kept judgment is one task with the interrupt of its thread.
        settled = {key for task in listed if task.id.startswith("t-") for key in task.judgment_ids}
        for name in self.judges:
            settled |= await _answered_ids(self.access(name))
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
        total = sum(listing.total for listing in listings) - len(listed) + len(tasks)
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
        """Open a task; raises NotOpenError if there is none or, unless `late`, it is answered."""
        case = await self._case(reviewer, task_id, late=late)
        # A name that nobody checks does not open what another account may see.
        key = (reviewer.account, reviewer.name, task_id)
        if case is None and late and key in self._opened:
            opened, purges = self._opened[key]
            case = opened if await self._purges(opened) == purges else None
        if case is None:
            self._listings.clear()  # they may have it still
            raise NotOpenError
        # A case that is open in a browser can be answered after its judgment has left the store,
        # but only here: another process would have to trust what the form says about the case.
        # After a purge it cannot: the purge may have erased the case.
        self._opened[key] = case, await self._purges(case)
        drop_oldest(self._opened, _MAX_OPENED)
        holder = await self.leases.renew(reviewer.name, task_id)
        return replace(make_task(task_id, case), case=case, held_by=holder)

    async def _purges(self, case: CasePayload) -> set[str]:
        accesses = [self.access(name, case["namespace"]) for name in case["criteria"]]
        return {key for each in accesses for key in (await each.refresh(ASYNC)).purges()}

    async def answer(self, answer: Answer) -> None:
        """Store an answer, and learn from it in the background."""
        learning = await self.answers.submit(answer)
        if answer.thread_id:  # it has its interrupt until then
            learning.add_done_callback(lambda _: self._listings.clear())
        await self.leases.release(answer.reviewer.name, answer.task_id)

    async def _case(self, reviewer: Reviewer, task_id: str, *, late: bool) -> CasePayload | None:
        source, _, rest = task_id.partition("-")
        if source != "j":
            max_states = _MAX_LISTED if late else 0
            return await threads.load_case(reviewer.client, task_id, self._criteria, max_states)
        name, _, judgment_id = rest.rpartition("-")
        with suppress(InvalidInputError):
            access = self.access(unquote(name))
            stored = await find_judgment(ASYNC, access, judgment_id, late=late)
            if late or judgment_id not in await _answered_ids(access):
                case = case_payload("review", [access.criterion], stored.example, [stored.judgment])
                return {**case, "namespace": self.namespace}
        return None

    async def _listing(self, source: str, read: Callable[[], Awaitable[_Listed]]) -> _CachedListing:
        listing = self._listings.setdefault(source, _CachedListing())
        async with listing.lock:
            began = time.monotonic()
            if began > listing.expires_at:
                listing.tasks, listing.total = await read()
                ended = time.monotonic()
                listing.expires_at = ended + max(_LISTING_TTL_S, _READ_SHARE * (ended - began))
        return listing

    async def _list_kept_judgments(self, name: str) -> _Listed:
        """List the kept judgments without an answer; only those that are shown are parsed."""
        access, now = self.access(name), datetime.now(UTC)
        [items] = await access.search(ASYNC, access.layout.of("judgments"))
        answered = await _answered_ids(access)
        pending = [
            item
            for item in items
            if item["judgment"]["id"] not in answered
            and datetime.fromisoformat(item["kept_until"]) > now
        ]
        # The random sample comes first, so that its answers stay a random sample.
        pending.sort(
            key=lambda item: (not _is_drawn(item), item["kept_until"], item["judgment"]["id"])
        )
        tasks, listed = [], pending[:_MAX_LISTED]
        for item in listed:
            for kept in readable(KeptJudgment, [item]):
                case = case_payload("review", [access.criterion], kept.example, [kept.judgment])
                task_id = f"j-{quote(name, safe='')}-{kept.judgment.id}"
                task = make_task(task_id, case, kept.judged_at)
                tasks.append(replace(task, can_wait=not _is_drawn(item)))
        return tasks, len(pending) - len(listed) + len(tasks)


def _is_drawn(item: Mapping[str, Any]) -> bool:
    """Return whether a kept judgment was drawn at random."""
    return "sample" in (item["judgment"].get("review") or {}).get("reasons", ())


async def _answered_ids(access: MemoryAccess) -> set[str]:
    """Return the ids of the judgments that experts have answered."""
    rows = (await access.refresh(ASYNC)).rows()
    return {judgment_id for row in rows for judgment_id in row.verdicts}
