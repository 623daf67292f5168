"""A memory's past: which versions there were, what each held, and the way back to one.

What a version held is what stands after some of the facts, so that nothing is stored twice.
"""

import threading
from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from typing import Generic, TypeVar

from memalign_graph.errors import InvalidInputError
from memalign_graph.io import IO
from memalign_graph.memory.access import MemoryAccess
from memalign_graph.memory.facts import PURGE, Fact, Item, utc
from memalign_graph.memory.guidelines import check_name
from memalign_graph.memory.memory_state import VERSION_SPACE, MemoryState, build_state
from memalign_graph.memory.view import MemoryView
from memalign_graph.types import Episode, FrozenModel, Guideline

T = TypeVar("T", Episode, Guideline)


class Tally(FrozenModel):
    """How many items of one kind a commit changed."""

    added: int = 0
    """Items that were not there before."""

    changed: int = 0
    """Items that are there before and after."""

    removed: int = 0
    """Items that are not there any more."""


class Retired(FrozenModel):
    """A guideline that a commit took away."""

    guideline_id: str
    """The guideline."""

    superseded_by: str | None
    """The guideline that holds in its place, if any."""

    reason: str | None
    """Why."""


class Commit(FrozenModel):
    """One atomic change of a memory: who, when, why, and how much."""

    id: str
    """The commit's key: unique, and in order of time."""

    at: datetime
    """When it was made, in UTC."""

    author: str | None
    """Who made the change, if known."""

    reason: str
    """What made it: `remember`, `learn`, `forget`, `add_guideline`, ..."""

    episodes: Tally
    """How many episodes it changed."""

    guidelines: Tally
    """How many guidelines it changed."""

    retired: list[Retired]
    """The guidelines that it took away, by what and why."""

    version: str
    """The memory's version after it."""


@dataclass(frozen=True)
class Snapshot:
    """A memory as it was at one version."""

    version: str
    """The version."""

    episodes: list[Episode]
    """Its episodes, oldest first."""

    guidelines: list[Guideline]
    """Its guidelines, in the order a judge reads them."""

    missing: list[str]
    """The ids of what was purged since."""


@dataclass(frozen=True)
class ItemChange(Generic[T]):
    """One item at two versions."""

    before: T
    """At the first."""

    after: T
    """At the second."""


@dataclass(frozen=True)
class ItemsDiff(Generic[T]):
    """What became of one kind of item between two versions."""

    added: list[T]
    """Items that only the second has."""

    removed: list[T]
    """Items that only the first has."""

    changed: list[ItemChange[T]]
    """Items that both have, with other content."""


@dataclass(frozen=True)
class MemoryDiff:
    """What became of a memory between two versions."""

    episodes: ItemsDiff[Episode]
    """Of its episodes."""

    guidelines: ItemsDiff[Guideline]
    """Of its guidelines."""


async def history(io: IO, access: MemoryAccess) -> list[Commit]:
    """Return the commits, newest first."""
    facts, words = (await access.refresh(io)).facts()
    past = _Past([], words, access.embedder.id)
    return list(map(past.take, sorted(facts, key=lambda fact: fact.id)))[::-1]


async def recent(io: IO, access: MemoryAccess, most: int) -> list[Commit]:
    """Return the newest commits, newest first; of a past that is known only what came since."""
    view = await access.refresh(io)
    facts, words = view.facts()
    facts.sort(key=lambda fact: fact.id)
    with _lock:
        key = "recent", most
        past, commits = view.derived.get(key, (None, []))
        done = len(past.facts) if past is not None else 0
        if past is None or facts[done - 1 : done] != past.facts[-1:]:
            done = max(len(facts) - most, 0)
            past, commits = _Past(facts[:done], words, access.embedder.id), []
        past.words.update(words)
        commits = [*commits, *map(past.take, facts[done:])][-most:]
        view.derived[key] = past, commits
    return commits[::-1]


_lock = threading.Lock()


class _Past:
    """What stood after some facts, as if nothing had been purged since; goes on fact by fact."""

    def __init__(self, facts: list[Fact], words: Mapping[str, Item], embedder: str) -> None:
        self.facts, self.words, self._embedder = facts, dict(words), embedder
        self._stand()
        self._episodes = self._said(self.standing.rows)
        self._guidelines = self.standing.guideline_terms()

    def step(self, fact: Fact) -> AbstractSet[str]:
        """Take the next fact; tells which episodes it may have changed."""
        self.facts.append(fact)
        if fact.undone:
            self._stand()
            return self._episodes.keys() | self.standing.rows.keys()
        self.standing.apply(fact)
        self.standing.settle()
        touched, self.standing.changed = self.standing.changed, set()
        return touched

    def take(self, fact: Fact) -> Commit:
        """Take the next fact; tells how much it changed."""
        touched = self.step(fact)
        rows = self._said(touched & self.standing.rows.keys())
        before = {key: self._episodes.pop(key) for key in touched & self._episodes.keys()}
        self._episodes |= rows
        known, self._guidelines = self._guidelines, self.standing.guideline_terms()
        retired = [
            Retired(guideline_id=gone.id, superseded_by=gone.by, reason=gone.reason)
            for gone in fact.retired
        ]
        return Commit(
            id=fact.id,
            at=utc(fact.clock_us or fact.at_us),
            author=fact.author,
            reason=fact.reason,
            episodes=_tally(before, rows),
            guidelines=_tally(known, self._guidelines),
            retired=retired,
            version=self.standing.version,
        )

    def _stand(self) -> None:
        self.standing = build_state(self.facts, self.words, self._embedder, include_purged=True)
        self.standing.changed = set()

    def _said(self, keys: Iterable[str]) -> dict[str, object]:
        rows, pending = self.standing.rows, self.standing.pending
        return {key: (rows[key].key, key in pending) for key in keys}


