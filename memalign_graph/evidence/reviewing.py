"""A memory's way to what decides whether an expert is asked."""

import logging
from datetime import datetime

from memalign_graph.errors import EmbeddingError
from memalign_graph.evidence.choosing import choose
from memalign_graph.evidence.flags import flags_of
from memalign_graph.evidence.past import past_decisions
from memalign_graph.evidence.trust import Trust, trusted
from memalign_graph.io import IO
from memalign_graph.memory.access import MemoryAccess
from memalign_graph.memory.index.vectors import Vector
from memalign_graph.memory.reviews import asked_on
from memalign_graph.settings import Uncertain
from memalign_graph.types import Decide, Judgment, ReviewChoice, ReviewReason

logger = logging.getLogger(__name__)


async def current_trust(io: IO, access: MemoryAccess, decide: Decide, target: float) -> Trust:
    """Tell from which confidence on nobody has to be asked, by the memory as it is."""
    past = await past_decisions(io, access, decide)
    known = [(one.confidence, one.agreed) for one in past if one.confidence is not None]
    return trusted(known, target)


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
    """Decide whether an expert is asked about a judgment."""
    flags: list[ReviewReason] = []
    try:
        trust = await current_trust(io, access, decide, uncertain.target_agreement)
        if looked:
            flags = await flags_of(io, access, vector)
    except EmbeddingError as error:
        # Whether that fails a judgment was decided where similar cases were looked for.
        logger.warning(
            "Judging %r: an expert is asked, since memory can't be compared: %s",
            access.criterion.name,
            error,
        )
        trust = trusted([], uncertain.target_agreement)
    is_spent = False
    if uncertain.per_day is not None:
        asked = await asked_on(io, access, at.date(), besides=judgment.id)
        is_spent = len(asked) >= uncertain.per_day
    return choose(
        judgment.id,
        judgment.confidence,
        trust=trust,
        flags=flags,
        sample_share=uncertain.sample_share,
        is_spent=is_spent,
    )
