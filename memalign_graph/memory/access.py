"""A memory's way to its store: reading, refreshing the view and committing.

Written once for sync and async (see `effects`). Only `batch` calls are used, reads and writes in
batches of their own, so that a store never holds a read transaction it then wants to write in.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from langgraph.store.base import BaseStore, GetOp, PutOp, SearchOp
from pydantic import BaseModel

from memalign_graph.effects import Batch, Operation
from memalign_graph.errors import InvalidInputError, MemAlignError
from memalign_graph.identity import check_json
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

    def refresh(self) -> Operation[MemoryView]:
        """Bring the view up to date with the store."""
        view = self.view
        tip = yield from self._tip()
        for tries_left in reversed(range(_TRIES)):
            if view.is_at(tip):
                return view
            generation, since = view.mark()
            now_us = clock.now_us()
            if since is None:
                update = yield from self._read_whole()
            else:
                update = yield from self._read_changes(view, since)
            now = yield from self._tip()
            if now != tip and tries_left:
                tip = now  # someone wrote meanwhile, so that what was read may not fit together
                continue
            update.tip = tip if now == tip else None
            if not view.apply(generation, update, now_us=now_us):
                return (yield from self.refresh())
            break
        return view

    def _tip(self) -> Operation[str | None]:
        """Read which commit was the last to be written: every batch of writes ends with it."""
        [found] = yield Batch(self.store, [GetOp(self.layout.tip, _TIP)])
        if found is None:
            return None
        if "id" not in found.value:
            raise MemAlignError(f"The item {_TIP!r} of the memory in the store can't be read.")
        return str(found.value["id"])

    def episodes(self, ids: Iterable[str]) -> Operation[dict[str, Episode]]:
        """Read some episodes."""
        return (yield from self.get(self.layout.episodes, ids, read_episode))

    def all_episodes(self) -> Operation[list[Episode]]:
        """Read all episodes."""
        [items] = yield from self.search(self.layout.episodes)
        return sorted(map(read_episode, items), key=lambda one: (one.created_at, one.id))

    def all_guidelines(self, *statuses: GuidelineStatus) -> Operation[list[Guideline]]:
        """Read all guidelines."""
        wanted = statuses or ("standing",)
        guidelines = yield from self.every_guideline()
        return [one for one in guidelines if one.status in wanted]

    def every_guideline(self) -> Operation[list[Guideline]]:
        """Read all guidelines, wherever they stand."""
        [items] = yield from self.search(self.layout.guidelines)
        return sorted(map(read_guideline, items), key=lambda one: (one.position, one.id))

    def commit(
        self,
        view: MemoryView,
        edits: Iterable[Edit],
        *,
        reason: str,
        author: str | None,
        purges: bool = False,
        again: bool = False,
    ) -> Operation[Commit | None]:
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
        yield Batch(self.store, [PutOp(*item, index=False) for item in items])
        return commit

    def rivals(
        self, commit: Commit, known: frozenset[str]
    ) -> Operation[tuple[Changes, list[Changes]]]:
        """Find what others did, at the same moment, in commits on the same items as one of ours."""
        _, since = self.view.mark()
        found = yield from self._commits_since(since or 0)
        parents = {one["id"]: one["parents"] for one in found}
        others = [
            key
            for key in parents
            if key != commit.id and key not in known and not _has_seen(key, commit.id, parents)
        ]
        if not others:
            return Changes(id=commit.id, changes=[]), []
        records = yield from self.changes([commit.id, *sorted(others)])
        ours = records.pop(commit.id)
        return ours, [record for record in records.values() if ours.meets(record)]

    def commits(self) -> Operation[list[Commit]]:
        """Read all commits."""
        [items] = yield from self.search(self.layout.commits)
        return sorted(map(read_commit, items), key=lambda one: one.id)

    def changes(self, commit_ids: Iterable[str]) -> Operation[dict[str, Changes]]:
        """Read what some commits changed."""
        return (yield from self.get(self.layout.changes, commit_ids, read_changes))

    def put(self, namespace: Namespace, items: Mapping[str, Item | None]) -> Operation[None]:
        """Write items that are no part of the memory's content."""
        for keys in chunks(list(items), BATCH_ITEMS):
            ops = [PutOp(namespace, key, items[key], index=False) for key in keys]
            yield Batch(self.store, ops)

    def _commits_since(self, since: int) -> Operation[list[Item]]:
        search = SearchOp(self.layout.commits, filter={"at_us": {"$gte": since}}, limit=EVERYTHING)
        [found] = yield Batch(self.store, [search])
        return [item.value for item in found]

    def _read_whole(self) -> Operation[Update]:
        layout = self.layout
        commits, episodes, guidelines, vectors = yield from self.search(
            layout.commits, layout.episodes, layout.guidelines, layout.vectors(self.embedder.id)
        )
        return Update(
            commits=[read_commit(item) for item in commits],
            episodes={item["id"]: self._row(item) for item in episodes},
            guidelines={item["id"]: revision_of(item) for item in guidelines},
            vectors={item["key"]: read_vector(item) for item in vectors},
        )

    def _read_changes(self, view: MemoryView, since: int) -> Operation[Update]:
        found = yield from self._commits_since(since)
        fresh = view.unknown({item["id"] for item in found})
        commits = sorted(
            (read_commit(item) for item in found if item["id"] in fresh),
            key=lambda commit: commit.id,
        )
        update = Update(commits=commits)
        records = yield from self.changes(commit.id for commit in commits)
        touched = {one.key: None for record in records.values() for one in record.changes}
        yield from self._read_items(update, touched)
        return update

    def _read_items(self, update: Update, keys: Iterable[ItemKey]) -> Operation[None]:
        episodes = [key for kind, key in keys if kind == "episodes"]
        guidelines = [key for kind, key in keys if kind == "guidelines"]
        if episodes:
            there = yield from self.get(self.layout.episodes, episodes, self._row)
            update.episodes.update({key: there.get(key) for key in episodes})
        if guidelines:
            revisions = yield from self.get(self.layout.guidelines, guidelines, revision_of)
            update.guidelines.update({key: revisions.get(key) for key in guidelines})

    def _row(self, item: Item) -> EpisodeRow:
        try:
            return row_of(item, self.embedder.id)
        except (KeyError, TypeError, ValueError):
            read_episode(item)  # says what is wrong with it
            raise

    def get(
        self, namespace: Namespace, ids: Iterable[str], read: Callable[[Item], T]
    ) -> Operation[dict[str, T]]:
        """Read some items."""
        found: dict[str, T] = {}
        for keys in chunks(list(dict.fromkeys(ids)), BATCH_ITEMS):
            items = yield Batch(self.store, [GetOp(namespace, key) for key in keys])
            for key, item in zip(keys, items, strict=True):
                if item is not None:
                    found[key] = read(item.value)
        return found

    def search(self, *namespaces: Namespace) -> Operation[list[list[Item]]]:
        """Read all items of some namespaces, in one batch."""
        results = yield Batch(
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
