"""Facts: the entries of a memory's log. Only a purge changes one that is written.

Feedback is stored as a record of its own (kind `words`), keyed by its content. Facts name its key.
"""

import threading
import time
from collections.abc import Collection, Iterable, Mapping
from collections.abc import Set as AbstractSet
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, Literal, TypeVar
from uuid import uuid4

from pydantic import Field, ValidationError

from memalign_graph.errors import MemAlignError, describe_validation_error
from memalign_graph.identity import digest
from memalign_graph.types import Episode, FrozenModel, Guideline, UtcDatetime

Item = dict[str, Any]
"""A store item's value."""

FeedbackHashes = dict[str, str]
"""What was read: the content hash of each episode's word (`Episode.word`), by the episode's id."""

FACT = "fact"
"""What items of the log are marked with: a memory of another criterion may lie below."""

PURGE = "purge"
"""The reason of facts that purge."""

JUDGE_CASES = "judge cases"
"""The reason of facts that repeat feedback with a verdict of the judge."""

_SAID_ANEW = {"status", "created_at", "updated_at"}


class GuidelineRevision(FrozenModel):
    """A guideline as a fact leaves it."""

    id: str
    text: str
    """Empty where it was purged."""

    question: str | None = None
    """The same as a yes/no question; empty where it was purged, or can't be asked so."""

    revision: str
    """The hash of text, origin and author: it tells a version also after a purge."""

    sources: FeedbackHashes = Field(default_factory=dict)
    """The words it comes from; a guideline that names some stands while one of them does."""

    origin: Literal["distilled", "expert"] = "distilled"
    author: str | None = None
    position: int
    created_at: UtcDatetime
    updated_at: UtcDatetime

    replaces: str | None = None
    """The revision that it was made from; None for a new one."""

    is_anew: bool = False
    """Whether it was worded from these sources alone: else those it had are joined to them."""

    read_with: str | None = None
    """An episode that was read by whoever worded it, where some of its sources were not."""

    is_outdated: bool = False
    """Whether the text still rests on a source that was taken back."""

    @classmethod
    def of(
        cls,
        guideline: Guideline,
        sources: FeedbackHashes,
        *,
        replaces: Guideline | None = None,
        is_anew: bool = False,
        read_with: str | None = None,
    ) -> "GuidelineRevision":
        """Write a guideline down with its sources' words."""
        fields = guideline.model_dump(exclude={"episode_ids", "status", "worth"})
        return cls(
            **fields,
            revision=revision_of(guideline),
            sources=sources,
            replaces=None if replaces is None else revision_of(replaces),
            is_anew=is_anew,
            read_with=read_with,
            is_outdated=guideline.status == "pending" and not is_anew,
        )

    def redact(self) -> "GuidelineRevision":
        question = None if self.question is None else ""
        return self.model_copy(update={"text": "", "question": question, "author": None})


class GuidelineTombstone(FrozenModel):
    """A guideline that a fact takes away."""

    id: str
    by: str | None = None
    """The guideline that holds in its place, if any."""

    reason: str | None = None
    sources: FeedbackHashes = Field(default_factory=dict)
    """The words that call for it: it holds while one of them stands; always, if there are none."""

    is_settled: bool = False
    """Whether an expert decided it: then also what an expert wrote by hand goes."""