async def snapshot(io: IO, access: MemoryAccess, version: str) -> Snapshot:
    """Return a memory as it was."""
    return (await _find(io, access, version))[0]


async def diff(io: IO, access: MemoryAccess, a: str, b: str | None = None) -> MemoryDiff:
    """Compare a memory at two versions."""
    before = await snapshot(io, access, a)
    after = await snapshot(io, access, (await access.refresh(io)).version if b is None else b)
    return MemoryDiff(
        episodes=_diff(before.episodes, after.episodes),
        guidelines=_diff(before.guidelines, after.guidelines),
    )


async def rollback(
    io: IO, access: MemoryAccess, version: str, *, author: str | None = None
) -> Snapshot:
    """Make a memory again what it was: what was written since counts no more."""
    author = check_name(author, "author")
    wanted, since = await _find(io, access, version)
    if access.view.version != version:
        undone = [fact.id for fact in since if fact.reason != PURGE]
        await access.write(io, "rollback", {"undone": undone}, author=author)
    return _standing_now(access.view, version, wanted.missing)


def _standing_now(view: MemoryView, version: str, missing: list[str]) -> Snapshot:
    return Snapshot(version, list(view.episodes().values()), list(view.guidelines), missing)


async def _find(io: IO, access: MemoryAccess, version: str) -> tuple[Snapshot, list[Fact]]:
    """Find a version; returns what it held, and the facts that came after it."""
    view = await access.refresh(io)
    if version == view.version:
        return _standing_now(view, version, []), []
    facts, words = view.facts()
    ordered = sorted(facts, key=lambda fact: fact.id)
    nothing = MemoryState(words, access.embedder.id)
    found = (_snapshot(nothing), ordered) if version == nothing.version else None
    past = _Past([], words, access.embedder.id)
    versions = [nothing.version]
    for number, fact in enumerate(ordered, start=1):
        past.step(fact)
        versions.append(past.standing.version)
        if version == versions[-1]:
            # The last time it stood: what was purged from an earlier one was said again.
            found = _snapshot(past.standing), ordered[number:]
    if found is not None:
        return found
    for kept, left_out in _before_arrival(version, versions, ordered):
        standing = build_state(kept, words, access.embedder.id, include_purged=True)
        if standing.version == version:
            return _snapshot(standing), left_out
    raise InvalidInputError(
        f"version: the memory of {access.criterion.name!r} never had the version {version!r}: "
        "`history()` lists those it had. A version that a worker had for a moment, before two or "
        "more facts of other workers arrived, can't be restored."
    )


def _before_arrival(
    version: str, versions: list[str], facts: list[Fact]
) -> Iterator[tuple[list[Fact], list[Fact]]]:
    """Guess which fact, dated earlier than others, a worker had yet to see when it had a version.

    A version is a sum, so what a fact added to it is known; yields the other facts, and the rest.
    """
    try:
        wanted, *sums = (int(one, 16) for one in (version, *versions))
    except (TypeError, ValueError):
        return
    added = {
        (after - before) % VERSION_SPACE: number
        for number, (before, after) in enumerate(pairwise(sums))
    }
    for end in range(len(facts), 0, -1):
        late = added.get((sums[end] - wanted) % VERSION_SPACE, end)
        if late < end:
            yield [*facts[:late], *facts[late + 1 : end]], [facts[late], *facts[end:]]


def _snapshot(standing: MemoryState) -> Snapshot:
    episodes = filter(None, map(standing.episode, standing.rows))
    wordings = sorted(standing.guidelines.values(), key=lambda one: (one.position, one.id))
    purged = [row.id for row in standing.rows.values() if row.is_purged]
    return Snapshot(
        version=standing.version,
        episodes=sorted(episodes, key=lambda one: (one.created_at, one.id)),
        guidelines=[standing.guideline(one) for one in wordings if one.text],
        missing=sorted([*purged, *(one.id for one in wordings if not one.text)]),
    )


def _tally(before: Mapping[str, object], after: Mapping[str, object]) -> Tally:
    return Tally(
        added=len(after.keys() - before.keys()),
        removed=len(before.keys() - after.keys()),
        changed=sum(before[key] != after[key] for key in after.keys() & before.keys()),
    )


def _diff(before: list[T], after: list[T]) -> ItemsDiff[T]:
    old, new = ({one.id: one for one in items} for items in (before, after))
    both = [ItemChange(old[key], one) for key, one in new.items() if key in old]
    return ItemsDiff(
        added=[one for key, one in new.items() if key not in old],
        removed=[one for key, one in old.items() if key not in new],
        changed=[change for change in both if change.before != change.after],
    )
