"""Whether an expert is asked about a judgment, with `review="uncertain"`, and why.

Besides where the judge is not sure, one is asked where nothing in memory is like the case, or where
what is like it is contradictory. Embedders differ in what similarity they give to cases that are
alike, and memories in how much their experts agree, so both are measured by the memory itself: what
is rare among its own cases, each as if it were new, is worth a question.
"""

import hashlib
import logging
from collections.abc import Sequence
from datetime import datetime

import numpy as np

from memalign_graph.errors import EmbeddingError
from memalign_graph.evidence.process import (
    COMPARED,
    Case,
    Floats,
    Kind,
    Process,
    current_process,
)
from memalign_graph.evidence.trust import Trust, trusted
from memalign_graph.io import IO
from memalign_graph.memory.access import MemoryAccess
from memalign_graph.memory.index.vectors import Vector
from memalign_graph.memory.reviews import asked_on
from memalign_graph.memory.view import MemoryView
from memalign_graph.settings import Uncertain
from memalign_graph.types import Decide, Judgment, ReviewChoice, ReviewReason

logger = logging.getLogger(__name__)

_UNLIKE_SHARE = 0.05
"""A case is unlike all others if at most this share of memory's own are as much: 19 cases tell."""

_DIVIDED_SHARE = 0.1
"""Its neighbours disagree if at most this share of memory's own cases have such: 9 cases tell."""

_CLEAR = 2 / 3
"""Less than this share of the nearest cases with the same value is no clear majority."""

_WIDE = 0.25
"""In an order, the middle half of their values spans more than this share of the range."""

_SMALL = 1e-6


async def choose_review(
    io: IO,
    access: MemoryAccess,
    judgment: Judgment,
    *,
    uncertain: Uncertain,
    decide: Decide,
    vector: Vector | None,
    looked: bool,
    at: datetime,
) -> ReviewChoice:
    """Decide whether an expert is asked about a judgment; nobody is where the budget is spent."""
    reasons: list[ReviewReason] = []
    trust = trusted([], uncertain.target_agreement)
    try:
        process = await current_process(io, access)
        with process.lock:
            kind = _kind(judgment, process, decide)
            trust = _trust(process, decide, uncertain.target_agreement, kind)
            reasons = flags_of(process, access.view, vector) if looked else []
    except EmbeddingError as error:
        # Whether that fails a judgment was decided where similar cases were looked for.
        logger.warning(
            "Judging %r: an expert is asked, since memory can't be compared: %s",
            access.criterion.name,
            error,
        )
    confidence = judgment.confidence
    if not trust.has_enough:
        reasons.insert(0, "too_little_feedback")
    elif confidence is None or trust.threshold is None or confidence < trust.threshold:
        reasons.insert(0, "unsure")
    if is_drawn(judgment.id, uncertain.sample_share):
        reasons.append("sample")
    asks = bool(reasons)
    if asks and uncertain.per_day is not None:
        asked = await asked_on(io, access, at.date(), besides=judgment.id)
        asks = len(asked) < uncertain.per_day
    reasons += [] if asks or not reasons else ["no_budget"]
    return ReviewChoice(asks=asks, reasons=reasons, threshold=trust.threshold)


async def current_trust(io: IO, access: MemoryAccess, decide: Decide, target: float) -> Trust:
    """Tell from which confidence on nobody has to be asked, by the memory as it is."""
    process = await current_process(io, access)
    with process.lock:
        return _trust(process, decide, target, process.usual_kind(decide))


def is_drawn(judgment_id: str, share: float) -> bool:
    """Draw by chance, but the same for the same judgment."""
    number = int.from_bytes(hashlib.sha256(judgment_id.encode()).digest()[:8])
    return number < share * (1 << 64)


def flags_of(process: Process, view: MemoryView, vector: Vector | None) -> list[ReviewReason]:
    """Tell why an expert is asked about a case, whatever the judge's confidence."""
    if vector is None or not process.cases:
        return ["no_similar_episode"]
    cases, regression = process.around(view, vector)
    similarities, _, _ = regression.look(vector)
    near = np.argsort(-similarities, kind="stable")[:COMPARED]
    flags: list[ReviewReason] = []
    # Each case in memory as if it were new.
    own, count = process.regression.apart.max(axis=1), len(process.cases)
    if 1 + (own <= similarities[near[0]] + _SMALL).sum() <= _UNLIKE_SHARE * (1 + count):
        flags.append("no_similar_episode")
    [division] = _divisions(_opinions(process, [cases[at] for at in near])[None])
    usual = _divisions(_opinions(process, process.cases)[process.nearest])
    bound = _WIDE if process.encoding.is_ordered else 1 - _CLEAR
    rare = 1 + (usual >= division - _SMALL).sum() <= _DIVIDED_SHARE * (1 + count)
    if rare and division > bound + _SMALL:
        flags.append("episodes_disagree")
    return flags


def _opinions(process: Process, cases: Sequence[Case]) -> Floats:
    """Return for each case its value as a share of the range, or the share of each choice."""
    encoding = process.encoding
    if encoding.is_ordered:
        return np.array([encoding.row(case.value) for case in cases]) / encoding.span
    return np.array([np.mean([encoding.row(one) for one in case.given], axis=0) for case in cases])


def _divisions(opinions: Floats) -> Floats:
    """Measure how far values are apart: the span of their middle half, or the minority's share."""
    if not opinions.shape[1]:
        return np.zeros(len(opinions))
    if opinions.shape[2] == 1:
        low, high = np.quantile(opinions[:, :, 0], [0.25, 0.75], axis=1)
        return high - low
    return 1 - opinions.mean(axis=1).max(axis=1)


def _kind(judgment: Judgment, process: Process, decide: Decide) -> Kind:
    if judgment.confidence_source is None:
        return process.usual_kind(decide)
    return "evidence" if judgment.confidence_source == "evidence" else "stated"


def _trust(process: Process, decide: Decide, target: float, kind: Kind) -> Trust:
    calibration = process.calibration(kind, decide)
    return trusted(calibration.decisions if calibration else [], target)
