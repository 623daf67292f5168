"""Purging: feedback erased from everything that a memory keeps of it, by where it came from.

The words of an expert, every lesson that read them, vectors, kept judgments and threads are known
by ids, never by words that look alike. What tells the traces, the words themselves, goes last, so
that a purge that was cut off finds, made again, what is left to do.
"""

from collections.abc import Container, Iterable, Mapping
from itertools import chain
from typing import Any, NamedTuple

from langgraph.checkpoint.base import BaseCheckpointSaver

from memalign_graph.io import IO
from memalign_graph.memory.access import MemoryAccess
from memalign_graph.memory.cache import discard_view
from memalign_graph.memory.embedding import embedder_namespaces
from memalign_graph.memory.external_traces import (
    TraceMarker,
    batch_file_warnings,
    contains_marker,
    erase_threads,
    vacuum,
)
from memalign_graph.memory.facts import (
    JUDGE_CASES,
    PURGE,
    Fact,
    GuidelineRevision,
    Item,
    hash_example_id,
    read_fact,
    redacted_record,
)
from memalign_graph.memory.feedback import (
    Forgotten,
    Purged,
    Selection,
    clear_cached_replies,
    split_removed,
)
from memalign_graph.memory.index.retrieval_text import past_texts
from memalign_graph.memory.index.vectors import vector_key
from memalign_graph.memory.judgments import delete_matching
from memalign_graph.types import Episode


async def purge(
    io: IO,
    access: MemoryAccess,
    selection: Selection,
    saver: BaseCheckpointSaver[Any] | None,
    *,
    author: str | None = None,
) -> Forgotten:
    """Erase episodes and all that is left of them: also what was forgotten or revised before."""
    await clear_cached_replies(io, access)
    traces, threads, warnings = await _erase_threads(io, access, selection, saver)
    view, selected, purged = access.view, traces.selected, traces.purged
    await delete_matching(io, access, traces.is_traced)
    n_vectors = await _remove_vectors(io, access, list(purged.values()), traces.retained)
    before, standing = view.guidelines, view.episodes(selected)
    redactions = traces.redactions
    if purged:
        cases = {episode.example_id for episode in purged.values()}
        cases -= {episode.example_id for episode in traces.retained}
        change = {
            "forgotten": sorted(selected),
            "purged": sorted(purged),
            "scrubbed": redactions.guideline_ids,
            "unanswered": sorted(map(hash_example_id, cases)),
            "keeps_signatures": traces.keeps_signatures,
        }
        by = None if author in traces.authors else author
        fact = await access.write(io, PURGE, change, author=by)
        facts, words = (await access.refresh(io)).facts()
        redactions = _find_redactions(facts, selected, traces.authors)
        # Learned, checked or said while this purge ran.
        known = traces.redactions.guideline_ids
        late = {key: ids for key, ids in redactions.guideline_ids.items() if key not in known}
        late_words = _words_before(fact, facts, selected) - purged.keys()
        late_items = {key: words[key] for key in late_words if "episode" in words[key]}
        traces.items |= late_items
        purged |= {key: _episode(item) for key, item in late_items.items()}
        answered = (by_case for fact in facts for by_case in fact.answers.values())
        is_answered = any(cases & by_case.keys() for by_case in answered)
        if late or late_items or is_answered:
            again = {
                "scrubbed": late,
                "purged": sorted(late_items),
                "unanswered": change["unanswered"] if is_answered else [],
                "keeps_signatures": traces.keeps_signatures,
            }
            await access.write(io, PURGE, again)
    [items] = await access.search(io, access.layout.of("facts"))
    stored = {fact.id: fact for fact in map(read_fact, items)}
    changed = [fact for fact in view.facts()[0] if stored.get(fact.id, fact) != fact]
    await access.overwrite(io, changed)
    # Judgments that were made meanwhile.
    await delete_matching(io, access, traces.is_traced)
    guideline_ids = {revision.id for revision in redactions.revisions}
    await _redact(io, access, traces.items, purged, traces.ids | guideline_ids)
    warnings += await vacuum(io, access.store, "store")
    if saver is not None:
        warnings += await vacuum(io, saver, "checkpointer")
    touched = [
        guideline
        for guideline in before
        if guideline.id in guideline_ids or not selected.isdisjoint(guideline.episode_ids)
    ]
    removed, reduced = split_removed(touched, view.guidelines)
    blank = {"text": "", "author": None}
    return Forgotten(
        episode_ids=list(standing),
        unknown_ids=selection.unknown(list(purged.values())),
        guidelines_removed=[guideline.model_copy(update=blank) for guideline in removed],
        guidelines_reduced=reduced,
        purged=Purged(
            commits=len(changed),
            vectors=n_vectors,
            pending=sorted(redactions.co_read_ids.intersection(view.pending())),
            thread_ids=threads,
            warnings=[*warnings, *await batch_file_warnings(io, access, purged.values())],
        ),
    )


