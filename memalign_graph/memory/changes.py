"""Changing a memory: remembering, learning, forgetting, and guidelines by hand.

Each reads what it needs, works out the change as pure data, and makes it in one commit.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from memalign_graph.effects import Operation
from memalign_graph.errors import InvalidInputError
from memalign_graph.identity import check_json, digest
from memalign_graph.memory.access import Edit, MemoryAccess
from memalign_graph.memory.cascade import Cascade, cascade
from memalign_graph.memory.learning import GuidelineOperation, apply_operations
from memalign_graph.memory.records import clock
from memalign_graph.memory.retrieval_text import retrieval_text
from memalign_graph.memory.vectors import Vector, vector_key
from memalign_graph.types import Criterion, Episode, Feedback, Guideline

MAX_GUIDELINE_CHARS = 2_000
"""The longest guideline, in characters."""


@dataclass(frozen=True)
class Forgotten:
    """What `forget` did."""

    episode_ids: list[str]
    """The episodes forgotten."""

    unknown_ids: list[str]
    """The ids that name no episode of this memory."""

    guidelines_removed: list[Guideline]
    """Guidelines that rested on those episodes alone."""

    guidelines_reduced: list[Guideline]
    """Guidelines that have other sources: those are pending again, for the next distilling."""


def remember(
    access: MemoryAccess,
    feedback: Sequence[Feedback],
    *,
    known_vectors: Mapping[str, Vector] | None = None,
) -> Operation[list[Episode]]:
    """Store feedback as episodes.

    The same word again changes nothing; another word of the same author on the same example
    replaces the episode, and with it what only the old word supported.

    Args:
        access: The memory.
        feedback: What experts said; of several words of one author on one example the last counts.
        known_vectors: Vectors that need not be made again, by example id.

    Returns:
        The episodes as they stand now, one for each piece of feedback.

    Raises:
        InvalidInputError: If a value is not on the criterion's scale; nothing is stored then.
        EmbeddingError: If an example has to be embedded and that fails; nothing is stored then.
    """
    checked = [check_feedback(one, access.criterion) for one in feedback]
    said = {one.episode_id: Episode.from_feedback(one, _first_status(one)) for one in checked}
    view = yield from access.refresh()
    stored = yield from access.episodes(said)
    after = {key: _merge(stored.get(key), episode) for key, episode in said.items()}
    replaced = {key for key, old in stored.items() if _takes_back(old, after[key])}
    follow = yield from _cascade(access, replaced)
    edits = [Edit("episodes", stored.get(key), episode) for key, episode in after.items()]
    others = yield from _pending_again(access, follow.to_distill() - set(after))
    yield from _store_missing_vectors(
        access, [one for one in after.values() if one.id not in stored], known_vectors or {}
    )
    authors = {one.author for one in checked}
    yield from access.commit(
        view,
        [*edits, *_guideline_edits(follow), *others],
        reason="remember",
        author=authors.pop() if len(authors) == 1 else None,
    )
    return [after[one.episode_id] for one in checked]


def learn(
    access: MemoryAccess,
    operations: Sequence[GuidelineOperation],
    read: Mapping[str, str],
    *,
    author: str | None = None,
) -> Operation[dict[str, Any]]:
    """Bring what was distilled into the memory, and mark the episodes it came from.

    Doing the same again changes nothing. An episode that was forgotten or has another word since
    it was read supports nothing here.

    Args:
        access: The memory.
        operations: What distilling proposed.
        read: The episodes that distilling read, with what they said, as `Episode.word`.
        author: Whose feedback it was, if one expert's.

    Returns:
        What was learned: `episode_ids`, `guidelines` (an entry an operation that took effect) and
        the `memory_version` after it.
    """
    view = yield from access.refresh()
    stored = yield from access.episodes(read)
    live = {key: one for key, one in stored.items() if one.word == read[key]}
    standing = yield from access.all_guidelines()
    by_id = {guideline.id: guideline for guideline in standing}
    now = datetime.now(UTC)
    changed, outcome = apply_operations(
        standing,
        operations,
        live=set(live),
        now=now,
        position=clock.now_us(ticks=len(operations) + 1),
    )
    edits = [Edit("guidelines", by_id.get(key), one) for key, one in changed.items()]
    edits += [
        Edit("episodes", one, one.model_copy(update={"status": "distilled", "updated_at": now}))
        for one in live.values()
        if one.status != "distilled"
    ]
    commit = yield from access.commit(view, edits, reason="learn", author=author)
    return {
        "episode_ids": sorted(live),
        "guidelines": outcome,
        "memory_version": commit.version if commit is not None else view.version,
    }


def forget(
    access: MemoryAccess, episode_ids: Iterable[str], *, author: str | None = None
) -> Operation[Forgotten]:
    """Take episodes back, and every guideline that rests on them alone.

    Args:
        access: The memory.
        episode_ids: Which episodes; ids that are not there are told, and harm nothing.
        author: Who asks for it, if known.

    Returns:
        What was done.
    """
    ids = list(dict.fromkeys(episode_ids))
    view = yield from access.refresh()
    stored = yield from access.episodes(ids)
    follow = yield from _cascade(access, set(stored))
    again = yield from _pending_again(access, follow.to_distill())
    edits = [Edit("episodes", episode, None) for episode in stored.values()]
    edits += [*_guideline_edits(follow), *again]
    yield from access.commit(view, edits, reason="forget", author=author)
    return Forgotten(
        episode_ids=list(stored),
        unknown_ids=[key for key in ids if key not in stored],
        guidelines_removed=follow.removed,
        guidelines_reduced=follow.reduced,
    )


def add_guideline(access: MemoryAccess, text: str, *, author: str | None) -> Operation[Guideline]:
    """Write a guideline by hand; in words that stand already it is that guideline.

    Args:
        access: The memory.
        text: The rule.
        author: Who writes it, if known.

    Returns:
        The guideline.

    Raises:
        InvalidInputError: If the text is empty, too long or no text.
    """
    text = check_guideline_text(text)
    view = yield from access.refresh()
    standing = yield from access.all_guidelines()
    same = next((one for one in standing if one.text == text), None)
    if same is not None:
        return same
    now = datetime.now(UTC)
    position = clock.now_us()
    guideline = Guideline(
        id=digest(["guideline", text, position]),
        text=text,
        origin="expert",
        author=author,
        position=position,
        created_at=now,
        updated_at=now,
    )
    edits = [Edit("guidelines", None, guideline)]
    yield from access.commit(view, edits, reason="add_guideline", author=author)
    return guideline


def edit_guideline(
    access: MemoryAccess, guideline_id: str, text: str, *, author: str | None
) -> Operation[Guideline]:
    """Reword a guideline by hand; it keeps its id, place and sources, and is the expert's now.

    Args:
        access: The memory.
        guideline_id: Which one.
        text: The rule.
        author: Who rewords it, if known.

    Returns:
        The guideline as it stands now.

    Raises:
        InvalidInputError: If the text is empty, too long or no text, or there is no such guideline.
    """
    text = check_guideline_text(text)
    view = yield from access.refresh()
    guideline = yield from _guideline(access, guideline_id)
    if guideline.text == text:
        return guideline
    after = guideline.model_copy(
        update={
            "text": text,
            "origin": "expert",
            "author": author,
            "updated_at": datetime.now(UTC),
        }
    )
    edits = [Edit("guidelines", guideline, after)]
    yield from access.commit(view, edits, reason="edit_guideline", author=author)
    return after


def remove_guideline(
    access: MemoryAccess, guideline_id: str, *, author: str | None
) -> Operation[Guideline]:
    """Take a guideline away; the episodes it came from stay.

    Args:
        access: The memory.
        guideline_id: Which one.
        author: Who takes it away, if known.

    Returns:
        The guideline as it was.

    Raises:
        InvalidInputError: If there is no such guideline.
    """
    view = yield from access.refresh()
    guideline = yield from _guideline(access, guideline_id)
    edits = [Edit("guidelines", guideline, None)]
    yield from access.commit(view, edits, reason="remove_guideline", author=author)
    return guideline


def check_feedback(feedback: Feedback, criterion: Criterion) -> Feedback:
    """Bring a feedback's value onto the criterion's scale.

    Args:
        feedback: The feedback.
        criterion: The criterion it is on.

    Returns:
        The feedback with its value as the scale writes it.

    Raises:
        InvalidInputError: If the value is not on the scale.
    """
    if feedback.value is None:
        return feedback
    try:
        value = criterion.scale.validate_value(feedback.value)
    except ValueError as error:
        raise InvalidInputError(f"value: {error}") from error
    return feedback.model_copy(update={"value": value})


def check_guideline_text(text: Any) -> str:
    """Check a guideline's text, and put it on one line.

    Args:
        text: The text.

    Returns:
        The text without blanks around it or line breaks in it.

    Raises:
        InvalidInputError: If it is empty, too long or no text.
    """
    if not isinstance(text, str) or not text.strip():
        raise InvalidInputError("text: a guideline is a sentence, not empty.")
    if len(text) > MAX_GUIDELINE_CHARS:
        raise InvalidInputError(
            f"text: a guideline has at most {MAX_GUIDELINE_CHARS:,} characters: shorten it."
        )
    try:
        check_json(text, "text")
    except ValueError as error:
        raise InvalidInputError(str(error)) from error
    return " ".join(text.split())


def _first_status(feedback: Feedback) -> Any:
    return "distilled" if feedback.agrees else "pending"


def _merge(stored: Episode | None, said: Episode) -> Episode:
    """Return the episode to keep.

    The stored one where the word is the same, where it is newer (a retry may bring an old word
    late), or where a value alone is said that does not contradict it: whoever confirms a value
    does not take the words back.
    """
    if stored is None:
        return said
    threads = list(dict.fromkeys([*stored.thread_ids, *said.thread_ids]))
    confirms = said.rationale is None and stored.value in (None, said.value)
    if stored.says_the_same_as(said) or stored.given_at > said.given_at:
        kept = stored.model_copy(update={"thread_ids": threads})
    elif confirms:
        kept = stored.model_copy(update={"thread_ids": threads, "value": said.value})
    else:
        return said.model_copy(update={"thread_ids": threads, "created_at": stored.created_at})
    if kept == stored:
        return stored
    return kept.model_copy(update={"updated_at": said.updated_at})


def _takes_back(stored: Episode, after: Episode) -> bool:
    """Tell whether what the stored word supported has lost its support."""
    return stored.rationale != after.rationale or stored.value not in (None, after.value)


def _cascade(access: MemoryAccess, taken_back: set[str]) -> Operation[Cascade]:
    if not taken_back:
        return Cascade(standing=[], removed=[], reduced=[])
    return cascade((yield from access.all_guidelines()), taken_back)


def _guideline_edits(follow: Cascade) -> list[Edit]:
    after = {one.id: one for one in follow.reduced}
    touched = {one.id for one in follow.removed} | set(after)
    return [
        Edit("guidelines", one, after.get(one.id)) for one in follow.standing if one.id in touched
    ]


def _pending_again(access: MemoryAccess, ids: set[str]) -> Operation[list[Edit]]:
    episodes = yield from access.episodes(sorted(ids))
    return [
        Edit("episodes", one, one.model_copy(update={"status": "pending"}))
        for one in episodes.values()
    ]


def _guideline(access: MemoryAccess, guideline_id: str) -> Operation[Guideline]:
    standing = yield from access.all_guidelines()
    for guideline in standing:
        if guideline.id == guideline_id:
            return guideline
    raise InvalidInputError(
        f"guideline_id: {guideline_id!r} names no guideline of {access.criterion.name!r}: "
        "`guidelines()` lists them."
    )


def _store_missing_vectors(
    access: MemoryAccess, episodes: list[Episode], known: Mapping[str, Vector]
) -> Operation[None]:
    texts: dict[str, str] = {}
    vectors: dict[str, Vector] = {}
    for episode in episodes:
        text, _ = retrieval_text(episode.example)
        key = vector_key(access.embedder.id, text)
        if key in access.view.index:
            continue
        if episode.example_id in known:
            vectors[key] = known[episode.example_id]
        else:
            texts[key] = text
    stored = yield from access.stored_vectors(texts)
    fresh = yield from access.embed({key: text for key, text in texts.items() if key not in stored})
    yield from access.store_vectors({**vectors, **fresh})
