"""Purging: feedback erased from everything that a memory keeps of it.

The order makes it safe to be cut off: the content of the episodes goes last, so that the same call
made again finds what is left to do.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from langgraph.store.base import ListNamespacesOp, MatchCondition, SearchOp

from memalign_graph.effects import Batch, Operation
from memalign_graph.identity import canonical_json
from memalign_graph.memory.access import (
    Edit,
    MemoryAccess,
    read_episode,
    read_guideline,
)
from memalign_graph.memory.erasure import erase_threads, vacuum
from memalign_graph.memory.forgetting import Forgotten, Purged, Selection, clear_drafts, select
from memalign_graph.memory.records import Change, Changes, Item
from memalign_graph.memory.retrieval_text import retrieval_text
from memalign_graph.memory.vectors import vector_key
from memalign_graph.types import Episode, Guideline

_WORD = re.compile(r"[\w-]{4,}")
_MANY = 1_000_000


@dataclass(frozen=True)
class _Traces:
    """What is to be purged, and how to know it."""

    episodes: dict[str, list[Episode]]
    """Everything that was ever stored under the ids to be purged."""

    words: set[str]
    """Words that nothing but these episodes brought into the memory."""

    authors: set[str]
    """Experts who have nothing else in the memory."""

    @property
    def versions(self) -> list[Episode]:
        """Return everything that was ever stored, in one list."""
        return [one for several in self.episodes.values() for one in several]

    def rests(self, guideline: Guideline) -> bool:
        """Tell whether a guideline names these episodes as its source, or repeats them."""
        named = not self.episodes.keys().isdisjoint(guideline.episode_ids)
        return named or not self.words.isdisjoint(_words(guideline.text))


def purge(
    access: MemoryAccess, selection: Selection, checkpointer: object, *, author: str | None = None
) -> Operation[Forgotten]:
    """Erase episodes and all that is left of them: also what was forgotten or revised before.

    Args:
        access: The memory.
        selection: Which episodes.
        checkpointer: Where the threads lie that carried the feedback; None if it is not at hand.
        author: Who asks for it, if known.

    Returns:
        What was done.
    """
    traces = yield from _trace(access, selection)
    vectors = yield from _remove_vectors(access, traces)
    yield from clear_drafts(access)
    commits = yield from _scrub(access, traces)
    threads, warnings = yield from erase_threads(checkpointer, _marks(traces), _threads(traces))
    forgotten, hand_written = yield from _remove(access, traces, author)
    # Once more: a commit made meanwhile may have kept what was there before it.
    commits += yield from _scrub(access, traces)
    yield from access.refresh()
    warnings += yield from vacuum(access.store, "store")
    if checkpointer is not None:
        warnings += yield from vacuum(checkpointer, "checkpointer")
    warnings += [
        f"The guideline {one.id}, written by hand, shares words with what was purged: look at it, "
        "and take it away with `remove_guideline` if it should go."
        for one in hand_written
    ]
    wanted = dict.fromkeys(selection.episode_ids or ())
    return Forgotten(
        episode_ids=list(forgotten.episodes),
        unknown_ids=[key for key in wanted if key not in traces.episodes],
        guidelines_removed=forgotten.removed,
        guidelines_reduced=forgotten.reduced,
        purged=Purged(
            commits=commits, vectors=vectors, thread_ids=threads, warnings=list(warnings)
        ),
    )


@dataclass(frozen=True)
class _Removed:
    episodes: list[str]
    removed: list[Guideline]
    reduced: list[Guideline]


def _trace(access: MemoryAccess, selection: Selection) -> Operation[_Traces]:
    live = yield from select(access, selection)
    everything = yield from access.all_episodes()
    records = yield from _records(access)
    found: dict[str, list[Episode]] = {key: [one] for key, one in live.items()}
    past = [
        read_episode(change.before)
        for record in records
        for change in record.changes
        if change.kind == "episodes" and change.before is not None
    ]
    for one in past:
        if one.id in found or selection.meets(one):
            found.setdefault(one.id, []).append(one)
    for one in everything:
        if one.id in found and one.id not in live:
            found[one.id].append(one)
    rest = [one for one in everything if one.id not in found]
    known = _words(access.criterion.instructions)
    for one in rest:
        known |= _said(one)
    versions = [one for several in found.values() for one in several]
    said = {word for one in versions for word in _said(one)}
    authors = {one.author for one in versions if one.author}
    return _Traces(
        episodes=found,
        words=said - known,
        authors=authors - {one.author for one in rest},
    )


def _records(access: MemoryAccess) -> Operation[list[Changes]]:
    [items] = yield from access.search(access.layout.changes)
    return [Changes.model_validate(item) for item in items]


def _remove_vectors(access: MemoryAccess, traces: _Traces) -> Operation[int]:
    """Remove the vectors of texts that no other episode has, whoever embedded them."""
    everything = yield from access.all_episodes()
    kept = {retrieval_text(one.example)[0] for one in everything if one.id not in traces.episodes}
    texts = {retrieval_text(one.example)[0] for one in traces.versions} - kept
    prefix = access.layout.all_vectors
    [namespaces] = yield Batch(
        access.store,
        [ListNamespacesOp(match_conditions=(MatchCondition("prefix", prefix),), limit=_MANY)],
    )
    removed = 0
    for namespace in namespaces:
        if tuple(namespace[:-1]) != prefix:
            continue
        [first] = yield Batch(access.store, [SearchOp(namespace, limit=1)])
        if not first:
            continue
        keys = [vector_key(first[0].value["embedder"], text) for text in texts]
        there = yield from access.get(namespace, keys, lambda item: item["key"])
        yield from access.put(namespace, dict.fromkeys(there))
        removed += len(there)
    return removed


def _scrub(access: MemoryAccess, traces: _Traces) -> Operation[int]:
    """Take out of the commits what they keep of the items as they were; returns how many."""
    records = yield from _records(access)
    touched: dict[str, Item | None] = {}
    for record in records:
        changes = [
            change.purge() if not change.purged and _keeps(change, traces) else change
            for change in record.changes
        ]
        if changes != record.changes:
            scrubbed = record.model_copy(update={"changes": changes})
            touched[record.id] = scrubbed.model_dump(mode="json")
    yield from access.put(access.layout.changes, touched)
    commits = yield from access.commits()
    yield from access.put(
        access.layout.commits,
        {
            one.id: one.model_copy(update={"author": None}).model_dump(mode="json")
            for one in commits
            if one.author in traces.authors
        },
    )
    return len(touched)


def _keeps(change: Change, traces: _Traces) -> bool:
    if change.kind == "episodes":
        return change.before is not None and change.id in traces.episodes
    versions = [one for one in (change.before, change.after) if one is not None]
    return any(traces.rests(read_guideline(one)) for one in versions)


def _remove(
    access: MemoryAccess, traces: _Traces, author: str | None
) -> Operation[tuple[_Removed, list[Guideline]]]:
    """Remove what lives; returns it, and the guidelines that only an expert can judge."""
    view = yield from access.refresh()
    episodes = yield from access.episodes(traces.episodes)
    everything = yield from access.every_guideline()
    hand_written = [
        one for one in everything if not one.episode_ids and one.text and traces.rests(one)
    ]
    edits: list[Edit] = [Edit("episodes", one, None) for one in episodes.values()]
    removed: list[Guideline] = []
    reduced: list[Guideline] = []
    for guideline in everything:
        if not guideline.episode_ids or not traces.rests(guideline):
            continue
        left = [key for key in guideline.episode_ids if key not in traces.episodes]
        blank = guideline.model_copy(
            update={
                "episode_ids": left,
                "text": "",
                "status": "pending",
                "origin": "distilled",
                "author": None,
            }
        )
        gone = not left or guideline.status == "superseded"
        edits.append(Edit("guidelines", guideline, None if gone else blank))
        (removed if gone else reduced).append(blank)
    by = author if author not in traces.authors else None
    yield from access.commit(view, edits, reason="purge", author=by, purges=True)
    return _Removed(list(episodes), removed, reduced), hand_written


def _marks(traces: _Traces) -> set[str]:
    """Return what tells that a checkpoint carries something of the episodes."""
    versions = traces.versions
    ids = {one.id for one in versions} | {one.example_id for one in versions}
    words = {one.rationale for one in versions if one.rationale}
    return ids | {text for text in words if len(text) >= 12}  # noqa: PLR2004 - shorter says little


def _threads(traces: _Traces) -> list[str]:
    versions = traces.versions
    return list(dict.fromkeys(thread for one in versions for thread in one.thread_ids))


def _said(episode: Episode) -> set[str]:
    example: Mapping[str, object] = episode.example.to_json()
    return _words(canonical_json(example)) | _words(episode.rationale or "")


def _words(text: str) -> set[str]:
    return {word.casefold() for word in _WORD.findall(text)}
