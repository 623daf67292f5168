"""One memory as a process knows it, and the process's cache of memories.

The cache keeps the memories used last, up to `MEMALIGN_CACHE_BYTES`.
"""

import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from datetime import datetime
from itertools import count
from types import MappingProxyType
from typing import Any, TypeVar
from weakref import WeakKeyDictionary, WeakValueDictionary

from langgraph.store.base import BaseStore

from memalign_graph.errors import EmbeddingError, InvalidInputError
from memalign_graph.identity import digest
from memalign_graph.memory.facts import LONG_AGO, PURGE, Fact, MemoryLayout
from memalign_graph.memory.index import Vector, VectorIndex
from memalign_graph.memory.memory_state import EpisodeRow, MemoryState, build_state, merge_feedback
from memalign_graph.memory.traces import texts_in, without_traces
from memalign_graph.types import Episode, Guideline

T = TypeVar("T")

CLOCK_SKEW_US = 120_000_000
"""How far readers look back before the newest fact they know, in microseconds.

A fact is dated later than all facts that its writer had seen. Two writers that did not see each
other may differ by a minute for a slow clock, and a minute of waiting for a lock.
"""

CACHE_BYTES = "MEMALIGN_CACHE_BYTES"
"""The environment variable that bounds the bytes of cached memories in a process."""

_DEFAULT_BYTES = 2 * 1024**3

_CHECK_EVERY_S = 1.0

_VIEW_BYTES = 12_000  # of a view without items

_BYTES_PER_CHARACTER = 4  # of an item as Python objects

_SIZE_SAMPLE = 64

_NOT_IN_KEY = {"status", "created_at", "updated_at"}
"""The fields of an episode that its record's key does not cover."""


