"""The log of reviews: for which judgments an expert was asked, and why, with `review="uncertain"`.

It holds ids and numbers, no texts. Budgets are counted by it, and reports made from it; it is no
part of the memory's content, and what the judge decides does not rest on it.
"""

import logging
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, date, datetime, timedelta
from typing import Any, Literal

from langgraph.store.base import ListNamespacesOp, MatchCondition, SearchOp
from pydantic import ValidationError

from memalign_graph.errors import MemAlignError, explain
from memalign_graph.io import IO
from memalign_graph.memory.access import EVERYTHING, MemoryAccess
from memalign_graph.memory.facts import Item
from memalign_graph.types import FrozenModel, Judgment, ReviewChoice, ReviewReason, UtcDatetime

logger = logging.getLogger(__name__)

KEEP_REVIEWS = timedelta(days=90)
"""How long the log goes back."""

_SWEEP_EVERY = timedelta(hours=1)
"""How often a process removes older days, at most, as it logs more."""


class ReviewItem(FrozenModel):
    """What the log has of one judgment."""

    judgment_id: str
    """The judgment."""

    example_id: str
    """What it was on."""

    at: UtcDatetime
    """When it was decided whether to ask."""

    day: int
    """The day of that in UTC, such as 20250131."""

    asked: Literal[0, 1]
    """1 if an expert was asked: a number, since stores compare these alike."""

    reasons: list[ReviewReason]
    """Why, or why not."""

    confidence: float | None
    """The judgment's confidence."""

    threshold: float | None
    """The confidence from which on nobody would have been asked."""

    @property
    def date(self) -> date:
        """The day."""
        return self.at.astimezone(UTC).date()


def day_number(day: date) -> int:
    """Write a day as a number."""
    return day.year * 10_000 + day.month * 100 + day.day


def now() -> datetime:
    """Return what time it is, in UTC: the log's days are those of UTC."""
    return datetime.now(UTC)


async def asked_on(io: IO, access: MemoryAccess, day: date, *, besides: str) -> list[Item]:
    """Read from the log which judgments of a day experts were asked about."""
    namespace = access.layout.reviews_on(day_number(day))
    search = SearchOp(namespace, filter={"asked": 1}, limit=EVERYTHING)
    [found] = await io.batch(access.store, [search])
    return [one.value for one in found if tuple(one.namespace) == namespace and one.key != besides]


async def log_review(
    io: IO, access: MemoryAccess, judgment: Judgment, choice: ReviewChoice, at: datetime
) -> None:
    """Log whether an expert is asked about a judgment; the same judgment again is the same item."""
    item = ReviewItem(
        judgment_id=judgment.id,
        example_id=judgment.example_id,
        at=at,
        day=day_number(at.date()),
        asked=1 if choice.asks else 0,
        reasons=choice.reasons,
        confidence=judgment.confidence,
        threshold=choice.threshold,
    )
    namespace = access.layout.reviews_on(item.day)
    await access.put(io, namespace, {item.judgment_id: item.to_json()})
    view = access.view
    if at - view.reviews_swept_at >= _SWEEP_EVERY:
        view.reviews_swept_at = at
        await sweep_reviews(io, access, at)


async def all_reviews(
    io: IO, access: MemoryAccess, *, since: date | None = None, until: date | None = None
) -> list[ReviewItem]:
    """Read the log."""
    first = 0 if since is None else day_number(since)
    last = EVERYTHING if until is None else day_number(until)
    days = await _days(io, access)
    found = await access.search(
        io, *(access.layout.reviews_on(day) for day in days if first <= day <= last)
    )
    items = sorted((_read(one) for day in found for one in day), key=lambda one: one.at)
    return list({one.judgment_id: one for one in items}.values())


async def sweep_reviews(io: IO, access: MemoryAccess, at: datetime) -> None:
    """Remove the days that are past their time."""
    first = day_number((at - KEEP_REVIEWS).date())
    days = await _days(io, access)
    await _remove(io, access, [day for day in days if day < first], lambda _: True)


async def remove_reviews(
    io: IO, access: MemoryAccess, wanted: Callable[[Mapping[str, Any]], bool]
) -> None:
    """Remove some of the log's items."""
    await _remove(io, access, await _days(io, access), wanted)


async def _remove(
    io: IO, access: MemoryAccess, days: Iterable[int], wanted: Callable[[Mapping[str, Any]], bool]
) -> None:
    for day in days:
        namespace = access.layout.reviews_on(day)
        [found] = await io.batch(access.store, [SearchOp(namespace, limit=EVERYTHING)])
        own = [one for one in found if tuple(one.namespace) == namespace]
        gone = [one.key for one in own if wanted(one.value)]
        await access.put(io, namespace, dict.fromkeys(gone))


async def _days(io: IO, access: MemoryAccess) -> list[int]:
    """Return the days that the log has, in order."""
    prefix = access.layout.reviews
    search = ListNamespacesOp(
        match_conditions=(MatchCondition("prefix", prefix),),
        max_depth=len(prefix) + 1,  # what lies deeper is another memory's
        limit=EVERYTHING,
    )
    [found] = await io.batch(access.store, [search])
    labels = {one[len(prefix)] for one in map(tuple, found) if len(one) > len(prefix)}
    return sorted(int(label) for label in labels if label.isascii() and label.isdigit())


def _read(item: Item) -> ReviewItem:
    try:
        return ReviewItem.model_validate(item)
    except ValidationError as error:
        raise MemAlignError(f"The log of reviews can't be read: {explain(error)}") from error
