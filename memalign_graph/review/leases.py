"""Who has which task open: it is not offered to others.

A lease lasts ten minutes; an open page renews it. Leases are items of the store, so that all
servers on one store see them. They hold names and no comments.
"""

from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from langgraph.store.base import BaseStore, Item, PutOp

from memalign_graph.io import ASYNC
from memalign_graph.memory.access import search_namespace

LEASE = timedelta(minutes=10)
_KEEP_LEASES = timedelta(days=1)
_NAMESPACE = ("memalign_review", "leases")


class Leases:
    """The leases in a store."""

    def __init__(self, store: Callable[[], BaseStore]) -> None:
        self._store = store

    async def all(self) -> list[Item]:
        """Return all leases, also those that have ended."""
        results: Any = await ASYNC.batch(self._store(), [search_namespace(_NAMESPACE)])
        # A memory may be in a namespace below.
        return [item for item in results[0] if tuple(item.namespace) == _NAMESPACE]

    async def renew(self, name: str, task_id: str) -> str | None:
        """Start or renew a lease; returns the expert who has an earlier one."""
        key, leases = f"{task_id}:{name}", await self.all()
        begun = (lease.value["since"] for lease in leases if lease.key == key and _is_live(lease))
        await self._put(key, _lease(name, task_id, since=next(begun, None)))
        for old in leases:
            if _age(old) > _KEEP_LEASES:
                await self._put(old.key, None)
        return holder_of(task_id, await self.all(), name)

    async def release(self, name: str, task_id: str, *, skip: bool = False) -> None:
        """End a lease; a skipped task is listed last for this expert."""
        lease = _lease(name, task_id, is_skipped=True) if skip else None
        await self._put(f"{task_id}:{name}", lease)

    def _put(self, key: str, value: Any) -> Awaitable[Any]:
        return ASYNC.batch(self._store(), [PutOp(_NAMESPACE, key, value, index=False)])


def holder_of(task_id: str, leases: Sequence[Item], name: str) -> str | None:
    """Return who opened a task first; None if nobody did, or this expert."""
    live = [
        lease.value for lease in leases if lease.value["question"] == task_id and _is_live(lease)
    ]
    first = min(live, key=lambda lease: (lease["since"], lease["who"]), default=None)
    return None if first is None or first["who"] == name else str(first["who"])


def _lease(
    name: str, task_id: str, *, since: str | None = None, is_skipped: bool = False
) -> dict[str, Any]:
    now = datetime.now(UTC).isoformat()
    ids = {"question": task_id, "who": name}
    return {**ids, "since": since or now, "seen": now, "skipped": is_skipped}


def _age(lease: Item) -> timedelta:
    return datetime.now(UTC) - datetime.fromisoformat(lease.value["seen"])


def _is_live(lease: Item) -> bool:
    return not lease.value["skipped"] and _age(lease) < LEASE
