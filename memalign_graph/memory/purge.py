"""Purging: feedback erased from everything that a memory keeps of it.

The order makes it safe to be cut off: what tells the traces, the content of the episodes, goes
last, so that the same call made again finds what is left to do.
"""

import re
import string
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from memalign_graph.io import IO
from memalign_graph.memory.access import MemoryAccess
from memalign_graph.memory.cascade import cascade_edits, superseded_by, without_words
from memalign_graph.memory.changes import COMMIT_ITEMS
from memalign_graph.memory.embedding import embedder_namespaces
from memalign_graph.memory.erasure import Mark, carries, check_checkpointer, erase_threads, vacuum
from memalign_graph.memory.forgetting import Forgotten, Purged, Selection, clear_drafts
from memalign_graph.memory.index.retrieval_text import retrieval_text
from memalign_graph.memory.index.vectors import vector_key
from memalign_graph.memory.items import Edit, read_episode, read_guideline
from memalign_graph.memory.judgments import remove_judgments
from memalign_graph.memory.records import PURGE, Change, Changes, Item, ItemKind
from memalign_graph.memory.reviews import remove_reviews
from memalign_graph.memory.rivals import edits_made, settle_rivals
from memalign_graph.types import Episode, Guideline

_SHORT = 3
"""A word of fewer characters says little, unless a digit or a sign makes it one of a kind."""

_GRAM = 3
"""How many characters of a script without blanks are compared at a time."""

_NO_BLANKS = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af\u0e00-\u0e7f]+")
"""Japanese, Chinese, Korean and Thai, which write no blanks between words, or not all."""

_MARK_CHARS = 12
"""The shortest text that tells a checkpoint which carries it."""


@dataclass(frozen=True)
class _Traces:
    """What is to be purged, and how to know it."""

    episodes: dict[str, list[Episode]]
    """Everything that was ever stored under the ids to be purged."""

    words: set[str]
    """Words that nothing but these episodes brought into the memory."""

    marks: set[Mark]
    """What tells a checkpoint which carries something of these episodes."""

    sides: list[Any]
    """The inputs, outputs and reference outputs of these episodes that no other one has."""

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


async def purge(
    io: IO,
    access: MemoryAccess,
    selection: Selection,
    checkpointer: object,
    *,
    author: str | None = None,
) -> Forgotten:
    """Erase episodes and all that is left of them: also what was forgotten or revised before."""
    check_checkpointer(checkpointer)
    traces = await _trace(io, access, selection)
    await clear_drafts(io, access)
    traced = await _traced_judgments(io, access, traces)
    await remove_judgments(io, access, traced)
    await remove_reviews(io, access, traced)
    known = sorted({key for one in traces.versions for key in one.thread_ids})
    threads, warnings = await erase_threads(io, checkpointer, traces.marks, known)
    vectors = await _remove_vectors(io, access, traces)
    commits = await _scrub(io, access, traces, "guidelines")
    forgotten, hand_written = await _remove(io, access, traces, author)
    # Once more: what was done meanwhile may have kept, or made again, what was there before.
    vectors += await _remove_vectors(io, access, traces)
    commits |= await _scrub(io, access, traces, "guidelines")
    commits |= await _scrub(io, access, traces, "episodes")
    await remove_judgments(io, access, traced)
    await remove_reviews(io, access, traced)
    await access.refresh(io)
    warnings += await vacuum(io, access.store, "store")
    if checkpointer is not None:
        warnings += await vacuum(io, checkpointer, "checkpointer")
    warnings += [
        f"The guideline {one.id}, written by hand, shares words with what was purged: look at it, "
        "and take it away with `remove_guideline` if it should go."
        for one in hand_written
    ]
    return Forgotten(
        episode_ids=list(forgotten.episodes),
        unknown_ids=selection.unknown(traces.versions),
        guidelines_removed=forgotten.removed,
        guidelines_reduced=forgotten.reduced,
        purged=Purged(
            commits=len(commits), vectors=vectors, thread_ids=threads, warnings=list(warnings)
        ),
    )


