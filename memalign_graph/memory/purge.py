"""Forget feedback, or purge it: erase it from facts, records, vectors, judgments and threads.

A purge finds everything by ids, never by similar text. It first writes a fact that names what is
purged, which every worker then leaves out, and then erases what all such facts name. The feedback
records, which have the ids, are redacted last, so that any later purge completes one that was cut
off.
"""

from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any, NamedTuple, TypeVar

from langgraph.checkpoint.base import BaseCheckpointSaver

from memalign_graph.errors import InvalidInputError
from memalign_graph.identity import digest
from memalign_graph.io import IO
from memalign_graph.memory.access import MemoryAccess
from memalign_graph.memory.external_traces import TraceMarker, erase_threads, vacuum
from memalign_graph.memory.facts import (
    JUDGE_CASES,
    PURGE,
    Fact,
    GuidelineRevision,
    hash_example_id,
    item_of,
    read_fact,
)
from memalign_graph.memory.guidelines import normalize_text
from memalign_graph.memory.index import past_texts, vector_key
from memalign_graph.memory.judgments import delete_matching
from memalign_graph.memory.memory_state import EpisodeRow
from memalign_graph.memory.recall import embedder_namespaces
from memalign_graph.memory.traces import texts_in, without_traces
from memalign_graph.memory.view import MemoryView
from memalign_graph.scales import require_bool
from memalign_graph.types import Episode, Guideline

T = TypeVar("T")

_NAME_LEFT = (
    "{!r} is still named in the history or as the author of guidelines: a purge finds a name by its"
    " feedback, and this memory has none. Store feedback of this author, and purge it again."
)


@dataclass(frozen=True)
class Purged:
    """What a purge deleted, in addition to forgetting."""

    commits: int
    """The number of commits that were redacted."""
    vectors: int
    """The number of deleted vectors, of all embedders."""
    pending: list[str]
    """Other episodes that were distilled together with it. The guidelines made from them were
    deleted, too, and are distilled again."""
    thread_ids: list[str]
    """The threads deleted from the checkpointer."""
    warnings: list[str]
    """Where content may be left that the purge could not delete, one sentence each."""


@dataclass(frozen=True)
class Forgotten:
    """What `forget` changed."""

    episode_ids: list[str]
    """The forgotten episodes."""
    unknown_ids: list[str]
    """The given episode ids and feedback ids that this memory does not have."""
    guidelines_removed: list[Guideline]
    """The guidelines that rested on those episodes alone; without text after a purge."""
    guidelines_reduced: list[Guideline]
    """The guidelines that have other sources, as they are now; `pending` until they are distilled
    again from these."""
    purged: Purged | None = None
    """What a purge deleted; None without `purge=True`."""


@dataclass(frozen=True)
class Selection:
    """A choice of episodes: those that meet all conditions that are not None."""

    episode_ids: Sequence[str] | None = None
    feedback_ids: Sequence[str] | None = None
    author: str | None = None
    where: Callable[[Episode], Any] | None = None

    def __post_init__(self) -> None:
        if (self.episode_ids, self.feedback_ids, self.author, self.where) == (None,) * 4:
            raise InvalidInputError(
                "episode_ids: choose the episodes to forget with `episode_ids`, `feedback_ids`, "
                "`author` or `where`."
            )
        if self.where is not None and not callable(self.where):
            raise InvalidInputError(
                f"where: expected a function of an Episode, got {type(self.where).__name__}."
            )

    def unknown(self, episodes: Collection[Episode]) -> list[str]:
        """Return the chosen ids that none of some episodes has."""
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
            and (self.where is None or require_bool(self.where(episode), "where"))
        )


async def forget(
    io: IO, access: MemoryAccess, selection: Selection, *, author: str | None = None
) -> Forgotten:
    """Forget episodes, and with them the guidelines that rest on them alone."""
    view = await access.refresh(io)
    names_ids_alone = (selection.feedback_ids, selection.author, selection.where) == (None,) * 3
    candidates = view.episodes(selection.episode_ids if names_ids_alone else None).values()
    ids = [episode.id for episode in candidates if selection.matches(episode)]
    before = view.guidelines
    if ids:
        await access.write(io, "forget", {"forgotten": ids}, author=author)
    touched = [each for each in before if not {*ids}.isdisjoint(each.episode_ids)]
    removed, reduced = split_removed(touched, view.guidelines)
    return Forgotten(ids, selection.unknown(list(candidates)), removed, reduced)


def split_removed(
    guidelines: Sequence[Guideline], after: Sequence[Guideline]
) -> tuple[list[Guideline], list[Guideline]]:
    """Return the guidelines that are gone, and the others as they are now."""
    left = {guideline.id: guideline for guideline in after}
    removed = [guideline for guideline in guidelines if guideline.id not in left]
    return removed, [left[guideline.id] for guideline in guidelines if guideline.id in left]


