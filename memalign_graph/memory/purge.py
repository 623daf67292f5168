"""Purging: feedback erased from everything that a memory keeps of it, by where it came from.

The words of an expert, every lesson that read them, vectors, kept judgments and threads are known
by ids, never by words that look alike. What tells the traces, the words themselves, goes last, so
that a purge that was cut off finds, made again, what is left to do.
"""

from collections.abc import Callable, Container, Iterable, Mapping
from typing import Any

from memalign_graph.io import IO
from memalign_graph.memory.access import MemoryAccess
from memalign_graph.memory.cache import discard_view
from memalign_graph.memory.embedding import embedder_namespaces
from memalign_graph.memory.external_traces import (
    TraceMarker,
    batch_file_warnings,
    check_checkpointer,
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
from memalign_graph.memory.index.retrieval_text import retrieval_text
from memalign_graph.memory.index.vectors import vector_key
from memalign_graph.memory.judgments import delete_matching
from memalign_graph.types import Episode


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
    await clear_cached_replies(io, access)
    found, threads, warnings = await _erase_threads(io, access, selection, checkpointer)
    view, meant, gone = access.view, found.meant, found.gone
    await delete_matching(io, access, found.is_traced)
    removed = await _remove_vectors(io, access, list(gone.values()), found.kept)
    before, standing = view.guidelines, view.episodes(meant)
    facts, wordings, read_along = found.facts, found.wordings, found.read_along
    items, answering = found.items, set[str]()
    if gone:
        cases = {one.example_id for one in gone.values()} - {one.example_id for one in found.kept}
        change = {
            "forgotten": sorted(meant),
            "purged": sorted(gone),
            "scrubbed": found.scrubs,
            "unanswered": sorted(map(hash_example_id, cases)),
            "keeps_signatures": found.keeps_signatures,
        }
        by = None if author in found.authors else author
        fact = await access.write(io, PURGE, change, author=by)
        now, words = (await access.refresh(io)).facts()
        scrubs, wordings, read_along = _find_redactions(now, meant, found.authors)
        # Learned, checked or said while this purge ran.
        late = {key: scrubs[key] for key in scrubs if key not in found.scrubs}
        said = _words_before(fact, now, meant) - gone.keys()
        late_words = {key for key in said if "episode" in words[key]}
        items = {**items, **{key: words[key] for key in late_words}}
        gone = {**gone, **{key: _episode(words[key]) for key in late_words}}
        is_answered = any(cases & found.keys() for fact in now for found in fact.answers.values())
        if late or late_words or is_answered:
            again = {
                "scrubbed": late,
                "purged": sorted(late_words),
                "unanswered": change["unanswered"] if is_answered else [],
                "keeps_signatures": found.keeps_signatures,
            }
            await access.write(io, PURGE, again)
        facts += [fact for fact in now if fact.id in late]
        answering = {fact.id for fact in now if fact.answers}
    left = {fact.id: fact for fact in view.facts()[0]}
    changed = [left[fact.id] for fact in facts if left[fact.id] != fact]
    changed += [left[key] for key in answering - {fact.id for fact in facts}]
    await access.overwrite(io, changed)
    # Judgments that were made meanwhile.
    await delete_matching(io, access, found.is_traced)
    await _redact(io, access, items, gone, found.ids | {one.id for one in wordings})
    warnings += await vacuum(io, access.store, "store")
    if checkpointer is not None:
        warnings += await vacuum(io, checkpointer, "checkpointer")
    rules = {one.id for one in wordings}
    touched = [
        rule for rule in before if rule.id in rules or not meant.isdisjoint(rule.episode_ids)
    ]
    lost, reduced = split_removed(touched, view.guidelines)
    return Forgotten(
        episode_ids=list(standing),
        unknown_ids=selection.unknown(list(gone.values())),
        guidelines_removed=[one.model_copy(update={"text": "", "author": None}) for one in lost],
        guidelines_reduced=reduced,
        purged=Purged(
            commits=len(changed),
            vectors=removed,
            pending=sorted(read_along.intersection(view.pending())),
            thread_ids=threads,
            warnings=[*warnings, *await batch_file_warnings(io, access, gone.values())],
        ),
    )


class _Found:
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
        newest = {one.id: one for one in sorted(words.values(), key=lambda one: one.updated_at)}
        self.meant = {key for key, one in {**newest, **standing}.items() if selection.matches(one)}
        """The ids of the episodes: chosen by what they say now, not by what they said before."""
        self.gone = {key: one for key, one in words.items() if one.id in self.meant}
        self.kept = [one for one in words.values() if one.id not in self.meant]
        # Ids name cases, not people: an expert's name stays where it signs a guideline by hand.
        self.keeps_signatures = selection.author is None and selection.where is None
        self.authors = {one.author for one in self.gone.values()} - {
            one.author for one in self.kept
        }
        self.scrubs, self.wordings, self.read_along = _find_redactions(
            facts, self.meant, self.authors
        )
        self.ids = _ids(self.gone.values()) - _ids(self.kept)
        self.is_traced = _trace_matcher(
            self.ids | {one.id for one in self.wordings}, _inputs(self.gone.values(), self.kept)
        )

    @property
    def marks(self) -> set[TraceMarker]:
        """What a thread contains_marker that carried some of it."""
        marks = {frozenset([key]) for key in self.ids}
        return marks | {
            frozenset([one.id, words])
            for one in self.wordings
            for words in (one.text, one.question, one.revision)
            if words
        }


async def _erase_threads(
    io: IO, access: MemoryAccess, selection: Selection, checkpointer: object
) -> tuple[_Found, list[str], list[str]]:
    """Delete the threads that carried what is purged; also what was said while they were read."""
    threads: dict[str, None] = {}
    warnings: list[str] = []
    seen: set[TraceMarker] = set()
    while True:
        # From the store: the view of a purge that was cut off knows these words no more.
        told, items = await access.search(io, access.layout.of("facts"), access.layout.of("words"))
        standing = (await access.refresh(io)).episodes()
        by_key = {item["key"]: item for item in items}
        found = _Found(list(map(read_fact, told)), by_key, standing, selection)
        if seen and found.marks <= seen:
            return found, list(threads), warnings
        known = sorted({key for one in found.gone.values() for key in one.thread_ids})
        deleted, warnings = await erase_threads(io, checkpointer, found.marks, known)
        threads |= dict.fromkeys(deleted)
        seen |= found.marks
        if checkpointer is None or not seen:
            return found, list(threads), warnings


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
) -> tuple[dict[str, list[str]], list[GuidelineRevision], set[str]]:
    """Find the wordings that may repeat what was said on some episodes, and their facts.

    A text, and its question, is traced to the fact that first has it: one that others only call
    for stays.
    """
    repeats: dict[tuple[str, str | None], bool] = {}
    asks: dict[tuple[str, str], bool] = {}
    found: dict[str, list[str]] = {}
    wordings: list[GuidelineRevision] = []
    read_along: set[str] = set()
    for fact in sorted(facts, key=lambda fact: fact.id):
        for wording in fact.guidelines:
            is_told = not fact.possible_sources(wording).isdisjoint(episode_ids)
            if not wording.is_anew:
                is_told |= repeats.get((wording.id, wording.replaces), False)
            if wording.origin == "expert":
                # The expert's own words stay while the expert does, or a case that called for them.
                is_alone = wording.author in authors or episode_ids.issuperset(wording.sources)
                is_told = bool(wording.sources) and is_alone
            asked = wording.question or ""
            asks_told = asks.setdefault((wording.id, asked), bool(asked) and is_told)
            if repeats.setdefault((wording.id, wording.revision), is_told) or asks_told:
                found.setdefault(fact.id, []).append(wording.id)
                wordings.append(wording)
                read_along |= fact.possible_sources(wording)
        if any(not fact.read_together(one.sources).isdisjoint(episode_ids) for one in fact.retired):
            found.setdefault(fact.id, [])
    return found, wordings, read_along


