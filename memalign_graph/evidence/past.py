"""A memory's way to what decides: on a new case, and on those it holds as if they were new."""

import logging
from collections.abc import Container
from dataclasses import dataclass
from datetime import datetime

from memalign_graph.errors import EmbeddingError
from memalign_graph.evidence.cases import CaseTable, table_of
from memalign_graph.evidence.deciding import Decision, Said, bench_of
from memalign_graph.io import IO
from memalign_graph.memory.access import MemoryAccess
from memalign_graph.memory.embedding import index_missing
from memalign_graph.memory.index.vectors import Vector
from memalign_graph.types import Decide, ReviewChoice

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class PastDecision:
    """A decision on a case in memory, as if the case were new, beside the experts' word on it."""

    example_id: str
    """The example's id."""

    confidence: float | None
    """What a new decision of the same score would have; None where that can't be told."""

    agreed: bool
    """Whether the decision agrees with the experts, as `agreement.agree` tells."""

    given_at: datetime
    """When the expert said it."""

    review: ReviewChoice | None
    """Why it was asked about at the time, if `review="uncertain"` chose it."""


async def decide_case(
    io: IO,
    access: MemoryAccess,
    said: Said,
    mode: Decide,
    *,
    vector: Vector | None,
    besides: Container[str] = (),
) -> Decision:
    """Decide on a case that the judge has judged."""
    try:
        table = await _table(io, access)
    except EmbeddingError as error:
        # Whether that fails a judgment was decided where similar cases were looked for.
        logger.warning(
            "Judging %r: cases without vectors do not count: %s", access.criterion.name, error
        )
        table = _refreshed(access)
    with table.lock:
        bench = bench_of(table, access.criterion.scale, mode)
        weighs = mode == "evidence"
        known = vector is not None or not table.voters
        near = None
        if weighs and known:
            near = [] if vector is None else table.near(vector, besides)
        return bench.decide(said, near, mode)


async def past_decisions(io: IO, access: MemoryAccess, decide: Decide) -> list[PastDecision]:
    """Return what would be decided on the cases in memory, each as if it were new."""
    table = await _table(io, access)
    with table.lock:
        bench = bench_of(table, access.criterion.scale, decide)
    return [
        PastDecision(
            example_id=case.example_id,
            confidence=confidence,
            agreed=agreed,
            given_at=case.given_at,
            review=None if case.review is None else ReviewChoice.model_validate(case.review),
        )
        for case, confidence, agreed in zip(
            bench.cases, bench.confidences, bench.agreed, strict=True
        )
    ]


async def _table(io: IO, access: MemoryAccess) -> CaseTable:
    view = await access.refresh(io)
    await index_missing(io, access, view)
    return _refreshed(access)


def _refreshed(access: MemoryAccess) -> CaseTable:
    table = table_of(access.view, access.criterion.scale)
    with table.lock:
        table.refresh()
    return table
