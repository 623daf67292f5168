"""Judgments kept for a while, so that an expert can answer later, from anywhere."""

import logging
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from langgraph.store.base import SearchOp
from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from memalign_graph.errors import InvalidInputError, MemAlignError, explain
from memalign_graph.io import IO
from memalign_graph.memory.access import EVERYTHING, MemoryAccess
from memalign_graph.types import Example, Judgment, UtcDatetime

logger = logging.getLogger(__name__)

_DATE: TypeAdapter[datetime] = TypeAdapter(UtcDatetime)

_SWEEP_EVERY = timedelta(hours=1)
"""How often a process removes what is past its time, at most, as it keeps more."""


class KeptJudgment(BaseModel):
    """A judgment that feedback can be given on, and what it was on."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    judgment: Judgment
    """The judgment."""

    example: Example
    """What was judged."""

    kept_until: UtcDatetime
    """When it goes."""

    embedder: str
    """Names the embedder of the vector."""

    vector: str | None = None
    """The example's vector in base64, so that feedback embeds nothing again; None where judging
    needed none."""


async def keep_judgment(
    io: IO,
    access: MemoryAccess,
    judgment: Judgment,
    example: Example,
    *,
    vector: str | None,
    keep_for: timedelta,
) -> str | None:
    """Keep a judgment, and now and then remove those that are past their time."""
    view = await access.refresh(io)
    has_episodes = all(map(view.holds, judgment.episode_ids))
    if not has_episodes or not all(map(view.holds_guideline, judgment.guideline_ids)):
        # It may repeat what was taken back while the judge was at work.
        warning = "Not kept for later feedback: what it was made with was taken back meanwhile."
        logger.warning("The judgment %s: %s", judgment.id, warning)
        return warning
    now = datetime.now(UTC)
    until = now + min(keep_for, datetime.max.replace(tzinfo=UTC) - now)
    kept = KeptJudgment(
        judgment=judgment,
        example=example,
        kept_until=until,
        embedder=access.embedder.id,
        vector=vector,
    )
    await access.put(io, access.layout.judgments, {judgment.id: kept.model_dump(mode="json")})
    if now - view.swept_at >= _SWEEP_EVERY:
        view.swept_at = now
        await sweep_judgments(io, access)
    return None


async def find_judgment(io: IO, access: MemoryAccess, judgment_id: str) -> KeptJudgment:
    """Find a judgment by its id."""
    if not isinstance(judgment_id, str) or not judgment_id:
        raise InvalidInputError(
            "judgment_id: give the `id` of a judgment, such as result['judgment']['id']."
        )
    found = await access.get(io, access.layout.judgments, [judgment_id], _read)
    kept = found.get(judgment_id)
    if kept is None or kept.kept_until <= datetime.now(UTC):
        raise InvalidInputError(
            f"judgment_id: no judgment {judgment_id!r} is kept in {'/'.join(access.layout.root)}: "
            "either its time is over, or it was made in another namespace or by a graph built "
            "without `keep_judgments`."
        )
    return kept


async def kept_judgments(
    io: IO, access: MemoryAccess, *, waiting: bool = False
) -> list[KeptJudgment]:
    """Read the judgments that are kept."""
    [items] = await access.search(io, access.layout.judgments)
    now = datetime.now(UTC)
    kept = [one for one in map(_read, items) if one.kept_until > now]
    episodes = await access.all_episodes(io) if kept and waiting else []
    answered = {one.judgment.id for one in episodes if one.judgment is not None}
    there = [one for one in kept if one.judgment.id not in answered]
    return sorted(there, key=lambda one: (one.kept_until, one.judgment.id))


async def sweep_judgments(io: IO, access: MemoryAccess) -> None:
    """Remove the judgments that are past their time."""
    await remove_judgments(io, access, lambda _: False)


async def remove_judgments(
    io: IO, access: MemoryAccess, wanted: Callable[[Mapping[str, Any]], bool]
) -> None:
    """Remove some of the judgments, and those that are past their time."""
    # Without a filter by date: what lies below, another memory's, may have none.
    search = SearchOp(access.layout.judgments, limit=EVERYTHING)
    [found] = await io.batch(access.store, [search])
    own = [one for one in found if tuple(one.namespace) == access.layout.judgments]
    gone = [one.key for one in own if wanted(one.value) or _is_over(one.value)]
    await access.put(io, access.layout.judgments, dict.fromkeys(gone))


def _is_over(item: Mapping[str, Any]) -> bool:
    """Tell whether an item's time is over, also of one that a later version wrote."""
    try:
        return _DATE.validate_python(item.get("kept_until")) <= datetime.now(UTC)
    except ValidationError:
        logger.warning("A kept judgment has no date that can be read, and is removed.")
        return True


def _read(item: dict[str, Any]) -> KeptJudgment:
    try:
        return KeptJudgment.model_validate(item)
    except ValidationError as error:
        raise MemAlignError(f"A kept judgment can't be read: {explain(error)}") from error
