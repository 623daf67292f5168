"""Whether an expert is asked about a judgment, with `review="uncertain"`: pure functions."""

import hashlib
from collections.abc import Sequence

from memalign_graph.evidence.trust import Trust
from memalign_graph.types import ReviewChoice, ReviewReason

_DRAW_BYTES = 8


def choose(
    judgment_id: str,
    confidence: float | None,
    *,
    trust: Trust,
    flags: Sequence[ReviewReason],
    sample_share: float,
    is_spent: bool,
) -> ReviewChoice:
    """Decide whether an expert is asked about a judgment; nobody is where the budget is spent."""
    reasons: list[ReviewReason] = []
    if not trust.has_enough:
        reasons.append("too_little_feedback")
    elif confidence is None or trust.threshold is None or confidence < trust.threshold:
        reasons.append("unsure")
    reasons += flags
    if is_drawn(judgment_id, sample_share):
        reasons.append("sample")
    asks = bool(reasons) and not is_spent
    if reasons and is_spent:
        reasons.append("no_budget")
    return ReviewChoice(asks=asks, reasons=reasons, threshold=trust.threshold)


def is_drawn(judgment_id: str, share: float) -> bool:
    """Draw by chance, but the same for the same judgment."""
    number = hashlib.sha256(judgment_id.encode()).digest()[:_DRAW_BYTES]
    return int.from_bytes(number) < share * (1 << 8 * _DRAW_BYTES)


def is_blind(reasons: Sequence[str]) -> bool:
    """Tell whether a judgment that was asked about was so by chance alone."""
    return set(reasons) == {"sample"}
