"""Whether an expert is asked about a judgment, with `review="uncertain"`: pure functions."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from math import ceil
from typing import Any

from memalign_graph.errors import InvalidInputError
from memalign_graph.evidence.trust import Trust
from memalign_graph.judgment import ReviewChoice, ReviewReason

DEFAULT_TARGET_AGREEMENT = 0.9
"""How often a judgment that nobody is asked about is to agree with the experts."""

DEFAULT_SAMPLE_SHARE = 0.05
"""The share of judgments that experts are asked about by chance."""

_KEPT = 5
"""Of so many questions that a budget allows, one is kept for those drawn by chance."""

_DRAW_BYTES = 8


@dataclass(frozen=True)
class Asking:
    """What `review="uncertain"` goes by."""

    target_agreement: float = DEFAULT_TARGET_AGREEMENT
    """How often a judgment that nobody is asked about is to agree with the experts."""

    max_reviews_per_day: int | None = None
    """How many questions a day may bring; None for as many as there are."""

    max_review_share: float | None = None
    """How large a share of a day's judgments may be asked about; None likewise."""

    sample_share: float = DEFAULT_SAMPLE_SHARE
    """The share of judgments that experts are asked about by chance."""

    @property
    def has_budget(self) -> bool:
        """Whether questions are counted."""
        return self.max_reviews_per_day is not None or self.max_review_share is not None

    def allowed(self, judgments: int) -> int:
        """Return how many questions a day may bring once it has brought some judgments."""
        # A hair less: 0.07 * 100 is a bit more than 7 in binary.
        share, most = self.max_review_share, self.max_reviews_per_day
        bounds = [] if share is None else [ceil(share * judgments - 1e-9)]
        return min([*bounds, *([] if most is None else [most])], default=judgments)


def check_asking(
    *,
    target_agreement: Any,
    max_reviews_per_day: Any,
    max_review_share: Any,
    sample_share: Any,
) -> Asking:
    """Check the settings of `review="uncertain"`."""
    most = max_reviews_per_day
    if most is not None and (isinstance(most, bool) or not isinstance(most, int) or most < 1):
        raise InvalidInputError(
            f"max_reviews_per_day: {most!r} is not a whole number from 1 on: give one, None for no "
            'bound, or review="never" to ask nobody.'
        )
    if max_review_share is not None and not (_is_share(max_review_share) and max_review_share > 0):
        raise InvalidInputError(
            f"max_review_share: {max_review_share!r} is no share above 0 and up to 1: give one, "
            'None for no bound, or review="never" to ask nobody.'
        )
    if not _is_share(sample_share):
        raise InvalidInputError(f"sample_share: {sample_share!r} is no share from 0 to 1.")
    return Asking(check_target(target_agreement), most, max_review_share, sample_share)


def check_target(target_agreement: Any) -> float:
    """Check what agreement is asked for."""
    if not _is_share(target_agreement) or target_agreement in (0, 1):
        raise InvalidInputError(
            f"target_agreement: {target_agreement!r} is no share above 0 and below 1, such as 0.9: "
            "no amount of feedback shows that a judge is never wrong."
        )
    return float(target_agreement)


def _is_share(given: Any) -> bool:
    return isinstance(given, int | float) and not isinstance(given, bool) and 0 <= given <= 1


@dataclass(frozen=True)
class Today:
    """What the log of reviews has of a day, without the judgment in question."""

    day: date
    """The day, in UTC."""

    judgments: int = 0
    """How many judgments it brought."""

    asked: int = 0
    """How many of them experts were asked about."""

    drawn: int = 0
    """How many of these were drawn by chance."""


def choose(
    judgment_id: str,
    confidence: float | None,
    *,
    trust: Trust,
    flags: Sequence[ReviewReason],
    asking: Asking,
    today: Today,
) -> ReviewChoice:
    """Decide whether an expert is asked about a judgment."""
    reasons: list[ReviewReason] = []
    if not trust.has_enough:
        reasons.append("too_little_feedback")
    elif confidence is None or trust.threshold is None or confidence < trust.threshold:
        reasons.append("unsure")
    reasons += flags
    others = bool(reasons)
    drawn = is_drawn(judgment_id, asking.sample_share)
    if drawn:
        reasons.append("sample")
    left = None
    if asking.has_budget:
        allowed = asking.allowed(today.judgments + 1)
        left = allowed - today.asked
        keeps = trust.has_enough and asking.sample_share > 0
        kept = max(_kept(allowed, today.day) - today.drawn, 0) if keeps else 0
        if others and left <= kept:
            reasons.append("no_budget")
            others = False
        drawn = drawn and left > 0
    if reasons == ["sample"] and not drawn:
        reasons.append("no_budget")
    return ReviewChoice(asks=others or drawn, reasons=reasons, threshold=trust.threshold)


def is_drawn(judgment_id: str, share: float) -> bool:
    """Draw by chance, but the same for the same judgment."""
    number = hashlib.sha256(judgment_id.encode()).digest()[:_DRAW_BYTES]
    return int.from_bytes(number) < share * (1 << 8 * _DRAW_BYTES)


def is_blind(reasons: Sequence[str]) -> bool:
    """Tell whether a judgment that was asked about was so by chance alone."""
    return "sample" in reasons and ("no_budget" in reasons or set(reasons) == {"sample"})


def _kept(allowed: int, day: date) -> int:
    """Return how many questions of a day are kept: a fifth of them, over the days."""
    before = day.toordinal() * allowed // _KEPT
    return (day.toordinal() + 1) * allowed // _KEPT - before
