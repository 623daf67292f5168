"""Judgments, made and kept as a judge's graph does it."""

from datetime import datetime, timedelta
from typing import Any

from memalign_graph import Example, Judgment
from memalign_graph.io import SYNC, run_sync
from memalign_graph.memory.access import MemoryAccess
from memalign_graph.memory.judgments import keep_judgment, log_review, utc_now
from memalign_graph.types import ReviewChoice, ReviewReason


def make_judgment(example_id: str = "x", **fields: Any) -> Judgment:
    made = {"criterion": "tone", "value": True, "rationale": "So.", "memory_version": "0" * 32}
    return Judgment(example_id=example_id, **{**made, **fields})


def keep_reviewed(
    access: MemoryAccess,
    example: Example,
    *reasons: ReviewReason,
    at: datetime | None = None,
    days: int = 30,
    **fields: Any,
) -> Judgment:
    """Keep a judgment, and log it, with why an expert was asked about it, if any was."""
    choice = ReviewChoice(asks=bool(reasons), reasons=list(reasons))
    fields = {"review": choice if reasons else None, **fields}
    judgment = make_judgment(example.id, criterion=access.criterion.name, **fields)
    run_sync(keep_judgment(SYNC, access, judgment, example, None, timedelta(days=days)))
    run_sync(log_review(SYNC, access, judgment, choice, at or utc_now()))
    return judgment
