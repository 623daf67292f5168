"""The active content of a memory: rows of episodes, and the fold of facts, which is pure.

The fold is updated fact by fact.
"""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple

from memalign_graph.memory.facts import (
    JUDGE_CASES,
    LONG_AGO,
    Fact,
    FeedbackHashes,
    GuidelineRevision,
    GuidelineTombstone,
    Item,
    filter_answers,
)
from memalign_graph.memory.index import text_of, vector_key
from memalign_graph.types import Episode, Guideline, word_of


@dataclass(frozen=True, slots=True)
class PastVerdict:
    """The judge's verdict at the time of the feedback, to be compared with the expert's label."""

    verdict: Any
    probabilities: Mapping[str, float] | None
    review: Mapping[str, Any] | None
    """Why the expert was asked, with `review="uncertain"`."""
    shown: tuple[str, ...] = ()
    """The episodes in the judge's prompt: it may have seen the label of its own case."""
    guideline_ids: tuple[str, ...] = ()
    checks: Mapping[str, float] = field(default_factory=dict)
    """The probability that the case meets each guideline, by `asked_id`."""
    model: str | None = None
    judge_key: str | None = None
    """Identifies the judge; None in feedback that an earlier version stored."""

    @classmethod
    def of(cls, judgment: Mapping[str, Any]) -> "PastVerdict":
        evidence = judgment.get("evidence") or {}
        answers = {
            check["asked"]: check["held"]
            if check.get("probability") is None
            else check["probability"]
            for check in judgment.get("checks") or ()
        }
        return cls(
            verdict=evidence.get("verdict", judgment.get("value")),
            probabilities=judgment.get("probabilities"),
            review=judgment.get("review"),
            shown=tuple(judgment.get("episode_ids") or ()),
            guideline_ids=tuple(judgment.get("guideline_ids") or ()),
            checks={asked: float(each) for asked, each in answers.items() if each is not None},
            model=judgment.get("model"),
            judge_key=judgment.get("judge_key"),
        )


@dataclass(frozen=True, slots=True)
class EpisodeRow:
    """A record of feedback; the episode is not validated, because thousands are read at once."""

    key: str
    content_hash: str
    feedback_hash: str
    """The hash by which lessons name the feedback; of the comment alone if its value came later."""
    content: Mapping[str, Any]
    """The episode as JSON; its status alone after a purge."""
    id: str = ""
    example_id: str = ""
    vector_key: str = ""
    value: Any = None
    """The expert's value as stored; None if there is none."""
    given_at: datetime = LONG_AGO
    past_verdict: PastVerdict | None = None

    @classmethod
    def of(cls, record: Item, embedder: str) -> "EpisodeRow":
        """Read a record; raises KeyError, TypeError, ValueError or AttributeError."""
        names = record["key"], record["content"], record["word"]
        if "episode" not in record:
            return cls(*names, {"status": record["status"]})
        content = record["episode"]
        judgment = content.get("judgment")
        text, _ = text_of(content["example"]["inputs"], content["example"]["outputs"])
        return cls(
            *names,
            content,
            id=content["id"],
            example_id=content["example_id"],
            vector_key=vector_key(embedder, text),
            value=content.get("value"),
            given_at=datetime.fromisoformat(content["given_at"]),
            past_verdict=None if judgment is None else PastVerdict.of(judgment),
        )

    def record(self) -> Item:
        """Return the record as it is stored."""
        names = {"key": self.key, "content": self.content_hash, "word": self.feedback_hash}
        content = {**self.content, "purged": True} if self.is_purged else {"episode": self.content}
        return {**names, **content}

    def redacted(self) -> "EpisodeRow":
        """Return the row without its content."""
        status = {"status": self.content.get("status")}
        return EpisodeRow(self.key, self.content_hash, self.feedback_hash, status)

    @property
    def word(self) -> str:
        return word_of(self.content)

    @property
    def first_given_at(self) -> datetime:
        return min(self.given_at, datetime.fromisoformat(self.content["created_at"]))

    @property
    def is_purged(self) -> bool:
        return not self.example_id

    @property
    def starts_pending(self) -> bool:
        """Whether it is pending until a lesson reads it."""
        return self.content.get("status") == "pending"

    @property
    def verdicts(self) -> dict[str, Any]:
        """The values of the judgments that the expert answered, by judgment id."""
        judgment = self.content.get("judgment")
        own = {} if judgment is None else {judgment["id"]: judgment["value"]}
        return {**self.content.get("other_verdicts", {}), **own}


