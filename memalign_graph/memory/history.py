"""A memory's past: which versions there were, what each held, and the way back to one.

What a version held is what stands after some of the facts, so that nothing is stored twice.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Generic, TypeVar

from memalign_graph.errors import InvalidInputError
from memalign_graph.io import IO
from memalign_graph.memory.access import MemoryAccess
from memalign_graph.memory.facts import PURGE, Fact, Item, utc
from memalign_graph.memory.operations import check_name
from memalign_graph.memory.standing import Standing, stand, weight_of
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
    view = await access.refresh(io)
    facts, words = view.facts()
    commits: list[Commit] = []
    episodes: dict[str, object] = {}
    guidelines: dict[str, object] = {}
    for fact, standing in past(facts, words, access.embedder.id):
        touched = standing.changed | (episodes.keys() if fact.undone else set())
        rows: dict[str, object] = {
            key: (standing.rows[key].key, key in standing.pending)
            for key in touched & standing.rows.keys()
        }
        before = {key: episodes.pop(key) for key in touched & episodes.keys()}
        episodes |= rows
        standing.changed = set()
        worded: dict[str, object] = {
            key: weight_of(one) for key, one in standing.guidelines.items()
        }
        retired = [
            Retired(guideline_id=gone.id, superseded_by=gone.by, reason=gone.reason)
            for gone in fact.retired
        ]
        commit = Commit(
            id=fact.id,
            at=utc(fact.at_us),
            author=fact.author,
            reason=fact.reason,
            episodes=_tally(before, rows),
            guidelines=_tally(guidelines, worded),
            retired=retired,
            version=standing.version,
        )
        commits.append(commit)
        guidelines = worded
    return commits[::-1]


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
    nothing = Standing(words, access.embedder.id)
    found = (_snapshot(nothing), ordered) if version == nothing.version else None
    for number, (_, standing) in enumerate(past(ordered, words, access.embedder.id), start=1):
        if version == standing.version:
            # The last time it stood: what was purged from an earlier one was said again.
            found = _snapshot(standing), ordered[number:]
    if found is not None:
        return found
    raise InvalidInputError(
        f"version: the memory of {access.criterion.name!r} never had the version {version!r}: "
        "`history()` lists those it had."
    )


def past(
    facts: Iterable[Fact], words: Mapping[str, Item], embedder: str
) -> Iterator[tuple[Fact, Standing]]:
    """Go through the past, fact by fact, as if nothing had been purged since."""
    known: list[Fact] = []
    standing = Standing(words, embedder, with_purged=True)
    for fact in sorted(facts, key=lambda fact: fact.id):
        known.append(fact)
        if fact.undone:
            standing = stand(known, words, embedder, with_purged=True)
        else:
            standing.apply(fact)
        yield fact, standing


def _snapshot(standing: Standing) -> Snapshot:
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
