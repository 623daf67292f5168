"""The evidence model of a memory: shared by all who judge with a version of it."""

import asyncio
import logging
import threading
from collections.abc import Callable, Container
from dataclasses import dataclass
from functools import partial

from memalign_graph.errors import EmbeddingError
from memalign_graph.evidence.cases import newest
from memalign_graph.evidence.evidence_model import EvidenceModel
from memalign_graph.evidence.verdicts import Decision, RawVerdict
from memalign_graph.io import IO
from memalign_graph.memory.access import MemoryAccess
from memalign_graph.memory.cache import evict_views
from memalign_graph.memory.embedding import index_missing
from memalign_graph.memory.index.vectors import Vector
from memalign_graph.types import Decide

logger = logging.getLogger(__name__)

_MOVED = (
    "The memory changed before the judge was asked: similar cases are weighed as of version {}."
)


def _model_of(access: MemoryAccess, judge_key: str | None) -> EvidenceModel:
    """Return the model of a memory and a judge; a new one only where the version changed."""
    view, scale = access.view, access.criterion.scale
    version = view.version, len(view.missing_texts())
    known: _Fitted | None = view.derived.get(("evidence", scale))
    if known is None or known.version != version or judge_key not in known.models:
        vectors = view.vectors(newest(view))
        with _lock:
            known = view.derived.get(("evidence", scale))
            if known is None or known.version != version or len(known.models) >= _MOST_JUDGES:
                view.derived["evidence", scale] = known = _Fitted(version, {})
            if judge_key not in known.models:
                known.models[judge_key] = EvidenceModel(view, scale, vectors, judge_key=judge_key)
    return known.models[judge_key]


@dataclass(frozen=True)
class _Fitted:
    """What was fitted to one version of a memory, by the judge's key."""

    version: tuple[str, int]
    models: dict[str | None, EvidenceModel]

    @property
    def nbytes(self) -> int:
        return sum(model.nbytes for model in list(self.models.values()))


_MOST_JUDGES = 4  # of one memory that are fitted at the same time

_lock = threading.Lock()


async def current_evidence_model(
    io: IO, access: MemoryAccess, version: str | None = None, judge_key: str | None = None
) -> EvidenceModel:
    """Return the model of a memory as it is, or at a version, where that is still known.

    Without a key, verdicts of the judge that gave the newest one count. What can't be embedded is
    left out where the error is passed over.
    """
    view = access.view
    if view.version != version:
        view = await access.refresh(io)
    await index_missing(io, access, view)
    return _model_of(access, judge_key)


async def fit(io: IO, model: EvidenceModel, mode: Decide) -> None:
    """Fit what a decision needs; awaited, in a thread, so that the event loop goes on."""
    if not model.is_fitted(mode):
        await io.call_either(model.fit, partial(asyncio.to_thread, model.fit))
        evict_views()


async def prepare_decision(
    io: IO,
    access: MemoryAccess,
    mode: Decide,
    *,
    version: str,
    vector: Vector | None,
    excluded_ids: Container[str] = (),
    judge_key: str | None = None,
) -> tuple[Callable[[RawVerdict], Decision], str | None]:
    """Look for what decides on a case, before the judge is asked; returns it, and a warning.

    `version` is what the judge is shown; `excluded_ids` are ids of examples without a vote.
    """
    try:
        model = await current_evidence_model(io, access, version, judge_key)
    except EmbeddingError as error:
        # Whether that fails a judgment was decided where similar cases were looked for.
        logger.warning(
            "Judging %r: cases without vectors do not count: %s", access.criterion.name, error
        )
        model = _model_of(access, judge_key)
    if excluded_ids and any(case.example_id in excluded_ids for case in model.cases):
        vectors = access.view.vectors(newest(access.view, excluded_ids))
        model = EvidenceModel(access.view, access.criterion.scale, vectors, excluded_ids, judge_key)
    await fit(io, model, mode)

    def decide(said: RawVerdict) -> Decision:
        with model.lock:
            return model.decide(said, vector, mode)

    if model.version == version:
        return decide, None
    warning = _MOVED.format(model.version)
    logger.warning("Judging %r: %s", access.criterion.name, warning)
    return decide, warning