async def clear_cached_replies(io: IO, access: MemoryAccess) -> None:
    """Delete models' replies that are not committed."""
    [items] = await access.search(io, access.layout.of("drafts"))
    await access.put(io, access.layout.of("drafts"), {item["id"]: None for item in items})


async def purge(
    io: IO,
    access: MemoryAccess,
    selection: Selection,
    saver: BaseCheckpointSaver[Any] | None,
    *,
    author: str | None = None,
) -> Forgotten:
    """Erase episodes, with their earlier feedback and everything that may repeat it."""
    traces = await _find_traces(io, access, selection)
    searched = traces.markers
    thread_ids, warnings = await erase_threads(io, saver, searched, traces.thread_ids)
    traces = await _find_traces(io, access, selection)  # also what came meanwhile
    view, purged = access.view, traces.purged
    before, active = view.guidelines, view.episodes(traces.selected)
    if purged:
        # A purge by ids is about cases, not people: experts' names stay on guidelines by hand.
        keeps_signatures = selection.author is None and selection.where is None
        change = {
            "forgotten": sorted(traces.selected),
            "purged": sorted(purged),
            "scrubbed": traces.redactions.guideline_ids,
            "unanswered": traces.unanswered,
            "keeps_signatures": keeps_signatures,
        }
        by = None if author in traces.authors else author
        fact = await access.write(io, PURGE, change, author=by)
        # Of two purges at the same time, the later one finds here what neither leaves.
        await access.refresh(io)
        fact = fact.model_copy(update={"unanswered": traces.unanswered})
        traces.redactions, late = await _purge_late(io, access, fact, traces.authors)
        purged |= late
        if saver is not None and (missed := traces.markers - searched):
            thread_ids += (await erase_threads(io, saver, missed, traces.thread_ids))[0]
    await clear_cached_replies(io, access)
    # Only now: who writes from here on knows of the purge, and leaves out what it erased.
    n_commits, n_vectors = await _erase(io, access)
    guideline_ids = {revision.id for revision in traces.redactions.revisions}
    if _is_named(view, selection.author):
        warnings.append(_NAME_LEFT.format(selection.author))
    warnings += await vacuum(io, access.store, "store")
    if saver is not None:
        warnings += await vacuum(io, saver, "checkpointer")
    touched = [
        guideline
        for guideline in before
        if guideline.id in guideline_ids or not traces.selected.isdisjoint(guideline.episode_ids)
    ]
    removed, reduced = split_removed(touched, view.guidelines)
    blank = {"text": "", "author": None}
    return Forgotten(
        episode_ids=list(active),
        unknown_ids=traces.unknown_ids,
        guidelines_removed=[guideline.model_copy(update=blank) for guideline in removed],
        guidelines_reduced=reduced,
        purged=Purged(
            commits=n_commits,
            vectors=n_vectors,
            pending=sorted(traces.redactions.co_read_ids.intersection(view.pending())),
            thread_ids=list(dict.fromkeys(thread_ids)),
            warnings=warnings,
        ),
    )


class _Redactions(NamedTuple):
    """Guidelines that may repeat purged feedback."""

    guideline_ids: dict[str, list[str]]
    """The ids of the guidelines to redact, by fact id."""
    revisions: list[GuidelineRevision]
    co_read_ids: set[str]
    """The episodes that these revisions were distilled from."""


class _Traces:
    """What the store has of the feedback to purge."""

    def __init__(
        self, facts: list[Fact], rows: dict[str, EpisodeRow], view: MemoryView, selection: Selection
    ) -> None:
        self._view = view
        feedback = {key: _episode(row) for key, row in rows.items() if not row.is_purged}
        by_update = sorted(feedback.values(), key=lambda episode: episode.updated_at)
        newest = {**{episode.id: episode for episode in by_update}, **view.episodes()}
        self.unknown_ids = selection.unknown(newest.values())
        self.selected = {key for key, episode in newest.items() if selection.matches(episode)}
        """The ids of the episodes, selected by their newest feedback."""
        self.purged = {key: rows[key] for key in feedback if rows[key].id in self.selected}
        self.redactions = _find_redactions(facts, self.selected, self.authors, {})

    @property
    def authors(self) -> set[str | None]:
        return _only_in(self.purged, self._view, lambda row: [row.content.get("author")])

    @property
    def unanswered(self) -> list[str]:
        """The cases whose answers to check questions are erased, by hashes of their ids."""
        cases = _only_in(self.purged, self._view, lambda row: [row.example_id])
        return sorted(map(hash_example_id, cases))

    @property
    def thread_ids(self) -> list[str]:
        """The threads that the feedback names."""
        return sorted({key for row in self.purged.values() for key in _episode(row).thread_ids})

    @property
    def markers(self) -> set[TraceMarker]:
        """What a thread contains if it contains purged feedback or a guideline made from it."""
        ids = _only_in(self.purged, self._view, _ids)
        return {frozenset([key]) for key in ids} | {
            frozenset([revision.id, text])
            for revision in self.redactions.revisions
            for text in (revision.text, revision.question, revision.revision)
            if text
        }


