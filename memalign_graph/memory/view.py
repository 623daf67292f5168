"""What a process knows of a memory: derived from the store, kept in step by its commits."""

import threading
import weakref
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from langgraph.store.base import BaseStore

from memalign_graph.memory.episode_row import EpisodeRow
from memalign_graph.memory.index.vectors import Vector, VectorIndex
from memalign_graph.memory.layout import MemoryLayout
from memalign_graph.memory.records import Change, Commit, version_of, weight

OVERLAP_US = 60_000_000
"""How far a reader looks back behind the newest commit it knows, in microseconds.

A commit is dated after all that its writer had seen (see `newest_us`), whatever its clock says.
What is left are writers who did not see each other, one of them waiting for a lock or with a clock
that is behind: one minute covers them with room to spare.
"""


_MANY_GUIDELINES = 20


@dataclass
class Update:
    """What a reader found in the store, to be brought into the view."""

    commits: list[Commit]
    """Commits that the view did not know."""

    episodes: dict[str, EpisodeRow | None] = field(default_factory=dict)
    """Episodes that may have changed; None where one is gone."""

    guidelines: dict[str, str | None] = field(default_factory=dict)
    """The revisions of guidelines that may have changed; None where one is gone."""

    tip: str | None = None
    """The commit that was the last to be written when the reading began."""

    vectors: dict[str, Vector] = field(default_factory=dict)
    """Stored vectors by key; those of no live episode are left aside."""


@dataclass(eq=False)
class Touched:
    """Vector keys whose episodes changed."""

    keys: set[str]


