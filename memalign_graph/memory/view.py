"""What a process knows of a memory: its facts, what stands by them, and the vectors of that."""

import asyncio
import os
import threading
from collections.abc import Iterable, Iterator, Mapping, MutableMapping, Sequence
from collections.abc import Set as AbstractSet
from concurrent.futures import Future
from datetime import UTC, datetime
from heapq import merge
from itertools import count
from typing import Any
from weakref import WeakKeyDictionary, WeakValueDictionary

import orjson
from langgraph.store.base import BaseStore

from memalign_graph.errors import InvalidInputError
from memalign_graph.memory import snapshot
from memalign_graph.memory.facts import (
    PURGE,
    Fact,
    Item,
    date_of,
    item_of,
    purged_word,
    read_fact,
    word_item,
)
from memalign_graph.memory.index.pgvector import RemoteIndex, VectorIndexKind
from memalign_graph.memory.index.vectors import Vector, VectorIndex
from memalign_graph.memory.layout import MemoryLayout
from memalign_graph.memory.standing import (
    EpisodeRow,
    Standing,
    pack_row,
    stand,
    unpack_row,
    vector_key_of,
)
from memalign_graph.memory.words import newer_word, takes_back
from memalign_graph.types import Episode, Guideline

OVERLAP_US = 120_000_000
"""How far a reader looks back behind the newest fact it knows, in microseconds.

A fact is dated after all that its writer had seen, whatever its clock says. What is left are
writers who did not see each other: a minute for a clock that is behind, and one of waiting for a
lock.
"""

CACHE_BYTES = "MEMALIGN_CACHE_BYTES"
"""The environment variable that bounds what a process keeps of memories."""

_CACHE_BYTES = 2 * 1024**3

_PATIENCE_S = 5.0
"""How long a reading is waited for on another event loop, which may be waiting for us."""

_PER_CHARACTER = 4
"""What an item takes as Python objects, in bytes by characters."""

_SAMPLED = 64

_MANY_GUIDELINES = 20


class Reading:
    """A memory's first reading, by one for all who need it."""

    def __init__(self) -> None:
        self.done: Future[None] = Future()
        self._thread = threading.get_ident()
        self._on_loop = _has_loop()

    def wait(self) -> bool:
        """Wait for its end; tells whether it came, and was not waiting for this thread's loop."""
        if self._thread == threading.get_ident() or _has_loop():
            return False
        try:
            self.done.result(_PATIENCE_S if self._on_loop else None)
        except TimeoutError:
            return False
        return True

    async def awaited(self) -> bool:
        """Wait as a task does."""
        is_near = self._thread == threading.get_ident() or not self._on_loop
        end = asyncio.shield(asyncio.wrap_future(self.done))
        try:
            await asyncio.wait_for(end, None if is_near else _PATIENCE_S)
        except TimeoutError:
            return False
        return True