async def _find_traces(io: IO, access: MemoryAccess, selection: Selection) -> _Traces:
    # From the store: after a purge that was cut off, the view lacks these records.
    facts, items = await access.search(io, access.layout.of("facts"), access.layout.of("words"))
    view = await access.refresh(io)
    rows, known = {row.key: row for row in map(access.read_row, items)}, view.facts()[1]
    # The view also lacks records whose facts were never written.
    view.add((), {key: rows[key] for key in rows.keys() - known.keys()})
    return _Traces(list(map(read_fact, facts)), rows, view, selection)


def _is_named(view: MemoryView, author: str | None) -> bool:
    """Return whether facts name an author of whom no feedback is left."""
    facts, rows = view.facts()
    if author is None or any(row.content.get("author") == author for row in rows.values()):
        return False
    return any(author in fact.signed_by for fact in facts)


def _episode(row: EpisodeRow) -> Episode:
    return Episode.model_validate({**row.content})


def _only_in(
    purged: Mapping[str, EpisodeRow], view: MemoryView, read: Callable[[EpisodeRow], Iterable[T]]
) -> set[T]:
    """Return what purged feedback has, and no feedback that is left in the view."""
    rows = view.facts()[1].items()
    left = (row for key, row in rows if key not in purged and not row.is_purged)
    return {*chain.from_iterable(map(read, purged.values()))}.difference(*map(read, left))


async def write_fact(
    io: IO,
    access: MemoryAccess,
    purges: set[str],
    reason: str,
    change: Mapping[str, Any],
    *,
    author: str | None = None,
    episodes: Sequence[Episode] = (),
    replaces: bool = False,
) -> MemoryView:
    """Write a fact with feedback, without what was purged, also meanwhile.

    `purges` are the purges that the writer knew when it read the memory. Feedback is merged with
    stored feedback of the same expert; with `replaces` it replaces it.
    """
    given = {each.id for each in (*episodes, *change.get("guidelines", ()))}
    purged_ids = access.view.purged_ids() - given
    rows = [access.view.row_of(each, purged_ids, replaces=replaces) for each in episodes]
    fact = await access.write(io, reason, change, author=author, rows=rows)
    view = await access.refresh(io)
    meanwhile = sorted(view.purges() - purges)
    for key in meanwhile:
        await _purge_late(io, access, view.fact(key), concurrent=fact.id)
    if meanwhile:
        await _erase(io, access)
    return view


async def _purge_late(
    io: IO,
    access: MemoryAccess,
    purge: Fact,
    authors: Container[str | None] = (),
    concurrent: str | None = None,
) -> tuple[_Redactions, dict[str, EpisodeRow]]:
    """Purge what others wrote while a purge ran; returns all redactions, and its rows."""
    view = await access.refresh(io)
    facts, rows = view.facts()
    redactions = _find_redactions(facts, {*purge.forgotten}, authors, purge.scrubbed)
    ids = redactions.guideline_ids
    again = purge.model_copy(update={"scrubbed": ids})
    changed = any(fact.after_purge(again, set()) != fact for fact in facts)
    late = {
        key: rows[key]
        for fact in facts
        for episode_id, key in fact.said.items()
        if episode_id in purge.forgotten and not rows[key].is_purged
        # Feedback given after the purge stays, unless its writer did not know of the purge.
        if fact.id < purge.id
        or fact.id == concurrent
        or (fact.reason == JUDGE_CASES and not view.holds(episode_id))
    }
    erased_ids = view.purged_ids() | {row.id for row in late.values()}
    is_quoted = any(
        without_traces(rows[key].content, erased_ids)
        for fact in facts
        if fact.id == concurrent
        for key in fact.said.values()
    )
    if changed or late or is_quoted:
        # Readers redact quotes dated before a purge; the concurrent fact may be dated after it.
        change = {
            "forgotten": sorted(erased_ids.intersection(purge.forgotten)) if is_quoted else [],
            "scrubbed": ids,
            "purged": sorted(late),
            "unanswered": purge.unanswered,
            "keeps_signatures": purge.keeps_signatures,
        }
        await access.write(io, PURGE, change)
    return redactions, late


