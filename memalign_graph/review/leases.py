"""Leases on review tasks: while an expert has a task open, it is not offered to others.

A lease lasts ten minutes unless it is renewed. Leases are items of the store, so that all servers
on one store see them. They hold names and no comments.
"""

from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from langgraph.store.base import BaseStore, Item, PutOp

from memalign_graph.io import ASYNC
from memalign_graph.memory.access import search_namespace

LEASE = timedelta(minutes=10)
_LEAVING = timedelta(seconds=90)
"""How long a lease lasts after its page was closed; another open tab renews it."""
_KEEP_LEASES = timedelta(days=1)
_NAMESPACE = ("memalign_review", "leases")


class Leases:
    """The leases in a store."""

    def __init__(self, store: Callable[[], BaseStore]) -> None:
        self._store = store

    async def all(self) -> list[Item]:
        """Return all leases, also those that have ended."""
        results: Any = await ASYNC.batch(self._store(), [search_namespace(_NAMESPACE)])
        return list(results[0])

    async def renew(self, name: str, task_id: str) -> str | None:
        """Start or renew a lease; returns the expert who has an earlier one."""
        key, now = f"{task_id}:{name}", datetime.now(UTC).isoformat()
        leases = await self.all()
        begun = (lease.value["since"] for lease in leases if lease.key == key and _is_live(lease))
        lease = {"question": task_id, "who": name, "since": next(begun, now), "skipped": False}
        await self._put(key, {**lease, "seen": now})
        for old in leases:
            if _age(old.value["seen"]) > _KEEP_LEASES:
                await self._put(old.key, None)
        return holder_of(task_id, await self.all(), name)

    async def leave(self, name: str, task_id: str) -> None:
        """Let a lease end after 90 seconds, unless another tab renews it."""
        key = f"{task_id}:{name}"
        for lease in await self.all():
            if lease.key == key and _is_live(lease):
                seen = datetime.now(UTC) - LEASE + _LEAVING
                await self._put(key, {**lease.value, "seen": seen.isoformat()})

    async def release(self, name: str, task_id: str, *, skip: bool = False) -> None:
        """End a lease; a skipped task is listed last for this expert."""
        now = datetime.now(UTC).isoformat()
        lease = {"question": task_id, "who": name, "since": now, "skipped": True, "seen": now}
        await self._put(f"{task_id}:{name}", lease if skip else None)

    def _put(self, key: str, value: Any) -> Awaitable[Any]:
        return ASYNC.batch(self._store(), [PutOp(_NAMESPACE, key, value, index=False)])


def is_skipped(task_id: str, leases: Sequence[Item], name: str) -> bool:
    """Return whether an expert has skipped a task."""
    key = f"{task_id}:{name}"
    return any(lease.key == key and lease.value["skipped"] for lease in leases)


def holder_of(task_id: str, leases: Sequence[Item], name: str) -> str | None:
    """Return who opened a task first; None if nobody did, or this expert."""
    live = [
        lease.value for lease in leases if lease.value["question"] == task_id and _is_live(lease)
    ]
    first = min(live, key=lambda lease: (lease["since"], lease["who"]), default=None)
    return None if first is None or first["who"] == name else str(first["who"])


def _age(timestamp: str) -> timedelta:
    return datetime.now(UTC) - datetime.fromisoformat(timestamp)


def _is_live(lease: Item) -> bool:
    return not lease.value["skipped"] and _age(lease.value["seen"]) < LEASE