def _has_loop() -> bool:
    """Tell whether this thread runs an event loop, which a wait would block."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


class MemoryView:
    """One memory as this process last saw it; facts may come in any order, and more than once."""

    def __init__(self, embedder: str, kind: VectorIndexKind = "memory") -> None:
        self.index = VectorIndex(embedder) if kind == "memory" else RemoteIndex(embedder)
        """Vectors by vector key."""
        self.swept_at = datetime.min.replace(tzinfo=UTC)
        self.sweep_offset = 0
        """When judgments past their time were last removed by this process."""
        self.derived: dict[Any, Any] = {}
        """What others derived from the view and keep in step with it, by keys of their own."""
        self.used = 0
        """When it was last asked for, counted by this process."""
        self.was_read = False
        """Whether it is the memory's, and not yet to be read."""
        self.head: str | None = None
        """The last fact written when all were read; empty since a write, which may be cut off."""
        self._embedder = embedder
        self._lock = threading.Lock()
        self._reading: Reading | None = None
        self._item_bytes = 0
        self._facts: dict[str, Fact] | snapshot.Mapped[Fact] = {}
        self._words: dict[str, Item] | snapshot.Mapped[Item] = {}
        self._purged: set[str] = set()
        self._purges: list[Fact] = []
        self.latest = ""
        """The newest fact known."""
        self._standing = Standing(self._words, embedder)
        self._standing_guidelines: list[Guideline] = []
        self._version = self._standing.version
        self._vector_keys: MutableMapping[str, str] = {}
        self._episodes_at: dict[str, AbstractSet[str]] | snapshot.Mapped[AbstractSet[str]] = {}
        self._missing: set[str] = set()
        self._order: Any = ()
        """The places of rows in a snapshot that have a value, newest first."""
        self._unsaved = 0

    @property
    def version(self) -> str:
        """The memory's version."""
        return self._version

    @property
    def newest_us(self) -> int:
        """The date of the newest fact known, in microseconds since 1970; 0 if there is none."""
        return date_of(self.latest)

    @property
    def nbytes(self) -> int:
        """About how many bytes it takes."""
        return self._item_bytes + self.index.nbytes

    @property
    def is_empty(self) -> bool:
        """Whether there is no episode."""
        return not self._standing.rows

    @property
    def has_many_guidelines(self) -> bool:
        """Whether there are so many guidelines that they may not all fit into a prompt."""
        return len(self._standing_guidelines) > _MANY_GUIDELINES

    @property
    def guidelines(self) -> list[Guideline]:
        """The guidelines that stand, in the order a judge reads them; not to be changed."""
        return self._standing_guidelines

    def current(self) -> tuple[str, list[Guideline]]:
        """Return the version, and the guidelines that stand in it; not to be changed."""
        with self._lock:
            return self._version, self._standing_guidelines

    def pending(self) -> list[str]:
        """Return the ids of the episodes that await distilling, in a stable order."""
        with self._lock:
            return sorted(self._standing.pending)

    def failed_attempts(self, key: str) -> int:
        """Return how often a model could not distil what the key names."""
        with self._lock:
            return self._standing.attempts[key]

    def answers(self) -> dict[str, dict[str, float]]:
        """Return how likely examples meet guidelines, by `asked_id` and example id."""
        with self._lock:
            return {asked: dict(answers) for asked, answers in self._standing.answers.items()}

    def holds(self, episode_id: str) -> bool:
        """Tell whether there is an episode of this id."""
        return episode_id in self._standing.rows

    def holds_guideline(self, guideline_id: str) -> bool:
        """Tell whether there is a guideline of this id."""
        return guideline_id in self._standing.guidelines

    def all_words(self) -> dict[str, str]:
        """Return what lessons know the words of all episodes by."""
        with self._lock:
            return {key: row.word for key, row in self._standing.rows.items()}

    def sources(self, guideline_id: str) -> dict[str, str]:
        """Return what a guideline that stands rests on."""
        return self._standing.guidelines[guideline_id].sources

    def purges(self) -> set[str]:
        """Return the facts that purged something."""
        with self._lock:
            return {fact.id for fact in self._purges}

    def purges_of(self, episode_ids: AbstractSet[str]) -> set[str]:
        """Return the facts that purged one of some episodes."""
        with self._lock:
            purges = list(self._purges)
        return {fact.id for fact in purges if not episode_ids.isdisjoint(fact.forgotten)}

    def episodes(self, ids: Iterable[str] | None = None) -> dict[str, Episode]:
        """Return some episodes, or all of them, oldest first."""
        with self._lock:
            keys = list(self._standing.rows if ids is None else dict.fromkeys(ids))
            found = [episode for key in keys if (episode := self._standing.episode(key))]
        if ids is None:
            found.sort(key=lambda episode: (episode.created_at, episode.id))
        return {episode.id: episode for episode in found}

    def word_item(self, said: Episode, *, replaces: bool = False) -> Item:
        """Write a word as it will stand beside an earlier one of the same expert."""
        with self._lock:
            row = self._standing.rows.get(said.id)
            if row is None:
                item = word_item(said, said.word, self._purged)
            else:
                before = Episode.model_validate({**row.content})
                after = newer_word(before, said, replaces=replaces)
                # What was learned from the earlier word may rest on this one as well.
                word = after.word if takes_back(before, after) else row.word
                item = word_item(after, word, self._purged)
            return self._words.get(item["key"], item)

    def shared(self) -> list[str]:
        """Return the ids of the episodes whose example has several, in a stable order."""
        with self._lock:
            groups = [ids for ids in self._episodes_at.values() if len(ids) > 1]
        return sorted(key for ids in groups for key in ids)

    def facts(self) -> tuple[list[Fact], Mapping[str, Item]]:
        """Return all facts, and the words that they name."""
        with self._lock:
            return [fact for _, fact in self._facts.items()], dict(self._words.items())

    def begin_reading(self) -> tuple[Reading, bool]:
        """Return the first reading, and whether it is the caller's to carry out and to end."""
        with self._lock:
            if self._reading is not None:
                return self._reading, False
            self._reading = Reading()
            return self._reading, True

    def end_reading(self) -> None:
        """Let those who wait go on; where it failed, one of them tries."""
        with self._lock:
            reading, self._reading = self._reading, None
        if reading is not None:
            reading.done.set_result(None)

    def unknown(self, fact_ids: Iterable[str]) -> list[str]:
        """Tell which facts the view does not know."""
        with self._lock:
            return [key for key in fact_ids if key not in self._facts]

    def unknown_words(self, facts: Iterable[Fact]) -> list[str]:
        """Tell which words of some facts the view does not know."""
        with self._lock:
            keys = dict.fromkeys(key for fact in facts for key in fact.said.values())
            return [key for key in keys if key not in self._words]

    def add(
        self,
        facts: Iterable[Fact],
        words: Mapping[str, Item],
        vectors: Mapping[str, Vector] | None = None,
    ) -> None:
        """Bring facts into the view, with the words that they name."""
        with self._lock:
            for key, item in words.items():
                if key not in self._words or "purged" in item:
                    self._words[key] = item
            self._item_bytes += _bytes_of(list(words.values()))
            unknown = {fact.id: fact for fact in facts if fact.id not in self._facts}
            self._unsaved += len(unknown) + len(words)
            fresh = [unknown[key] for key in sorted(unknown)]
            self._item_bytes += _bytes_of(fresh)
            if not fresh:
                return
            is_next = fresh[0].id > self.latest and not any(
                fact.undone or fact.purged or fact.scrubbed or fact.reason == PURGE
                for fact in fresh
            )
            if not is_next:
                self._unmap(is_purge=any(fact.reason == PURGE for fact in fresh))
            self._facts.update(unknown)
            self._purges += [fact for fact in fresh if fact.reason == PURGE]
            for fact in sorted(self._purges, key=lambda fact: fact.id):
                if fact.id >= fresh[0].id:
                    self._purge(fact)
            self.latest = max(self.latest, fresh[-1].id)
            if is_next:
                for fact in fresh:
                    self._standing.apply(fact)
                self._standing.settle()
                changed, self._standing.changed = self._standing.changed, set()
            else:
                before = self._standing
                self._standing = stand(self._facts.values(), self._words, self._embedder)
                self._standing.changed = set()
                changed = {*before.rows, *self._standing.rows}
            self._follow(changed)
            self._add_vectors(self.index.fitting(vectors or {}))
            self._gather()

    def _gather(self) -> None:
        wordings = sorted(
            self._standing.guidelines.values(), key=lambda one: (one.position, one.id)
        )
        self._standing_guidelines = list(map(self._standing.guideline, wordings))
        self._version = self._standing.version

    def _unmap(self, *, is_purge: bool) -> None:
        """Let go of a snapshot's file: all of it is needed, and what was purged lies in it."""
        self._facts, self._words = dict(self._facts.items()), dict(self._words.items())
        self._item_bytes = _bytes_of(list(self._facts.values()))
        self._item_bytes += _bytes_of(list(self._words.values()))
        self._vector_keys = dict(self._vector_keys.items())
        self._episodes_at = dict(self._episodes_at.items())
        self._order = ()
        if is_purge:
            self.index.unmap()
            self._unsaved += len(self._words)

    @property
    def is_due(self) -> bool:
        """Whether enough has changed to write a snapshot."""
        return snapshot.is_due(len(self._standing.rows), len(self._missing), self._unsaved)

    def image(self) -> snapshot.Image:
        """Return what is known, to be written as a snapshot while the view goes on."""
        with self._lock:
            self._unsaved = 0
            facts, words = self._facts.copy(), self._words.copy()
            rows, at = self._standing.rows.copy(), self._episodes_at.copy()
            order, purges = self._order, {fact.id for fact in self._purges}
            state = {
                "standing": self._standing.to_json(),
                "head": self.head,
                "newest": self.latest,
                "purges": sorted(purges),
                "purged": sorted(self._purged),
                "missing": sorted(self._missing),
            }
            vectors = [key for key in at if key not in self._missing]
        return snapshot.Image(
            state=state,
            tables={
                "facts": (facts, lambda fact: orjson.dumps(item_of(fact))),
                "words": (words, orjson.dumps),
                "rows": (rows, pack_row),
                "at": (at, lambda ids: orjson.dumps(sorted(ids))),
            },
            order=lambda: [row.id for row in _newest_of(rows, order)],
            vectors=vectors,
            vector=self.index.get,
            is_current=lambda: self.purges() == purges,
        )

    def restore(self, saved: snapshot.Saved) -> bool:
        """Begin with a snapshot; tells whether nothing was known before."""
        told, tables, embedder = saved.state, saved.tables, self._embedder
        facts = snapshot.Mapped(tables["facts"], lambda _, raw: read_fact(orjson.loads(raw)))
        words = snapshot.Mapped[Item](tables["words"], lambda _, raw: orjson.loads(raw))
        rows = snapshot.Mapped(tables["rows"], lambda key, raw: unpack_row(key, raw, words))
        at = snapshot.Mapped[AbstractSet[str]](
            tables["at"], lambda _, raw: frozenset(orjson.loads(raw))
        )
        keys = snapshot.Mapped(tables["rows"], lambda _, raw: vector_key_of(raw))
        known = told["standing"]
        standing = Standing.restored(known, embedder, words=words, rows=rows, facts=facts)
        purges = [facts[key] for key in told["purges"]]
        with self._lock:
            if self._facts:
                return False
            self._facts, self._words, self._standing = facts, words, standing
            self._episodes_at, self._vector_keys = at, keys
            self.latest = told["newest"]
            self._purges, self._purged = purges, set(told["purged"])
            self._missing, self._order = set(told["missing"]), saved.order
            self.index = VectorIndex(self._embedder, saved.vectors)
            self._gather()
        return True

    def add_vectors(self, vectors: Mapping[str, Vector]) -> None:
        """Add vectors to the index; those whose episodes are gone meanwhile are left aside."""
        with self._lock:
            self._add_vectors(vectors)

    def note_vectors(self, keys: AbstractSet[str]) -> None:
        """Note which vectors lie in the table that the index stands for."""
        with self._lock:
            self._missing -= keys

    def miss_vectors(self) -> None:
        """Have every vector looked for again."""
        with self._lock:
            self._missing.update(self._episodes_at)

    def count_vectors(self) -> int:
        """Count the vectors that episodes have, or lack."""
        return len(self._episodes_at)

    def missing_texts(self) -> dict[str, str]:
        """Return which episodes have no vector in the index yet, by vector key."""
        with self._lock:
            return {key: min(self._episodes_at[key]) for key in sorted(self._missing)}

    def episodes_at(self, key: str) -> list[str]:
        """Return the ids of the episodes whose example has this vector."""
        with self._lock:
            return sorted(self._episodes_at.get(key, ()))

    def rows_at(self, key: str) -> list[EpisodeRow]:
        """Return the rows of the episodes whose example has this vector."""
        with self._lock:
            return [self._standing.rows[one] for one in sorted(self._episodes_at.get(key, ()))]

    def rows(self) -> list[EpisodeRow]:
        """Return the rows of all episodes, in the order of their ids."""
        with self._lock:
            return [row for _, row in sorted(self._standing.rows.items())]

    def newest(self) -> Iterator[EpisodeRow]:
        """Go through the rows of the episodes that have a value, newest first."""
        with self._lock:
            return _newest_of(self._standing.rows.copy(), self._order)

    def _purge(self, fact: Fact) -> None:
        """Keep nothing of what a purge erased, as its own process leaves the store."""
        self.derived.clear()
        purged = self._words.keys() & fact.purged
        erased = _authors(self._words[key] for key in purged)
        for key in purged:
            self._words[key] = purged_word(self._words[key])
        self._purged.update(fact.purged)
        erased -= _authors(self._words.values())
        for key, known in self._facts.items():
            if key > fact.id:
                continue
            left = known.scrub(fact.scrubbed[key]) if key in fact.scrubbed else known
            left = left.without_names(erased, keeps_signatures=fact.keeps_signatures)
            self._facts[key] = left.without_answers(fact.unanswered)

    def _add_vectors(self, vectors: Mapping[str, Vector]) -> None:
        wanted = {key: vector for key, vector in vectors.items() if key in self._episodes_at}
        self.index.add(wanted)
        self._missing -= wanted.keys()

    def _follow(self, changed: Iterable[str]) -> None:
        """Keep vectors in step with episodes."""
        for episode_id in changed:
            row = self._standing.rows.get(episode_id)
            old = self._vector_keys.pop(episode_id, None)
            new = None if row is None else row.vector_key
            if new is not None:
                self._vector_keys[episode_id] = new
                self._episodes_at[new] = self._episodes_at.get(new, _NOBODY) | {episode_id}
                if new not in self.index:
                    self._missing.add(new)
            if old is not None and old != new:
                left = self._episodes_at.pop(old) - {episode_id}
                if left:
                    self._episodes_at[old] = left
                else:
                    self._missing.discard(old)
                    self.index.remove({old})


