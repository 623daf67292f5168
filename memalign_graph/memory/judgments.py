"""Kept judgments, and the log of reviews; neither is part of a memory's version.

A judgment is kept whole so that an expert can answer later. With `review="uncertain"`, a log
without texts has the judgments that an expert was asked about, and why.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, date, datetime, timedelta
from math import ceil
from typing import Any, Literal, TypeVar

from langgraph.store.base import ListNamespacesOp, MatchCondition, PutOp, SearchOp
from pydantic import BaseModel, ValidationError

from memalign_graph.errors import InvalidInputError, MemAlignError, describe_validation_error
from memalign_graph.io import IO
from memalign_graph.memory.access import NO_LIMIT, MemoryAccess, search_namespace
from memalign_graph.memory.facts import Item, Namespace, packed, unpacked
from memalign_graph.memory.index import encode_vector
from memalign_graph.types import (
    Example,
    FrozenModel,
    Judgment,
    ReviewChoice,
    ReviewReason,
    StoredExample,
    UtcDatetime,
)

logger = logging.getLogger(__name__)

M = TypeVar("M", bound=BaseModel)

KEEP_REVIEWS = timedelta(days=90)
"""How long entries of the review log are kept."""

_FOR_EVER = timedelta(days=36_500)

_MINUTE = timedelta(minutes=1)

_SWEEP_EVERY = timedelta(hours=1)
"""How often a process deletes expired judgments, when it keeps a new one."""

_SWEEP_ITEMS = 200
"""How many kept judgments a sweep reads; the next judgment continues with further ones."""


class KeptJudgment(FrozenModel):
    """A judgment that an expert can still give feedback on."""

    judgment: Judgment
    """The judgment."""
    example: StoredExample
    """The judged example."""
    kept_until: UtcDatetime
    """When it expires."""
    judged_at: UtcDatetime | None = None
    """When it was judged; None if an earlier version kept it."""
    embedder: str
    """The embedder of the vector."""
    vector: str | None = None
    """The example's vector in base64, so that it is not embedded again; None if the judge needed
    none."""


class ReviewLogEntry(FrozenModel):
    """An entry of the review log."""

    judgment_id: str
    example_id: str
    at: UtcDatetime
    """When it was decided whether to ask."""
    day: int
    """The day in UTC as a number, such as 20250131."""
    asked: Literal[0, 1]
    """1 if an expert was asked."""
    reasons: list[ReviewReason]
    confidence: float | None
    threshold: float | None
    """The confidence from which on no expert is asked."""

    @property
    def date(self) -> date:
        return self.at.astimezone(UTC).date()


def is_log_expired(kept: KeptJudgment) -> bool:
    """Return whether the review log no longer has an entry of the judgment."""
    return kept.judged_at is None or kept.judged_at < utc_now() - KEEP_REVIEWS


def yyyymmdd(day: date) -> int:
    return day.year * 10_000 + day.month * 100 + day.day


def utc_now() -> datetime:
    return datetime.now(UTC)


async def keep_judgment(
    io: IO,
    access: MemoryAccess,
    judgment: Judgment,
    example: Example,
    vector: str | None,
    keep_for: timedelta | None,
) -> Judgment:
    """Keep a judgment for `keep_for`; returns it, with a warning if it cannot be kept."""
    if keep_for is None:
        return judgment
    known = access.load_vector(vector)
    at, namespace = utc_now(), access.layout.of("judgments")
    until = at + min(keep_for, datetime.max.replace(tzinfo=UTC) - at)
    item = KeptJudgment(
        judgment=judgment,
        example=example,
        kept_until=until,
        judged_at=at,
        embedder=access.embedder.id,
        vector=None if known is None else encode_vector(known),
    )
    await _put(io, access, namespace, judgment.id, item, until - at)
    # Stored before it is checked: a purge that this does not see yet finds it in the store.
    view = await access.refresh(io)
    active_ids = {guideline.id for guideline in view.guidelines}
    has_episodes = all(map(view.holds, judgment.episode_ids))
    if not has_episodes or not active_ids.issuperset(judgment.guideline_ids):
        await access.put(io, namespace, {judgment.id: None})
        warning = (
            "Not stored for later feedback: an episode or guideline that this judgment used was "
            "forgotten meanwhile."
        )
        logger.warning("The judgment %s: %s", judgment.id, warning)
        return judgment.model_copy(update={"warnings": [*judgment.warnings, warning]})
    await _sweep(io, access, at)
    return judgment


async def find_judgment(
    io: IO, access: MemoryAccess, judgment_id: str, *, late: bool = False
) -> KeptJudgment:
    """Return a kept judgment; if late, also an expired one that is still in the store."""
    if not isinstance(judgment_id, str) or not judgment_id:
        raise InvalidInputError(
            "judgment_id: expected a judgment's `id`, such as result['judgment']['id']."
        )
    items = await access.get(io, access.layout.of("judgments"), [judgment_id])
    kept = _read(KeptJudgment, items[judgment_id]) if items else None
    if kept is None or (kept.kept_until <= utc_now() and not late):
        raise InvalidInputError(
            f"judgment_id: no judgment {judgment_id!r} is kept in {'/'.join(access.layout.root)}. "
            "It has expired, or was made in another namespace or by a graph without "
            "`keep_judgments`."
        )
    return kept


async def kept_judgments(
    io: IO, access: MemoryAccess, *, waiting: bool = False
) -> list[KeptJudgment]:
    [items] = await access.search(io, access.layout.of("judgments"))
    kept = [*readable(KeptJudgment, items)]
    view = await access.refresh(io) if kept and waiting else None
    answered = view.answered_judgment_ids() if view else set()
    at = utc_now()
    left = [each for each in kept if each.kept_until > at and each.judgment.id not in answered]
    return sorted(left, key=lambda each: (each.kept_until, each.judgment.id))


async def log_review(
    io: IO, access: MemoryAccess, judgment: Judgment, choice: ReviewChoice, at: datetime
) -> None:
    """Log whether an expert is asked about a judgment; a judgment has one entry."""
    item = ReviewLogEntry(
        judgment_id=judgment.id,
        example_id=judgment.example_id,
        at=at,
        day=yyyymmdd(at.date()),
        asked=1 if choice.asks else 0,
        reasons=choice.reasons,
        confidence=judgment.confidence,
        threshold=choice.threshold,
    )
    namespace = access.layout.reviews_on(item.day, asked=choice.asks)
    await _put(io, access, namespace, judgment.id, item, KEEP_REVIEWS)
    other = access.layout.reviews_on(item.day, asked=not choice.asks)
    await access.put(io, other, {judgment.id: None})
    await _sweep(io, access, at)


async def count_asked(io: IO, access: MemoryAccess, until: datetime, *, except_id: str) -> int:
    """Return about how many other judgments an expert was asked on a day until a time."""
    [asked] = await access.search(io, access.layout.reviews_on(yyyymmdd(until.date()), asked=True))
    entries = readable(ReviewLogEntry, asked)
    return sum(entry.at <= until and entry.judgment_id != except_id for entry in entries)


async def read_review_log(io: IO, access: MemoryAccess) -> list[ReviewLogEntry]:
    by_day = await access.search(io, *await _days(io, access))
    entries = [entry for items in by_day for entry in readable(ReviewLogEntry, items)]
    entries.sort(key=lambda entry: entry.at)
    return list({entry.judgment_id: entry for entry in entries}.values())


async def delete_matching(
    io: IO, access: MemoryAccess, is_traced: Callable[[Mapping[str, Any]], bool]
) -> None:
    for namespace in [access.layout.of("judgments"), *await _days(io, access)]:
        await _remove(io, access, search_namespace(namespace), is_traced)


async def _put(
    io: IO, access: MemoryAccess, namespace: Namespace, key: str, item: BaseModel, ttl: timedelta
) -> None:
    # Stores with a `ttl` delete expired items themselves. Postgres counts whole minutes.
    expires = access.store.supports_ttl and ttl < _FOR_EVER
    minutes = float(ceil(ttl / _MINUTE)) if expires else None
    value = packed(item.model_dump(mode="json"))
    await io.batch(access.store, [PutOp(namespace, key, value, index=False, ttl=minutes)])


async def _sweep(io: IO, access: MemoryAccess, at: datetime) -> None:
    view = access.view
    if at - view.swept_at < _SWEEP_EVERY:
        return
    search = search_namespace(access.layout.of("judgments"))
    search = search._replace(limit=_SWEEP_ITEMS, offset=view.sweep_offset)
    removed, read = await _remove(io, access, search, _is_expired)
    view.sweep_offset += read - removed
    if read == _SWEEP_ITEMS:
        return
    view.swept_at, view.sweep_offset = at, 0
    first = yyyymmdd((at - KEEP_REVIEWS).date())
    for namespace, day in (await _days(io, access)).items():
        if day < first:
            await _remove(io, access, search_namespace(namespace), lambda _: True)


async def _remove(
    io: IO, access: MemoryAccess, search: SearchOp, wanted: Callable[[Mapping[str, Any]], bool]
) -> tuple[int, int]:
    """Delete matching items; returns how many were deleted, and how many were read."""
    namespace = search.namespace_prefix
    [items] = await io.batch(access.store, [search])
    own = [item for item in items if tuple(item.namespace) == namespace]
    gone = [item.key for item in own if wanted(unpacked(item.value))]
    await access.put(io, namespace, dict.fromkeys(gone))
    return len(gone), len(items)


async def _days(io: IO, access: MemoryAccess) -> dict[Namespace, int]:
    """Return the namespaces of the review log, and their days."""
    prefix = access.layout.of("reviews")
    search = ListNamespacesOp(
        match_conditions=(MatchCondition("prefix", prefix),),
        max_depth=len(prefix) + 1,  # deeper ones are another memory's
        limit=NO_LIMIT,
    )
    [namespaces] = await io.batch(access.store, [search])
    # A store reads the label `*` as any label.
    names = sorted(name for name in map(tuple, namespaces) if name[:-1] == prefix)
    return {name: int(day) for name in names if (day := name[-1][:8]).isdecimal()}


def _is_expired(item: Mapping[str, Any]) -> bool:
    return datetime.fromisoformat(item["kept_until"]) <= utc_now()


def readable(kind: type[M], items: Iterable[Item]) -> Iterator[M]:
    """Read items; those that only a later version can read are logged and left out."""
    for item in items:
        try:
            yield _read(kind, item)
        except MemAlignError as error:
            logger.warning("%s It is left out.", error)


def _read(kind: type[M], item: Item) -> M:
    try:
        return kind.model_validate(item)
    except ValidationError as error:
        name = "kept judgment" if kind is KeptJudgment else "entry of the review log"
        raise MemAlignError(
            f"A {name} can't be read: {describe_validation_error(error)}"
        ) from error
