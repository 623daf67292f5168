"""The evidence model of a memory: shared by all judges of a version of it."""

import asyncio
import logging
import threading
from collections.abc import Callable, Container
from functools import partial
from typing import TypeVar

from memalign_graph.errors import EmbeddingError
from memalign_graph.evidence.cases import load_cases
from memalign_graph.evidence.evidence_model import EvidenceModel
from memalign_graph.evidence.verdicts import Decision, RawVerdict
from memalign_graph.io import IO
from memalign_graph.memory.access import MemoryAccess
from memalign_graph.memory.index import Vector
from memalign_graph.memory.recall import index_missing
from memalign_graph.memory.view import evict_views
from memalign_graph.types import Decide

logger = logging.getLogger(__name__)

T = TypeVar("T")

_MAX_MODELS = 4  # of one memory that are kept: for several judges

_lock = threading.Lock()


def _model_of(access: MemoryAccess, judge_key: str | None) -> EvidenceModel:
    """Return the cached model of a memory's version and a judge, or a new one."""
    view, scale = access.view, access.criterion.scale
    key = "evidence", view.version, len(view.missing_texts()), scale, judge_key
    with _lock:
        model: EvidenceModel | None = view.derived_cache.get(key)
        if model is None:
            cached = [other for other in list(view.derived_cache) if other[0] == "evidence"]
            for other in cached:
                if other[1:3] != key[1:3] or len(cached) >= _MAX_MODELS:
                    view.derived_cache.pop(other, None)
            model = EvidenceModel(scale, load_cases(view, scale, judge_key))
            view.derived_cache[key] = model
        return model


async def current_evidence_model(
    io: IO, access: MemoryAccess, version: str | None = None, judge_key: str | None = None
) -> EvidenceModel:
    """Return the model of a memory; the memory is not read again if the view has the version.

    Without a key, the verdicts of the judge that gave the newest one count.
    """
    view = access.view
    if view.version != version:
        view = await access.refresh(io)
    await index_missing(io, access, view)
    return _model_of(access, judge_key)


async def fit(io: IO, model: EvidenceModel) -> None:
    """Fit a model, unless it is fitted."""
    if not model.is_fitted:
        await off_loop(io, model.fit)
        evict_views()


async def off_loop(io: IO, compute: Callable[[], T]) -> T:
    """Run a slow function; with async IO in a thread, so that it does not block the event loop."""
    return await io.call_either(compute, partial(asyncio.to_thread, compute))


async def prepare_decision(
    io: IO,
    access: MemoryAccess,
    mode: Decide,
    *,
    version: str,
    vector: Vector | None,
    excluded_ids: Container[str] = (),
    judge_key: str | None = None,
) -> Callable[[RawVerdict], Decision]:
    """Return the function that decides on a verdict.

    `version` is the memory's version that the judge is shown; excluded examples have no vote.
    """
    try:
        model = await current_evidence_model(io, access, version, judge_key)
    except EmbeddingError as error:
        # Retrieval has decided whether an embedding error fails the judgment.
        logger.warning(
            "Judging %r: cases without vectors do not count: %s", access.criterion.name, error
        )
        model = _model_of(access, judge_key)
    if excluded_ids and any(case.example_id in excluded_ids for case in model.cases):
        scale = access.criterion.scale
        cases = load_cases(access.view, scale, judge_key, excluded_ids)
        model = EvidenceModel(scale, cases)
    if model.needs_fit(mode):
        await fit(io, model)
    return partial(model.decide, vector=vector, mode=mode)
