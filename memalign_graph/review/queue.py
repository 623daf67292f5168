"""The review queue: the tasks that wait for experts, on threads and as kept judgments."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
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
from memalign_graph.memory.access import MemoryAccess, search_namespace
from memalign_graph.memory.embedding import stored_vectors
from memalign_graph.memory.index.vectors import cover_order, decode_vector
from memalign_graph.memory.judgments import find_judgment
from memalign_graph.memory.layout import DEFAULT_NAMESPACE, unpacked
from memalign_graph.review import threads
from memalign_graph.review.answers import Answers
from memalign_graph.review.leases import Leases, holder_of, is_skipped
from memalign_graph.review.tasks import CasePayload, Reviewer, ReviewTask, make_task
from memalign_graph.runtime import JudgeResources
from memalign_graph.settings import Judge

_MAX_LISTED = 100
_MAX_COMPARED = 500  # cases that are compared with each other, to list those that cover most
_LISTING_TTL_S = 5.0
"""An older listing is still shown while it is read again."""
_READ_SHARE = 50  # a listing that is slow to read is read less often
_MAX_OPENED = 1_000  # cases that browsers may have open

_Listed = tuple[list[ReviewTask], int]
"""Tasks, and how many there are in all."""


@dataclass
class _CachedListing:
    """The tasks of one source, as last read."""

    tasks: list[ReviewTask] = field(default_factory=list)
    total: int = 0
    read_at: float = float("-inf")
    read_s: float = 0.0
    removed: set[str] = field(default_factory=set)  # since the current reading began
    reading: asyncio.Task[None] | None = None


class ReviewQueue:
    """The open tasks of some judges, and the answers to them."""

    def __init__(
        self,
        judges: Sequence[Judge],
        *,
        namespace: Sequence[str] = DEFAULT_NAMESPACE,
        store: BaseStore | None = None,
    ) -> None:
        """Serve the judges' memories in a store; without one, in the Agent Server's."""
        self.judges = {judge.criterion.name: judge for judge in judges}
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
        self._opened: dict[tuple[str, str], CasePayload] = {}
        self._claiming = asyncio.Lock()

    @property
    def store(self) -> BaseStore:
        """The store with the memories."""
        return get_store() if self._store is None else self._store

    def access(self, name: str, namespace: Sequence[str] | None = None) -> MemoryAccess:
        """Reach the memory of a criterion."""
        if name not in self._resources:
            raise InvalidInputError(f"There is no criterion {name!r} here.")
        settings = {"namespace": self.namespace if namespace is None else [*namespace]}
        return self._resources[name].memory(self.store, settings)

    def distill_model(self, name: str) -> Any:
        """Return the model that words a criterion's rules."""
        return self._resources[name].clients.distill_model(self.judges[name])

    async def list_tasks(self, reviewer: Reviewer) -> _Listed:
        """List the tasks for a reviewer, skipped ones last, and count all."""
        listings = [await self._listing(*source) for source in self._sources(reviewer).items()]
        leases, answered = await self.leases.all(), self.answers.task_ids
        listed = [task for listing in listings for task in listing.tasks]
        on_threads = {
            key for task in listed if task.id.startswith("t-") for key in task.judgment_ids
        }
        tasks = [
            replace(
                task,
                held_by=holder_of(task.id, leases, reviewer.name),
                skipped=is_skipped(task.id, leases, reviewer.name),
            )
            for task in listed
            if task.id not in answered
            and not (task.id.startswith("j-") and task.judgment_ids <= on_threads)
        ]
        tasks.sort(
            key=lambda task: (task.skipped, bool(task.held_by), task.rank, task.asked_at, task.id)
        )
        total = sum(listing.total for listing in listings) - len(listed) + len(tasks)
        return tasks, max(total, len(tasks))

    async def claim_next(self, reviewer: Reviewer, criterion: str | None = None) -> str | None:
        """Take the first task that nobody else is looking at; returns its id."""
        async with self._claiming:  # two who ask at the same time get different tasks
            tasks, _ = await self.list_tasks(reviewer)
            for task in tasks:
                if task.held_by is None and criterion in (None, *task.criterion.split(", ")):
                    await self.leases.renew(reviewer.name, task.id)
                    return task.id
        return None

    async def open(
        self, reviewer: Reviewer, task_id: str, *, late: bool = False
    ) -> ReviewTask | None:
        """Open a task; None if it was never asked or, unless late, is answered already."""
        case = await self._case(reviewer, task_id, late=late)
        if case is None and late:
            case = self._opened.get((reviewer.name, task_id))
        if case is None:
            self._remove(reviewer, task_id)
            return None
        # What is open in a browser can be answered, also when its judgment is no longer in the
        # store. Only this process knows it then: another one must not store what a form claims.
        self._opened[reviewer.name, task_id] = case
        while len(self._opened) > _MAX_OPENED:
            del self._opened[next(iter(self._opened))]
        holder = await self.leases.renew(reviewer.name, task_id)
        task = make_task(task_id, ", ".join(case["criteria"]), case)
        return replace(task, case=case, held_by=holder)

    async def answer(
        self, reviewer: Reviewer, task_id: str, case: CasePayload, reply: dict[str, Any]
    ) -> None:
        """Store an answer, and learn from it in the background."""
        learning = await self.answers.submit(reviewer, task_id, case, reply)
        # Also when it is learned from: a listing that was read meanwhile may hold it again.
        learning.add_done_callback(lambda _: self._remove(reviewer, task_id))
        await self.leases.release(reviewer.name, task_id)
        self._remove(reviewer, task_id)

    async def _case(self, reviewer: Reviewer, task_id: str, *, late: bool) -> CasePayload | None:
        source, _, rest = task_id.partition("-")
        if source != "j":
            max_states = _MAX_LISTED if late else 0
            return await threads.load_case(reviewer.client, task_id, self.judges, max_states)
        name, _, judgment_id = rest.rpartition("-")
        with suppress(InvalidInputError):
            access = self.access(unquote(name))
            kept = await find_judgment(ASYNC, access, judgment_id, late=late)
            rows = (await access.refresh(ASYNC)).rows()
            if late or not any(judgment_id in row.verdicts for row in rows):
                case = case_payload("review", [access.criterion], kept.example, [kept.judgment])
                return {**case, "namespace": self.namespace}
        return None

    def _sources(self, reviewer: Reviewer) -> dict[str, Callable[[], Awaitable[_Listed]]]:
        sources: dict[str, Callable[[], Awaitable[_Listed]]]
        sources = {f"kept {name}": partial(self._list_kept_judgments, name) for name in self.judges}
        if reviewer.client is not None:
            listed = partial(threads.list_tasks, reviewer.client, self.judges, _MAX_LISTED)
            sources[f"threads {reviewer.account}"] = listed
        return sources

    def _remove(self, reviewer: Reviewer, task_id: str) -> None:
        """Remove a task from the listings."""
        for source in self._sources(reviewer):
            if listing := self._listings.get(source):
                listing.removed.add(task_id)
                tasks = [task for task in listing.tasks if task.id != task_id]
                listing.total -= len(listing.tasks) - len(tasks)
                listing.tasks = tasks

    async def _listing(self, source: str, read: Callable[[], Awaitable[_Listed]]) -> _CachedListing:
        listing = self._listings.setdefault(source, _CachedListing())

        async def read_again() -> None:
            began = time.monotonic()
            listing.removed.clear()
            try:
                tasks, total = await read()
                listing.tasks = [task for task in tasks if task.id not in listing.removed]
                listing.total = total - len(tasks) + len(listing.tasks)
                listing.read_at = time.monotonic()
                listing.read_s = listing.read_at - began
            finally:
                listing.reading = None

        max_age_s = max(_LISTING_TTL_S, _READ_SHARE * listing.read_s)
        if listing.reading is None and time.monotonic() - listing.read_at > max_age_s:
            listing.reading = asyncio.create_task(read_again())
        if listing.reading is not None and listing.read_at < 0:
            await asyncio.shield(listing.reading)
        return listing

    async def _list_kept_judgments(self, name: str) -> _Listed:
        """List the pending kept judgments; of a large memory only what is shown is parsed."""
        access = self.access(name)
        namespace = access.layout.of("judgments")
        results: Any = await self.store.abatch([search_namespace(namespace)])
        items = [
            {**unpacked(item.value), "kept_at": item.created_at}
            for item in results[0]
            if item.namespace == namespace
        ]
        view, now = await access.refresh(ASYNC), datetime.now(UTC)
        answered = {judgment_id for row in view.rows() for judgment_id in row.verdicts}
        pending = [
            item
            for item in items
            if item["judgment"]["id"] not in answered
            and datetime.fromisoformat(item["kept_until"]) > now
        ]
        pending.sort(key=lambda item: (item["kept_until"], item["judgment"]["id"]))
        tasks = []
        for rank, item in await self._ranked(access, pending):
            case = {"example": item["example"], "judgments": {name: item["judgment"]}}
            task_id = f"j-{quote(name, safe='')}-{item['judgment']['id']}"
            # LangGraph's store in SQLite returns UTC times without a time zone.
            kept_at = item["kept_at"].replace(tzinfo=item["kept_at"].tzinfo or UTC)
            tasks.append(replace(make_task(task_id, name, case, kept_at), rank=rank))
        return tasks, len(pending)

    async def _ranked(
        self, access: MemoryAccess, pending: Sequence[dict[str, Any]]
    ) -> list[tuple[int, dict[str, Any]]]:
        """Choose what is listed: what was drawn at random by age, then what covers most others.

        Were the random sample not answered first, its answers would not be random any more.
        """
        dates = {item["judged_at"][:10] for item in pending if item.get("judged_at")}
        days = [int(date.replace("-", "")) for date in sorted(dates)]
        logged = await access.search(
            ASYNC, *(access.layout.reviews_on(day, asked=True) for day in days)
        )
        reasons = {entry["judgment_id"]: entry["reasons"] for day in logged for entry in day}
        drawn, others, rest = [], [], []
        for item in pending:
            if "sample" in reasons.get(item["judgment"]["id"], ()):
                drawn.append(item)
            elif item.get("vector") and item["embedder"] == access.embedder.id:
                others.append(item)
            else:
                rest.append(item)
        del others[_MAX_COMPARED:]
        valued = dict.fromkeys(row.vector_key for row in access.view.newest())
        keys = [*valued][:_MAX_COMPARED]
        known = access.view.vectors(keys)
        known |= await stored_vectors(ASYNC, access, {*keys} - known.keys())
        vectors = [decode_vector(item["vector"]) for item in others]
        order = cover_order(vectors, [*known.values()], _MAX_LISTED)
        by_worth = [*(others[at] for at in order), *rest]
        ranked = [*((0, item) for item in drawn), *enumerate(by_worth, 1)]
        return ranked[:_MAX_LISTED]