def merge_feedback(stored: Episode | None, new: Episode, *, replaces: bool = False) -> Episode:
    """Return the episode to keep; `replaces` means that the expert edits the stored feedback."""
    if stored is None:
        return new
    confirms = new.rationale is None and stored.value in (None, new.value)
    repeats = new.value is None and new.rationale == stored.rationale
    adds_nothing = repeats or stored.says_the_same_as(new) or stored.given_at > new.given_at
    is_revision = replaces and new.given_at >= stored.given_at
    is_new = is_revision or not (adds_nothing or confirms)
    value = stored.value if adds_nothing and not is_new else new.value
    judgment = (is_new and new.judgment) or stored.judgment or new.judgment
    verdicts = {**stored.verdicts, **new.verdicts}
    if judgment is not None:
        kept = stored.judgment or judgment
        if kept.judge_key == judgment.judge_key and not is_revision:
            # One of them counts as the expert's decision. A new one must not hide a wrong one.
            judgment = max(judgment, kept, key=lambda each: _error(each.verdict, value))
        del verdicts[judgment.id]
    common = {
        "thread_ids": list(dict.fromkeys([*stored.thread_ids, *new.thread_ids])),
        "feedback_id": new.feedback_id or stored.feedback_id,
        "value": value,
        "judgment": judgment,
        "other_verdicts": verdicts,
        "given_at": max(new.given_at, stored.given_at),
    }
    if is_new:
        return new.model_copy(update={**common, "created_at": stored.created_at})
    merged = stored.model_copy(update=common)
    return stored if merged == stored else merged.model_copy(update={"updated_at": new.updated_at})


def _error(verdict: Any, value: Any) -> float:
    """Return how far a verdict is from the expert's value; 1 for another choice, or none."""
    is_number = isinstance(value, int | float) and not isinstance(verdict, str)
    return float(abs(verdict - value) if is_number else verdict != value)


class ActiveGuidelines(NamedTuple):
    """The active guidelines of one version, in the order a judge reads them; read-only."""

    version: str
    guidelines: list[Guideline]
    revisions: Mapping[str, GuidelineRevision]
    """The revisions that the guidelines come from, by guideline id."""


