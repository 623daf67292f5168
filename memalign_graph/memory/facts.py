"""Items of a memory in a store: their namespaces, and the facts of its log.

Only a purge changes a written fact. Feedback is stored in records of its own (kind `words`), keyed
by content. Facts name these keys.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import chain
from typing import Any, Literal
from uuid import uuid4

from pydantic import Field, ValidationError

from memalign_graph.errors import InvalidInputError, MemAlignError, describe_validation_error
from memalign_graph.identity import check_label, digest
from memalign_graph.types import FrozenModel, Guideline, UtcDatetime

Item = dict[str, Any]

DEFAULT_NAMESPACE = ("memalign",)
Namespace = tuple[str, ...]

ItemKind = Literal["facts", "words", "head", "drafts", "judgments", "reviews", "vectors"]


@dataclass(frozen=True)
class MemoryLayout:
    """The namespaces of one criterion's memory: `(*namespace, criterion, kind)`.

    - `facts`: one item per fact, by its id.
    - `words`: one record per piece of feedback, by a hash of its content.
    - `head`: one item with the id of the fact that was written last.
    - `drafts`: one item per reply of a model that is not committed yet.
    - `judgments`: one item per judgment that is kept for feedback, by its id.
    - `reviews`, `vectors`: the prefix of the review log's days, and of the embedders.
    """

    root: Namespace

    def of(self, kind: ItemKind) -> Namespace:
        return (*self.root, kind)

    def reviews_on(self, day: int, *, asked: bool) -> Namespace:
        """One item per judgment of a day: those that an expert was asked about, or the others."""
        return (*self.root, "reviews", f"{day}-{'asked' if asked else 'not-asked'}")

    def vectors(self, embedder: str) -> Namespace:
        """One item per text that an embedder embedded, by `vector_key`."""
        return (*self.root, "vectors", hashlib.sha256(embedder.encode()).hexdigest()[:16])


def check_namespace(namespace: Sequence[str] | str) -> Namespace:
    if isinstance(namespace, str):
        namespace = (namespace,)
    if not isinstance(namespace, Sequence) or not namespace:
        raise InvalidInputError("namespace: give at least one label, such as ('memalign',).")
    try:
        labels = tuple(check_label(label, "a label") for label in namespace)
    except ValueError as error:
        raise InvalidInputError(f"namespace: {error}") from error
    if labels[0] == "langgraph":
        raise InvalidInputError(
            "namespace: LangGraph reserves the first label 'langgraph'. Use another one."
        )
    return labels


_PACKED = "packed"
"""The key that names an item's fields stored as JSON text."""


def packed(item: Item | None) -> Item | None:
    """Store as JSON text what Postgres would change: the order of keys, and some floats."""
    names = [name for name, part in (item or {}).items() if isinstance(part, dict | list | float)]
    if item is None or not names:
        return item
    texts = {name: json.dumps(item[name], ensure_ascii=False) for name in names}
    return {**item, **texts, _PACKED: names}


def unpacked(item: Item) -> Item:
    parts = dict(item)
    for name in parts.pop(_PACKED, ()):
        parts[name] = json.loads(parts[name])
    return parts


FeedbackHashes = dict[str, str]
"""Feedback hashes (`Episode.word`) by episode id."""

EMPTY_VERSION = "0" * 32
"""The version of an empty memory."""

LONG_AGO = datetime.min.replace(tzinfo=UTC)

FACT = "fact"
"""The `kind` of a fact's item: a memory of another criterion may be stored below this one."""

PURGE = "purge"
REMEMBER = "remember"
JUDGE_CASES = "judge cases"
"""The reason of facts that store known feedback again, with a verdict of the judge."""


class GuidelineRevision(FrozenModel):
    """A guideline as one fact leaves it."""

    id: str
    text: str
    """Empty if it was purged."""
    question: str | None = None
    """The check question; empty if it was purged, or if the guideline cannot be asked."""
    revision: str
    """The hash of text, origin and author: identifies the wording even after a purge."""
    sources: FeedbackHashes = Field(default_factory=dict)
    """The feedback it rests on. A guideline with sources is active while one of them is."""
    origin: Literal["distilled", "expert"] = "distilled"
    author: str | None = None
    position: int
    created_at: UtcDatetime
    updated_at: UtcDatetime
    replaces: str | None = None
    """The revision it was made from; None for a new guideline."""
    is_anew: bool = False
    """Whether it was distilled from these sources alone. If not, earlier sources are kept too."""
    read_with: str | None = None
    """An episode of the prompt it was written in, if that lacked some of its sources."""
    is_outdated: bool = False
    """Whether the text still rests on a source that was forgotten."""

    @classmethod
    def of(
        cls,
        guideline: Guideline,
        sources: FeedbackHashes,
        *,
        replaces: "GuidelineRevision | None" = None,
        is_anew: bool = False,
        read_with: str | None = None,
    ) -> "GuidelineRevision":
        fields = guideline.model_dump(exclude={"episode_ids", "status", "worth"})
        wording = [guideline.text, guideline.origin, guideline.author]
        revision = digest(wording)
        # A purge may have removed the author of the wording, but not from its hash.
        if replaces is not None and wording == [replaces.text, replaces.origin, replaces.author]:
            revision = replaces.revision
        return cls(
            **fields,
            revision=revision,
            sources=sources,
            replaces=None if replaces is None else replaces.revision,
            is_anew=is_anew,
            read_with=read_with,
            is_outdated=guideline.status == "pending" and not is_anew,
        )

    def redact(self) -> "GuidelineRevision":
        question = None if self.question is None else ""
        return self.model_copy(update={"text": "", "question": question, "author": None})


