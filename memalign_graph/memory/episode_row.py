"""What a process keeps of an episode; its content stays in the store."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from sys import intern
from typing import Any

from memalign_graph.memory.index.retrieval_text import text_of
from memalign_graph.memory.index.vectors import vector_key
from memalign_graph.memory.records import Item, revision_of
from memalign_graph.types import EpisodeStatus


@dataclass(frozen=True, slots=True)
class JudgedRow:
    """What is kept of the judge's verdict at the time, to be weighed against the expert's word."""

    verdict: Any
    """What the judge itself said."""

    probabilities: Mapping[str, float] | None
    """How likely it held each value, where that was measured."""

    review: Mapping[str, Any] | None
    """Why the expert was asked, where that was decided case by case."""

    shown: tuple[str, ...] = ()
    """The episodes in its prompt: of a case that it was shown it knew what the expert says."""


@dataclass(frozen=True, slots=True)
class EpisodeRow:
    """What is kept of an episode."""

    id: str
    revision: str
    vector_key: str
    status: EpisodeStatus
    example_id: str
    value: Any
    """The expert's value, as stored; None if there is none."""
    given_at: datetime
    """When the expert said it."""
    judged: JudgedRow | None


def row_of(item: Item, embedder: str) -> EpisodeRow:
    """Read from an episode's item what is kept, without reading it whole."""
    text, _ = text_of(item["example"]["inputs"], item["example"]["outputs"])
    return EpisodeRow(
        id=item["id"],
        revision=revision_of(item),
        vector_key=vector_key(embedder, text),
        status=item["status"],
        example_id=item["example_id"],
        value=item.get("value"),
        given_at=datetime.fromisoformat(item["given_at"]),
        judged=_judged(item.get("judgment")),
    )


def _judged(judgment: Any) -> JudgedRow | None:
    if not isinstance(judgment, Mapping):
        return None
    evidence = judgment.get("evidence")
    source = evidence if isinstance(evidence, Mapping) and "verdict" in evidence else judgment
    verdict = source["verdict"] if source is evidence else judgment.get("value")
    return JudgedRow(
        verdict,
        judgment.get("probabilities"),
        judgment.get("review"),
        # The same few ids are in many judgments: one text each.
        tuple(map(intern, judgment.get("episode_ids") or ())),
    )