@dataclass(frozen=True)
class _Removed:
    episodes: list[str]
    removed: list[Guideline]
    reduced: list[Guideline]


async def _trace(io: IO, access: MemoryAccess, selection: Selection) -> _Traces:
    everything = await access.all_episodes(io)
    live = {one.id: one for one in everything if selection.meets(one)}
    records = await _records(io, access)
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
    known = _words(access.criterion.instructions).union(*(_words_of(one) for one in rest))
    versions = [one for several in found.values() for one in several]
    authors = {one.author for one in versions if one.author}
    return _Traces(
        episodes=found,
        words={word for one in versions for word in _words_of(one)} - known,
        marks=_marks(versions, rest),
        sides=_own_sides(versions, rest),
        authors=authors - {one.author for one in rest},
    )


def _own_sides(versions: list[Episode], rest: list[Episode]) -> list[Any]:
    kept = [side for one in rest for side in one.example.to_json().values()]
    sides = [side for one in versions for side in one.example.to_json().values()]
    return [one for one in sides if one is not None and one not in kept]


def _marks(versions: list[Episode], rest: list[Episode]) -> set[Mark]:
    """Tell how to know a checkpoint that carries something of some episodes, and not of others."""
    kept = {text for one in rest for text in _texts_of(one)}
    ids = {one.id for one in versions} | {one.example_id for one in versions}
    ids |= {one.judgment.id for one in versions if one.judgment}
    words = [one.rationale for one in versions]
    sides = [
        [text for text in _leaves(value) if len(text) >= _MARK_CHARS]
        for one in versions
        for value in (one.example.inputs, one.example.outputs, one.example.reference_outputs)
    ]
    texts = [[one] for one in words if one and len(one) >= _MARK_CHARS]
    found = {frozenset(side) for side in [*sides, *texts] if side and not kept.issuperset(side)}
    return found | {frozenset([key]) for key in ids - {one.example_id for one in rest}}


async def _records(io: IO, access: MemoryAccess) -> list[Changes]:
    [items] = await access.search(io, access.layout.changes)
    return [Changes.model_validate(item) for item in items]


async def _remove_vectors(io: IO, access: MemoryAccess, traces: _Traces) -> int:
    """Remove the vectors of texts that no other episode has, whoever embedded them."""
    everything = await access.all_episodes(io)
    kept = {retrieval_text(one.example)[0] for one in everything if one.id not in traces.episodes}
    texts = {retrieval_text(one.example)[0] for one in traces.versions} - kept
    removed = 0
    for embedder, namespace in (await embedder_namespaces(io, access)).items():
        keys = [vector_key(embedder, text) for text in texts]
        there = await access.get(io, namespace, keys, lambda item: item["key"])
        await access.put(io, namespace, dict.fromkeys(there))
        removed += len(there)
    return removed


async def _traced_judgments(
    io: IO, access: MemoryAccess, traces: _Traces
) -> Callable[[Mapping[str, Any]], bool]:
    """Tell how to know a kept judgment that was made on, or with, what is purged."""
    guidelines = {one.id for one in await access.every_guideline(io) if traces.rests(one)}
    for record in await _records(io, access):
        for change in record.changes:
            versions = [one for one in (change.before, change.after) if one is not None]
            if change.kind == "guidelines" and any(
                traces.rests(read_guideline(one)) for one in versions
            ):
                guidelines.add(change.id)
    marks = traces.marks | {frozenset([key]) for key in guidelines}

    def is_traced(item: Mapping[str, Any]) -> bool:
        example = item.get("example")
        sides = example.values() if isinstance(example, Mapping) else ()
        return carries(item, marks) or any(one in traces.sides for one in sides)

    return is_traced


async def _scrub(io: IO, access: MemoryAccess, traces: _Traces, kind: ItemKind) -> set[str]:
    """Take out of the commits what they keep of one kind of items; returns which commits."""
    records = await _records(io, access)
    touched: dict[str, Item | None] = {}
    for record in records:
        changes = [_scrubbed(one, traces) if one.kind == kind else one for one in record.changes]
        if changes != record.changes:
            scrubbed = record.model_copy(update={"changes": changes})
            touched[record.id] = scrubbed.model_dump(mode="json")
    commits = await access.commits(io)
    named = {
        one.id: one.model_copy(update={"author": None}).model_dump(mode="json")
        for one in commits
        if one.author in traces.authors
    }
    await access.put(io, access.layout.commits, dict(named))
    await access.put(io, access.layout.changes, touched)
    return {*touched, *named}