_NOBODY: frozenset[str] = frozenset()


def _newest_of(rows: Mapping[str, EpisodeRow], order: Any) -> Iterator[EpisodeRow]:
    """Go through rows that have a value, newest first; by the order of those in a snapshot."""
    saved: Iterator[EpisodeRow] = iter(())
    if isinstance(rows, snapshot.Mapped):
        mapped, rows = rows, rows.set
        names = ((at, mapped.table.keys[at].decode()) for at in order)
        saved = (
            mapped.read(key, mapped.table.raw(at)) for at, key in names if key not in mapped.hidden
        )
    own = sorted((row for row in rows.values() if row.value is not None), key=_age, reverse=True)
    return merge(saved, own, key=_age, reverse=True)


def _age(row: EpisodeRow) -> tuple[datetime, str]:
    return row.given_at, row.vector_key


def _authors(words: Iterable[Item]) -> set[str]:
    return {author for item in words if (author := item.get("episode", {}).get("author"))}


def _bytes_of(items: Sequence[Any]) -> int:
    """Estimate by some of them how many bytes items take."""
    some = items[:: len(items) // _SAMPLED + 1]
    characters = sum(len(str(item)) for item in some)
    return characters * len(items) // len(some) * _PER_CHARACTER if some else 0


class _Views:
    """This process's views: those used last, in bounded memory, and all that somebody holds."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.ticks = count(1)
        self.held: WeakKeyDictionary[BaseStore, WeakValueDictionary[Any, MemoryView]]
        self.held = WeakKeyDictionary()
        self.cached: WeakKeyDictionary[BaseStore, dict[Any, MemoryView]] = WeakKeyDictionary()


_views = _Views()


def view_of(
    store: BaseStore,
    layout: MemoryLayout,
    embedder: str,
    kind: VectorIndexKind = "memory",
    made: MemoryView | None = None,
) -> MemoryView:
    """Return this process's view of a memory; views live no longer than their store object."""
    key = layout, embedder, kind
    with _views.lock:
        held = _views.held.setdefault(store, WeakValueDictionary())
        view = held.get(key)
        if view is None:
            view = held[key] = made or MemoryView(embedder, kind)
        view.used = next(_views.ticks)
        _views.cached.setdefault(store, {})[key] = view
        return view


def forget_view(store: BaseStore, view: MemoryView) -> None:
    """Let whoever asks next begin anew; those who hold a view go on with it."""
    with _views.lock:
        for views in (_views.held.get(store, {}), _views.cached.get(store, {})):
            for key in [key for key, known in views.items() if known is view]:
                del views[key]


def trim_views() -> None:
    """Let go of the views used longest ago where all are too large; one is kept of any size."""
    bound = _cache_bytes()
    with _views.lock:
        cached = [(views, key) for views in _views.cached.values() for key in views]
        total = sum(views[key].nbytes for views, key in cached)
        if total <= bound:
            return
        cached.sort(key=lambda one: one[0][one[1]].used)
        for views, key in cached[:-1]:
            total -= views.pop(key).nbytes
            if total <= bound:
                return


def _cache_bytes() -> int:
    text = os.environ.get(CACHE_BYTES, "").strip()
    if not text:
        return _CACHE_BYTES
    if not text.isdecimal():
        raise InvalidInputError(
            f"{CACHE_BYTES}: {text!r} is no number of bytes: give one such as {_CACHE_BYTES}."
        )
    return int(text)
