"""What stands in a memory: a pure function of its facts, kept in step as they come."""

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from memalign_graph.memory.episode_row import EpisodeRow, row_of
from memalign_graph.memory.facts import (
    JUDGE_CASES,
    Fact,
    FeedbackHashes,
    GuidelineRevision,
    GuidelineTombstone,
    Item,
    drop_answers,
)
from memalign_graph.types import Episode, Guideline

VERSION_SPACE = 2**128


class MemoryState:
    """What stands after some facts, taken in their order."""

    def __init__(
        self, words: Mapping[str, Item], embedder: str, *, include_purged: bool = False
    ) -> None:
        """Begin with nothing; `include_purged` also counts what was purged since."""
        self.rows: dict[str, EpisodeRow] = {}
        self.guidelines: dict[str, GuidelineRevision] = {}
        self.pending: set[str] = set()
        self.answers: dict[str, dict[str, float]] = {}
        """What a model answered when it was asked whether examples meet guidelines, by `asked_id`
        and example id."""
        self.answer_ids: set[str] = set()
        """The facts that brought answers, here or where they were exported."""
        self.attempts: Counter[str] = Counter()
        """How often distilling failed, by what it was tried on."""
        self.changed: set[str] = set()
        """Episodes whose rows changed since this was last emptied, or whether they are pending."""
        self.by_vector: dict[str, set[str]] = {}
        """The episodes of each vector, by its key."""
        self.changed_vectors: set[str] = set()
        """The vector keys that got or lost an episode since this was last emptied."""
        self._words = words
        self._embedder = embedder
        self._with_purged = include_purged
        self._lesson_facts: list[Fact] = []
        self._lesson_words: set[str] = set()
        self._consumed: set[str] = set()
        self._retired: set[str] = set()
        self._scrubbed: set[tuple[str, str]] = set()
        self._hash_terms: dict[str, tuple[GuidelineRevision, int]] = {}
        self._total = 0
        self._is_outdated = False

    @property
    def version(self) -> str:
        """Names what stands, however it came about: a set hash."""
        total = self._total + sum(self.guideline_terms().values())
        return f"{total % VERSION_SPACE:032x}"

    def guideline_terms(self) -> dict[str, int]:
        """Return what each guideline weighs in the version; only what changed is weighed again."""
        weighed, self._hash_terms = self._hash_terms, {}
        for key, wording in self.guidelines.items():
            known = weighed.get(key)
            if known is None or known[0] is not wording:
                known = wording, guideline_hash_term(wording)
            self._hash_terms[key] = known
        return {key: weight for key, (_, weight) in self._hash_terms.items()}

    def apply(self, fact: Fact) -> None:
        """Take the next fact; what follows is there after `settle`."""
        is_touched = self._apply_feedback(fact) or bool(fact.scrubbed)
        self._apply_check_answers(fact)
        self.attempts.update(fact.failed)
        self._scrubbed |= {(key, each) for key, ids in fact.scrubbed.items() for each in ids}
        if fact.is_lesson:
            self._lesson_facts.append(fact)
            self._lesson_words.update(fact.read.values())
            for sources in fact.sources:
                self._lesson_words.update(sources.values())
        # Lessons are taken again once, when all facts are there: at each change it is quadratic.
        self._is_outdated |= is_touched
        if fact.is_lesson and not self._is_outdated:
            self._apply_lesson(fact)

    def settle(self) -> None:
        """Work out what follows from the facts taken so far."""
        if self._is_outdated:
            self._reapply_lessons()
            self._is_outdated = False

    def episode(self, key: str) -> Episode | None:
        row = self.rows.get(key)
        if row is None or row.is_purged:
            return None
        status = "pending" if key in self.pending else "distilled"
        return Episode.model_validate({**row.content, "status": status})

    def guideline(self, wording: GuidelineRevision) -> Guideline:
        fields = {name: getattr(wording, name) for name in Guideline.model_fields.keys() & _WORDED}
        return Guideline(
            **fields,
            episode_ids=list(wording.sources),
            status="pending" if wording.is_outdated else "standing",
        )

    def ordered_guidelines(self) -> list[Guideline]:
        """Return the guidelines that stand, in the order a judge reads them."""
        wordings = sorted(self.guidelines.values(), key=lambda each: (each.position, each.id))
        return list(map(self.guideline, wordings))

    def _apply_feedback(self, fact: Fact) -> bool:
        """Bring in what was said and taken back; tells whether that touches a lesson."""
        is_touched = False
        for key in fact.forgotten:
            is_touched |= self._set(key, None)
        for episode_id, key in fact.said.items():
            item = self._words[key]
            row, before = row_of(episode_id, item, self._embedder), self.rows.get(episode_id)
            if before is None and fact.reason == JUDGE_CASES:
                continue  # forgotten while the judge was asked
            if row.is_purged and not self._with_purged:
                is_touched |= self._set(episode_id, None)
            elif before is None or row.is_purged or before.given_at <= row.given_at:
                is_touched |= self._set(episode_id, row)
        return is_touched

    def _apply_check_answers(self, fact: Fact) -> None:
        # By the fact: what is purged of it later leaves its version as it was.
        new = {*(fact.answer_ids or ([fact.id] if fact.answers else []))} - self.answer_ids
        self.answer_ids |= new
        self._total += sum(_hash_term("answers", key) for key in new)
        for asked, answers in fact.answers.items():
            self.answers.setdefault(asked, {}).update(answers)
        if fact.unanswered:
            self.answers = {
                asked: drop_answers(answers, fact.unanswered)
                for asked, answers in self.answers.items()
            }

    def _set(self, key: str, row: EpisodeRow | None) -> bool:
        old = self.rows.pop(key, None)
        if old is not None:
            self._total -= _hash_term(key, old.content_hash, str(key in self.pending))
            self.by_vector[old.vector_key].discard(key)
            if not self.by_vector[old.vector_key]:
                del self.by_vector[old.vector_key]
            self.changed_vectors.add(old.vector_key)
        self.pending.discard(key)
        if row is not None:
            self.rows[key] = row
            self.by_vector.setdefault(row.vector_key, set()).add(key)
            self.changed_vectors.add(row.vector_key)
            if row.starts_pending and row.word not in self._consumed:
                self.pending.add(key)
            self._total += _hash_term(key, row.content_hash, str(key in self.pending))
        if old is not row:
            self.changed.add(key)
        words = {each.word for each in (old, row) if each is not None}
        is_same = old is not None and row is not None and len(words) == 1
        return not is_same and not self._lesson_words.isdisjoint(words)

    def _set_pending(self, key: str, *, is_pending: bool) -> None:
        row = self.rows[key]
        self._total += _hash_term(key, row.content_hash, str(is_pending))
        self._total -= _hash_term(key, row.content_hash, str(not is_pending))
        (self.pending.add if is_pending else self.pending.discard)(key)

    def _is_current(self, episode_id: str, word: str) -> bool:
        row = self.rows.get(episode_id)
        return row is not None and row.word == word

    def _reapply_lessons(self) -> None:
        """Take the lessons again, since a word that one of them read came or went."""
        pending = set(self.pending)
        self.guidelines = {}
        self._consumed = set()
        self._retired = set()
        for key, row in self.rows.items():
            if row.starts_pending and key not in self.pending and row.word in self._lesson_words:
                self._set_pending(key, is_pending=True)
        for lesson in self._lesson_facts:
            self._apply_lesson(lesson)
        self.changed |= pending ^ self.pending

    def _apply_lesson(self, fact: Fact) -> None:
        # What two lessons read is the earlier one's.
        fresh = {
            key
            for key, word in fact.read.items()
            if word not in self._consumed and self._is_current(key, word)
        }
        # What a wording that is lost came from is read again by the next.
        scrubbed = [each for each in fact.guidelines if (fact.id, each.id) in self._scrubbed]
        lost = [*scrubbed, *filter(self._is_lost_to_concurrent_writer, fact.guidelines)]
        fresh -= {key for wording in lost for key in wording.sources}
        fresh -= {key for wording in scrubbed for key in fact.possible_sources(wording)}
        self._consumed.update(fact.read[key] for key in fresh)
        self.changed |= fresh & self.pending
        for key in fresh & self.pending:
            self._set_pending(key, is_pending=False)

        def left(sources: FeedbackHashes) -> FeedbackHashes:
            return {
                key: word
                for key, word in sources.items()
                if self._is_current(key, word) and (key not in fact.read or key in fresh)
            }

        stood = self.guidelines.keys() & {gone.id for gone in fact.retired}
        retired = [gone for gone in fact.retired if left(gone.sources) or not gone.sources]
        for gone in retired:
            if gone.id in stood:
                self._apply_tombstone(gone)
        for wording in fact.guidelines:
            if wording not in lost:
                self._apply_revision(wording, left(wording.sources), fact.possible_sources(wording))
        for gone in retired:
            if gone.id not in stood:
                self._apply_tombstone(gone)  # new, and lost at once to what contradicts it

    def _apply_tombstone(self, gone: GuidelineTombstone) -> None:
        known = self.guidelines.get(gone.id)
        if gone.is_settled or known is None or known.origin != "expert":
            self.guidelines.pop(gone.id, None)
            self._retired.add(gone.id)

    def _is_lost_to_concurrent_writer(self, wording: GuidelineRevision) -> bool:
        """Tell whether a guideline was reworded or retired by another writer at the same moment."""
        known = self.guidelines.get(wording.id)
        if wording.origin == "expert":
            # One that only adds a question counts while the text is the one that it was made of.
            is_other = (
                wording.id in self._retired if known is None else known.revision != wording.revision
            )
            return is_other and wording.revision == wording.replaces
        if known is None:
            return wording.replaces is not None and wording.id in self._retired
        return (
            wording.replaces is not None or known.origin == "expert"
        ) and known.revision not in (wording.replaces, wording.revision)

    def _apply_revision(
        self, wording: GuidelineRevision, sources: FeedbackHashes, possible_sources: set[str]
    ) -> None:
        self._retired.discard(wording.id)
        known = self.guidelines.get(wording.id)
        if wording.sources and not sources:
            return
        # A source that only came to these words, from elsewhere or later, can go without a trace.
        called = (key for key in wording.sources if key in possible_sources)
        is_whole = all(self._is_current(key, wording.sources[key]) for key in called)
        if known is not None and known.revision == wording.revision and not wording.is_anew:
            is_whole = not known.is_outdated
        is_outdated = wording.origin != "expert" and (wording.is_outdated or not is_whole)
        changes: dict[str, Any] = {"sources": sources, "is_outdated": is_outdated}
        if known is not None:
            is_same = known.revision == wording.revision
            if is_same and known.question is not None:
                changes["question"] = known.question
            joined = {} if wording.is_anew else known.sources
            changes["sources"] = {**joined, **sources}
            changes |= {"position": known.position, "created_at": known.created_at}
            same = (known.question, known.sources, known.is_outdated)
            question = changes.get("question", wording.question)
            if is_same and same == (question, changes["sources"], is_outdated):
                changes["updated_at"] = known.updated_at
        self.guidelines[wording.id] = wording.model_copy(update=changes)


_WORDED = {"id", "text", "question", "origin", "author", "position", "created_at", "updated_at"}


def build_state(
    facts: Iterable[Fact], words: Mapping[str, Item], embedder: str, *, include_purged: bool = False
) -> MemoryState:
    """Work out what stands; the facts may come in any order."""
    standing = MemoryState(words, embedder, include_purged=include_purged)
    for fact in without_undone(facts):
        standing.apply(fact)
    standing.settle()
    return standing


def without_undone(facts: Iterable[Fact]) -> list[Fact]:
    """Bring facts into their order, without those that were undone."""
    ordered = sorted(facts, key=lambda fact: fact.id)
    undone: set[str] = set()
    for fact in reversed(ordered):
        if fact.id not in undone:
            undone.update(fact.undone)
    return [fact for fact in ordered if fact.id not in undone]


def _hash_term(*names: str) -> int:
    return int.from_bytes(hashlib.sha256(":".join(names).encode()).digest()[:16])


def guideline_hash_term(wording: GuidelineRevision) -> int:
    """Weigh a guideline in a version: it names the guideline as it stands."""
    facets = (wording.revision, wording.is_outdated, wording.position, wording.updated_at)
    return _hash_term(wording.id, *map(str, facets), *sorted(wording.sources))