def _find_redactions(
    facts: Iterable[Fact],
    episode_ids: set[str],
    authors: Container[str | None],
    redacted: Mapping[str, Sequence[str]],
) -> _Redactions:
    """Find the guidelines whose text or question may repeat feedback on some episodes.

    The fact that first has a text or question counts. Later facts may add sources that the text
    cannot repeat. `redacted` has guidelines that the purge redacted already, by fact id.
    """
    revision_repeats: dict[tuple[str, str | None], bool] = {}
    words_repeat: dict[tuple[str, str], bool] = {}
    redactions = _Redactions({}, [], set())
    for fact in sorted(facts, key=lambda fact: fact.id):
        for revision in fact.guidelines:
            possible_sources = fact.possible_sources(revision)
            is_made_from = not possible_sources.isdisjoint(episode_ids)
            if not revision.is_anew:
                is_made_from |= revision_repeats.get((revision.id, revision.replaces), False)
            if revision.origin == "expert":
                # An expert's own text stays while other feedback of the expert, or a source, does.
                is_alone = revision.author in authors or episode_ids.issuperset(revision.sources)
                is_alone |= revision.id in redacted.get(fact.id, ())
                is_made_from = bool(revision.sources) and is_alone
            # An expert may also take over the words of an earlier revision.
            words = [normalize_text(each) for each in (revision.text, revision.question) if each]
            repeats = [words_repeat.setdefault((revision.id, each), is_made_from) for each in words]
            key = revision.id, revision.revision
            if revision_repeats.setdefault(key, is_made_from) or any(repeats):
                redactions.guideline_ids.setdefault(fact.id, []).append(revision.id)
                redactions.revisions.append(revision)
                redactions.co_read_ids.update(possible_sources)
        retired_by = (fact.read_together(gone.sources) for gone in fact.retired)
        if not all(map(episode_ids.isdisjoint, retired_by)):
            redactions.guideline_ids.setdefault(fact.id, [])
    return redactions


def _ids(row: EpisodeRow) -> Iterable[str]:
    """Return the ids that judgments and checkpoints have of feedback."""
    return row.id, row.example_id, *row.verdicts


def _hash_inputs(item: Mapping[str, Any]) -> str:
    return digest(item["example"]["inputs"])


async def _erase(io: IO, access: MemoryAccess) -> tuple[int, int]:
    """Erase what the store still has of all purges; counts the facts and vectors."""
    redacted, n_vectors = set[str](), 0
    spaces = access.layout.of("facts"), access.layout.of("words")
    while True:
        items, records = await access.search(io, *spaces)
        # After this, the view knows each purge that these items show.
        view = await access.refresh(io)
        purges, (facts, rows) = view.purges(), view.facts()
        before = {fact.id: fact for fact in map(read_fact, items)}
        changed = {fact.id: fact for fact in facts if before.get(fact.id, fact) != fact}
        outdated = [row for row in map(access.read_row, records) if rows.get(row.key, row) != row]
        purged = {row.key: row for row in outdated if rows[row.key].is_purged}
        ids = _only_in(purged, view, _ids) | {
            revision.id
            for fact in changed.values()
            for revision in fact.guidelines
            if not revision.text and revision not in before[fact.id].guidelines
        }
        inputs = _only_in(purged, view, lambda row: [_hash_inputs(row.content)])
        await delete_matching(io, access, partial(_are_in, ids, inputs))
        texts = _only_in(purged, view, lambda row: past_texts(_episode(row).example))
        n_vectors += await _remove_vectors(io, access, texts)
        await access.put(io, spaces[0], {key: item_of(fact) for key, fact in changed.items()})
        await access.put(io, spaces[1], {row.key: rows[row.key].record() for row in outdated})
        redacted |= changed.keys()
        # A purge that this view did not know may have redacted what was written over.
        if (await access.refresh(io)).purges() == purges:
            return len(redacted), n_vectors


def _are_in(ids: set[str], inputs: set[str], item: Mapping[str, Any]) -> bool:
    """Return whether a kept judgment or log entry has some ids, or the inputs of a case."""
    # Judgments of other outputs for the same inputs are deleted, too.
    has_inputs = "example" in item and _hash_inputs(item) in inputs
    return has_inputs or not ids.isdisjoint(texts_in(item))


async def _remove_vectors(io: IO, access: MemoryAccess, texts: set[str]) -> int:
    """Delete the vectors of texts, of all embedders."""
    n_removed = 0
    for embedder, namespace in (await embedder_namespaces(io, access)).items():
        stored = await access.get(io, namespace, [vector_key(embedder, text) for text in texts])
        await access.put(io, namespace, dict.fromkeys(stored))
        n_removed += len(stored)
    return n_removed
