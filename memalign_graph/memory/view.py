"""One memory in this process: its facts, its active content, and the index of its vectors."""

import threading
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
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

_PER_CHARACTER = 4
"""What an item takes as Python objects, in bytes by characters."""

_SIZE_SAMPLE = 64


class MemoryView:
    """One memory as this process last saw it; facts may come in any order, and more than once."""

    def __init__(self, embedder: str) -> None:
        self.index = VectorIndex(embedder)
        """Vectors by vector key."""
        self.swept_at = datetime.min.replace(tzinfo=UTC)
        """When judgments past their time were last removed by this process."""
        self.sweep_offset = 0
        self.derived_cache: dict[Any, Any] = {}
        """What other modules computed from a version of the view, by keys of their own."""
        self.last_used = 0
        """When it was last asked for, counted by this process."""
        self.is_loaded = False
        self.loading = threading.Lock()
        """Held by the caller who reads the memory for the first time, for all who need it."""
        self.head: str | None = None
        """The last fact written when all were read; empty since a write, which may be cut off."""
        self.latest_fact_id = ""
        """The newest fact known."""
        self._embedder = embedder
        self._lock = threading.Lock()
        self._item_bytes = 0
        self._facts: dict[str, Fact] = {}
        self._words: dict[str, Item] = {}
        self._purged: set[str] = set()
        self._purges: list[Fact] = []
        self._state = MemoryState(self._words, embedder)
        self.current: tuple[str, list[Guideline]] = self._state.version, []
        """The version, and the guidelines that stand in it; not to be changed."""
        self._missing: set[str] = set()

    @property
    def version(self) -> str:
        return self.current[0]

    @property
    def guidelines(self) -> list[Guideline]:
        """The guidelines that stand, in the order a judge reads them; not to be changed."""
        return self.current[1]

    def unread_us(self, newest: str) -> int:
        """Return the date from which on the store may hold facts that the view lacks."""
        newest_us, now_us = timestamp_us(newest), clock.now_us()
        since_us = newest_us - CLOCK_SKEW_US
        if newest_us <= now_us + CLOCK_SKEW_US:
            return since_us
        # A clock was far ahead once: later facts are dated just after each other. When they were
        # written is told by their writers' clocks.
        settled_us = now_us - _LONGEST_WRITE_US
        with self._lock:
            written = ((fact.clock_us, fact.at_us) for fact in self._facts.values())
            return max(
                [since_us, *(at_us for when, at_us in written if (when or now_us) < settled_us)]
            )

    @property
    def nbytes(self) -> int:
        derived = sum(getattr(part, "nbytes", 0) for part in list(self.derived_cache.values()))
        return int(self._item_bytes + self.index.nbytes + derived)

    @property
    def is_empty(self) -> bool:
        return not self._state.rows

    def pending(self) -> list[str]:
        """Return the ids of the episodes that await distilling, in a stable order."""
        with self._lock:
            return sorted(self._state.pending)

    def failed_attempts(self, key: str) -> int:
        """Return how often a model could not distil what the key names."""
        return self._state.attempts[key]

    def answers(self) -> dict[str, dict[str, float]]:
        """Return how likely examples meet guidelines, by `asked_id` and example id."""
        with self._lock:
            return {asked: dict(answers) for asked, answers in self._state.answers.items()}

    def answer_ids(self) -> set[str]:
        """Return the facts that brought these answers, here or where they were exported."""
        with self._lock:
            return set(self._state.answer_ids)

    def holds(self, episode_id: str) -> bool:
        return episode_id in self._state.rows

    def feedback_hashes(self) -> dict[str, str]:
        """Return the feedback hash of each episode."""
        with self._lock:
            return {key: row.word for key, row in self._state.rows.items()}

    def sources(self, guideline_id: str) -> dict[str, str]:
        """Return an active guideline's sources: feedback hashes by episode id."""
        return self._state.guidelines[guideline_id].sources

    def purges(self, episode_ids: AbstractSet[str] | None = None) -> set[str]:
        """Return the facts that purged something, or one of some episodes."""
        with self._lock:
            return {
                fact.id
                for fact in self._purges
                if episode_ids is None or not episode_ids.isdisjoint(fact.forgotten)
            }

    def episodes(self, ids: Iterable[str] | None = None) -> dict[str, Episode]:
        """Return some episodes, or all of them, oldest first."""
        with self._lock:
            keys = list(self._state.rows if ids is None else dict.fromkeys(ids))
            episodes = [episode for key in keys if (episode := self._state.episode(key))]
        if ids is None:
            episodes.sort(key=lambda episode: (episode.created_at, episode.id))
        return {episode.id: episode for episode in episodes}

    def feedback_record(self, feedback: Episode, *, replaces: bool = False) -> Item:
        """Build the record of new feedback, merged with this expert's earlier feedback, if any."""
        with self._lock:
            row = self._state.rows.get(feedback.id)
            if row is None:
                item = feedback_record(feedback, feedback.word, self._purged)
            else:
                before = Episode.model_validate({**row.content})
                after = merge_feedback(before, feedback, replaces=replaces)
                # What was learned from the earlier word may rest on this one as well.
                word = after.word if withdraws_support(before, after) else row.word
                item = feedback_record(after, word, self._purged)
            return self._words.get(item["key"], item)

    def facts(self) -> tuple[list[Fact], Mapping[str, Item]]:
        """Return all facts, oldest first, and the words that they name, by their keys."""
        with self._lock:
            return sorted(self._facts.values(), key=lambda fact: fact.id), dict(self._words)

    def unknown_facts(self, fact_ids: Iterable[str]) -> list[str]:
        with self._lock:
            return [key for key in fact_ids if key not in self._facts]

    def unknown_records(self, facts: Iterable[Fact]) -> list[str]:
        """Return the keys of the records that some facts name and the view lacks."""
        with self._lock:
            keys = dict.fromkeys(key for fact in facts for key in fact.said.values())
            return [key for key in keys if key not in self._words]

    def add(
        self,
        facts: Iterable[Fact],
        words: Mapping[str, Item],
        vectors: Mapping[str, Vector] | None = None,
    ) -> None:
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
            is_next = fresh[0].id > self.latest_fact_id and not any(
                fact.undone or fact.purged or fact.scrubbed or fact.reason == PURGE
                for fact in fresh
            )
            self._facts.update(unknown_facts)
            self._purges += [fact for fact in fresh if fact.reason == PURGE]
            for fact in sorted(self._purges, key=lambda fact: fact.id):
                if fact.id >= fresh[0].id:
                    self._purge(fact)
            self.latest_fact_id = max(self.latest_fact_id, fresh[-1].id)
            if is_next:
                for fact in fresh:
                    self._state.apply(fact)
                self._state.settle()
                changed = self._state.changed_vectors
            else:
                changed = {*self._state.by_vector}
                self._state = build_state(self._facts.values(), self._words, self._embedder)
                changed |= self._state.by_vector.keys()
            self._state.changed, self._state.changed_vectors = set(), set()
            wanted = changed & self._state.by_vector.keys()
            self._missing = (self._missing - changed) | {
                key for key in wanted if key not in self.index
            }
            self.index.remove(changed - wanted)
            # A stored vector of another dimension than the first is left aside.
            fresh_vectors = vectors or {}
            size = self.index.dimension or next(map(len, fresh_vectors.values()), None)
            self._add_vectors(
                {key: each for key, each in fresh_vectors.items() if len(each) == size}
            )
            self.current = self._state.version, self._state.ordered_guidelines()

    def add_vectors(self, vectors: Mapping[str, Vector]) -> None:
        """Add vectors to the index; those whose episodes are gone meanwhile are left aside."""
        with self._lock:
            self._add_vectors(vectors)

    def vectors(self, keys: Iterable[str]) -> dict[str, Vector]:
        return {key: vector for key in keys if (vector := self.index.get(key)) is not None}

    def missing_texts(self) -> dict[str, str]:
        """Return which episodes have no vector in the index yet, by vector key."""
        with self._lock:
            return {key: min(self._state.by_vector[key]) for key in sorted(self._missing)}

    def episode_ids_for_vector(self, key: str) -> list[str]:
        with self._lock:
            return sorted(self._state.by_vector.get(key, ()))

    def rows_for_vector(self, key: str) -> list[EpisodeRow]:
        with self._lock:
            return [self._state.rows[each] for each in sorted(self._state.by_vector.get(key, ()))]

    def rows(self) -> list[EpisodeRow]:
        """Return the rows of all episodes, in the order of their ids."""
        with self._lock:
            return [row for _, row in sorted(self._state.rows.items())]

    def newest(self) -> list[EpisodeRow]:
        """Return the rows of the episodes that have a value, newest first."""
        with self._lock:
            valued = [row for row in self._state.rows.values() if row.value is not None]
        return sorted(valued, key=lambda row: (row.given_at, row.vector_key), reverse=True)

    def _purge(self, fact: Fact) -> None:
        """Remove what a purge erased, as its own process leaves the store."""
        self.derived_cache.clear()
        purged = self._words.keys() & fact.purged
        erased = _authors(self._words[key] for key in purged)
        for key in purged:
            self._words[key] = redacted_record(self._words[key])
        self._purged.update(fact.purged)
        erased -= _authors(self._words.values())
        for key, earlier in self._facts.items():
            if key > fact.id:
                continue
            redacted = earlier.redact(fact.scrubbed[key]) if key in fact.scrubbed else earlier
            redacted = redacted.without_names(erased, keeps_signatures=fact.keeps_signatures)
            self._facts[key] = redacted.without_answers(fact.unanswered)

    def _add_vectors(self, vectors: Mapping[str, Vector]) -> None:
        wanted = {key: vector for key, vector in vectors.items() if key in self._state.by_vector}
        self.index.add(wanted)
        self._missing -= wanted.keys()


def _authors(words: Iterable[Item]) -> set[str]:
    return {author for item in words if (author := item.get("episode", {}).get("author"))}


def _bytes_of(items: Sequence[Any]) -> int:
    some = items[:: len(items) // _SIZE_SAMPLE + 1]
    characters = sum(len(str(item)) for item in some)
    return characters * len(items) // len(some) * _PER_CHARACTER if some else 0
