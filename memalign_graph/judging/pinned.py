"""A memory as of an earlier version, to judge with elsewhere or later."""

import logging
from dataclasses import replace

from langgraph.store.memory import InMemoryStore

from memalign_graph.errors import ChatModelError, EmbeddingError
from memalign_graph.evidence.confidence import asks_checks
from memalign_graph.io import IO
from memalign_graph.memory.access import HEAD, MemoryAccess
from memalign_graph.memory.recall import index_missing, stored_vectors
from memalign_graph.memory.view import MemoryView, get_view
from memalign_graph.runtime import Clients
from memalign_graph.settings import Judge

logger = logging.getLogger(__name__)


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