def _scrubbed(change: Change, traces: _Traces) -> Change:
    versions = [one for one in (change.before, change.after) if one is not None]
    if change.purged or not versions:
        return change
    if change.kind == "episodes":
        return change.purge() if change.id in traces.episodes else change
    if any(traces.rests(read_guideline(one)) for one in versions):
        return change.purge()
    return change.model_copy(
        update={
            "before": _unnamed(change.before, traces),
            "after": _unnamed(change.after, traces),
        }
    )


def _unnamed(item: Item | None, traces: _Traces) -> Item | None:
    if item is None or item.get("author") not in traces.authors:
        return item
    return {**item, "author": None}


async def _remove(
    io: IO, access: MemoryAccess, traces: _Traces, author: str | None
) -> tuple[_Removed, list[Guideline]]:
    """Remove what lives; returns it, and the guidelines that only an expert can judge."""
    view = await access.refresh(io)
    episodes = await access.episodes(io, traces.episodes)
    everything = await access.every_guideline(io)
    hand_written = [
        one for one in everything if not one.episode_ids and one.text and traces.rests(one)
    ]
    removed: list[Guideline] = []
    reduced: list[Guideline] = []
    edits: list[Edit] = [Edit("episodes", one, None) for one in episodes.values()]
    for guideline in everything:
        if not guideline.episode_ids or not traces.rests(guideline):
            if guideline.author in traces.authors:
                unnamed = guideline.model_copy(update={"author": None})
                edits.append(Edit("guidelines", guideline, unnamed))
            continue
        left = [key for key in guideline.episode_ids if key not in traces.episodes]
        gone = not left or guideline.status == "superseded"
        blank = without_words(guideline, left)
        edits.append(Edit("guidelines", guideline, None if gone else blank))
        (removed if gone else reduced).append(blank)
    edits += cascade_edits(superseded_by(everything, removed))
    by = author if author not in traces.authors else None
    for start in range(0, len(edits), COMMIT_ITEMS):
        known = view.known_commits()
        part = edits[start : start + COMMIT_ITEMS]
        commit = await access.commit(io, view, part, reason=PURGE, author=by, purges=True)
        await settle_rivals(
            io,
            access,
            commit,
            known,
            edits_made(part),
            taken_back=set(traces.episodes),
            purges=True,
        )
        view = await access.refresh(io)
    return _Removed(list(episodes), removed, reduced), hand_written


def _texts_of(episode: Episode) -> list[str]:
    """Return all that was said: by the application, its users, the judge and the expert."""
    example = episode.example
    judged = episode.judgment.rationale if episode.judgment else ""
    values = [example.inputs, example.outputs, example.reference_outputs]
    return [one for one in [*_leaves(values), episode.rationale or "", judged] if one]


def _leaves(value: Any) -> Iterator[str]:
    """Go through the texts in a JSON value, without the keys they stand under."""
    match value:
        case str():
            yield value
        case list():
            for item in value:
                yield from _leaves(item)
        case dict():
            for item in value.values():
                yield from _leaves(item)


def _words_of(episode: Episode) -> set[str]:
    names = [episode.author or "", episode.feedback_id or ""]
    return _words(" ".join([*_texts_of(episode), *names]))


def _words(text: str) -> set[str]:
    words: set[str] = set()
    for run in _NO_BLANKS.findall(text):
        words |= {run[start : start + _GRAM] for start in range(max(len(run) - _GRAM + 1, 1))}
    for part in _NO_BLANKS.sub(" ", text).split():
        word = part.strip(string.punctuation).casefold()
        pieces = [word, *re.split(r"[^\w]+", word)]
        words |= {one for one in pieces if len(one) >= _SHORT or re.search(r"\d|@", one)}
    return words - {""}