class MemoryView:
    """One memory as this process last saw it.

    A view is brought up to date by reading outside its lock and applying inside it. An update is
    applied only if no other was since its reading began, so that a slow reader never puts an old
    state over a new one.
    """

    def __init__(self, embedder: str) -> None:
        self.index = VectorIndex(embedder)
        """Vectors by vector key."""
        self.swept_at = datetime.min.replace(tzinfo=UTC)
        """When judgments past their time were last removed by this process."""
        self.reviews_swept_at = self.swept_at
        """The same of the log of reviews."""
        self.derived: dict[Any, Any] = {}
        """What others derived from the view and keep in step with it, by keys of their own."""
        self._lock = threading.Lock()
        self._generation = 0
        self._newest_us = 0
        self._since_us: int | None = None
        self._recent: dict[str, int] = {}
        self._heads: set[str] = set()
        self._episodes: dict[str, EpisodeRow] = {}
        self._guidelines: dict[str, str] = {}
        self._episodes_at: dict[str, set[str]] = {}
        self._missing: set[str] = set()
        self._watchers: weakref.WeakSet[Touched] = weakref.WeakSet()
        self._tip: str | None = None
        self._total = 0

    @property
    def version(self) -> str:
        """The memory's version."""
        return version_of(self._total)

    @property
    def heads(self) -> list[str]:
        """The newest commits known: those that no other known commit has seen."""
        return sorted(self._heads)

    @property
    def newest_us(self) -> int:
        """The date of the newest commit known, in microseconds since 1970; 0 if there is none."""
        return self._newest_us

    @property
    def is_empty(self) -> bool:
        """Whether there is no episode."""
        return not self._episodes

    @property
    def has_many_guidelines(self) -> bool:
        """Whether there are so many guidelines that they may not all fit into a prompt."""
        return len(self._guidelines) > _MANY_GUIDELINES

    def pending(self) -> list[str]:
        """Return the ids of the episodes that await distilling, in a stable order."""
        with self._lock:
            return sorted(key for key, row in self._episodes.items() if row.status == "pending")

    def holds(self, episode_id: str) -> bool:
        """Tell whether there is an episode of this id."""
        return episode_id in self._episodes

    def holds_guideline(self, guideline_id: str) -> bool:
        """Tell whether there is a guideline of this id, wherever it stands."""
        return guideline_id in self._guidelines

    def all_episodes(self) -> list[str]:
        """Return the ids of all episodes, in a stable order."""
        with self._lock:
            return sorted(self._episodes)

    def shared(self) -> list[str]:
        """Return the ids of the episodes whose example has several, in a stable order."""
        with self._lock:
            groups = [ids for ids in self._episodes_at.values() if len(ids) > 1]
        return sorted(key for ids in groups for key in ids)

    def is_at(self, tip: str | None) -> bool:
        """Tell whether nothing was committed since the view was last brought up to date."""
        with self._lock:
            # Without a tip nothing was ever committed: what was read once need not be again.
            was_read = self._generation > 0 and not self._newest_us
            return tip == self._tip and (tip is not None or was_read)

    def mark(self) -> tuple[int, int | None]:
        """Begin a reading."""
        with self._lock:
            return self._generation, self._since_us

    def known_commits(self) -> frozenset[str]:
        """Return the ids of the commits of the last while that the view has applied."""
        with self._lock:
            return frozenset(self._recent)

    def unknown(self, commit_ids: set[str]) -> set[str]:
        """Tell which commits the view has not applied."""
        with self._lock:
            return commit_ids - self._recent.keys()

    def apply(self, generation: int, update: Update, *, now_us: int) -> bool:
        """Bring what was read into the view."""
        with self._lock:
            if generation != self._generation:
                return False
            self._generation += 1
            for key, row in update.episodes.items():
                self._set_episode(key, row)
            self._add(self.index.fitting(update.vectors))
            for key, revision in update.guidelines.items():
                self._set_guideline(key, revision)
            self._note(update.commits, now_us)
            self._tip = update.tip
            return True

    def add_vectors(self, vectors: Mapping[str, Vector]) -> None:
        """Add vectors to the index; those whose episodes are gone meanwhile are left aside."""
        with self._lock:
            self._add(vectors)

    def _add(self, vectors: Mapping[str, Vector]) -> None:
        wanted = {key: one for key, one in vectors.items() if key in self._episodes_at}
        self.index.add(wanted)
        self._missing -= wanted.keys()

    def missing_texts(self) -> dict[str, str]:
        """Return which episodes have no vector in the index yet."""
        with self._lock:
            return {key: min(self._episodes_at[key]) for key in sorted(self._missing)}

    def episodes_at(self, key: str) -> list[str]:
        """Return the ids of the episodes whose example has this vector."""
        with self._lock:
            return sorted(self._episodes_at.get(key, ()))

    def rows_at(self, key: str) -> list[EpisodeRow]:
        """Return what is kept of the episodes whose example has this vector."""
        with self._lock:
            return [self._episodes[one] for one in sorted(self._episodes_at.get(key, ()))]

    def rows(self) -> list[EpisodeRow]:
        """Return what is kept of all episodes, in the order of their ids."""
        with self._lock:
            return [self._episodes[one] for one in sorted(self._episodes)]

    def watch(self) -> "Touched":
        """Begin to note which vector keys have episodes that change; all of them at first."""
        with self._lock:
            touched = Touched(set(self._episodes_at))
            self._watchers.add(touched)
            return touched

    def take(self, touched: "Touched") -> set[str]:
        """Return what was noted since this was last asked, and begin anew."""
        with self._lock:
            keys, touched.keys = touched.keys, set()
            return keys

    def version_after(self, changes: Iterable[Change]) -> str:
        """Return the version that the memory has once some changes are made."""
        with self._lock:
            total = self._total
            for change in changes:
                known = self._revision(change)
                total -= weight(change.id, known) if known else 0
                total += weight(change.id, change.revision) if change.revision else 0
            return version_of(total)

    def _revision(self, change: Change) -> str | None:
        if change.kind == "guidelines":
            return self._guidelines.get(change.id)
        row = self._episodes.get(change.id)
        return row.revision if row else None

    def _set_episode(self, key: str, row: EpisodeRow | None) -> None:
        old = self._episodes.pop(key, None)
        for watcher in self._watchers:
            watcher.keys |= {one.vector_key for one in (old, row) if one is not None}
        if row is not None:
            self._episodes[key] = row
            self._episodes_at.setdefault(row.vector_key, set()).add(key)
            if row.vector_key not in self.index:
                self._missing.add(row.vector_key)
            self._total += weight(key, row.revision)
        if old is not None:
            self._total -= weight(key, old.revision)
            if row is None or old.vector_key != row.vector_key:
                self._leave(old.vector_key, key)

    def _leave(self, vector: str, key: str) -> None:
        ids = self._episodes_at[vector]
        ids.discard(key)
        if not ids:
            del self._episodes_at[vector]
            self._missing.discard(vector)
            self.index.remove({vector})

    def _set_guideline(self, key: str, revision: str | None) -> None:
        old = self._guidelines.pop(key, None)
        if old is not None:
            self._total -= weight(key, old)
        if revision is not None:
            self._guidelines[key] = revision
            self._total += weight(key, revision)

    def _note(self, commits: list[Commit], now_us: int) -> None:
        seen = {parent for commit in commits for parent in commit.parents}
        self._heads = (self._heads | {commit.id for commit in commits}) - seen
        self._newest_us = max([self._newest_us, *(commit.at_us for commit in commits)])
        # A writer whose clock runs ahead must not hide what others commit beside it.
        self._since_us = min(self._newest_us or now_us, now_us) - OVERLAP_US
        self._recent.update((commit.id, commit.at_us) for commit in commits)
        since = self._since_us
        self._recent = {key: at_us for key, at_us in self._recent.items() if at_us >= since}


_views: weakref.WeakKeyDictionary[BaseStore, dict[tuple[MemoryLayout, str], MemoryView]] = (
    weakref.WeakKeyDictionary()
)
_views_lock = threading.Lock()


def view_of(store: BaseStore, layout: MemoryLayout, embedder: str) -> MemoryView:
    """Return this process's view of a memory; views live as long as their store object."""
    with _views_lock:
        views = _views.setdefault(store, {})
        return views.setdefault((layout, embedder), MemoryView(embedder))
