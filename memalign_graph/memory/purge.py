"""Purging: feedback erased from everything that a memory keeps of it, by where it came from.

The words of an expert, every lesson that read them, vectors, kept judgments and threads are known
by ids, never by words that look alike. What tells the traces, the words themselves, goes last, so
that a purge that was cut off finds, made again, what is left to do.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from memalign_graph.io import IO
from memalign_graph.memory.access import MemoryAccess, read_fact
from memalign_graph.memory.embedding import embedder_namespaces
from memalign_graph.memory.erasure import carries, check_checkpointer, erase_threads, vacuum
from memalign_graph.memory.facts import PURGE, Fact, purged_word
from memalign_graph.memory.index.retrieval_text import retrieval_text
from memalign_graph.memory.index.vectors import vector_key
from memalign_graph.memory.judgments import remove_traces
from memalign_graph.memory.operations import (
    Forgotten,
    Purged,
    Selection,
    clear_drafts,
    left_without,
)
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
    view = await access.refresh(io)
    # From the store: the view of a purge that was cut off knows these words no more.
    told, found = await access.search(io, access.layout.facts, access.layout.words)
    facts, items = list(map(read_fact, told)), {item["key"]: item for item in found}
    words = {
        key: Episode.model_validate(item["episode"])
        for key, item in items.items()
        if "episode" in item
    }
    meant = {one.id for one in words.values() if selection.meets(one)}
    gone = {key: one for key, one in words.items() if one.id in meant}
    kept = [one for one in words.values() if one.id not in meant]
    scrubs = _scrubs(facts, meant)
    rules = {rule for ids in scrubs.values() for rule in ids}
    ids = _ids(gone.values()) - _ids(kept)
    is_traced = _is_traced(ids | rules)
    await clear_drafts(io, access)
    await remove_traces(io, access, is_traced)
    known_threads = sorted({key for one in gone.values() for key in one.thread_ids})
    marks = {frozenset([key]) for key in ids}
    threads, warnings = await erase_threads(io, checkpointer, marks, known_threads)
    removed = await _remove_vectors(io, access, list(gone.values()), kept)
    before, standing = view.guidelines, view.episodes(meant)
    authors = {one.author for one in gone.values()} - {one.author for one in kept}
    if gone:
        by = None if author in authors else author
        what = {"forgotten": sorted(meant), "purged": sorted(gone), "scrubbed": scrubs}
        await access.write(io, PURGE, author=by, **what)
        facts = (await access.refresh(io)).facts()[0]
        late = {key: ids for key, ids in _scrubs(facts, meant).items() if key not in scrubs}
        if late:
            # Learned meanwhile.
            await access.write(io, PURGE, scrubbed=late)
            scrubs |= late
    changed = {}
    for fact in facts:
        clean = fact.without(authors)
        clean = clean.scrub(scrubs[fact.id]) if fact.id in scrubs else clean
        if clean != fact or fact.id in scrubs:
            changed[fact.id] = clean
    await access.overwrite(io, changed.values())
    # Judgments that were made meanwhile.
    await remove_traces(io, access, is_traced)
    stubs = {key: purged_word(items[key]) for key in gone}
    await access.put(io, access.layout.words, dict(stubs))
    warnings += await vacuum(io, access.store, "store")
    if checkpointer is not None:
        warnings += await vacuum(io, checkpointer, "checkpointer")
    touched = [
        rule for rule in before if rule.id in rules or not meant.isdisjoint(rule.episode_ids)
    ]
    lost, reduced = left_without(touched, view.guidelines)
    return Forgotten(
        episode_ids=list(standing),
        unknown_ids=selection.unknown(list(gone.values())),
        guidelines_removed=[one.model_copy(update={"text": ""}) for one in lost],
        guidelines_reduced=reduced,
        purged=Purged(
            commits=len(changed),
            vectors=removed,
            thread_ids=threads,
            warnings=list(warnings),
        ),
    )


def _scrubs(facts: Iterable[Fact], episode_ids: set[str]) -> dict[str, list[str]]:
    """Find the wordings that may repeat what was said on some episodes, by the facts they are in.

    A text is traced to the fact that first has it: one that others only call for stays.
    """
    repeats: dict[tuple[str, str], bool] = {}
    found: dict[str, list[str]] = {}
    for fact in sorted(facts, key=lambda fact: fact.id):
        for wording in fact.guidelines:
            is_traced = wording.origin == "distilled" and not fact.shown(
                wording.sources
            ).isdisjoint(episode_ids)
            if repeats.setdefault((wording.id, wording.revision), is_traced):
                found.setdefault(fact.id, []).append(wording.id)
        if any(not fact.shown(one.sources).isdisjoint(episode_ids) for one in fact.retired):
            found.setdefault(fact.id, [])
    return found


def _ids(episodes: Any) -> set[str]:
    """Return what a judgment or a checkpoint names episodes by."""
    found: set[str] = set()
    for episode in episodes:
        found |= {episode.id, episode.example_id}
        found |= {episode.judgment.id} if episode.judgment is not None else set()
    return found


def _is_traced(ids: set[str]) -> Callable[[Mapping[str, Any]], bool]:
    marks = {frozenset([key]) for key in ids}
    return lambda item: carries(item, marks)


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
