"""Changing a memory: remembering and learning.

Each reads what it needs, works out the change as pure data, and makes it in one commit.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from memalign_graph.effects import Operation
from memalign_graph.errors import InvalidInputError
from memalign_graph.memory.access import MemoryAccess
from memalign_graph.memory.cascade import Cascade, cascade, cascade_edits
from memalign_graph.memory.embedding import embed, store_vectors, stored_vectors
from memalign_graph.memory.items import Edit, read_episode, read_guideline
from memalign_graph.memory.learning import GuidelineOperation, apply_operations, learned_before
from memalign_graph.memory.records import Change, clock
from memalign_graph.memory.retrieval_text import retrieval_text
from memalign_graph.memory.rivals import edits_made, purge_records, settle_rivals
from memalign_graph.memory.vectors import Vector, vector_key
from memalign_graph.memory.words import newer_word, takes_back
from memalign_graph.reading import read_feedback
from memalign_graph.types import Criterion, Episode, Example, Feedback, Guideline

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


def remember(
    access: MemoryAccess,
    feedback: Sequence[Feedback],
    *,
    known_vectors: Mapping[str, Vector] | None = None,
    note_threads: bool = True,
) -> Operation[Remembered]:
    """Store feedback as episodes.

    The same word again changes nothing; another word of the same author on the same example
    replaces the episode, and with it what only the old word supported.

    Args:
        access: The memory.
        feedback: What experts said; of several words of one author on one example the newest
            counts.
        known_vectors: Vectors that need not be made again, by example id.
        note_threads: Whether the same word said again in another thread is noted.

    Returns:
        The episodes, and which of them are new or changed.

    Raises:
        InvalidInputError: If a value is not on the criterion's scale; nothing is stored then.
        EmbeddingError: If an example has to be embedded and that fails; nothing is stored then.
    """
    checked = [check_feedback(one, access.criterion) for one in feedback]
    parts: list[Remembered] = []
    for start in range(0, len(checked), COMMIT_ITEMS):
        part = checked[start : start + COMMIT_ITEMS]
        parts.append(
            (
                yield from _remember_part(
                    access, part, known_vectors or {}, note_threads=note_threads
                )
            )
        )
    new = {key for part in parts for key in part.new}
    return Remembered(
        episodes=[episode for part in parts for episode in part.episodes],
        new=new,
        changed={key for part in parts for key in part.changed} - new,
    )


def _remember_part(
    access: MemoryAccess,
    checked: Sequence[Feedback],
    known_vectors: Mapping[str, Vector],
    *,
    note_threads: bool,
) -> Operation[Remembered]:
    ids = [one.episode_id for one in checked]
    said: dict[str, Episode] = {}
    for key, one in zip(ids, checked, strict=True):
        episode = Episode.from_feedback(one, _first_status(one))
        said[key] = newer_word(said.get(key), episode)
    view = yield from access.refresh()
    stored = yield from access.episodes(said)
    after = {key: newer_word(stored.get(key), episode) for key, episode in said.items()}
    if not note_threads:
        same = {key for key, old in stored.items() if old.says_the_same_as(after[key])}
        after.update({key: stored[key] for key in same})
    replaced = {key for key, old in stored.items() if takes_back(old, after[key])}
    follow = yield from follow_sources(access, replaced)
    yield from _store_missing_vectors(
        access, [one for one in after.values() if one.id not in stored], known_vectors
    )
    edits = [Edit("episodes", stored.get(key), episode) for key, episode in after.items()]
    edits += cascade_edits(follow)
    authors = {one.author for one in checked}
    by = authors.pop() if len(authors) == 1 else None
    known = view.known_commits()
    commit = yield from access.commit(view, edits, reason="remember", author=by)
    yield from settle_rivals(access, commit, known, edits_made(edits), taken_back=replaced)
    return Remembered(
        episodes=[after[key] for key in ids],
        new=set(after) - set(stored),
        changed={key for key, old in stored.items() if not old.says_the_same_as(after[key])},
    )


def revise(
    access: MemoryAccess, episode_id: str, feedback: Feedback | Mapping[str, Any]
) -> Operation[Episode]:
    """Change what an expert said.

    Args:
        access: The memory.
        episode_id: Which episode.
        feedback: What is said instead: value, rationale, or both; what is not named stays.

    Returns:
        The episode as it stands now.

    Raises:
        InvalidInputError: If there is no such episode, or what is said can't be used.
    """
    if not isinstance(episode_id, str):
        raise InvalidInputError("episode_id: give an episode's id, which is text.")
    view = yield from access.refresh()
    stored = (yield from access.episodes([episode_id])).get(episode_id)
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
    follow = yield from follow_sources(access, {stored.id})
    edits = [Edit("episodes", stored, after), *cascade_edits(follow)]
    known = view.known_commits()
    commit = yield from access.commit(view, edits, reason="revise", author=stored.author)
    yield from settle_rivals(access, commit, known, edits_made(edits), taken_back={stored.id})
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


def learn(
    access: MemoryAccess,
    operations: Sequence[GuidelineOperation],
    read: Mapping[str, str],
    *,
    author: str | None = None,
    relearn: bool = False,
    reason: str = "learn",
) -> Operation[dict[str, Any]]:
    """Bring what was distilled into the memory, and mark the episodes it came from.

    Doing the same again changes nothing. An episode that was forgotten or has another word since
    it was read supports nothing here, and an operation that comes from it is void: its text may
    hold what was taken back. The other sources of such an operation stay pending.

    Args:
        access: The memory.
        operations: What distilling proposed.
        read: The episodes that distilling read, with what they said, as `Episode.word`.
        author: Whose feedback it was, if one expert's.
        relearn: Whether episodes that were distilled before may teach again; else two attempts at
            one lesson, in whatever words, are one.
        reason: What the commit says of itself.

    Returns:
        What was learned: `episode_ids`, `guidelines` (an entry an operation that took effect) and
        the `memory_version` after it.
    """
    rivals = _Rivals()
    ours: list[str] = []
    while True:
        view = yield from access.refresh()
        known = view.known_commits()
        there = yield from access.episodes({*read, *rivals.changed, *rivals.said})
        stored = {**there, **{key: one for key, one in rivals.said.items() if key in there}}
        kept = {one.id: one for one in (yield from access.every_guideline())}
        same = {
            key
            for key, word in read.items()
            if key in stored and key not in rivals.removed and stored[key].word == word
        }
        valid, spared = _valid(operations, kept, gone=set(read) - same)
        fresh = same if relearn else {key for key in same if stored[key].status == "pending"}
        live = fresh - spared
        standing = rivals.joined(kept)
        changed, outcome = apply_operations(
            standing.values(),
            valid,
            live=live,
            now=datetime.now(UTC),
            position=clock.now_us(ticks=2 * len(operations) + 1),
        )
        after = {**standing, **changed}
        rivals.ours |= changed.keys()
        edits = [
            edit
            for key in dict.fromkeys([*kept, *after])
            if (edit := Edit("guidelines", kept.get(key), after.get(key), key))
            and (edit.before != edit.after or key in rivals.contested)
        ]
        # The guidelines at once, with the first of the episodes: cut off after it, the same call
        # made again finds the guidelines with all their sources.
        learned = {
            key: _after_learning(one, live=live, rivals=rivals) for key, one in stored.items()
        }
        flips = [
            Edit("episodes", there[key], one) for key, one in learned.items() if one != there[key]
        ]
        room = max(COMMIT_ITEMS - len(edits), 0)
        edits += flips[:room]
        commit = yield from access.commit(view, edits, reason=reason, author=author, again=True)
        for start in range(room, len(flips), COMMIT_ITEMS):
            view = yield from access.refresh()
            part = flips[start : start + COMMIT_ITEMS]
            commit = yield from access.commit(view, part, reason=reason, author=author)
        outcome += learned_before(valid, kept, same - fresh)
        theirs = [] if commit is None else (yield from access.rivals(commit, known))
        if commit is not None:
            ours.append(commit.id)
        if not theirs:
            if rivals.purged:
                yield from purge_records(access, ours)
            return {
                "episode_ids": sorted(same - spared),
                "guidelines": outcome,
                "memory_version": commit.version if commit is not None else view.version,
            }
        rivals.note(theirs, read, changed)


class _Rivals:
    """What other writers did, at the same moment, to items that a commit of ours changed, too."""

    def __init__(self) -> None:
        self.removed: set[str] = set()
        """Items they removed, which stay removed."""
        self.changed: set[str] = set()
        """Episodes they learned from, into a wording that is lost under ours: distilled again."""
        self.said: dict[str, Episode] = {}
        """Episodes that they gave another word."""
        self.contested: set[str] = set()
        """Guidelines that both changed: written again, so that the last commit is what is held."""
        self.purged = False
        """Whether one of them purged something: then our commits must not keep it, either."""
        self.ours: set[str] = set()
        """Guidelines that our own commits changed."""
        self._sources: dict[str, list[str]] = {}
        self._by_hand: dict[str, Guideline] = {}

    def note(
        self,
        changes: Sequence[Change],
        read: Mapping[str, str],
        ours: Mapping[str, Guideline | None],
    ) -> None:
        self.removed |= {one.id for one in changes if one.revision is None}
        self.contested = {one.id for one in changes if one.kind == "guidelines"} & self.ours
        self.purged = self.purged or any(one.purged for one in changes)
        episodes = [one for one in changes if one.kind == "episodes"]
        if any(self._lost(one, ours) for one in changes):
            self.changed |= {one.id for one in episodes} - set(read)
        self.said |= {one.id: read_episode(one.after) for one in episodes if one.after is not None}
        self.changed -= self.removed
        for one in changes:
            if one.kind == "guidelines" and one.after is not None:
                guideline = read_guideline(one.after)
                self._sources.setdefault(one.id, []).extend(guideline.episode_ids)
                if guideline.origin == "expert":
                    self._by_hand[one.id] = guideline

    def _lost(self, change: Change, ours: Mapping[str, Guideline | None]) -> bool:
        mine = ours.get(change.id)
        theirs = change.after if change.kind == "guidelines" else None
        return mine is not None and theirs is not None and theirs.get("text") != mine.text

    def joined(self, kept: Mapping[str, Guideline]) -> dict[str, Guideline]:
        """Return the guidelines with their sources beside ours, less what they removed."""
        joined = {}
        for key, guideline in {**kept, **self._by_hand}.items():
            sources = dict.fromkeys([*guideline.episode_ids, *self._sources.get(key, [])])
            joined[key] = guideline.model_copy(update={"episode_ids": list(sources)})
        # What we learned from a word that they replaced goes with it.
        for taken_back, only in ((self.removed, None), (set(self.said), self.ours)):
            follow = cascade(joined.values(), taken_back, only=only)
            joined.update({one.id: one for one in [*follow.reduced, *follow.restored]})
            gone = self.removed | {one.id for one in follow.removed}
            joined = {key: one for key, one in joined.items() if key not in gone}
        return joined


def _valid(
    operations: Sequence[GuidelineOperation], kept: Mapping[str, Guideline], *, gone: set[str]
) -> tuple[list[GuidelineOperation], set[str]]:
    """Leave out operations that come from what was taken back, and name their other sources.

    From feedback that is gone, or from a wording that a guideline has lost since.
    """
    valid, spared = [], set()
    for operation in operations:
        sources = set(operation.episode_ids)
        target = kept.get(operation.guideline_id or "")
        lost = (
            operation.before is not None
            and target is not None
            and target.text not in (operation.before, operation.text)
        )
        if sources & gone or lost:
            spared |= sources - gone
        else:
            valid.append(operation)
    return valid, spared


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


def _after_learning(episode: Episode, *, live: set[str], rivals: _Rivals) -> Episode | None:
    if episode.id in rivals.removed:
        return None
    if episode.id in rivals.changed:
        return episode.model_copy(update={"status": "pending"})
    return episode.model_copy(update={"status": "distilled"}) if episode.id in live else episode


def follow_sources(access: MemoryAccess, taken_back: set[str]) -> Operation[Cascade]:
    """Work out what becomes of the guidelines when episodes are taken back.

    Args:
        access: The memory.
        taken_back: The episodes.

    Returns:
        The guidelines that go or lose a source.
    """
    guidelines = (yield from access.every_guideline()) if taken_back else []
    return cascade(guidelines, taken_back)


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
    stored = yield from stored_vectors(access, texts)
    missing = {key: text for key, text in texts.items() if key not in stored}
    yield from store_vectors(access, {**vectors, **(yield from embed(access, missing))})
