"""The evidence model of a memory: shared by all judges of a version of it."""

import asyncio
import logging
import threading
from collections.abc import Callable, Container
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from memalign_graph.errors import EmbeddingError
from memalign_graph.evidence.cases import load_cases
from memalign_graph.evidence.evidence_model import EvidenceModel
from memalign_graph.evidence.verdicts import Decision, RawVerdict
from memalign_graph.io import IO
from memalign_graph.memory.access import MemoryAccess
from memalign_graph.memory.cache import evict_views
from memalign_graph.memory.embedding import index_missing
from memalign_graph.memory.index.vectors import Vector
from memalign_graph.types import Decide

logger = logging.getLogger(__name__)

T = TypeVar("T")

_MOVED = (
    "The memory changed before the judge was asked: similar cases are weighed as of version {}."
)
_MAX_JUDGES = 4  # of one memory whose models are kept

_lock = threading.Lock()


@dataclass(frozen=True)
class _Models:
    """The models of one version of a memory, by the judge's key."""

    version: tuple[str, int]
    by_judge: dict[str | None, EvidenceModel]

    @property
    def nbytes(self) -> int:
        return sum(model.nbytes for model in list(self.by_judge.values()))


def _model_of(access: MemoryAccess, judge_key: str | None) -> EvidenceModel:
    """Return the model of a memory and a judge; a new one only where the version changed."""
    view, scale = access.view, access.criterion.scale
    version = view.version, len(view.missing_texts())
    with _lock:
        models: _Models | None = view.derived_cache.get(("evidence", scale))
        if models is None or models.version != version:
            view.derived_cache["evidence", scale] = models = _Models(version, {})
        if judge_key not in models.by_judge:
            if len(models.by_judge) >= _MAX_JUDGES:
                models.by_judge.pop(next(iter(models.by_judge)))
            cases = load_cases(view, scale, judge_key)
            models.by_judge[judge_key] = EvidenceModel(scale, cases, version[0])
        return models.by_judge[judge_key]


async def current_evidence_model(
    io: IO, access: MemoryAccess, version: str | None = None, judge_key: str | None = None
) -> EvidenceModel:
    """Return the model of a memory as it is, or at a version, where that is still known.

    Without a key, verdicts of the judge that gave the newest one count.
    """
    view = access.view
    if view.version != version:
        view = await access.refresh(io)
    await index_missing(io, access, view)
    return _model_of(access, judge_key)


async def fit(io: IO, model: EvidenceModel) -> None:
    """Fit a model once."""
    if not model.is_fitted:
        await off_loop(io, model.fit)
        evict_views()


async def off_loop(io: IO, compute: Callable[[], T]) -> T:
    """Compute what takes long; awaited, in a thread, so that the event loop goes on."""
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
        scale = access.criterion.scale
        cases = load_cases(access.view, scale, judge_key, excluded_ids)
        model = EvidenceModel(scale, cases, access.view.version)
    if model.needs_fit(mode):
        await fit(io, model)
    decide = partial(model.decide, vector=vector, mode=mode)
    if model.version == version:
        return decide, None
    warning = _MOVED.format(model.version)
    logger.warning("Judging %r: %s", access.criterion.name, warning)
    return decide, warning
