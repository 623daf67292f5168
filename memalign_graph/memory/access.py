"""A memory's way to its store: reading, refreshing the view and committing.

Written once for sync and async (see `io`). Only `batch` calls are used, reads and writes in
batches of their own, so that a store never holds a read transaction it then wants to write in.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from langgraph.store.base import BaseStore, GetOp, PutOp, SearchOp
from pydantic import BaseModel

from memalign_graph.errors import InvalidInputError, MemAlignError
from memalign_graph.identity import check_json
from memalign_graph.io import IO
from memalign_graph.memory.episode_row import EpisodeRow, row_of
from memalign_graph.memory.items import (
    Edit,
    check_name,
    read_changes,
    read_commit,
    read_episode,
    read_guideline,
    read_vector,
)
from memalign_graph.memory.layout import MemoryLayout, Namespace
from memalign_graph.memory.records import (
    Changes,
    Commit,
    Item,
    ItemKey,
    clock,
    commit_id,
    revision_of,
    tally,
)
from memalign_graph.memory.view import MemoryView, Update, view_of
from memalign_graph.models import Embedder
from memalign_graph.types import Criterion, Episode, Guideline, GuidelineStatus

T = TypeVar("T")
M = TypeVar("M", bound=BaseModel)

EVERYTHING = 1_000_000_000
"""A search limit above any memory's size: never pages, since items move between them."""

_TIP = "tip"

_STANDING = "standing guidelines"

_TRIES = 5
"""How often a reading is begun again because someone wrote in between."""

BATCH_ITEMS = 1_000
"""How many items one batch reads or, of vectors, writes: SQLite bounds a statement's variables."""


