"""Changing a memory: remembering, learning and forgetting.

Each reads what it needs, works out the change as pure data, and makes it in one commit.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from memalign_graph.effects import Operation
from memalign_graph.errors import InvalidInputError
from memalign_graph.memory.access import Edit, MemoryAccess
from memalign_graph.memory.cascade import Cascade, cascade
from memalign_graph.memory.learning import GuidelineOperation, apply_operations, plain_words
from memalign_graph.memory.records import clock
from memalign_graph.memory.retrieval_text import retrieval_text
from memalign_graph.memory.vectors import Vector, vector_key
from memalign_graph.types import Criterion, Episode, Feedback, Guideline

_COMMIT_ITEMS = 2_000
"""How many episodes one commit changes at most: SQLite bounds the variables of a statement."""


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
        feedback: What experts said; of several words of one author on one example the newest
            counts.
        known_vectors: Vectors that need not be made again, by example id.

    Returns:
        The episodes as they stand now, one for each piece of feedback.

    Raises:
        InvalidInputError: If a value is not on the criterion's scale; nothing is stored then.
        EmbeddingError: If an example has to be embedded and that fails; nothing is stored then.
    """
    checked = [check_feedback(one, access.criterion) for one in feedback]
    episodes: list[Episode] = []
    for start in range(0, len(checked), _COMMIT_ITEMS):
        part = checked[start : start + _COMMIT_ITEMS]
        episodes += yield from _remember_part(access, part, known_vectors or {})
    return episodes


def _remember_part(
    access: MemoryAccess, checked: Sequence[Feedback], known_vectors: Mapping[str, Vector]
) -> Operation[list[Episode]]:
    said: dict[str, Episode] = {}
    for one in checked:
        episode = Episode.from_feedback(one, _first_status(one))
        said[episode.id] = _merge(said.get(episode.id), episode)
    view = yield from access.refresh()
    stored = yield from access.episodes(said)
    after = {key: _merge(stored.get(key), episode) for key, episode in said.items()}
    replaced = {key for key, old in stored.items() if _takes_back(old, after[key])}
    follow = yield from _cascade(access, replaced)
    others = yield from _pending_again(access, follow.to_distill() - set(after))
    for key in follow.to_distill() & set(after):
        after[key] = after[key].model_copy(update={"status": "pending"})
    yield from _store_missing_vectors(
        access, [one for one in after.values() if one.id not in stored], known_vectors
    )
    edits = [Edit("episodes", stored.get(key), episode) for key, episode in after.items()]
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
    relearn: bool = False,
) -> Operation[dict[str, Any]]:
    """Bring what was distilled into the memory, and mark the episodes it came from.

    Doing the same again changes nothing. An episode that was forgotten or has another word since
    it was read supports nothing here.

    Args:
        access: The memory.
        operations: What distilling proposed.
        read: The episodes that distilling read, with what they said, as `Episode.word`.
        author: Whose feedback it was, if one expert's.
        relearn: Whether episodes that were distilled before may teach again; else two attempts at
            one lesson, in whatever words, are one.

    Returns:
        What was learned: `episode_ids`, `guidelines` (an entry an operation that took effect) and
        the `memory_version` after it.
    """
    removed: set[str] = set()
    again: set[str] = set()
    while True:
        view = yield from access.refresh()
        known = view.known_commits()
        stored = yield from access.episodes({*read, *again})
        standing = {one.id: one for one in (yield from access.all_guidelines())}
        same = {
            key
            for key, word in read.items()
            if key in stored and key not in removed and stored[key].word == word
        }
        live = same if relearn else {key for key in same if stored[key].status == "pending"}
        now = datetime.now(UTC)
        changed, outcome = apply_operations(
            [one for key, one in standing.items() if key not in removed],
            operations,
            live=live,
            now=now,
            position=clock.now_us(ticks=len(operations) + 1),
        )
        edits = [
            *_learned_guidelines(standing, changed, removed),
            *(
                Edit("episodes", one, _after_learning(one, live=live, removed=removed, again=again))
                for one in stored.values()
            ),
        ]
        commit = yield from access.commit(view, edits, reason="learn", author=author)
        outcome += _learned_before(operations, standing, same - live)
        rivals = [] if commit is None else (yield from access.rivals(commit, known))
        if not rivals:
            return {
                "episode_ids": sorted(same),
                "guidelines": outcome,
                "memory_version": commit.version if commit is not None else view.version,
            }
        # What another writer removed at the same moment stays removed, and what it learned into
        # an item that this commit has just overwritten is learned again.
        theirs = [change for rival in rivals for change in rival.changes]
        removed |= {change.id for change in theirs if change.revision is None}
        again |= {one.id for one in theirs if one.kind == "episodes"} - set(read) - removed


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
    parts: list[Forgotten] = []
    for start in range(0, len(ids), _COMMIT_ITEMS):
        part = yield from _forget_part(access, ids[start : start + _COMMIT_ITEMS], author)
        parts.append(part)
    removed = {one.id: one for part in parts for one in part.guidelines_removed}
    reduced = {one.id: one for part in parts for one in part.guidelines_reduced}
    return Forgotten(
        episode_ids=[key for part in parts for key in part.episode_ids],
        unknown_ids=[key for part in parts for key in part.unknown_ids],
        guidelines_removed=list(removed.values()),
        guidelines_reduced=[one for key, one in reduced.items() if key not in removed],
    )


def _forget_part(
    access: MemoryAccess, ids: Sequence[str], author: str | None
) -> Operation[Forgotten]:
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
    repeats = said.value is None and said.rationale == stored.rationale
    if repeats or stored.says_the_same_as(said) or stored.given_at > said.given_at:
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


def _learned_before(
    operations: Sequence[GuidelineOperation], standing: Mapping[str, Guideline], distilled: set[str]
) -> list[dict[str, Any]]:
    """Report again what an earlier attempt at the same commit made of these operations."""
    by_words = {plain_words(one.text): one for one in standing.values()}
    report = []
    for operation in operations:
        sources = [key for key in operation.episode_ids if key in distilled]
        if not sources:
            continue
        guideline = by_words.get(plain_words(operation.text or ""))
        gone = operation.action == "retire" and operation.guideline_id not in standing
        if gone or (guideline is not None and set(sources) <= set(guideline.episode_ids)):
            key = guideline.id if guideline is not None else operation.guideline_id
            report.append(
                {
                    "action": operation.action,
                    "guideline_id": key,
                    "text": operation.text,
                    "episode_ids": sources,
                }
            )
    return report


def _learned_guidelines(
    standing: Mapping[str, Guideline], changed: Mapping[str, Guideline | None], removed: set[str]
) -> list[Edit]:
    """Return what becomes of the guidelines: changed, or gone with what another writer removed."""
    edits = [Edit("guidelines", standing.get(key), one) for key, one in changed.items()]
    gone = [
        one
        for key, one in standing.items()
        if key not in changed and (key in removed or _rests_on(one, removed))
    ]
    return [*edits, *(Edit("guidelines", one, None) for one in gone)]


def _rests_on(guideline: Guideline, episode_ids: set[str]) -> bool:
    """Tell whether a guideline has no other sources than these."""
    return bool(guideline.episode_ids) and set(guideline.episode_ids) <= episode_ids


def _after_learning(
    episode: Episode, *, live: set[str], removed: set[str], again: set[str]
) -> Episode | None:
    if episode.id in removed:
        return None
    if episode.id in again:
        return episode.model_copy(update={"status": "pending"})
    return episode.model_copy(update={"status": "distilled"}) if episode.id in live else episode


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