class MemoryState:
    """The active episodes and guidelines after some facts, applied in order."""

    def __init__(self, rows: Mapping[str, EpisodeRow], *, include_purged: bool = False) -> None:
        """Start empty; takes the rows of all feedback by their keys.

        `include_purged` keeps purged episodes, without their content.
        """
        self.rows: dict[str, EpisodeRow] = {}
        self.guidelines: dict[str, GuidelineRevision] = {}
        self.guideline_terms: dict[str, int] = {}
        """Each guideline's term in the version."""
        self.pending: set[str] = set()
        self.answers: dict[str, dict[str, float]] = {}
        """A model's answers to check questions, by `asked_id` and example id."""
        self.answer_ids: set[str] = set()
        """The facts with these answers, here or where they were exported."""
        self.failed_attempts: set[str] = set()
        self.changed: set[str] = set()
        """The episodes that changed, or became or stopped being pending; callers empty it."""
        self.by_vector: dict[str, set[str]] = {}
        self._rows_by_key = rows
        self._include_purged = include_purged
        self._lesson_facts: list[Fact] = []
        self._lesson_hashes: set[str] = set()
        self._consumed: set[str] = set()
        self._retired: set[str] = set()
        self._scrubbed: set[tuple[str, str]] = set()
        self._total = 0
        self._is_outdated = False
        """Whether `settle` applies all lessons again: doing it at each change is quadratic."""

    @property
    def version(self) -> str:
        """The hash of the active content: the same content has the same version."""
        total = self._total + sum(self.guideline_terms.values())
        return f"{total % 2**128:032x}"

    def apply(self, fact: Fact) -> None:
        """Apply the next fact; guidelines and statuses are right after `settle`."""
        self._apply_feedback(fact)
        self._apply_check_answers(fact)
        self.failed_attempts.update(fact.failed)
        self._scrubbed |= {(key, each) for key, ids in fact.scrubbed.items() for each in ids}
        self._is_outdated |= bool(fact.scrubbed)
        if fact.is_lesson:
            self._lesson_facts.append(fact)
            sources = [each.sources for each in fact.guidelines]
            sources += [fact.read, *(gone.sources for gone in fact.retired)]
            self._lesson_hashes.update(*(each.values() for each in sources))
            if not self._is_outdated:
                self._apply_lesson(fact)

    def settle(self) -> None:
        if self._is_outdated:
            self._reapply_lessons()
            self._is_outdated = False

    def episode(self, key: str) -> Episode | None:
        row = self.rows.get(key)
        if row is None or row.is_purged:
            return None
        status = "pending" if key in self.pending else "distilled"
        return Episode.model_validate({**row.content, "status": status})

    def active_guidelines(self) -> ActiveGuidelines:
        shared = Guideline.model_fields.keys() & GuidelineRevision.model_fields.keys()
        guidelines = [
            Guideline(
                **{name: getattr(revision, name) for name in shared},
                episode_ids=list(revision.sources),
                status="pending" if revision.is_outdated else "standing",
            )
            for revision in sorted(
                self.guidelines.values(), key=lambda each: (each.position, each.id)
            )
        ]
        return ActiveGuidelines(self.version, guidelines, {**self.guidelines})

    def _apply_feedback(self, fact: Fact) -> None:
        for key in fact.forgotten:
            self._set(key, None)
        for episode_id, key in fact.said.items():
            row, before = self._rows_by_key[key], self.rows.get(episode_id)
            if fact.reason == JUDGE_CASES and not self._is_current(episode_id, row.feedback_hash):
                continue  # forgotten or taken back, before or after the judge was asked
            if row.is_purged and not self._include_purged:
                self._set(episode_id, None)
            elif before is None or row.is_purged or before.given_at <= row.given_at:
                self._set(episode_id, row)

    def _apply_check_answers(self, fact: Fact) -> None:
        # Hashed by the fact's id, so that a later purge of answers leaves the version as it is.
        new = {*(fact.answer_ids or ([fact.id] if fact.answers else []))} - self.answer_ids
        self.answer_ids |= new
        self._total += sum(_hash_term("answers", key) for key in new)
        for asked, answers in fact.answers.items():
            self.answers.setdefault(asked, {}).update(answers)
        if fact.unanswered:
            self.answers = filter_answers(self.answers, fact.keeps_answers_on)

    def _set(self, key: str, row: EpisodeRow | None) -> None:
        old = self.rows.pop(key, None)
        if old is not None:
            self._total -= _hash_term(key, old.content_hash, str(key in self.pending))
            self.by_vector[old.vector_key].discard(key)
            if not self.by_vector[old.vector_key]:
                del self.by_vector[old.vector_key]
        self.pending.discard(key)
        if row is not None:
            self.rows[key] = row
            self.by_vector.setdefault(row.vector_key, set()).add(key)
            if row.starts_pending and row.feedback_hash not in self._consumed:
                self.pending.add(key)
            self._total += _hash_term(key, row.content_hash, str(key in self.pending))
        self.changed.add(key)
        before, after = ({each.feedback_hash} if each else set[str]() for each in (old, row))
        self._is_outdated |= not self._lesson_hashes.isdisjoint(before ^ after)

    def _set_pending(self, key: str, *, is_pending: bool) -> None:
        row = self.rows[key]
        self._total += _hash_term(key, row.content_hash, str(is_pending))
        self._total -= _hash_term(key, row.content_hash, str(not is_pending))
        (self.pending.add if is_pending else self.pending.discard)(key)

    def _is_current(self, episode_id: str, feedback_hash: str) -> bool:
        row = self.rows.get(episode_id)
        return row is not None and row.feedback_hash == feedback_hash

    def _reapply_lessons(self) -> None:
        """Apply all lessons again, because feedback that one of them read changed."""
        pending = set(self.pending)
        self.guidelines, self.guideline_terms = {}, {}
        self._consumed, self._retired = set(), set()
        for key, row in self.rows.items():
            if row.starts_pending and key not in self.pending:
                self._set_pending(key, is_pending=True)
        for lesson in self._lesson_facts:
            self._apply_lesson(lesson)
        self.changed |= pending ^ self.pending

    def _apply_lesson(self, fact: Fact) -> None:
        # Of two lessons that read the same feedback, the earlier one counts.
        fresh = {
            key
            for key, feedback_hash in fact.read.items()
            if feedback_hash not in self._consumed and self._is_current(key, feedback_hash)
        }
        # The sources of a lost revision stay pending for the next lesson.
        scrubbed = [each for each in fact.guidelines if (fact.id, each.id) in self._scrubbed]
        lost = [*scrubbed, *filter(self._is_lost_to_concurrent_writer, fact.guidelines)]
        fresh -= {key for revision in lost for key in revision.sources}
        fresh -= {key for revision in scrubbed for key in fact.possible_sources(revision)}
        self._consumed.update(fact.read[key] for key in fresh)
        self.changed |= fresh & self.pending
        for key in fresh & self.pending:
            self._set_pending(key, is_pending=False)

        def left(sources: FeedbackHashes) -> FeedbackHashes:
            return {
                key: feedback_hash
                for key, feedback_hash in sources.items()
                if self._is_current(key, feedback_hash) and (key not in fact.read or key in fresh)
            }

        active = self.guidelines.keys() & {gone.id for gone in fact.retired}
        retired = [gone for gone in fact.retired if left(gone.sources) or not gone.sources]
        for gone in retired:
            if gone.id in active:
                self._apply_tombstone(gone)
        for revision in fact.guidelines:
            if revision not in lost:
                self._apply_revision(
                    revision, left(revision.sources), fact.possible_sources(revision)
                )
        for gone in retired:
            if gone.id not in active:
                self._apply_tombstone(gone)  # added and contradicted in the same lesson

    def _apply_tombstone(self, gone: GuidelineTombstone) -> None:
        current = self.guidelines.get(gone.id)
        if gone.is_settled or current is None or current.origin != "expert":
            self.guidelines.pop(gone.id, None)
            self.guideline_terms.pop(gone.id, None)
            self._retired.add(gone.id)

    def _is_lost_to_concurrent_writer(self, new: GuidelineRevision) -> bool:
        """Return whether another writer changed or retired the guideline at the same time."""
        current = self.guidelines.get(new.id)
        if new.origin == "expert":
            # A revision that only adds a question counts while its text is the current one.
            is_other = current.revision != new.revision if current else new.id in self._retired
            return is_other and new.revision == new.replaces
        if current is None:
            return new.replaces is not None and new.id in self._retired
        return (
            new.replaces is not None or current.origin == "expert"
        ) and current.revision not in (new.replaces, new.revision)

    def _apply_revision(
        self, new: GuidelineRevision, sources: FeedbackHashes, possible_sources: set[str]
    ) -> None:
        self._retired.discard(new.id)
        current = self.guidelines.get(new.id)
        if new.sources and not sources:
            return
        # The text cannot repeat sources that were not in its prompt: losing them is harmless.
        prompted = (key for key in new.sources if key in possible_sources)
        is_whole = all(self._is_current(key, new.sources[key]) for key in prompted)
        if current is not None and current.revision == new.revision and not new.is_anew:
            is_whole = not current.is_outdated
        is_outdated = new.origin != "expert" and (new.is_outdated or not is_whole)
        changes: dict[str, Any] = {"sources": sources, "is_outdated": is_outdated}
        if current is not None:
            is_same = current.revision == new.revision
            if is_same and current.question is not None:
                changes["question"] = current.question
            joined = {} if new.is_anew else current.sources
            changes["sources"] = {**joined, **sources}
            changes |= {"position": current.position, "created_at": current.created_at}
            same = (current.question, current.sources, current.is_outdated)
            question = changes.get("question", new.question)
            if is_same and same == (question, changes["sources"], is_outdated):
                changes["updated_at"] = current.updated_at
        after = new.model_copy(update=changes)
        self.guidelines[new.id], self.guideline_terms[new.id] = after, _guideline_hash_term(after)


def build_state(
    facts: Iterable[Fact], rows: Mapping[str, EpisodeRow], *, include_purged: bool = False
) -> MemoryState:
    """Fold facts, in any order, into a state."""
    state = MemoryState(rows, include_purged=include_purged)
    for fact in without_undone(facts):
        state.apply(fact)
    state.settle()
    return state


def without_undone(facts: Iterable[Fact]) -> list[Fact]:
    """Return the facts in order, without those that were rolled back."""
    ordered = sorted(facts, key=lambda fact: fact.id)
    undone: set[str] = set()
    for fact in reversed(ordered):
        if fact.id not in undone:
            undone.update(fact.undone)
    return [fact for fact in ordered if fact.id not in undone]


def _hash_term(*names: str) -> int:
    return int.from_bytes(hashlib.sha256(":".join(names).encode()).digest()[:16])


def _guideline_hash_term(revision: GuidelineRevision) -> int:
    facets = (revision.revision, revision.is_outdated, revision.position, revision.updated_at)
    return _hash_term(revision.id, *map(str, facets), *sorted(revision.sources))