@dataclass(frozen=True)
class MemoryAccess:
    """One criterion's memory in one store, as operations reach it."""

    store: BaseStore
    criterion: Criterion
    layout: MemoryLayout
    embedder: Embedder

    @property
    def view(self) -> MemoryView:
        """What this process knows of the memory, as last refreshed."""
        return view_of(self.store, self.layout, self.embedder.id)

    async def refresh(self, io: IO) -> MemoryView:
        """Bring the view up to date with the store."""
        view = self.view
        tip = await self._tip(io)
        for tries_left in reversed(range(_TRIES)):
            if view.is_at(tip):
                return view
            generation, since = view.mark()
            now_us = clock.now_us()
            if since is None:
                update = await self._read_whole(io)
            else:
                update = await self._read_changes(io, view, since)
            now = await self._tip(io)
            if now != tip and tries_left:
                tip = now  # someone wrote meanwhile, so that what was read may not fit together
                continue
            update.tip = tip if now == tip else None
            if not view.apply(generation, update, now_us=now_us) and not view.is_at(now):
                return await self.refresh(io)
            break
        return view

    async def _tip(self, io: IO) -> str | None:
        """Read which commit was the last to be written: every batch of writes ends with it."""
        [found] = await io.batch(self.store, [GetOp(self.layout.tip, _TIP)])
        if found is None:
            return None
        if "id" not in found.value:
            raise MemAlignError(f"The item {_TIP!r} of the memory in the store can't be read.")
        return str(found.value["id"])

    async def episodes(self, io: IO, ids: Iterable[str]) -> dict[str, Episode]:
        """Read some episodes."""
        return await self.get(io, self.layout.episodes, ids, read_episode)

    async def all_episodes(self, io: IO) -> list[Episode]:
        """Read all episodes."""
        [items] = await self.search(io, self.layout.episodes)
        return sorted(map(read_episode, items), key=lambda one: (one.created_at, one.id))

    async def all_guidelines(self, io: IO, *statuses: GuidelineStatus) -> list[Guideline]:
        """Read all guidelines."""
        wanted = statuses or ("standing",)
        guidelines = await self.every_guideline(io)
        return [one for one in guidelines if one.status in wanted]

    async def standing_guidelines(
        self, io: IO, version: str | None = None
    ) -> tuple[str, list[Guideline]]:
        """Return the guidelines that stand, and of which version: the one given, if still known.

        They are read again only after a change of memory.
        """
        view = self.view
        known: tuple[str, list[Guideline]] = view.derived.get(_STANDING, ("", []))
        if known[0] == (version or (await self.refresh(io)).version):
            return known
        version = (await self.refresh(io)).version
        read = (version, await self.all_guidelines(io))
        if (await self.refresh(io)).version == version:  # else someone wrote meanwhile
            view.derived[_STANDING] = read
        return read

    async def every_guideline(self, io: IO) -> list[Guideline]:
        """Read all guidelines, wherever they stand."""
        [items] = await self.search(io, self.layout.guidelines)
        return sorted(map(read_guideline, items), key=lambda one: (one.position, one.id))

    async def commit(
        self,
        io: IO,
        view: MemoryView,
        edits: Iterable[Edit],
        *,
        reason: str,
        author: str | None,
        purges: bool = False,
        again: bool = False,
    ) -> Commit | None:
        """Write changes and the commit that records them, all or nothing."""
        real = [edit for edit in edits if again or edit.before != edit.after]
        if not real:
            return None
        changes = [edit.to_change() for edit in real]
        author = check_name(author, "author")
        at_us = max(clock.now_us(), view.newest_us + 1)
        commit = Commit(
            id=commit_id(at_us),
            at_us=at_us,
            parents=view.heads,
            author=author,
            reason=reason,
            episodes=tally(changes, "episodes"),
            guidelines=tally(changes, "guidelines"),
            version=view.version_after(changes),
        )
        items: list[tuple[Namespace, str, Item | None]] = [
            (
                getattr(self.layout, edit.kind),
                change.id,
                None if edit.after is None else edit.after.to_json(),
            )
            for edit, change in zip(real, changes, strict=True)
        ]
        kept = [change.purge() for change in changes] if purges else changes
        record = Changes(id=commit.id, changes=kept)
        items.append((self.layout.changes, commit.id, record.model_dump(mode="json")))
        # Last, so that whoever sees the commit sees what it speaks of in any store.
        items.append((self.layout.commits, commit.id, commit.model_dump(mode="json")))
        items.append((self.layout.tip, _TIP, {"id": commit.id}))
        for _, key, item in items:
            try:
                check_json(item, f"the item {key}")
            except ValueError as error:
                raise InvalidInputError(f"{reason}: {error}") from error
        await io.batch(self.store, [PutOp(*item, index=False) for item in items])
        return commit

    async def rivals(
        self, io: IO, commit: Commit, known: frozenset[str]
    ) -> tuple[Changes, list[Changes]]:
        """Find what others did, at the same moment, in commits on the same items as one of ours."""
        _, since = self.view.mark()
        found = await self._commits_since(io, since or 0)
        parents = {one["id"]: one["parents"] for one in found}
        others = [
            key
            for key in parents
            if key != commit.id and key not in known and not _has_seen(key, commit.id, parents)
        ]
        if not others:
            return Changes(id=commit.id, changes=[]), []
        records = await self.changes(io, [commit.id, *sorted(others)])
        ours = records.pop(commit.id)
        return ours, [record for record in records.values() if ours.meets(record)]

    async def commits(self, io: IO) -> list[Commit]:
        """Read all commits."""
        [items] = await self.search(io, self.layout.commits)
        return sorted(map(read_commit, items), key=lambda one: one.id)

    async def changes(self, io: IO, commit_ids: Iterable[str]) -> dict[str, Changes]:
        """Read what some commits changed."""
        return await self.get(io, self.layout.changes, commit_ids, read_changes)

    async def put(self, io: IO, namespace: Namespace, items: Mapping[str, Item | None]) -> None:
        """Write items that are no part of the memory's content."""
        for keys in chunks(list(items), BATCH_ITEMS):
            ops = [PutOp(namespace, key, items[key], index=False) for key in keys]
            await io.batch(self.store, ops)

    async def _commits_since(self, io: IO, since: int) -> list[Item]:
        search = SearchOp(self.layout.commits, filter={"at_us": {"$gte": since}}, limit=EVERYTHING)
        [found] = await io.batch(self.store, [search])
        return [item.value for item in found]

    async def _read_whole(self, io: IO) -> Update:
        layout = self.layout
        commits, episodes, guidelines, vectors = await self.search(
            io, layout.commits, layout.episodes, layout.guidelines, layout.vectors(self.embedder.id)
        )
        return Update(
            commits=[read_commit(item) for item in commits],
            episodes={item["id"]: self._row(item) for item in episodes},
            guidelines={item["id"]: revision_of(item) for item in guidelines},
            vectors={item["key"]: read_vector(item) for item in vectors},
        )

    async def _read_changes(self, io: IO, view: MemoryView, since: int) -> Update:
        found = await self._commits_since(io, since)
        fresh = view.unknown({item["id"] for item in found})
        commits = sorted(
            (read_commit(item) for item in found if item["id"] in fresh),
            key=lambda commit: commit.id,
        )
        update = Update(commits=commits)
        records = await self.changes(io, (commit.id for commit in commits))
        touched = {one.key: None for record in records.values() for one in record.changes}
        await self._read_items(io, update, touched)
        return update

    async def _read_items(self, io: IO, update: Update, keys: Iterable[ItemKey]) -> None:
        episodes = [key for kind, key in keys if kind == "episodes"]
        guidelines = [key for kind, key in keys if kind == "guidelines"]
        if episodes:
            there = await self.get(io, self.layout.episodes, episodes, self._row)
            update.episodes.update({key: there.get(key) for key in episodes})
        if guidelines:
            revisions = await self.get(io, self.layout.guidelines, guidelines, revision_of)
            update.guidelines.update({key: revisions.get(key) for key in guidelines})

    def _row(self, item: Item) -> EpisodeRow:
        try:
            return row_of(item, self.embedder.id)
        except (KeyError, TypeError, ValueError):
            read_episode(item)  # says what is wrong with it
            raise

    async def get(
        self, io: IO, namespace: Namespace, ids: Iterable[str], read: Callable[[Item], T]
    ) -> dict[str, T]:
        """Read some items."""
        found: dict[str, T] = {}
        for keys in chunks(list(dict.fromkeys(ids)), BATCH_ITEMS):
            items = await io.batch(self.store, [GetOp(namespace, key) for key in keys])
            for key, item in zip(keys, items, strict=True):
                if item is not None:
                    found[key] = read(item.value)
        return found

    async def search(self, io: IO, *namespaces: Namespace) -> list[list[Item]]:
        """Read all items of some namespaces, in one batch."""
        results = await io.batch(
            self.store, [SearchOp(namespace, limit=EVERYTHING) for namespace in namespaces]
        )
        # A prefix also finds what lies below it, such as a criterion named like a kind of item.
        return [
            [item.value for item in found if tuple(item.namespace) == namespace]
            for namespace, found in zip(namespaces, results, strict=True)
        ]


def chunks(keys: list[str], size: int) -> Iterable[list[str]]:
    """Cut a list of keys into parts."""
    return (keys[start : start + size] for start in range(0, len(keys), size))


def _has_seen(commit: str, other: str, parents: Mapping[str, list[str]]) -> bool:
    """Tell whether a commit's writer knew another commit."""
    to_see, seen = [commit], set()
    while to_see:
        key = to_see.pop()
        if key == other:
            return True
        if key not in seen:
            seen.add(key)
            to_see += parents.get(key, [])
    return False
