"""The texts of an item, and what stored feedback may repeat of other feedback."""

from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from itertools import chain
from typing import Any

from pydantic import BaseModel

from memalign_graph.memory.facts import Item


def texts_in(value: Any) -> Iterator[str]:
    """Yield all texts in a value, in their order."""
    parts = [value]  # not recursive: a purge reads thousands of judgments
    while parts:
        match parts.pop():
            case str() as text:
                yield text
            case None | bool() | int() | float():
                pass
            case bytes() as data:
                yield data.decode(errors="ignore")
            case dict() | Mapping() as part:
                parts += [*chain.from_iterable(part.items())][::-1]
            case list() | tuple() | set() | frozenset() as part:
                parts += [*part][::-1]
            case BaseModel() as part:
                parts.append(dict(part))
            case part:
                yield repr(part)


def without_traces(episode: Mapping[str, Any], ids: AbstractSet[str]) -> Item | None:
    """Return an episode as JSON without what its judgment may repeat; None if that is nothing."""
    judgment = episode.get("judgment")
    if not isinstance(judgment, Mapping) or ids.isdisjoint(texts_in(judgment)):
        return None
    evidence = judgment.get("evidence") or {}
    others = [near for near in evidence.get("neighbours", []) if ids.isdisjoint(texts_in(near))]
    prompted = [key for key in judgment.get("episode_ids", []) if key not in ids]
    redacted = {**judgment, "rationale": "", "warnings": [], "episode_ids": prompted}
    redacted |= {"evidence": {**evidence, "neighbours": others}} if evidence else {}
    return {**episode, "judgment": redacted} if redacted != judgment else None
