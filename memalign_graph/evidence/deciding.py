"""Decide on a verdict, and whether an expert is asked: by the evidence model of the memory.

All judges of a version of a memory share its model. With `review="uncertain"` an expert is asked if
the judge is not sure, or if no case in memory is similar.
"""

import asyncio
import logging
from collections.abc import Callable, Container
from functools import partial
from typing import TypeVar

from memalign_graph.errors import EmbeddingError
from memalign_graph.evidence.cases import load_cases
from memalign_graph.evidence.confidence import Decision, RawVerdict
from memalign_graph.evidence.evidence_model import EvidenceModel, Kind
from memalign_graph.evidence.threshold import Trust, find_threshold
from memalign_graph.identity import draw
from memalign_graph.io import IO
from memalign_graph.memory.access import MemoryAccess
from memalign_graph.memory.index import Vector
from memalign_graph.memory.recall import index_missing
from memalign_graph.memory.view import evict_views
from memalign_graph.settings import Uncertain
from memalign_graph.types import Decide, Judgment, ReviewChoice, ReviewReason

logger = logging.getLogger(__name__)

T = TypeVar("T")


def _model_of(access: MemoryAccess, judge_key: str | None) -> EvidenceModel:
    """Return the model of the memory as it is and a judge."""
    view, scale = access.view, access.criterion.scale
    return view.derive(
        ("evidence", scale, judge_key),
        lambda: EvidenceModel(scale, load_cases(view, scale, judge_key)),
    )


async def current_evidence_model(
    io: IO, access: MemoryAccess, version: str | None = None, judge_key: str | None = None
) -> EvidenceModel:
    """Return the model of a memory; the memory is not read again if the view has the version.

    Without a key, the verdicts of the judge that gave the newest one count.
    """
    if access.view.version != version:
        await access.refresh(io)
    await index_missing(io, access)
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
    excluded_ids: Container[str],
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
    if excluded_ids:
        cases = [case for case in model.cases if case.example_id not in excluded_ids]
        if len(cases) < len(model.cases):
            model = EvidenceModel(access.criterion.scale, cases)
    if model.needs_fit(mode):
        await fit(io, model)
    return partial(model.decide, vector=vector, mode=mode)


async def make_review_choice(
    io: IO,
    access: MemoryAccess,
    judgment: Judgment,
    *,
    uncertain: Uncertain,
    decide: Decide,
    vector: Vector | None,
    has_neighbors: bool,
) -> ReviewChoice:
    """Choose whether an expert is asked about a judgment."""
    reasons: list[ReviewReason] = []
    trust = find_threshold([], uncertain.target_agreement)
    try:
        version, key = judgment.memory_version, judgment.judge_key
        model = await current_evidence_model(io, access, version, key)
        await fit(io, model)
        verdicts = model.trust(_kind_of(judgment, model, decide), trust.target).verdicts
        trust = verdicts.get(model.encoding.class_name(judgment.value), trust)
        if has_neighbors and model.is_novel(model.nearest(vector)):
            reasons.append("no_similar_episode")
    except EmbeddingError as error:
        # Retrieval has decided whether an embedding error fails the judgment.
        logger.warning(
            "Judging %r: an expert is asked, because memory can't be compared: %s",
            access.criterion.name,
            error,
        )
    confidence = judgment.confidence
    if not trust.has_enough:
        reasons.insert(0, "too_little_feedback")
    elif confidence is None or trust.threshold is None or confidence < trust.threshold:
        reasons.insert(0, "unsure")
    if draw(judgment.id) < uncertain.sample_share:
        reasons.append("sample")
    return ReviewChoice(asks=bool(reasons), reasons=reasons, threshold=trust.threshold)


async def current_trust(
    io: IO, access: MemoryAccess, decide: Decide, target: float, judge_key: str | None = None
) -> Trust:
    """Return the confidence from which on nobody is asked, by the memory as it is.

    Only verdicts of the judge with this key count; without a key, those of the judge that gave the
    newest one.
    """
    model = await current_evidence_model(io, access, judge_key=judge_key)
    await fit(io, model)
    return model.trust(model.usual_kind(decide), target)


def _kind_of(judgment: Judgment, model: EvidenceModel, decide: Decide) -> Kind:
    """Return the kind of a judgment's confidence; if it is unknown, the usual one."""
    evidence, source = judgment.evidence, judgment.confidence_source
    if evidence is not None and evidence.decided_by == "evidence":
        return "estimate"
    if source not in ("evidence", None):
        return "stated"
    return "stated" if source is None and model.usual_kind(decide) == "stated" else "verdict"