def _ids(episodes: Iterable[Episode]) -> set[str]:
    """Return what a judgment or a checkpoint names episodes by."""
    found: set[str] = set()
    for episode in episodes:
        found |= {episode.id, episode.example_id, *episode.verdicts}
    return found


def _inputs(gone: Iterable[Episode], kept: Iterable[Episode]) -> list[Any]:
    """Return the inputs that no episode has that is kept: drafts that answer them go, too."""
    others = [episode.example.inputs for episode in kept]
    return [episode.example.inputs for episode in gone if episode.example.inputs not in others]


def _trace_matcher(ids: set[str], inputs: list[Any]) -> Callable[[Mapping[str, Any]], bool]:
    marks = _marks(ids)

    def is_traced(item: Mapping[str, Any]) -> bool:
        return contains_marker(item, marks) or (item.get("example") or {}).get("inputs") in inputs

    return is_traced


async def _redact(
    io: IO,
    access: MemoryAccess,
    items: Mapping[str, Item],
    gone: Container[str],
    ids: set[str],
) -> None:
    """Erase feedback, and what the judgments of other experts' feedback may repeat of it."""
    redacted = {key: _without_traces(items[key], ids) for key in items if key not in gone}
    changes = {key: item for key, item in redacted.items() if item is not None}
    if changes:
        discard_view(access.store, access.view)  # it holds what these judgments said
    erased = {key: redacted_record(items[key]) for key in items if key in gone}
    await access.put(io, access.layout.of("words"), {**changes, **erased})


def _without_traces(item: Mapping[str, Any], ids: set[str]) -> Item | None:
    """Return another expert's feedback without what its judgment may repeat; None if nothing."""
    judgment = item.get("episode", {}).get("judgment")
    marks = _marks(ids)
    if not isinstance(judgment, Mapping) or not contains_marker(judgment, marks):
        return None
    evidence = judgment.get("evidence") or {}
    others = [near for near in evidence.get("neighbours", []) if not contains_marker(near, marks)]
    shown = [key for key in judgment.get("episode_ids", []) if key not in ids]
    redacted = {**judgment, "rationale": "", "warnings": [], "episode_ids": shown}
    redacted |= {"evidence": {**evidence, "neighbours": others}} if evidence else {}
    return {**item, "episode": {**item["episode"], "judgment": redacted}}


def _marks(ids: set[str]) -> set[frozenset[str]]:
    return {frozenset([key]) for key in ids}


async def _remove_vectors(
    io: IO, access: MemoryAccess, gone: list[Episode], kept: list[Episode]
) -> int:
    """Remove the vectors of texts that no other episode has, whoever embedded them."""
    texts = {retrieval_text(one.example)[0] for one in gone}
    texts -= {retrieval_text(one.example)[0] for one in kept}
    removed = 0
    for embedder, namespace in (await embedder_namespaces(io, access)).items():
        keys = [vector_key(embedder, text) for text in texts]
        there = await access.get(io, namespace, keys, lambda item: item["key"])
        await access.put(io, namespace, dict.fromkeys(there))
        removed += len(there)
    return removed