class MemoryView:
    """One memory as last read; facts may be added in any order, and more than once."""

    def __init__(self, embedder: str) -> None:
        self.index = VectorIndex(embedder)
        self.swept_at = LONG_AGO
        """When this process last deleted expired judgments."""
        self.sweep_offset = 0
        """How many kept judgments that deletion has read and left."""
        self.derived_cache: dict[Any, Any] = {}
        self.last_used = 0
        self.is_loaded = False
        self.loading = threading.Lock()
        """Held by the caller that loads the memory, while others wait."""
        self.indexing = threading.Lock()
        """Held by the caller that embeds examples without vectors, while others wait."""
        self.refused: dict[str, EmbeddingError] = {}
        """Why the embeddings refused texts, by vector key; those do not count as missing."""
        self.head: str | None = None
        """The head when the facts were read; empty after a write, which may have been cut off."""
        self.read_at_s = float("-inf")
        """When the head was last read, by the process's monotonic clock."""
        self.latest_fact_id = ""
        self._embedder = embedder
        self._lock = threading.Lock()
        self._item_bytes = 0
        self._facts: dict[str, Fact] = {}
        self._rows: dict[str, EpisodeRow] = {}
        """All feedback by the keys of its records."""
        self._purged: set[str] = set()
        self._purges: list[Fact] = []
        self._state = MemoryState(self._rows)
        self.current = self._state.active_guidelines()
        self._missing: set[str] = set()

    @property
    def version(self) -> str:
        return self.current.version

    @property
    def guidelines(self) -> list[Guideline]:
        """The active guidelines, in the order a judge reads them; read-only."""
        return self.current.guidelines

    @property
    def nbytes(self) -> int:
        derived = sum(getattr(part, "nbytes", 0) for part in list(self.derived_cache.values()))
        return int(_VIEW_BYTES + self._item_bytes + self.index.nbytes + derived)

    @property
    def is_empty(self) -> bool:
        return not self._state.rows

    def pending(self) -> set[str]:
        """Return the ids of the pending episodes."""
        with self._lock:
            return set(self._state.pending)

    def failed_attempts(self) -> AbstractSet[str]:
        """Return the ids of failed attempts to distill something; read-only."""
        return self._state.failed_attempts

    def answers(self) -> dict[str, dict[str, float]]:
        """Return the answers to check questions, by `asked_id` and example id."""
        with self._lock:
            return {asked: dict(answers) for asked, answers in self._state.answers.items()}

    def answer_ids(self) -> set[str]:
        with self._lock:
            return set(self._state.answer_ids)

    def holds(self, episode_id: str) -> bool:
        return episode_id in self._state.rows

    def feedback_hashes(self) -> dict[str, str]:
        """Return the feedback hash of each episode."""
        with self._lock:
            return {key: row.feedback_hash for key, row in self._state.rows.items()}

    def purges(self, episode_ids: AbstractSet[str] | None = None) -> set[str]:
        """Return the ids of all purges, or of those that purged one of some episodes."""
        with self._lock:
            return {
                fact.id
                for fact in self._purges
                if episode_ids is None or not episode_ids.isdisjoint(fact.forgotten)
            }

    def forgotten_at(self, episode_id: str) -> datetime:
        """Return when an episode was last forgotten; `LONG_AGO` if never."""
        with self._lock:
            times = (fact.time for fact in self._facts.values() if episode_id in fact.forgotten)
            return max(times, default=LONG_AGO)

    def purged_ids(self) -> set[str]:
        """Return the ids of purged episodes and guidelines, without those that were given again."""
        with self._lock:
            purged = set[str]().union(*(fact.erased_ids for fact in self._purges))
            return purged - self._state.rows.keys() - self._state.guidelines.keys()

    def episodes(self, ids: Iterable[str] | None = None) -> dict[str, Episode]:
        """Return the active ones of some episodes, or all episodes, oldest first."""
        with self._lock:
            keys = list(self._state.rows if ids is None else dict.fromkeys(ids))
            episodes = [episode for key in keys if (episode := self._state.episode(key))]
        if ids is None:
            episodes.sort(key=lambda episode: (episode.created_at, episode.id))
        return {episode.id: episode for episode in episodes}

    def row_of(
        self, feedback: Episode, erased: AbstractSet[str] = frozenset(), *, replaces: bool = False
    ) -> EpisodeRow:
        """Return the row of feedback, merged with the same expert's, without what was erased."""
        with self._lock:
            row, feedback_hash = self._state.rows.get(feedback.id), feedback.word
            if row is not None:
                before = Episode.model_validate({**row.content})
                feedback = merge_feedback(before, feedback, replaces=replaces)
                # With the same hash, guidelines of the earlier feedback rest on this one, too.
                is_same = before.rationale == feedback.rationale
                is_same &= before.value in (None, feedback.value)
                feedback_hash = row.feedback_hash if is_same else feedback.word
            episode = feedback.to_json()
            episode = without_traces(episode, erased) or episode
            content = digest({name: episode[name] for name in episode.keys() - _NOT_IN_KEY})
            key = content
            while key in self._purged:
                key = digest([key])
            if key in self._rows:
                return self._rows[key]
        record = {"key": key, "content": content, "word": feedback_hash, "episode": episode}
        return EpisodeRow.of(record, self._embedder)

    def fact(self, fact_id: str) -> Fact:
        return self._facts[fact_id]

    def fact_ids(self) -> set[str]:
        with self._lock:
            return set(self._facts)

    def facts(self) -> tuple[list[Fact], Mapping[str, EpisodeRow]]:
        """Return all facts, oldest first, and all feedback by the keys of its records."""
        with self._lock:
            return sorted(self._facts.values(), key=lambda fact: fact.id), dict(self._rows)

    def unknown_records(self, facts: Iterable[Fact]) -> list[str]:
        """Return the keys of feedback records that some facts name and the view lacks."""
        with self._lock:
            keys = dict.fromkeys(key for fact in facts for key in fact.said.values())
            return [key for key in keys if key not in self._rows]

    def add(
        self,
        facts: Iterable[Fact],
        rows: Mapping[str, EpisodeRow],
        vectors: Mapping[str, Vector] = MappingProxyType({}),
    ) -> None:
        """Add facts, and the rows of their feedback that the view lacks."""
        with self._lock:
            for key, row in rows.items():
                if key not in self._rows or row.is_purged:
                    self._rows[key] = row
            self._item_bytes += _estimate_bytes([row.content for row in rows.values()])
            unknown = {fact.id: fact for fact in facts if fact.id not in self._facts}
            fresh = [unknown[key] for key in sorted(unknown)]
            self._item_bytes += _estimate_bytes(fresh)
            if not fresh:
                return
            is_next = fresh[0].id > self.latest_fact_id and not any(
                fact.undone or fact.reason == PURGE for fact in fresh
            )
            self._facts.update(unknown)
            self._purges += [fact for fact in fresh if fact.reason == PURGE]
            later = [purge for purge in self._purges if purge.id >= fresh[0].id]
            if later:
                self._purge(sorted(later, key=lambda purge: purge.id))
            self.latest_fact_id = max(self.latest_fact_id, fresh[-1].id)
            if is_next:
                for fact in fresh:
                    self._state.apply(fact)
                self._state.settle()
            else:
                self._state = build_state(self._facts.values(), self._rows)
            self._state.changed.clear()
            self.index.retain(self._state.by_vector.keys())
            self._add_vectors(vectors)
            self.current = self._state.active_guidelines()
            self.derived_cache = {}

    def add_vectors(self, vectors: Mapping[str, Vector]) -> None:
        """Add vectors to the index, except those whose episodes are no longer active."""
        with self._lock:
            self._add_vectors(vectors)
            self.derived_cache = {}

    def add_refused(self, refused: Mapping[str, EmbeddingError]) -> None:
        with self._lock:
            self.refused.update(refused)
            self._missing -= refused.keys()

    def derive(self, key: object, compute: Callable[[], T]) -> T:
        """Compute something from the content, once until it changes."""
        cached = self.derived_cache  # replaced after each change, which may happen meanwhile
        if key not in cached:
            cached.setdefault(key, compute())
        result: T = cached[key]
        return result

    def vectors(self, keys: Iterable[str]) -> dict[str, Vector]:
        return {key: vector for key in keys if (vector := self.index.get(key)) is not None}

    def missing_texts(self) -> dict[str, str]:
        """Return the vectors that the index lacks: an episode id by vector key."""
        with self._lock:
            return {key: min(self._state.by_vector[key]) for key in sorted(self._missing)}

    def has_vectors(self, keys: Iterable[str]) -> bool:
        """Return whether the index lacks none of these vectors; callers ask it often."""
        return self._missing.isdisjoint(keys)

    def rows_for_vector(self, key: str) -> list[EpisodeRow]:
        with self._lock:
            return [self._state.rows[each] for each in sorted(self._state.by_vector.get(key, ()))]

    def rows(self) -> list[EpisodeRow]:
        """Return the rows of all episodes, ordered by id."""
        with self._lock:
            return [row for _, row in sorted(self._state.rows.items())]

    def answered_judgment_ids(self) -> set[str]:
        return {judgment_id for row in self.rows() for judgment_id in row.verdicts}

    def labeled_rows(self) -> list[EpisodeRow]:
        """Return the rows of all labeled episodes, newest first."""
        with self._lock:
            valued = [row for row in self._state.rows.values() if row.value is not None]
        return sorted(valued, key=lambda row: (row.given_at, row.vector_key), reverse=True)

    def _purge(self, purges: Sequence[Fact]) -> None:
        """Remove what purges erased, as the purges themselves do in the store."""
        erased: dict[str, set[str]] = {}
        for purge in purges:
            purged = self._rows.keys() & purge.purged
            authors = _authors(self._rows[key] for key in purged)
            for key in purged:
                self._rows[key] = self._rows[key].redacted()
            self._purged.update(purge.purged)
            erased[purge.id] = authors and authors - _authors(self._rows.values())
        self._redact_judgments(purges)
        names = set[str]().union(*erased.values())
        scrubbed = {key for purge in purges for key in purge.scrubbed}
        for key, fact in self._facts.items():
            # Most facts stay as they are: going through all at each purge would be quadratic.
            if fact.answers or key in scrubbed or not names.isdisjoint(fact.signed_by):
                for purge in purges:
                    if purge.id >= key:
                        self._facts[key] = self._facts[key].after_purge(purge, erased[purge.id])

    def _redact_judgments(self, purges: Sequence[Fact]) -> None:
        """Redact judgments that were stored before what they may repeat was purged."""
        erased_by = {key: purge.id for purge in purges for key in purge.erased_ids}
        newest_first = sorted(self._facts.values(), key=lambda fact: fact.id, reverse=True)
        said_by = {key: fact.id for fact in newest_first for key in fact.said.values()}
        for key, row in self._rows.items():
            # What is given again after a purge may be quoted again.
            said = said_by.get(key, "")
            texts = texts_in(row.content.get("judgment"))
            ids = {text for text in texts if erased_by.get(text, "") > said}
            if ids and (content := without_traces(row.content, ids)):
                record = {**row.record(), "episode": content}
                self._rows[key] = EpisodeRow.of(record, self._embedder)

    def _add_vectors(self, vectors: Mapping[str, Vector]) -> None:
        wanted = {key: vector for key, vector in vectors.items() if key in self._state.by_vector}
        self.index.add(wanted)
        self._missing = self._state.by_vector.keys() - self.index.keys() - self.refused.keys()


