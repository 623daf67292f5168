"""Changing a memory: remembering and revising.

Each reads what it needs, works out the change as pure data, and makes it in one commit.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from memalign_graph.errors import InvalidInputError
from memalign_graph.io import IO
from memalign_graph.memory.access import MemoryAccess
from memalign_graph.memory.cascade import Cascade, cascade, cascade_edits
from memalign_graph.memory.embedding import embed, store_vectors, stored_vectors
from memalign_graph.memory.index.retrieval_text import retrieval_text
from memalign_graph.memory.index.vectors import Vector, vector_key
from memalign_graph.memory.items import Edit
from memalign_graph.memory.rivals import edits_made, settle_rivals
from memalign_graph.memory.words import newer_word, takes_back
from memalign_graph.reading import read_feedback
from memalign_graph.types import Criterion, Episode, Example, Feedback

COMMIT_ITEMS = 2_000
"""How many episodes one commit changes at most: SQLite bounds the variables of a statement."""


@dataclass(frozen=True)
class Remembered:
    """What storing feedback did."""

    episodes: list[Episode]
    """The episodes as they stand now, one for each piece of feedback, in its order."""

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
    note_threads: bool = True,
) -> Remembered:
    """Store feedback as episodes."""
    checked = [check_feedback(one, access.criterion) for one in feedback]
    view = await access.refresh(io)
    fresh = [one.example for one in checked if not view.holds(one.episode_id)]
    await _store_missing_vectors(io, access, fresh, known_vectors or {})
    parts: list[Remembered] = []
    for start in range(0, len(checked), COMMIT_ITEMS):
        part = checked[start : start + COMMIT_ITEMS]
        parts.append(await _remember_part(io, access, part, note_threads=note_threads))
    new = {key for part in parts for key in part.new}
    return Remembered(
        episodes=[episode for part in parts for episode in part.episodes],
        new=new,
        changed={key for part in parts for key in part.changed} - new,
    )


async def _remember_part(
    io: IO,
    access: MemoryAccess,
    checked: Sequence[Feedback],
    *,
    note_threads: bool,
) -> Remembered:
    ids = [one.episode_id for one in checked]
    said: dict[str, Episode] = {}
    for key, one in zip(ids, checked, strict=True):
        episode = Episode.from_feedback(one, _first_status(one))
        said[key] = newer_word(said.get(key), episode)
    view = await access.refresh(io)
    stored = await access.episodes(io, said)
    after = {key: newer_word(stored.get(key), episode) for key, episode in said.items()}
    if not note_threads:
        same = {key for key, old in stored.items() if old.says_the_same_as(after[key])}
        after.update({key: stored[key] for key in same})
    replaced = {key for key, old in stored.items() if takes_back(old, after[key])}
    follow = await follow_sources(io, access, replaced)
    edits = [Edit("episodes", stored.get(key), episode) for key, episode in after.items()]
    edits += cascade_edits(follow)
    authors = {one.author for one in checked}
    by = authors.pop() if len(authors) == 1 else None
    known = view.known_commits()
    commit = await access.commit(io, view, edits, reason="remember", author=by)
    await settle_rivals(io, access, commit, known, edits_made(edits), taken_back=replaced)
    return Remembered(
        episodes=[after[key] for key in ids],
        new=set(after) - set(stored),
        changed={key for key, old in stored.items() if not old.says_the_same_as(after[key])},
    )


async def revise(
    io: IO, access: MemoryAccess, episode_id: str, feedback: Feedback | Mapping[str, Any]
) -> Episode:
    """Change what an expert said."""
    if not isinstance(episode_id, str):
        raise InvalidInputError("episode_id: give an episode's id, which is text.")
    view = await access.refresh(io)
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
    after = stored.model_copy(
        update={
            "value": said.value,
            "rationale": said.rationale,
            "status": "pending",
            "thread_ids": list(
                dict.fromkeys([*stored.thread_ids, *([said.thread_id] if said.thread_id else [])])
            ),
            "given_at": max(said.given_at, stored.given_at),
            "updated_at": datetime.now(UTC),
        }
    )
    if stored.says_the_same_as(after):
        return stored
    follow = await follow_sources(io, access, {stored.id})
    edits = [Edit("episodes", stored, after), *cascade_edits(follow)]
    known = view.known_commits()
    commit = await access.commit(io, view, edits, reason="revise", author=stored.author)
    await settle_rivals(io, access, commit, known, edits_made(edits), taken_back={stored.id})
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


def _first_status(feedback: Feedback) -> Any:
    return "distilled" if feedback.agrees else "pending"


async def follow_sources(io: IO, access: MemoryAccess, taken_back: set[str]) -> Cascade:
    """Work out what becomes of the guidelines when episodes are taken back."""
    guidelines = await access.every_guideline(io) if taken_back else []
    return cascade(guidelines, taken_back)


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
