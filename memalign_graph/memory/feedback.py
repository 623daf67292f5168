"""Operations on feedback: remember, revise and forget it, and keep judgments of its cases.

Each reads the memory, builds a fact as plain data, and writes it. Concurrent writers do not
overwrite each other: readers work out what follows from all facts.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from memalign_graph.agreement import on_scale
from memalign_graph.errors import InvalidInputError
from memalign_graph.io import IO
from memalign_graph.memory.access import MemoryAccess
from memalign_graph.memory.embedding import embed, store_vectors, stored_vectors
from memalign_graph.memory.index.retrieval_text import retrieval_text
from memalign_graph.memory.index.vectors import Vector, vector_key
from memalign_graph.memory.standing import EpisodeRow, effective
from memalign_graph.memory.view import MemoryView
from memalign_graph.memory.words import newer_word, said_after
from memalign_graph.scales import Scale
from memalign_graph.types import (
    Criterion,
    Episode,
    Example,
    Feedback,
    Guideline,
    Judgment,
    read_feedback,
)


@dataclass(frozen=True)
class Remembered:
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
) -> Remembered:
    """Store feedback as episodes.

    Of a table, which may be given again and again, feedback without a date is new only once: what
    its expert said later, or took back, stands. Without `embeds` new cases get their vectors when
    the memory is next searched.
    """
    checked = [check_feedback(one, access.criterion) for one in feedback]
    view = await access.refresh(io)
    ids = [one.episode_id for one in checked]
    if is_table:
        known = _feedback_in_log(view) - {(old.id, old.word) for old in view.episodes(ids).values()}
        checked = [one for one in checked if not _is_said_before(one, known)]
    fresh = [one.example for one in checked if not view.holds(one.episode_id)]
    if embeds:
        await _store_missing_vectors(io, access, fresh, known_vectors or {})
    view = await access.refresh(io)
    stored = view.episodes(ids)
    said: dict[str, Episode] = {}
    for one in checked:
        is_dated = "given_at" in one.model_fields_set
        dated = one if is_dated else said_after(stored.get(one.episode_id), one)
        episode = Episode.from_feedback(dated, "distilled" if one.agrees else "pending")
        said[episode.id] = newer_word(said.get(episode.id), episode)
    after = {key: newer_word(stored.get(key), episode) for key, episode in said.items()}
    changed = {key for key in after.keys() & stored if not stored[key].says_the_same_as(after[key])}
    if not note_threads:
        after |= {key: old for key, old in stored.items() if key not in changed}
    authors = {one.author for one in checked}
    by = authors.pop() if len(authors) == 1 else None
    words = [said[key] for key, episode in after.items() if episode != stored.get(key)]
    await say(io, access, words, reason="remember", author=by)
    standing = {**stored, **after}
    episodes = [standing[key] for key in ids if key in standing]
    return Remembered(episodes, after.keys() - stored.keys(), changed)


def _is_said_before(feedback: Feedback, known: Collection[tuple[str, str]]) -> bool:
    key = feedback.episode_id, Episode.from_feedback(feedback).word
    return "given_at" not in feedback.model_fields_set and key in known


def _feedback_in_log(view: MemoryView) -> set[tuple[str, str]]:
    """Return all feedback ever stored, but what was rolled back: episode ids and word hashes."""
    facts, words = view.facts()
    return {
        (episode_id, words[key]["word"])
        for fact in effective(facts)
        for episode_id, key in fact.said.items()
    }


async def say(
    io: IO, access: MemoryAccess, episodes: Sequence[Episode], *, reason: str, author: str | None
) -> None:
    """Write down what experts said, if anything."""
    if episodes:
        await access.write(io, reason, {}, author=author, words=episodes)


async def revise(
    io: IO, access: MemoryAccess, episode_id: str, feedback: Feedback | Mapping[str, Any]
) -> Episode:
    """Change what an expert said."""
    if not isinstance(episode_id, str):
        raise InvalidInputError("episode_id: give an episode's id, which is text.")
    stored = (await access.episodes(io, [episode_id])).get(episode_id)
    if stored is None:
        raise InvalidInputError(
            f"episode_id: {episode_id!r} names no episode of {access.criterion.name!r}: "
            "`episodes()` lists them."
        )
    said = read_feedback(_revision(stored, feedback))
    if (said.episode_id, said.id) != (stored.id, stored.feedback_id):
        raise InvalidInputError(
            "feedback: it is another expert's, or on another example: give `value` and "
            "`rationale` alone, or use `remember`."
        )
    said = check_feedback(said, access.criterion)
    threads = [*stored.thread_ids, *([said.thread_id] if said.thread_id else [])]
    after = stored.model_copy(
        update={
            "value": said.value,
            "rationale": said.rationale,
            "status": "pending",
            "thread_ids": list(dict.fromkeys(threads)),
            "given_at": max(said.given_at, stored.given_at),
            "updated_at": datetime.now(UTC),
        }
    )
    if stored.says_the_same_as(after):
        return stored
    await say(io, access, [after], reason="revise", author=stored.author)
    return after


def _revision(stored: Episode, feedback: Feedback | Mapping[str, Any]) -> dict[str, Any]:
    if isinstance(feedback, Feedback):
        given = {name: getattr(feedback, name) for name in feedback.model_fields_set}
    elif isinstance(feedback, Mapping):
        given = dict(feedback)
    else:
        raise InvalidInputError(
            "feedback: give what is said instead, as Feedback or as an object with `value`, "
            f"`rationale` or both, not a value of type {type(feedback).__name__}."
        )
    kept = {
        "value": stored.value,
        "rationale": stored.rationale,
        "author": stored.author,
        "id": stored.feedback_id,
    }
    names_example = given.keys() & {"example", *Example.model_fields}
    return {**kept, **({} if names_example else {"example": stored.example}), **given}


def check_feedback(feedback: Feedback, criterion: Criterion) -> Feedback:
    """Bring a feedback's value onto the criterion's scale."""
    if feedback.value is None:
        return feedback
    try:
        value = criterion.scale.validate_value(feedback.value)
    except ValueError as error:
        raise InvalidInputError(f"value: {error}") from error
    return feedback.model_copy(update={"value": value})


async def _store_missing_vectors(
    io: IO, access: MemoryAccess, examples: Sequence[Example], known: Mapping[str, Vector]
) -> None:
    texts: dict[str, str] = {}
    vectors: dict[str, Vector] = {}
    for example in examples:
        text, _ = retrieval_text(example)
        key = vector_key(access.embedder.id, text)
        if key in access.view.index:
            continue
        if example.id in known:
            vectors[key] = known[example.id]
        else:
            texts[key] = text
    stored = await stored_vectors(io, access, texts)
    missing = {key: text for key, text in texts.items() if key not in stored}
    await store_vectors(io, access, {**vectors, **await embed(io, access, missing)})


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
    """Which episodes are meant: those that meet all that is given."""

    episode_ids: Sequence[str] | None = None
    """By id."""

    feedback_ids: Sequence[str] | None = None
    """By the id their feedback has where it came from."""

    author: str | None = None
    """By the expert who said it."""

    where: Callable[[Episode], Any] | None = None
    """By a function of the episode."""

    def __post_init__(self) -> None:
        if all(
            one is None for one in (self.episode_ids, self.feedback_ids, self.author, self.where)
        ):
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
        """Tell which ids name nothing."""
        known = {episode.id for episode in episodes}
        known_feedback = {episode.feedback_id for episode in episodes}
        return [
            *(key for key in dict.fromkeys(self.episode_ids or ()) if key not in known),
            *(key for key in dict.fromkeys(self.feedback_ids or ()) if key not in known_feedback),
        ]

    def meets(self, episode: Episode) -> bool:
        """Tell whether an episode is meant."""
        if self.episode_ids is not None and episode.id not in self.episode_ids:
            return False
        if self.feedback_ids is not None and episode.feedback_id not in self.feedback_ids:
            return False
        if self.author is not None and episode.author != self.author:
            return False
        return self.where is None or bool(self.where(episode))


async def forget(
    io: IO, access: MemoryAccess, selection: Selection, *, author: str | None = None
) -> Forgotten:
    """Take episodes back, and every guideline that rests on them alone."""
    view = await access.refresh(io)
    everything = view.episodes(_wanted(selection)).values()
    ids = [episode.id for episode in everything if selection.meets(episode)]
    before = view.guidelines
    if ids:
        await access.write(io, "forget", {"forgotten": ids}, author=author)
        # A model's answer that waits to be committed may speak of what is forgotten.
        await clear_drafts(io, access)
    touched = [rule for rule in before if not {*ids}.isdisjoint(rule.episode_ids)]
    removed, reduced = left_without(touched, view.guidelines)
    return Forgotten(ids, selection.unknown(list(everything)), removed, reduced)


def _wanted(selection: Selection) -> Sequence[str] | None:
    by_ids_alone = (selection.feedback_ids, selection.author, selection.where) == (None,) * 3
    return selection.episode_ids if by_ids_alone else None


def left_without(
    touched: Sequence[Guideline], after: Sequence[Guideline]
) -> tuple[list[Guideline], list[Guideline]]:
    """Tell which of some guidelines are gone, and how the others stand now."""
    standing = {guideline.id: guideline for guideline in after}
    removed = [one for one in touched if one.id not in standing]
    return removed, [standing[one.id] for one in touched if one.id in standing]


async def clear_drafts(io: IO, access: MemoryAccess) -> None:
    """Remove answers of models that wait to be committed."""
    [items] = await access.search(io, access.layout.of("drafts"))
    await access.put(io, access.layout.of("drafts"), {item["id"]: None for item in items})


def unjudged_cases(rows: Sequence[EpisodeRow], scale: Scale) -> dict[str, list[str]]:
    """Find the cases that an expert valued and no judge has judged."""
    cases: dict[str, list[EpisodeRow]] = {}
    for row in rows:
        cases.setdefault(row.example_id, []).append(row)
    return {
        key: [row.id for row in case]
        for key, case in cases.items()
        if any(on_scale(row.value, scale) is not None for row in case)
        and not any(row.judged and on_scale(row.judged.verdict, scale) is not None for row in case)
        and any(row.judged is None for row in case)
    }


async def note_judgments(io: IO, access: MemoryAccess, judgments: Mapping[str, Judgment]) -> None:
    """Keep judgments on the episodes of their cases: the experts' words again, with a verdict."""
    view = await access.refresh(io)
    now = datetime.now(UTC)
    judged = [
        # As it was said, whether or not it was learned from since.
        Episode.model_validate(
            {**row.content, "judgment": judgments[row.example_id], "updated_at": now}
        )
        for row in view.rows()
        if row.example_id in judgments and row.judged is None
    ]
    await say(io, access, judged, reason="judge cases", author=None)