class GuidelineTombstone(FrozenModel):
    """A guideline that a fact retires."""

    id: str
    by: str | None = None
    """The guideline that replaces it."""
    reason: str | None = None
    sources: FeedbackHashes = Field(default_factory=dict)
    """The feedback that retires it. The tombstone counts while one is active, or has no sources."""
    is_settled: bool = False
    """Whether an expert decided it: only then a guideline that an expert wrote is retired."""


class Fact(FrozenModel):
    """One atomic change of a memory."""

    id: str
    """The key: unique, and in order of time."""
    at_us: int
    """Microseconds since 1970; later than all facts that its writer had seen."""
    clock_us: int | None = None
    """The writer's clock, if `at_us` follows a fact whose clock was far ahead."""
    reason: str
    """What made it: `remember`, `learn`, `forget`, `add_guideline`, ..."""
    author: str | None = None
    said: FeedbackHashes = Field(default_factory=dict)
    """The keys of the feedback records that it stores, by episode id."""
    read: FeedbackHashes = Field(default_factory=dict)
    """The feedback it was distilled from, which is then no longer pending."""
    prompts: list[list[str]] = Field(default_factory=list)
    """The episodes that shared a prompt: a text made from one may repeat any of them."""
    guidelines: list[GuidelineRevision] = Field(default_factory=list)
    retired: list[GuidelineTombstone] = Field(default_factory=list)
    forgotten: list[str] = Field(default_factory=list)
    answers: dict[str, dict[str, float]] = Field(default_factory=dict)
    """Answers to check questions: the probability of yes, by `asked_id` and example id."""
    answer_ids: list[str] = Field(default_factory=list)
    """The facts that had these answers before an import; empty if a model was asked here."""
    failed: list[str] = Field(default_factory=list)
    """The ids of failed attempts to distil."""
    repeated: dict[str, list[str]] = Field(default_factory=dict)
    """Hashes of feedback that counts as given before but has no record, by episode id: merged rows
    of a table, and feedback that was replaced or forgotten before an export."""
    undone: list[str] = Field(default_factory=list)
    purged: list[str] = Field(default_factory=list)
    """The keys of the redacted feedback records."""
    scrubbed: dict[str, list[str]] = Field(default_factory=dict)
    """The guidelines whose text was redacted, by fact id. Those revisions no longer count, and
    their sources are pending again."""
    keeps_signatures: bool = False
    """Whether a purge keeps authors' names on guidelines that rest on no feedback."""
    unanswered: list[str] = Field(default_factory=list)
    """The examples whose answers were deleted, by `hash_example_id`."""

    @property
    def time(self) -> datetime:
        """When it was written. After a clock that was ahead, its id is later."""
        return utc(self.clock_us or self.at_us)

    @property
    def is_lesson(self) -> bool:
        """Whether it changes guidelines, or marks feedback as distilled."""
        return bool(self.read or self.guidelines or self.retired)

    @property
    def signed_by(self) -> set[str | None]:
        """The authors of it and of its guidelines."""
        return {self.author, *(each.author for each in self.guidelines)}

    @property
    def erased_ids(self) -> set[str]:
        """The episodes and guidelines that it erased, if it is a purge."""
        return {*self.forgotten, *chain.from_iterable(self.scrubbed.values())}

    def keeps_answers_on(self, example_id: str) -> bool:
        return hash_example_id(example_id) not in self.unanswered

    def read_together(self, episode_ids: Iterable[str]) -> set[str]:
        """Return these episodes, and those that shared a prompt with them."""
        ids = {*episode_ids}
        return ids.union(*(prompt for prompt in self.prompts if not ids.isdisjoint(prompt)))

    def possible_sources(self, revision: GuidelineRevision) -> set[str]:
        """Return the episodes whose content a revision's text may repeat."""
        sources = revision.sources if revision.read_with is None else [revision.read_with]
        return self.read_together(sources)

    def after_purge(self, purge: "Fact", authors: AbstractSet[str]) -> "Fact":
        """Return this fact without what a purge erased, and without some authors' names."""
        guidelines, retired, author = self.guidelines, self.retired, self.author
        if self.id in purge.scrubbed:
            ids = purge.scrubbed[self.id]
            guidelines = [each.redact() if each.id in ids else each for each in guidelines]
            retired = [each.model_copy(update={"reason": None}) for each in retired]
        is_signature = guidelines and all(
            each.origin == "expert" and not each.sources for each in guidelines
        )
        if not (purge.keeps_signatures and is_signature):
            author = None if author in authors else author
            guidelines = [
                each.model_copy(update={"author": None}) if each.author in authors else each
                for each in guidelines
            ]
        answers = filter_answers(self.answers, purge.keeps_answers_on)
        changes = {"guidelines": guidelines, "retired": retired, "author": author}
        return self.model_copy(update={**changes, "answers": answers})


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
    """Hash an example's id, so that a purge can name the example without its id."""
    return digest(["unanswered", example_id])


def filter_answers(
    answers: Mapping[str, Mapping[str, float]], is_kept: Callable[[str], bool]
) -> dict[str, dict[str, float]]:
    """Return the answers on the examples with these ids, in a stable order."""
    return {
        asked: {key: answer for key, answer in sorted(by_case.items()) if is_kept(key)}
        for asked, by_case in sorted(answers.items())
    }


def new_id(at_us: int) -> str:
    return f"{at_us:016d}-{uuid4().hex[:12]}"


def timestamp_us(fact_id: str) -> int:
    """Return the time in a fact's key; 0 for no fact."""
    return int(fact_id.partition("-")[0] or 0)


def utc(at_us: int) -> datetime:
    return datetime.fromtimestamp(at_us / 1e6, UTC)
