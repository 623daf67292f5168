"""Operations on feedback: remember, revise and forget it, and keep judgments of its cases.

Each reads the memory, builds a fact as plain data, and writes it. Concurrent writers do not
overwrite each other: readers work out what follows from all facts.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from memalign_graph.agreement import value_or_none
from memalign_graph.errors import InvalidInputError
from memalign_graph.io import IO
from memalign_graph.memory.access import MemoryAccess
from memalign_graph.memory.embedding import ensure_vectors, store_vectors, vector_key_of_example
from memalign_graph.memory.episode_row import EpisodeRow
from memalign_graph.memory.facts import JUDGE_CASES, PURGE, redacted_record
from memalign_graph.memory.feedback_merge import merge_feedback, order_after
from memalign_graph.memory.index.retrieval_text import retrieval_text
from memalign_graph.memory.index.vectors import Vector
from memalign_graph.memory.memory_state import without_undone
from memalign_graph.memory.view import MemoryView
from memalign_graph.scales import Scale
from memalign_graph.types import (
    Criterion,
    Episode,
    Example,
    Feedback,
    Guideline,
    Judgment,
    parse_feedback,
)


@dataclass(frozen=True)
class RememberResult:
    """What storing feedback did."""

    episodes: list[Episode]
    """The episodes as they stand now, one for each piece of feedback, in its order; none for what
    a table repeats and its expert has taken back."""

    new: set[str]
    """The ids of episodes that were not there before."""

    changed: set[str]
    """The ids of episodes that say something else now."""


async def remember(
    io: IO,
    access: MemoryAccess,
    feedback: Sequence[Feedback],
    *,
    known_vectors: Mapping[str, Vector] | None = None,
    is_table: bool = False,
    note_threads: bool = True,
    embeds: bool = True,
) -> RememberResult:
    """Store feedback as episodes.

    Of a table, which may be given again and again, feedback without a date is new only once: what
    its expert said later, or took back, stands. Without `embeds` new cases get their vectors when
    the memory is next searched.
    """
    checked = [check_feedback(item, access.criterion) for item in feedback]
    view = await access.refresh(io)
    ids = [item.episode_id for item in checked]
    logged = feedback_in_log(view) if is_table else set()
    if is_table:
        outdated = logged - {(old.id, old.word) for old in view.episodes(ids).values()}
        checked = [item for item in checked if _undated_word(item) not in outdated]
    new_examples = [item.example for item in checked if not view.holds(item.episode_id)]
    if embeds:
        await _store_missing_vectors(io, access, new_examples, known_vectors or {})
    view = await access.refresh(io)
    stored = view.episodes(ids)
    submitted: dict[str, Episode] = {}
    for item in checked:
        is_dated = "given_at" in item.model_fields_set
        dated = item if is_dated else order_after(stored.get(item.episode_id), item)
        episode = Episode.from_feedback(dated, "distilled" if item.agrees else "pending")
        submitted[episode.id] = merge_feedback(submitted.get(episode.id), episode)
    after = {key: merge_feedback(stored.get(key), episode) for key, episode in submitted.items()}
    changed = {key for key in after.keys() & stored if not stored[key].says_the_same_as(after[key])}
    if not note_threads:
        same = (after.keys() & stored) - changed
        after |= {key: stored[key] for key in same if after[key].verdicts == stored[key].verdicts}
    authors = {item.author for item in checked}
    by = authors.pop() if len(authors) == 1 else None
    words = [submitted[key] for key, episode in after.items() if episode != stored.get(key)]
    rows = {*filter(None, map(_undated_word, checked))} if is_table else set()
    # A record holds what a row was merged with, not the row.
    recorded = {(key, word.word) for key, word in submitted.items() if key not in stored}
    repeated = by_episode(rows - logged - recorded)
    if words or repeated:
        await access.write(io, "remember", {"repeated": repeated}, author=by, words=words)
    standing = {**stored, **after}
    episodes = [standing[key] for key in ids if key in standing]
    return RememberResult(episodes, after.keys() - stored.keys(), changed)


def _undated_word(feedback: Feedback) -> tuple[str, str] | None:
    """Return the episode id and the hash of feedback; None if it has a date."""
    is_dated = "given_at" in feedback.model_fields_set
    return None if is_dated else (feedback.episode_id, Episode.from_feedback(feedback).word)


def by_episode(pairs: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """Group hashes of feedback by their episode ids, in a stable order."""
    grouped: dict[str, list[str]] = {}
    for key, word in sorted(pairs):
        grouped.setdefault(key, []).append(word)
    return grouped


def feedback_in_log(view: MemoryView) -> set[tuple[str, str]]:
    """Return all feedback ever stored, but what was rolled back: episode ids and word hashes."""
    facts, words = view.facts()
    logged: set[tuple[str, str]] = set()
    for fact in without_undone(facts):
        logged |= {(key, words[record]["word"]) for key, record in fact.said.items()}
        logged |= {(key, word) for key, hashes in fact.repeated.items() for word in hashes}
    return logged


async def revise(
    io: IO, access: MemoryAccess, episode_id: str, feedback: Feedback | Mapping[str, Any]
) -> Episode:
    if not isinstance(episode_id, str):
        raise InvalidInputError("episode_id: give an episode's id, which is text.")
    stored = (await access.episodes(io, [episode_id])).get(episode_id)
    if stored is None:
        raise InvalidInputError(
            f"episode_id: {episode_id!r} names no episode of {access.criterion.name!r}: "
            "`episodes()` lists them."
        )
    revised = parse_feedback(_revision(stored, feedback))
    if (revised.episode_id, revised.id) != (stored.id, stored.feedback_id):
        raise InvalidInputError(
            "feedback: it is another expert's, or on another example: give `value` and "
            "`rationale` alone, or use `remember`."
        )
    revised = check_feedback(revised, access.criterion)
    threads = [*stored.thread_ids, *([revised.thread_id] if revised.thread_id else [])]
    after = stored.model_copy(
        update={
            "value": revised.value,
            "rationale": revised.rationale,
            "status": "pending",
            "thread_ids": list(dict.fromkeys(threads)),
            "given_at": max(revised.given_at, stored.given_at),
            "updated_at": datetime.now(UTC),
        }
    )
    if stored.says_the_same_as(after):
        return stored
    await access.write(io, "revise", {}, author=stored.author, words=[after], replaces=True)
    return after


def _revision(stored: Episode, feedback: Feedback | Mapping[str, Any]) -> dict[str, Any]:
    if isinstance(feedback, Feedback):
        feedback = {name: getattr(feedback, name) for name in feedback.model_fields_set}
    if not isinstance(feedback, Mapping):
        raise InvalidInputError(
            "feedback: give what is said instead, as Feedback or as an object with `value`, "
            f"`rationale` or both, not a value of type {type(feedback).__name__}."
        )
    fields: dict[str, Any] = {
        "value": stored.value,
        "rationale": stored.rationale,
        "author": stored.author,
        "id": stored.feedback_id,
    }
    if feedback.keys().isdisjoint({"example", *Example.model_fields}):
        fields["example"] = stored.example
    return fields | dict(feedback)


def check_feedback(feedback: Feedback, criterion: Criterion) -> Feedback:
    if feedback.value is None:
        return feedback
    try:
        value = criterion.scale.validate_value(feedback.value)
    except ValueError as error:
        raise InvalidInputError(f"value: {error}") from error
    return feedback.model_copy(update={"value": value})


async def _store_missing_vectors(
    io: IO, access: MemoryAccess, examples: Sequence[Example], known_vectors: Mapping[str, Vector]
) -> None:
    new = {vector_key_of_example(access, example): example for example in examples}
    new = {key: example for key, example in new.items() if key not in access.view.index}
    known = {key: example for key, example in new.items() if example.id in known_vectors}
    texts = {key: retrieval_text(new[key])[0] for key in new if key not in known}
    await ensure_vectors(io, access, texts)
    vectors = {key: known_vectors[example.id] for key, example in known.items()}
    await store_vectors(io, access, vectors)


@dataclass(frozen=True)
class Purged:
    """What `purge` did beyond forgetting."""

    commits: int
    """How many commits were rid of what they kept of it."""

    vectors: int
    """How many vectors were removed, of all embedders."""

    pending: list[str]
    """Other episodes that were read along with it: what was learned of them is gone as well, and
    is learned anew."""

    thread_ids: list[str]
    """The threads deleted from the checkpointer."""

    warnings: list[str]
    """Where traces may be left that could not be removed from here, a sentence each."""


@dataclass(frozen=True)
class Forgotten:
    """What `forget` did."""

    episode_ids: list[str]
    """The episodes forgotten."""

    unknown_ids: list[str]
    """The episode ids and feedback ids that name nothing in this memory."""

    guidelines_removed: list[Guideline]
    """Guidelines that rested on those episodes alone; empty of words after a purge."""

    guidelines_reduced: list[Guideline]
    """Guidelines that have other sources, as they stand now: `pending` where they have yet to be
    worded anew from those."""

    purged: Purged | None = None
    """What a purge did; None if none was asked for."""


@dataclass(frozen=True)
class Selection:
    """The episodes that meet all conditions given."""

    episode_ids: Sequence[str] | None = None
    """By id."""

    feedback_ids: Sequence[str] | None = None
    """By the id their feedback has where it came from."""

    author: str | None = None
    """By the expert who said it."""

    where: Callable[[Episode], Any] | None = None
    """By a function of the episode."""

    def __post_init__(self) -> None:
        if (self.episode_ids, self.feedback_ids, self.author, self.where) == (None,) * 4:
            raise InvalidInputError(
                "episode_ids: say which episodes to forget: `episode_ids`, `feedback_ids`, "
                "`author` or `where`."
            )
        if self.where is not None and not callable(self.where):
            raise InvalidInputError("where: give a function that takes an Episode.")
        if self.author is not None and (not isinstance(self.author, str) or not self.author):
            raise InvalidInputError(
                "author: give one expert's name; for several or for anonymous feedback use "
                "`where`, such as where=lambda episode: episode.author is None."
            )

    def unknown(self, episodes: Collection[Episode]) -> list[str]:
        """Return the ids that name nothing."""
        ids = {episode.id for episode in episodes}
        feedback_ids = {episode.feedback_id for episode in episodes}
        return [
            *(key for key in dict.fromkeys(self.episode_ids or ()) if key not in ids),
            *(key for key in dict.fromkeys(self.feedback_ids or ()) if key not in feedback_ids),
        ]

    def matches(self, episode: Episode) -> bool:
        return (
            (self.episode_ids is None or episode.id in self.episode_ids)
            and (self.feedback_ids is None or episode.feedback_id in self.feedback_ids)
            and (self.author is None or episode.author == self.author)
            and (self.where is None or bool(self.where(episode)))
        )


async def forget(
    io: IO, access: MemoryAccess, selection: Selection, *, author: str | None = None
) -> Forgotten:
    """Remove episodes, and every guideline that rests on them alone."""
    view = await access.refresh(io)
    names_ids_alone = (selection.feedback_ids, selection.author, selection.where) == (None,) * 3
    candidates = view.episodes(selection.episode_ids if names_ids_alone else None).values()
    ids = [episode.id for episode in candidates if selection.matches(episode)]
    before = view.guidelines
    if ids:
        await access.write(io, "forget", {"forgotten": ids}, author=author)
        # A model's answer that waits to be committed may speak of what is forgotten.
        await clear_cached_replies(io, access)
    touched = [each for each in before if not {*ids}.isdisjoint(each.episode_ids)]
    removed, reduced = split_removed(touched, view.guidelines)
    return Forgotten(ids, selection.unknown(list(candidates)), removed, reduced)


def split_removed(
    guidelines: Sequence[Guideline], after: Sequence[Guideline]
) -> tuple[list[Guideline], list[Guideline]]:
    """Return which of some guidelines are gone, and the others as they are now."""
    left = {guideline.id: guideline for guideline in after}
    removed = [guideline for guideline in guidelines if guideline.id not in left]
    return removed, [left[guideline.id] for guideline in guidelines if guideline.id in left]


async def clear_cached_replies(io: IO, access: MemoryAccess) -> None:
    """Remove models' replies that wait to be committed."""
    [items] = await access.search(io, access.layout.of("drafts"))
    await access.put(io, access.layout.of("drafts"), {item["id"]: None for item in items})