class Fact(FrozenModel):
    """One change of a memory, all or nothing."""

    id: str
    """The key: unique, and in order of time."""

    at_us: int
    """When, in microseconds since 1970; after all that its writer had seen."""

    clock_us: int | None = None
    """When, by its writer's clock, where it is dated after a fact of a clock far ahead."""

    reason: str
    """What made it: `remember`, `learn`, `forget`, `add_guideline`, ..."""

    author: str | None = None
    said: FeedbackHashes = Field(default_factory=dict)
    """The keys of words that experts said, by episode id."""

    read: FeedbackHashes = Field(default_factory=dict)
    """What was learned from: these words are not pending any more."""

    prompts: list[list[str]] = Field(default_factory=list)
    """The episodes that were read together: what was worded of one may repeat any of them."""

    guidelines: list[GuidelineRevision] = Field(default_factory=list)
    retired: list[GuidelineTombstone] = Field(default_factory=list)
    forgotten: list[str] = Field(default_factory=list)
    """The episodes that were taken back."""

    answers: dict[str, dict[str, float]] = Field(default_factory=dict)
    """How likely cases meet guidelines, where a model was asked: for each question as a model was
    asked it (`asked_id`) the probability of yes, by example id."""

    answer_ids: list[str] = Field(default_factory=list)
    """The facts that had these answers where they were exported; none where a model was asked."""

    failed: list[str] = Field(default_factory=list)
    """What a model refused to distil, or gave no usable answer to: one failed attempt each."""

    repeated: dict[str, list[str]] = Field(default_factory=dict)
    """Hashes of feedback that counts as given before and has no record of its own, by episode id:
    rows of a table that were merged, and what had been superseded or forgotten at an export."""

    undone: list[str] = Field(default_factory=list)
    """The facts that count no more."""

    purged: list[str] = Field(default_factory=list)
    """The keys of the words that were erased."""

    scrubbed: dict[str, list[str]] = Field(default_factory=dict)
    """The guidelines whose wordings were erased, by the facts that worded them: they count no more,
    and what they came from is read again."""

    keeps_signatures: bool = False
    """Whether a purge leaves the names of authors on guidelines that rest on no feedback."""

    unanswered: list[str] = Field(default_factory=list)
    """The examples whose answers were erased, by what `hash_example_id` makes of their ids."""

    @property
    def is_lesson(self) -> bool:
        """Whether it has to do with guidelines."""
        return bool(self.read or self.guidelines or self.retired)

    @property
    def sources(self) -> list[FeedbackHashes]:
        """The sources of each of its changes of guidelines."""
        return [change.sources for change in self.guidelines] + [
            change.sources for change in self.retired
        ]

    def read_together(self, sources: Iterable[str]) -> set[str]:
        """Return some episodes, and those that were in one prompt with them."""
        named = {*sources}
        return named.union(*(prompt for prompt in self.prompts if not named.isdisjoint(prompt)))

    def possible_sources(self, wording: GuidelineRevision) -> set[str]:
        """Return the episodes whose content a revision's text may repeat."""
        return self.read_together(
            wording.sources if wording.read_with is None else [wording.read_with]
        )

    def redact(self, guideline_ids: Collection[str]) -> "Fact":
        """Return the fact without the texts of some guidelines."""
        return self.model_copy(
            update={
                "guidelines": [
                    wording.redact() if wording.id in guideline_ids else wording
                    for wording in self.guidelines
                ],
                "retired": [gone.model_copy(update={"reason": None}) for gone in self.retired],
            }
        )

    def without_answers(self, unanswered: Collection[str]) -> "Fact":
        answers = {
            asked: drop_answers(by_case, unanswered) for asked, by_case in self.answers.items()
        }
        return self.model_copy(update={"answers": answers}) if answers else self

    def without_names(self, authors: AbstractSet[str], *, keeps_signatures: bool) -> "Fact":
        is_signed = self.guidelines and all(
            revision.origin == "expert" and not revision.sources for revision in self.guidelines
        )
        if keeps_signatures and is_signed:
            return self
        guidelines = [_without_name(revision, authors) for revision in self.guidelines]
        return _without_name(self.model_copy(update={"guidelines": guidelines}), authors)


Signed = TypeVar("Signed", Fact, GuidelineRevision)


def _without_name(signed: Signed, authors: AbstractSet[str]) -> Signed:
    return signed.model_copy(update={"author": None}) if signed.author in authors else signed


def item_of(fact: Fact) -> Item:
    fields = fact.model_dump(mode="json", exclude_defaults=True)
    return {"kind": FACT, "at": utc(fact.at_us).isoformat(), **fields}


def read_fact(item: Item) -> Fact:
    try:
        return Fact.model_validate({name: item[name] for name in item.keys() - {"kind", "at"}})
    except ValidationError as error:
        reason = describe_validation_error(error)
        raise MemAlignError(
            f"The fact {item.get('id')!r} in the store can't be read: {reason}"
        ) from error


def hash_example_id(example_id: str) -> str:
    """Hash an example's id, so that a fact can name the example without its id."""
    return digest(["unanswered", example_id])


def drop_answers(answers: Mapping[str, float], unanswered: Collection[str]) -> dict[str, float]:
    return {
        key: answer for key, answer in answers.items() if hash_example_id(key) not in unanswered
    }


def revision_of(guideline: Guideline) -> str:
    return _revision(guideline.text, guideline.origin, guideline.author)


@lru_cache(maxsize=10_000)  # at each judgment of each guideline
def _revision(text: str, origin: str, author: str | None) -> str:
    return digest([text, origin, author])


def feedback_record(episode: Episode, word: str, taken: Collection[str]) -> Item:
    """Build the stored record of feedback; `word` is the hash that lessons name it by."""
    content = episode.to_json()
    key = content_hash = digest({name: content[name] for name in content.keys() - _SAID_ANEW})
    while key in taken:
        key = digest([key])
    return {"key": key, "content": content_hash, "word": word, "episode": content}


def redacted_record(item: Mapping[str, Any]) -> Item:
    """Return a stored record of feedback without its content."""
    status = item["episode"]["status"] if "episode" in item else item["status"]
    return {**{name: item[name] for name in ("key", "content", "word")}, "status": status,
            "purged": True}  # fmt: skip


def new_id(at_us: int) -> str:
    return f"{at_us:016d}-{uuid4().hex[:12]}"


def timestamp_us(fact_id: str) -> int:
    """Return the date in a fact's key; 0 for no fact."""
    return int(fact_id.partition("-")[0] or 0)


def utc(at_us: int) -> datetime:
    return datetime.fromtimestamp(at_us / 1e6, UTC)


class _Clock:
    """Microseconds since 1970 that never repeat or go back within this process."""

    def __init__(self) -> None:
        self._last = 0
        self._lock = threading.Lock()

    def now_us(self, ticks: int = 1) -> int:
        with self._lock:
            first = max(time.time_ns() // 1000, self._last + 1)
            self._last = first + ticks - 1
            return first


clock = _Clock()
"""The clock of this process's facts."""
