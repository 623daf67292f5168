"""A memory's past: which versions there were, what each held, and the way back to one.

A commit says which items it left at which revision. Their content is found where it lies today, or
in what a later commit keeps of it as it was before; so no version is stored twice.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from memalign_graph.errors import InvalidInputError
from memalign_graph.io import IO
from memalign_graph.memory.access import MemoryAccess
from memalign_graph.memory.cascade import cascade
from memalign_graph.memory.changes import COMMIT_ITEMS
from memalign_graph.memory.items import Edit, check_name, read_episode, read_guideline
from memalign_graph.memory.records import (
    Changes,
    Commit,
    Item,
    ItemKey,
    revision_of,
    version_of,
    weight,
)
from memalign_graph.memory.rivals import edits_made, settle_rivals
from memalign_graph.types import Episode, Guideline

T = TypeVar("T", Episode, Guideline)

State = dict[ItemKey, str]
"""What a version held: the revision of each item."""


@dataclass(frozen=True)
class Snapshot:
    """A memory as it was at one version."""

    version: str
    """The version."""

    episodes: list[Episode]
    """Its episodes, oldest first."""

    guidelines: list[Guideline]
    """Its guidelines in their order, wherever they stood."""

    missing: list[str]
    """The ids of items that are not there any more: purged, or lost to another writer."""


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


@dataclass(frozen=True)
class _Past:
    """Everything that commits tell."""

    commits: list[Commit]
    """Oldest first."""

    changes: Mapping[str, Changes]
    """What each changed."""

    def find(self, version: str) -> State | None:
        """Return what a version held, or None if the memory never had it."""
        state: State = {}
        total = 0
        if version == version_of(total):
            return state
        for commit in self.commits:
            total = self._step(commit, state, total)
            if version == version_of(total):
                return state
        # What one writer saw while another, of whom it did not know, wrote beside it.
        for commit in self.commits:
            if commit.version == version:
                return self._as_seen_by(commit)
        return None

    def _step(self, commit: Commit, state: State, total: int) -> int:
        record = self.changes.get(commit.id)
        for change in record.changes if record is not None else ():
            old = state.pop(change.key, None)
            total -= weight(change.id, old) if old else 0
            if change.revision is not None:
                state[change.key] = change.revision
                total += weight(change.id, change.revision)
        return total

    def _as_seen_by(self, commit: Commit) -> State:
        by_id = {one.id: one for one in self.commits}
        seen: set[str] = set()
        to_see = [commit.id]
        while to_see:
            key = to_see.pop()
            if key in by_id and key not in seen:
                seen.add(key)
                to_see += by_id[key].parents
        state: State = {}
        for one in self.commits:
            if one.id in seen:
                self._step(one, state, 0)
        return state

    def contents(self) -> Iterable[tuple[ItemKey, Item]]:
        """Return all content that commits keep."""
        for record in self.changes.values():
            for change in record.changes:
                for item in (change.before, change.after):
                    if item is not None:
                        yield change.key, item


async def history(io: IO, access: MemoryAccess) -> list[Commit]:
    """Read the commits."""
    commits = await access.commits(io)
    return commits[::-1]


async def snapshot(io: IO, access: MemoryAccess, version: str) -> Snapshot:
    """Read a memory as it was."""
    past = await _past(io, access)
    state = past.find(version) if isinstance(version, str) else None
    if state is None:
        raise InvalidInputError(
            f"version: the memory of {access.criterion.name!r} never had the version {version!r}: "
            "`history()` lists those it had."
        )
    episodes = await access.all_episodes(io)
    guidelines = await access.every_guideline(io)
    today: list[tuple[ItemKey, Item]] = [
        *((("episodes", one.id), one.to_json()) for one in episodes),
        *((("guidelines", one.id), one.to_json()) for one in guidelines),
    ]
    contents = {(key, revision_of(item)): item for key, item in [*past.contents(), *today]}
    found = {key: contents.get((key, revision)) for key, revision in state.items()}
    return Snapshot(
        version=version,
        episodes=sorted(
            (read_episode(one) for (kind, _), one in found.items() if one and kind == "episodes"),
            key=lambda one: (one.created_at, one.id),
        ),
        guidelines=sorted(
            (read_guideline(one) for (kind, _), one in found.items() if one and kind != "episodes"),
            key=lambda one: (one.position, one.id),
        ),
        missing=sorted(key for (_, key), one in found.items() if one is None),
    )


async def diff(io: IO, access: MemoryAccess, a: str, b: str | None = None) -> MemoryDiff:
    """Compare a memory at two versions."""
    before = await snapshot(io, access, a)
    if b is None:
        view = await access.refresh(io)
        b = view.version
    after = await snapshot(io, access, b)
    return MemoryDiff(
        episodes=_diff(before.episodes, after.episodes),
        guidelines=_diff(before.guidelines, after.guidelines),
    )


async def rollback(
    io: IO, access: MemoryAccess, version: str, *, author: str | None = None
) -> Snapshot:
    """Make a memory again what it was, in a new commit."""
    author = check_name(author, "author")
    view = await access.refresh(io)
    wanted = await snapshot(io, access, version)
    episodes = {one.id: one for one in await access.all_episodes(io)}
    guidelines = {one.id: one for one in await access.every_guideline(io)}
    then = {one.id: one for one in wanted.guidelines}
    # A rule does not come back without its source.
    follow = cascade(then.values(), set(wanted.missing))
    then |= {one.id: one for one in [*follow.reduced, *follow.restored]}
    for gone in follow.removed:
        del then[gone.id]
    edits = [
        *_edits("episodes", episodes, {one.id: one for one in wanted.episodes}),
        *_edits("guidelines", guidelines, then),
    ]
    real = [edit for edit in edits if edit.before != edit.after]
    for start in range(0, len(real), COMMIT_ITEMS):
        known = view.known_commits()
        part = real[start : start + COMMIT_ITEMS]
        commit = await access.commit(io, view, part, reason="rollback", author=author)
        taken_back = {
            edit.item_id
            for edit in part
            if isinstance(edit.before, Episode)
            and not (isinstance(edit.after, Episode) and edit.before.says_the_same_as(edit.after))
        }
        await settle_rivals(io, access, commit, known, edits_made(part), taken_back=taken_back)
        view = await access.refresh(io)
    return replace(wanted, guidelines=sorted(then.values(), key=lambda one: (one.position, one.id)))


def _diff(before: list[T], after: list[T]) -> ItemsDiff[T]:
    old = {one.id: one for one in before}
    new = {one.id: one for one in after}
    return ItemsDiff(
        added=[one for key, one in new.items() if key not in old],
        removed=[one for key, one in old.items() if key not in new],
        changed=[
            ItemChange(before=old[key], after=one)
            for key, one in new.items()
            if key in old and old[key] != one
        ],
    )


def _edits(kind: Any, now: Mapping[str, Any], then: Mapping[str, Any]) -> list[Edit]:
    keys = dict.fromkeys([*now, *then])
    return [Edit(kind, now.get(key), then.get(key)) for key in keys]


async def _past(io: IO, access: MemoryAccess) -> _Past:
    commits = await access.commits(io)
    changes = await access.changes(io, (one.id for one in commits))
    return _Past(commits=commits, changes=changes)
