"""The cached state of one memory: its facts, what they amount to, and the vectors of that."""

import asyncio
import threading
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from concurrent.futures import Future
from datetime import UTC, datetime
from typing import Any

from memalign_graph.memory.episode_row import EpisodeRow
from memalign_graph.memory.facts import (
    PURGE,
    Fact,
    Item,
    clock,
    feedback_record,
    redacted_record,
    timestamp_us,
)
from memalign_graph.memory.feedback_merge import merge_feedback, withdraws_support
from memalign_graph.memory.index.vectors import Vector, VectorIndex
from memalign_graph.memory.memory_state import MemoryState, build_state
from memalign_graph.types import Episode, Guideline

CLOCK_SKEW_US = 120_000_000
"""How far a reader looks back behind the newest fact it knows, in microseconds.

A fact is dated after all that its writer had seen, whatever its clock says. What is left are
writers who did not see each other: a minute for a clock that is behind, and one of waiting for a
lock.
"""

_LONGEST_WRITE_US = 600_000_000
"""After how long all writers know a fact, in microseconds."""

_LOAD_TIMEOUT_S = 5.0
"""How long a reading is waited for on another event loop, which may be waiting for us."""

_PER_CHARACTER = 4
"""What an item takes as Python objects, in bytes by characters."""

_SIZE_SAMPLE = 64

_MANY_GUIDELINES = 20


