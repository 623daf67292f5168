"""Judge a case of memory again, without its own episodes or with a memory as it was before."""

import logging
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace

from langgraph.store.memory import InMemoryStore

from memalign_graph.alignment.reply_cache import CachedRepliesIO
from memalign_graph.errors import ChatModelError, EmbeddingError
from memalign_graph.evidence.verdicts import asks_checks
from memalign_graph.io import IO
from memalign_graph.judging.case import Case, Retrieved
from memalign_graph.judging.verdict import run_judge
from memalign_graph.memory.access import HEAD, MemoryAccess
from memalign_graph.memory.memory_state import EpisodeRow
from memalign_graph.memory.recall import (
    index_missing,
    recall_excluding,
    stored_vectors,
    vector_key_of_example,
)
from memalign_graph.memory.view import MemoryView, get_view
from memalign_graph.runtime import Clients, NodeCall
from memalign_graph.settings import Judge
from memalign_graph.types import Example, Guideline, Judgment

logger = logging.getLogger(__name__)


def without_measuring(judge: Judge) -> Judge:
    """Return a judge that gives the same values, without options that change none."""
    unmeasured = {} if judge.weighs else {"confidence": False, "samples": 0}
    return judge.but(keep_judgments=None, **unmeasured)


async def judge_leaving_out(
    call: NodeCall,
    example: Example,
    *,
    guidelines: Sequence[Guideline],
    excluded_episode_ids: AbstractSet[str],
) -> Judgment:
    """Judge a case in memory without some episodes; replies are cached."""
    access = call.access
    k = call.settings["k"] if call.judge.use_episodes else 0
    recall = recall_excluding(access, example, k, excluded_episode_ids)
    call = replace(call, io=CachedRepliesIO(call.io, access), max_concurrency=1)
    retrieved = Retrieved.of(recall, access.view).with_guidelines(guidelines, call)
    excluded_keys = _without_votes(access.view.rows(), excluded_episode_ids)
    excluded_keys |= {example.id, vector_key_of_example(access, example)}
    return await run_judge(Case(call, example, retrieved, excluded_keys))


async def judge_as_new(
    call: NodeCall, example: Example, guidelines: Sequence[Guideline]
) -> Judgment:
    """Judge a case in memory without its episodes, and guidelines that only these support."""
    key = vector_key_of_example(call.access, example)
    own_ids = frozenset(row.id for row in call.access.view.rows_for_vector(key))
    others = [
        guideline
        for guideline in guidelines
        if not guideline.episode_ids or {*guideline.episode_ids} - own_ids
    ]
    return await judge_leaving_out(call, example, guidelines=others, excluded_episode_ids=own_ids)


def _without_votes(rows: Sequence[EpisodeRow], excluded_episode_ids: AbstractSet[str]) -> set[str]:
    """Return the ids and vector keys of the examples whose episodes are all left out."""
    excluded: set[str] = set()
    retained: set[str] = set()
    for row in rows:
        keys = excluded if row.id in excluded_episode_ids else retained
        keys.update((row.example_id, row.vector_key))
    return excluded - retained


async def prepare_memory(io: IO, judge: Judge, access: MemoryAccess) -> dict[str, str]:
    """Add missing questions and vectors; return the version and the id of the newest fact."""
    view = await access.refresh(io)
    clients = Clients(judge.embeddings)
    if asks_checks(judge.checks, clients.judge_model(judge)):
        from memalign_graph.evidence.checks import fill_questions

        missing = [item for item in await access.guidelines(io) if item.question is None]
        model = clients.distill_model(judge)
        if why := await fill_questions(io, access, model, judge.criterion, missing):
            raise ChatModelError(f"checks: {why}")
    try:
        if compares_cases(judge, access):
            await index_missing(io, access, view)
    except EmbeddingError:
        if judge.on_embedding_error == "raise":
            raise
    return {"version": view.version, "newest": view.latest_fact_id}


def compares_cases(judge: Judge, access: MemoryAccess) -> bool:
    """Return whether the judge compares cases with those in memory."""
    shows = judge.use_episodes and judge.k > 0
    return (shows or judge.weighs) and not access.view.is_empty


async def pin_memory(io: IO, access: MemoryAccess, *, newest: str, version: str) -> MemoryAccess:
    """Return the memory as of its fact `newest`; later writes do not change it.

    What was purged since is missing, and a warning is logged.
    """
    reader = replace(access)
    view = vars(reader)["view"] = MemoryView(access.embedder.id)  # not the shared one
    await reader.refresh(io)
    if view.latest_fact_id != newest:
        facts, rows = view.facts()
        now, view = view.index, MemoryView(access.embedder.id)
        view.add([fact for fact in facts if fact.id <= newest], rows)
        missing = view.missing_texts()
        vectors = {key: vector for key in missing if (vector := now.get(key)) is not None}
        vectors |= await stored_vectors(io, access, missing.keys() - vectors.keys())
        view.add_vectors(vectors)
    # A store of its own, whose head says that nothing is new.
    pinned = replace(access, store=InMemoryStore())
    await pinned.put(io, pinned.layout.of("head"), {HEAD: {"id": newest}})
    view.is_loaded, view.head = True, newest
    vars(pinned)["view"] = get_view(pinned.store, pinned.layout, pinned.embedder.id, made=view)
    if view.version != version:
        logger.warning(
            "Memory of %r: parts of version %s were purged since. Cases are judged with the rest; "
            "those whose prompts had the purged parts are asked again.",
            access.criterion.name,
            version[:8],
        )
    return pinned