class _Redactions(NamedTuple):
    """What may repeat purged feedback."""

    guideline_ids: dict[str, list[str]]
    """The guidelines to redact, by the ids of the facts that worded them."""
    revisions: list[GuidelineRevision]
    co_read_ids: set[str]
    """The episodes that these revisions were distilled from."""


class _Traces:
    """What the store holds of the feedback that is to be purged."""

    def __init__(
        self,
        facts: list[Fact],
        items: dict[str, Item],
        standing: Mapping[str, Episode],
        selection: Selection,
    ) -> None:
        self.facts, self.items = facts, items
        words = {key: _episode(item) for key, item in items.items() if "episode" in item}
        by_update = sorted(words.values(), key=lambda episode: episode.updated_at)
        newest = {**{episode.id: episode for episode in by_update}, **standing}
        self.selected = {key for key, episode in newest.items() if selection.matches(episode)}
        """The ids of the episodes: chosen by what they say now, not by what they said before."""
        self.purged = {key: word for key, word in words.items() if word.id in self.selected}
        self.retained = [word for key, word in words.items() if key not in self.purged]
        # Ids name cases, not people: an expert's name stays where it signs a guideline by hand.
        self.keeps_signatures = selection.author is None and selection.where is None
        self.authors = {word.author for word in self.purged.values()}
        self.authors -= {word.author for word in self.retained}
        self.redactions = _find_redactions(facts, self.selected, self.authors)
        self.ids = _ids(self.purged.values()) - _ids(self.retained)
        self._markers = _markers(self.ids | {each.id for each in self.redactions.revisions})

    def is_traced(self, item: Mapping[str, Any]) -> bool:
        """Tell whether a kept judgment or a log entry carries some of it."""
        if contains_marker(item, self._markers):
            return True
        # Drafts that answer the same inputs go, too.
        inputs = (item.get("example") or {}).get("inputs")
        is_of_purged = any(inputs == word.example.inputs for word in self.purged.values())
        return is_of_purged and all(inputs != word.example.inputs for word in self.retained)

    @property
    def markers(self) -> set[TraceMarker]:
        """What a thread holds that carried some of it."""
        return _markers(self.ids) | {
            frozenset([revision.id, text])
            for revision in self.redactions.revisions
            for text in (revision.text, revision.question, revision.revision)
            if text
        }


async def _erase_threads(
    io: IO, access: MemoryAccess, selection: Selection, saver: BaseCheckpointSaver[Any] | None
) -> tuple[_Traces, list[str], list[str]]:
    """Delete the threads that carried what is purged; also what was said while they were read."""
    threads: dict[str, None] = {}
    warnings: list[str] = []
    seen: set[TraceMarker] = set()
    while True:
        # From the store: the view of a purge that was cut off knows these words no more.
        facts, items = await access.search(io, access.layout.of("facts"), access.layout.of("words"))
        standing = (await access.refresh(io)).episodes()
        by_key = {item["key"]: item for item in items}
        traces = _Traces(list(map(read_fact, facts)), by_key, standing, selection)
        if seen and traces.markers <= seen:
            return traces, list(threads), warnings
        known = sorted({key for word in traces.purged.values() for key in word.thread_ids})
        deleted, warnings = await erase_threads(io, saver, traces.markers, known)
        threads |= dict.fromkeys(deleted)
        seen |= traces.markers
        if saver is None or not seen:
            return traces, list(threads), warnings


def _episode(item: Mapping[str, Any]) -> Episode:
    return Episode.model_validate(item["episode"])