def _authors(rows: Iterable[EpisodeRow]) -> set[str]:
    return {author for row in rows if (author := row.content.get("author"))}


def _estimate_bytes(items: Sequence[Any]) -> int:
    sample = items[:: len(items) // _SIZE_SAMPLE + 1]
    characters = sum(len(str(item)) for item in sample)
    return characters * len(items) // len(sample) * _BYTES_PER_CHARACTER if sample else 0


class _Cache:
    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.ticks = count(1)
        self.checked_at_s = float("-inf")
        self.held = WeakKeyDictionary[BaseStore, WeakValueDictionary[Any, MemoryView]]()
        """All views that are in use, also those that were dropped from `cached`."""
        self.cached = WeakKeyDictionary[BaseStore, dict[Any, MemoryView]]()


_cache = _Cache()


def get_view(
    store: BaseStore, layout: MemoryLayout, embedder: str, made: MemoryView | None = None
) -> MemoryView:
    """Return the process's view of a memory; it lives no longer than its store object."""
    key = layout, embedder
    with _cache.lock:
        held = _cache.held.setdefault(store, WeakValueDictionary())
        view = held.get(key)
        if view is None:
            view = held[key] = made or MemoryView(embedder)
        view.last_used = next(_cache.ticks)
        _cache.cached.setdefault(store, {})[key] = view
        return view


def discard_view(store: BaseStore, view: MemoryView) -> None:
    """Drop a view from the cache: the next caller loads the memory again."""
    with _cache.lock:
        for views in (_cache.held.get(store, {}), _cache.cached.get(store, {})):
            for key in [key for key, cached in views.items() if cached is view]:
                del views[key]


def evict_views() -> None:
    """Drop the views used longest ago until the rest fit; the last used one always stays.

    It looks once a second: a process may load thousands of small memories.
    """
    bound, now_s = _max_bytes(), time.monotonic()
    with _cache.lock:
        if now_s - _cache.checked_at_s < _CHECK_EVERY_S:
            return
        _cache.checked_at_s = now_s
        cached = [(views, key) for views in _cache.cached.values() for key in views]
        total = sum(views[key].nbytes for views, key in cached)
        cached.sort(key=lambda entry: entry[0][entry[1]].last_used)
        for views, key in cached[:-1]:
            if total <= bound:
                return
            total -= views.pop(key).nbytes


def _max_bytes() -> int:
    text = os.environ.get(CACHE_BYTES, "").strip()
    if not text:
        return _DEFAULT_BYTES
    if not text.isdecimal():
        raise InvalidInputError(
            f"{CACHE_BYTES}: {text!r} is not a number of bytes. Use one such as {_DEFAULT_BYTES}."
        )
    return int(text)
