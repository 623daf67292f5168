"""Commits: what one atomic change of a memory was, and how memories get their version."""

import hashlib
import threading
import time
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any, Literal
from uuid import uuid4

from pydantic import BaseModel, ConfigDict

from memalign_graph.identity import digest

ItemKind = Literal["episodes", "guidelines"]
"""The kinds of items that make up a memory's content."""

Item = dict[str, Any]
"""A store item's value."""

PURGE = "purge"
"""What the commits of a purge say of themselves."""

_VERSION_SPACE = 2**128


class Change(BaseModel):
    """One item as a commit left it and as it was before."""

    model_config = ConfigDict(frozen=True)

    kind: ItemKind
    """Which kind of item."""

    id: str
    """The item's id."""

    revision: str | None
    """The revision after the change; None where the item was removed."""

    before: Item | None
    """The item before the change; None where it is new, or purged since."""

    after: Item | None = None
    """The item after the change, of guidelines and of episodes that say something else now: it
    brings two writers at one moment together."""

    purged: bool = False
    """Whether the item as it was before has been purged."""

    @property
    def key(self) -> "ItemKey":
        """What names the item in its memory."""
        return self.kind, self.id

    def purge(self) -> "Change":
        """Return the change without the item's content."""
        return self.model_copy(update={"before": None, "after": None, "purged": True})


ItemKey = tuple[ItemKind, str]
"""An item's kind and id."""


class Tally(BaseModel):
    """How many items of one kind a commit changed."""

    model_config = ConfigDict(frozen=True)

    added: int = 0
    """Items that were not there before."""

    changed: int = 0
    """Items that are there before and after."""

    removed: int = 0
    """Items that are not there any more."""


class Commit(BaseModel):
    """One atomic change of a memory: who, when, why, and how much.

    What changed lies in an item of its own under the same id, `Changes`: readers look at the
    commits of the last minute again and again, and must not read a thousand episodes each time.
    """

    model_config = ConfigDict(frozen=True)

    id: str
    """The commit's key: unique, and in order of time."""

    at_us: int
    """When it was made, in microseconds since 1970."""

    parents: list[str]
    """The newest commits its writer had seen."""

    author: str | None
    """Who made the change, if known."""

    reason: str
    """What made it: `remember`, `learn`, `forget`, `add_guideline`, ..."""

    episodes: Tally = Tally()
    """How many episodes it changed."""

    guidelines: Tally = Tally()
    """How many guidelines it changed."""

    version: str
    """The memory's version after it, as its writer saw the memory."""

    @property
    def at(self) -> datetime:
        """When it was made, in UTC."""
        return datetime.fromtimestamp(self.at_us / 1e6, UTC)


class Changes(BaseModel):
    """What one commit changed."""

    model_config = ConfigDict(frozen=True)

    id: str
    """The commit's id."""

    changes: list[Change]
    """An entry an item."""

    def meets(self, other: "Changes") -> bool:
        """Tell whether two commits have to do with the same items."""
        return bool(self.keys() & other.reach() or self.reach() & other.keys())

    def keys(self) -> set[ItemKey]:
        """Return the items it changed."""
        return {change.key for change in self.changes}

    def learned_from(self) -> set[str]:
        """Return the ids of the episodes that it marked as distilled, and did nothing else to."""
        return {
            one.id
            for one in self.changes
            if one.kind == "episodes"
            and one.before is not None
            and one.before.get("status") == "pending"
            and one.revision == revision_of({**one.before, "status": "distilled"})
        }

    def sources_given(self) -> dict[str, set[str]]:
        """Return the sources it gave to guidelines, by guideline id."""
        return {
            one.id: set(one.after.get("episode_ids", []))
            - set((one.before or {}).get("episode_ids", []))
            for one in self.changes
            if one.kind == "guidelines" and one.after is not None
        }

    def reach(self) -> set[ItemKey]:
        """Return the items it changed, and those that its guidelines name."""
        after = [one.after for one in self.changes if one.kind == "guidelines" and one.after]
        named: set[ItemKey] = {
            ("episodes", key) for one in after for key in one.get("episode_ids", [])
        }
        named |= {("guidelines", key) for one in after if (key := one.get("superseded_by"))}
        return self.keys() | named


def tally(changes: Iterable[Change], kind: ItemKind) -> Tally:
    """Count the changes of one kind of item."""
    of_kind = [change for change in changes if change.kind == kind]
    added = sum(change.before is None for change in of_kind)
    removed = sum(change.revision is None for change in of_kind)
    return Tally(added=added, removed=removed, changed=len(of_kind) - added - removed)


def commit_id(at_us: int) -> str:
    """Make a commit's key."""
    return f"{at_us:016d}-{uuid4().hex[:12]}"


def revision_of(item: Item) -> str:
    """Name what an item holds: equal content has an equal revision."""
    return digest(item)


def weight(item_id: str, revision: str) -> int:
    """Return what one item adds to its memory's version."""
    return int.from_bytes(hashlib.sha256(f"{item_id}:{revision}".encode()).digest()[:16])


def version_of(total: int) -> str:
    """Name a memory's content: a set hash, the sum of its live items' weights."""
    return f"{total % _VERSION_SPACE:032x}"


class _Clock:
    """Microseconds since 1970 that never repeat or go back within this process."""

    def __init__(self) -> None:
        self._last = 0
        self._lock = threading.Lock()

    def now_us(self, ticks: int = 1) -> int:
        with self._lock:
            first = max(time.time_ns() // 1000, self._last + 1)
            self._last = first + ticks - 1
            return first


clock = _Clock()
"""The clock of this process's commits."""
