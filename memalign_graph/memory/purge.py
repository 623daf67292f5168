"""Purging: feedback erased from everything that a memory keeps of it, by where it came from.

The words of an expert, every lesson that read them, vectors, kept judgments and threads are known
by ids, never by words that look alike. What tells the traces, the words themselves, goes last, so
that a purge that was cut off finds, made again, what is left to do.
"""

from collections.abc import Callable, Mapping
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
    lessons = [fact for fact in facts if _rests_on(fact, meant)]
    rules = {one.id for fact in lessons for one in fact.guidelines}
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
        change = {
            "forgotten": sorted(meant),
            "undone": [fact.id for fact in lessons if not fact.purged],
            "purged": sorted(gone),
        }
        by = None if author in authors else author
        await access.write(io, PURGE, change, author=by)
        known = {fact.id for fact in facts}
        late = [
            fact
            for fact in (await access.refresh(io)).facts()[0]
            if fact.id not in known and _rests_on(fact, meant)
        ]
        if late:
            # Learned meanwhile.
            await access.write(io, PURGE, {"undone": [fact.id for fact in late]})
            lessons += late
    scrubbed = {fact.id: fact.purge() for fact in lessons}
    for fact in facts:
        unnamed = fact.without(authors)
        if fact.id not in scrubbed and unnamed != fact:
            scrubbed[fact.id] = unnamed
    await access.overwrite(io, scrubbed.values())
    # Judgments that were made meanwhile.
    await remove_traces(io, access, is_traced)
    stubs = {key: purged_word(items[key]) for key in gone}
    await access.put(io, access.layout.words, dict(stubs))
    warnings += await vacuum(io, access.store, "store")
    if checkpointer is not None:
        warnings += await vacuum(io, checkpointer, "checkpointer")
    touched = meant | {source for fact in lessons for source in fact.read}
    lost, reduced = left_without(before, view.guidelines, touched)
    return Forgotten(
        episode_ids=list(standing),
        unknown_ids=selection.unknown(list(gone.values())),
        guidelines_removed=[one.model_copy(update={"text": ""}) for one in lost],
        guidelines_reduced=reduced,
        purged=Purged(
            commits=len(scrubbed),
            vectors=removed,
            thread_ids=threads,
            warnings=list(warnings),
        ),
    )


def _rests_on(fact: Fact, episode_ids: set[str]) -> bool:
    """Tell whether what a fact says of guidelines may repeat what was said on some episodes."""
    return bool(fact.guidelines or fact.retired) and not fact.named.isdisjoint(episode_ids)


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