def unjudged_cases(rows: Sequence[EpisodeRow], scale: Scale) -> dict[str, list[str]]:
    """Return the cases that have an expert's value and no verdict, with their episodes."""
    cases: dict[str, list[EpisodeRow]] = {}
    for row in rows:
        cases.setdefault(row.example_id, []).append(row)
    return {
        key: [row.id for row in case]
        for key, case in cases.items()
        if any(value_or_none(row.value, scale) is not None for row in case)
        and not any(
            row.past_verdict and value_or_none(row.past_verdict.verdict, scale) is not None
            for row in case
        )
        and any(row.past_verdict is None for row in case)
    }


async def record_judgments(
    io: IO, access: MemoryAccess, judgments: Mapping[str, Judgment], *, replaces: bool = False
) -> None:
    """Store judgments on the episodes of their cases: the same feedback, with a verdict.

    They come without their rationales, which may quote other cases: a purge of those would miss it.
    """
    view = await access.refresh(io)
    purges, now = view.purges(), datetime.now(UTC)
    judged = [
        # As it was said, whether or not it was learned from since.
        Episode.model_validate(
            {
                **row.content,
                "judgment": judgments[row.example_id].model_copy(update={"rationale": ""}),
                "other_verdicts": row.verdicts,
                "updated_at": now,
            }
        )
        for row in view.rows()
        if row.example_id in judgments and (replaces or row.past_verdict is None)
    ]
    if not judged:
        return
    fact = await access.write(io, JUDGE_CASES, {}, words=judged, replaces=replaces)
    view = await access.refresh(io)
    gone = [key for episode_id, key in fact.said.items() if not view.holds(episode_id)]
    if gone and view.purges() - purges:
        _, items = view.facts()
        await access.write(io, PURGE, {"purged": gone})
        erased = {key: redacted_record(items[key]) for key in gone}
        await access.put(io, access.layout.of("words"), erased)