class InitialLoad:
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
            self.done.result(_LOAD_TIMEOUT_S if self._on_loop else None)
        except TimeoutError:
            return False
        return True

    async def wait_async(self) -> bool:
        """Wait as a task does."""
        is_near = self._thread == threading.get_ident() or not self._on_loop
        end = asyncio.shield(asyncio.wrap_future(self.done))
        try:
            await asyncio.wait_for(end, None if is_near else _LOAD_TIMEOUT_S)
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

    def __init__(self, embedder: str) -> None:
        self.index = VectorIndex(embedder)
        """Vectors by vector key."""
        self.swept_at = datetime.min.replace(tzinfo=UTC)
        self.sweep_offset = 0
        """When judgments past their time were last removed by this process."""
        self.derived: dict[Any, Any] = {}
        """What others derived from the view and keep in step with it, by keys of their own."""
        self.used = 0
        """When it was last asked for, counted by this process."""
        self.is_loaded = False
        """Whether it is the memory's, and not yet to be read."""
        self.head: str | None = None
        """The last fact written when all were read; empty since a write, which may be cut off."""
        self._embedder = embedder
        self._lock = threading.Lock()
        self._initial_load: InitialLoad | None = None
        self._item_bytes = 0
        self._facts: dict[str, Fact] = {}
        self._words: dict[str, Item] = {}
        self._purged: set[str] = set()
        self._purges: list[Fact] = []
        self.latest = ""
        """The newest fact known."""
        self._arrivals: deque[tuple[int, str]] = deque()
        """When facts arrived, by this process's clock, and which was the newest then."""
        self._standing = MemoryState(self._words, embedder)
        self._standing_guidelines: list[Guideline] = []
        self._version = self._standing.version
        self._vector_keys: dict[str, str] = {}
        self._episodes_at: dict[str, AbstractSet[str]] = {}
        self._missing: set[str] = set()

    @property
    def version(self) -> str:
        """The memory's version."""
        return self._version

    @property
    def newest_us(self) -> int:
        """The date of the newest fact known, in microseconds since 1970; 0 if there is none."""
        return timestamp_us(self.latest)

    def unread_us(self, newest: str) -> int:
        """Return the date from which on there may be facts that the view does not know.

        Where a clock was far ahead once, later facts are dated just after each other: their dates
        do not tell when they were written. There this goes by when this process knew them.
        """
        newest_us, now_us, known = timestamp_us(newest), clock.now_us(), ""
        with self._lock:
            while self._arrivals and self._arrivals[0][0] < now_us - _LONGEST_WRITE_US:
                known = self._arrivals.popleft()[1]
            if known:
                self._arrivals.appendleft((0, known))
        is_ahead = newest_us > now_us + CLOCK_SKEW_US
        return max(newest_us - CLOCK_SKEW_US, timestamp_us(known) if is_ahead else 0)

    @property
    def nbytes(self) -> int:
        """About how many bytes it takes."""
        derived = sum(getattr(part, "nbytes", 0) for part in list(self.derived.values()))
        return int(self._item_bytes + self.index.nbytes + derived)

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

    def answer_ids(self) -> set[str]:
        """Return the facts that brought these answers, here or where they were exported."""
        with self._lock:
            return set(self._standing.answer_ids)

    def holds(self, episode_id: str) -> bool:
        """Tell whether there is an episode of this id."""
        return episode_id in self._standing.rows

    def holds_guideline(self, guideline_id: str) -> bool:
        """Tell whether there is a guideline of this id."""
        return guideline_id in self._standing.guidelines

    def feedback_hashes(self) -> dict[str, str]:
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
            episodes = [episode for key in keys if (episode := self._standing.episode(key))]
        if ids is None:
            episodes.sort(key=lambda episode: (episode.created_at, episode.id))
        return {episode.id: episode for episode in episodes}

    def feedback_record(self, feedback: Episode, *, replaces: bool = False) -> Item:
        """Write a word as it will stand beside an earlier one of the same expert."""
        with self._lock:
            row = self._standing.rows.get(feedback.id)
            if row is None:
                item = feedback_record(feedback, feedback.word, self._purged)
            else:
                before = Episode.model_validate({**row.content})
                after = merge_feedback(before, feedback, replaces=replaces)
                # What was learned from the earlier word may rest on this one as well.
                word = after.word if withdraws_support(before, after) else row.word
                item = feedback_record(after, word, self._purged)
            return self._words.get(item["key"], item)

    def multi_expert_episodes(self) -> list[str]:
        """Return the ids of the episodes whose example has several, in a stable order."""
        with self._lock:
            groups = [ids for ids in self._episodes_at.values() if len(ids) > 1]
        return sorted(key for ids in groups for key in ids)

    def facts(self) -> tuple[list[Fact], Mapping[str, Item]]:
        """Return all facts, and the words that they name."""
        with self._lock:
            return [fact for _, fact in self._facts.items()], dict(self._words.items())

    def begin_load(self) -> tuple[InitialLoad, bool]:
        """Return the first reading, and whether it is the caller's to carry out and to end."""
        with self._lock:
            if self._initial_load is not None:
                return self._initial_load, False
            self._initial_load = InitialLoad()
            return self._initial_load, True

    def end_load(self) -> None:
        """Let those who wait go on; where it failed, one of them tries."""
        with self._lock:
            reading, self._initial_load = self._initial_load, None
        if reading is not None:
            reading.done.set_result(None)

    def unknown_facts(self, fact_ids: Iterable[str]) -> list[str]:
        """Tell which facts the view does not know."""
        with self._lock:
            return [key for key in fact_ids if key not in self._facts]

    def unknown_records(self, facts: Iterable[Fact]) -> list[str]:
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
            unknown_facts = {fact.id: fact for fact in facts if fact.id not in self._facts}
            fresh = [unknown_facts[key] for key in sorted(unknown_facts)]
            self._item_bytes += _bytes_of(fresh)
            if not fresh:
                return
            is_next = fresh[0].id > self.latest and not any(
                fact.undone or fact.purged or fact.scrubbed or fact.reason == PURGE
                for fact in fresh
            )
            self._facts.update(unknown_facts)
            self._purges += [fact for fact in fresh if fact.reason == PURGE]
            for fact in sorted(self._purges, key=lambda fact: fact.id):
                if fact.id >= fresh[0].id:
                    self._purge(fact)
            self.latest = max(self.latest, fresh[-1].id)
            now_us = clock.now_us()
            while self._arrivals and self._arrivals[-1][0] > now_us:  # the clock was set back
                self._arrivals.pop()
            self._arrivals.append((now_us, self.latest))
            if is_next:
                for fact in fresh:
                    self._standing.apply(fact)
                self._standing.settle()
                changed, self._standing.changed = self._standing.changed, set()
            else:
                before = self._standing
                self._standing = build_state(self._facts.values(), self._words, self._embedder)
                self._standing.changed = set()
                changed = {*before.rows, *self._standing.rows}
            self._sync_vectors(changed)
            self._add_vectors(self.index.fitting(vectors or {}))
            self._refresh_guidelines()

    def _refresh_guidelines(self) -> None:
        wordings = sorted(
            self._standing.guidelines.values(), key=lambda wording: (wording.position, wording.id)
        )
        self._standing_guidelines = list(map(self._standing.guideline, wordings))
        self._version = self._standing.version

    def add_vectors(self, vectors: Mapping[str, Vector]) -> None:
        """Add vectors to the index; those whose episodes are gone meanwhile are left aside."""
        with self._lock:
            self._add_vectors(vectors)

    def vectors(self, keys: Iterable[str]) -> dict[str, Vector]:
        """Return the vectors under some keys, as far as there are any."""
        return {key: vector for key in keys if (vector := self.index.get(key)) is not None}

    def missing_texts(self) -> dict[str, str]:
        """Return which episodes have no vector in the index yet, by vector key."""
        with self._lock:
            return {key: min(self._episodes_at[key]) for key in sorted(self._missing)}

    def episode_ids_for_vector(self, key: str) -> list[str]:
        """Return the ids of the episodes whose example has this vector."""
        with self._lock:
            return sorted(self._episodes_at.get(key, ()))

    def rows_for_vector(self, key: str) -> list[EpisodeRow]:
        """Return the rows of the episodes whose example has this vector."""
        with self._lock:
            return [
                self._standing.rows[episode_id]
                for episode_id in sorted(self._episodes_at.get(key, ()))
            ]

    def rows(self) -> list[EpisodeRow]:
        """Return the rows of all episodes, in the order of their ids."""
        with self._lock:
            return [row for _, row in sorted(self._standing.rows.items())]

    def newest(self) -> list[EpisodeRow]:
        """Return the rows of the episodes that have a value, newest first."""
        with self._lock:
            valued = [row for row in self._standing.rows.values() if row.value is not None]
        return sorted(valued, key=_age, reverse=True)

    def _purge(self, fact: Fact) -> None:
        """Keep nothing of what a purge erased, as its own process leaves the store."""
        self.derived.clear()
        purged = self._words.keys() & fact.purged
        erased = _authors(self._words[key] for key in purged)
        for key in purged:
            self._words[key] = redacted_record(self._words[key])
        self._purged.update(fact.purged)
        erased -= _authors(self._words.values())
        for key, earlier in self._facts.items():
            if key > fact.id:
                continue
            redacted = earlier.scrub(fact.scrubbed[key]) if key in fact.scrubbed else earlier
            redacted = redacted.without_names(erased, keeps_signatures=fact.keeps_signatures)
            self._facts[key] = redacted.without_answers(fact.unanswered)

    def _add_vectors(self, vectors: Mapping[str, Vector]) -> None:
        wanted = {key: vector for key, vector in vectors.items() if key in self._episodes_at}
        self.index.add(wanted)
        self._missing -= wanted.keys()

    def _sync_vectors(self, changed: Iterable[str]) -> None:
        """Keep vectors in step with episodes."""
        for episode_id in changed:
            row = self._standing.rows.get(episode_id)
            old = self._vector_keys.pop(episode_id, None)
            new = None if row is None else row.vector_key
            if new is not None:
                self._vector_keys[episode_id] = new
                self._episodes_at[new] = self._episodes_at.get(new, _NO_EPISODES) | {episode_id}
                if new not in self.index:
                    self._missing.add(new)
            if old is not None and old != new:
                left = self._episodes_at.pop(old) - {episode_id}
                if left:
                    self._episodes_at[old] = left
                else:
                    self._missing.discard(old)
                    self.index.remove({old})


_NO_EPISODES: frozenset[str] = frozenset()


def _age(row: EpisodeRow) -> tuple[datetime, str]:
    return row.given_at, row.vector_key


def _authors(words: Iterable[Item]) -> set[str]:
    return {author for item in words if (author := item.get("episode", {}).get("author"))}


def _bytes_of(items: Sequence[Any]) -> int:
    """Estimate by some of them how many bytes items take."""
    some = items[:: len(items) // _SIZE_SAMPLE + 1]
    characters = sum(len(str(item)) for item in some)
    return characters * len(items) // len(some) * _PER_CHARACTER if some else 0