def _words_before(purge: Fact, facts: Iterable[Fact], episode_ids: Container[str]) -> set[str]:
    """Return the keys of what was said on some episodes before a purge, or repeated after it."""
    return {
        key
        for fact in facts
        if fact.id < purge.id or fact.reason == JUDGE_CASES
        for episode_id, key in fact.said.items()
        if episode_id in episode_ids
    }


def _find_redactions(
    facts: Iterable[Fact], episode_ids: set[str], authors: set[str | None]
) -> _Redactions:
    """Find the guidelines whose text or question may repeat what was said on some episodes.

    A text, and its question, is traced to the fact that first has it: one that others only call
    for stays.
    """
    repeats: dict[tuple[str, str | None], bool] = {}
    asks: dict[tuple[str, str], bool] = {}
    found = _Redactions({}, [], set())
    for fact in sorted(facts, key=lambda fact: fact.id):
        for revision in fact.guidelines:
            is_told = not fact.possible_sources(revision).isdisjoint(episode_ids)
            if not revision.is_anew:
                is_told |= repeats.get((revision.id, revision.replaces), False)
            if revision.origin == "expert":
                # The expert's own words stay while the expert does, or a case that called for them.
                is_alone = revision.author in authors or episode_ids.issuperset(revision.sources)
                is_told = bool(revision.sources) and is_alone
            asked = revision.question or ""
            asks_told = asks.setdefault((revision.id, asked), bool(asked) and is_told)
            if repeats.setdefault((revision.id, revision.revision), is_told) or asks_told:
                found.guideline_ids.setdefault(fact.id, []).append(revision.id)
                found.revisions.append(revision)
                found.co_read_ids.update(fact.possible_sources(revision))
        retired_by = (fact.read_together(gone.sources) for gone in fact.retired)
        if not all(map(episode_ids.isdisjoint, retired_by)):
            found.guideline_ids.setdefault(fact.id, [])
    return found


def _ids(episodes: Iterable[Episode]) -> set[str]:
    """Return what a judgment or a checkpoint names episodes by."""
    named = ((episode.id, episode.example_id, *episode.verdicts) for episode in episodes)
    return set(chain.from_iterable(named))


def _markers(ids: Iterable[str]) -> set[TraceMarker]:
    return {frozenset([key]) for key in ids}


async def _redact(
    io: IO,
    access: MemoryAccess,
    items: Mapping[str, Item],
    purged: Container[str],
    ids: set[str],
) -> None:
    """Erase feedback, and what the judgments of other experts' feedback may repeat of it."""
    redacted = {key: _without_traces(items[key], ids) for key in items if key not in purged}
    changes = {key: item for key, item in redacted.items() if item is not None}
    if changes:
        discard_view(access.store, access.view)  # it holds what these judgments said
    erased = {key: redacted_record(items[key]) for key in items if key in purged}
    await access.put(io, access.layout.of("words"), {**changes, **erased})


def _without_traces(item: Mapping[str, Any], ids: set[str]) -> Item | None:
    """Return another expert's feedback without what its judgment may repeat; None if nothing."""
    judgment = item.get("episode", {}).get("judgment")
    markers = _markers(ids)
    if not isinstance(judgment, Mapping) or not contains_marker(judgment, markers):
        return None
    evidence = judgment.get("evidence") or {}
    others = [near for near in evidence.get("neighbours", []) if not contains_marker(near, markers)]
    prompted = [key for key in judgment.get("episode_ids", []) if key not in ids]
    redacted = {**judgment, "rationale": "", "warnings": [], "episode_ids": prompted}
    redacted |= {"evidence": {**evidence, "neighbours": others}} if evidence else {}
    return {**item, "episode": {**item["episode"], "judgment": redacted}}


async def _remove_vectors(
    io: IO, access: MemoryAccess, purged: list[Episode], retained: list[Episode]
) -> int:
    """Remove the vectors of texts that no other episode has, whoever embedded them."""
    texts = {text for episode in purged for text in past_texts(episode.example)}
    texts -= {text for episode in retained for text in past_texts(episode.example)}
    n_removed = 0
    for embedder, namespace in (await embedder_namespaces(io, access)).items():
        keys = [vector_key(embedder, text) for text in texts]
        stored = await access.get(io, namespace, keys, lambda item: item["key"])
        await access.put(io, namespace, dict.fromkeys(stored))
        n_removed += len(stored)
    return n_removed
