"""Whether an expert is asked about a judgment, with `review="uncertain"`, and why.

Besides where the judge is not sure, one is asked where nothing in memory is like the case, or where
what is like it is contradictory: where that is rare among memory's own cases, each as if it were
new, since embedders differ in their similarities, and memories in how much their experts agree.
"""

import logging
from collections import defaultdict
from datetime import datetime

import numpy as np

from memalign_graph.errors import EmbeddingError
from memalign_graph.evidence.deciding import current_evidence_model, fit
from memalign_graph.evidence.evidence_model import SMALL, EvidenceModel, Kind
from memalign_graph.evidence.regression import Floats, Neighbors
from memalign_graph.evidence.threshold import (
    LEFT_OUT_LEVEL,
    LEVEL,
    Trust,
    find_threshold,
    find_threshold_by_verdict,
)
from memalign_graph.identity import draw
from memalign_graph.io import IO
from memalign_graph.memory.access import MemoryAccess
from memalign_graph.memory.index.vectors import Vector
from memalign_graph.memory.judgments import count_asked
from memalign_graph.settings import Uncertain
from memalign_graph.types import ConfidenceSource, Decide, Judgment, ReviewChoice, ReviewReason

logger = logging.getLogger(__name__)

_MAX_COMPARED = 5  # of the most similar cases a majority is looked for among so many
_DISAGREEMENT_QUANTILE = 0.1  # neighbors that disagree as much are so rare: it takes 9 cases
_MINORITY = 1 / 3  # a larger share of the nearest with another value leaves no clear majority
_WIDE = 0.25  # in an order: more of the range than the middle half of their values may span


async def make_review_choice(
    io: IO,
    access: MemoryAccess,
    judgment: Judgment,
    *,
    uncertain: Uncertain,
    decide: Decide,
    vector: Vector | None,
    has_neighbors: bool,
    at: datetime,
) -> ReviewChoice:
    """Decide whether an expert is asked about a judgment; nobody is where the budget is spent."""
    reasons: list[ReviewReason] = []
    trust = find_threshold([], uncertain.target_agreement)
    try:
        version, key = judgment.memory_version, judgment.judge_key
        model = await current_evidence_model(io, access, version, key)
        await fit(io, model)
        source, evidence = judgment.confidence_source, judgment.evidence
        decides = evidence is not None and evidence.decided_by == "evidence"
        every = _trust(model, decide, trust.target, source, decides=decides)
        trust = every.verdicts.get(model.encoding.class_name(judgment.value), trust)
        if has_neighbors:
            reasons = review_flags(model, model.nearest(vector))
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
    if is_sampled(judgment.id, uncertain.sample_share):
        reasons.append("sample")
    asks = bool(reasons)
    if asks and uncertain.per_day is not None:
        asked = await count_asked(io, access, at.date(), except_id=judgment.id)
        if asked >= uncertain.per_day:
            asks = False
            reasons.append("no_budget")
    return ReviewChoice(asks=asks, reasons=reasons, threshold=trust.threshold)


async def current_trust(
    io: IO, access: MemoryAccess, decide: Decide, target: float, judge_key: str | None = None
) -> Trust:
    """Tell from which confidence on nobody has to be asked, by the memory as it is.

    Verdicts count of the judge of this key; without a key, of that which gave the newest one.
    """
    model = await current_evidence_model(io, access, judge_key=judge_key)
    await fit(io, model)
    return _trust(model, decide, target, None)


def is_sampled(judgment_id: str, share: float) -> bool:
    """Tell whether a judgment is in the random sample."""
    return draw(judgment_id) < share


def review_flags(model: EvidenceModel, neighbors: Neighbors) -> list[ReviewReason]:
    """Tell why an expert is asked about a case, whatever the judge's confidence."""
    flags: list[ReviewReason] = ["no_similar_episode"] if model.is_novel(neighbors) else []
    if not len(neighbors.rows):
        return flags
    spreads = _value_spreads(model, model.regression.neighbors.rows)
    [spread] = _value_spreads(model, neighbors.rows[None])
    count = 1 + len(model.cases)
    is_rare = 1 + (spreads >= spread - SMALL).sum() <= _DISAGREEMENT_QUANTILE * count
    if is_rare and spread > SMALL + (_WIDE if model.encoding.is_ordered else _MINORITY):
        flags.append("episodes_disagree")
    return flags


def _value_spreads(model: EvidenceModel, rows: Floats) -> Floats:
    """Return how far the values of some cases are apart, for each row of cases, nearest first.

    On an ordered scale it is the range of their middle half, otherwise the minority's share.
    """
    means = model.expert_means[rows[:, :_MAX_COMPARED]]
    if not means.shape[1]:
        return np.zeros(len(means))
    if model.encoding.is_ordered:
        low, high = np.quantile(means[:, :, 0], [0.25, 0.75], axis=1)
        return high - low
    return 1 - means.mean(axis=1).max(axis=1)


def _trust(
    model: EvidenceModel,
    decide: Decide,
    target: float,
    source: ConfidenceSource | None,
    *,
    decides: bool | None = None,
) -> Trust:
    """Compare a confidence with those of its own kind; without one with the usual ones.

    `decides` tells whether the evidence decided, where that was another matter for one case.
    """
    kind: Kind = model.usual_kind(decide)
    if source is not None:
        kind = "evidence" if source == "evidence" else "stated"
    decides = model.decides(decide) if decides is None else decides
    is_scored = kind == "evidence" and model.leave_one_out is not None
    level = LEFT_OUT_LEVEL if is_scored else LEVEL
    key = kind, decides, target
    if key not in model.trusts:
        decisions = _past_decisions(model, kind, decides=decides)
        model.trusts[key] = find_threshold_by_verdict(decisions, target, level)
    return model.trusts[key]


def _past_decisions(
    model: EvidenceModel, kind: Kind, *, decides: bool
) -> dict[str, list[tuple[float, float]]]:
    """Return the confidence of past decisions by class, and how far they agree.

    Near-duplicates with one class count as one decision, with their means.
    """
    calibration = model.calibration(kind, decides=decides)
    if calibration is None:
        return {}
    names = map(model.encoding.class_name, calibration.values)
    groups = model.regression.groups[calibration.rows].tolist()
    by_group: dict[tuple[str, int], list[tuple[float, bool]]] = defaultdict(list)
    for name, group, decision in zip(names, groups, calibration.decisions, strict=True):
        by_group[name, group].append(decision)
    by_class: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for (name, _), decisions in by_group.items():
        confidence, share = np.mean(decisions, axis=0).tolist()
        by_class[name].append((confidence, share))
    return by_class
