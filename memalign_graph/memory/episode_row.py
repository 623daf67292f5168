"""An episode as a process holds it in memory, with the judge's verdict at the time."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from sys import intern
from typing import Any

from memalign_graph.memory.facts import Item
from memalign_graph.memory.index.retrieval_text import text_of
from memalign_graph.memory.index.vectors import vector_key


@dataclass(frozen=True, slots=True)
class PastVerdict:
    """The judge's verdict at the time, to be compared with the expert's label."""

    verdict: Any
    """What the judge itself said."""

    probabilities: Mapping[str, float] | None
    """How likely it held each value, where that was measured."""

    review: Mapping[str, Any] | None
    """Why the expert was asked, where that was decided case by case."""

    shown: tuple[str, ...] = ()
    """The episodes in its prompt: of a case that it was shown it knew what the expert says."""

    checks: Mapping[str, float] = field(default_factory=dict)
    """How likely the case met guidelines, by question and model (`asked_id`)."""

    model: str | None = None
    judge_key: str | None = None
    """Names the judge that gave the verdict; None where an earlier version stored it."""


@dataclass(frozen=True, slots=True)
class EpisodeRow:
    """An episode as it stands."""

    id: str
    content_hash: str

    word: str
    """Names what the expert says: `Episode.word`."""

    content: Mapping[str, Any]
    """The episode as JSON; its status alone where it was purged."""

    starts_pending: bool
    """Whether it is pending while nothing has read it."""

    vector_key: str
    example_id: str
    value: Any
    """The expert's value, as stored; None if there is none."""

    given_at: datetime
    past_verdict: PastVerdict | None

    @property
    def is_purged(self) -> bool:
        """Whether nothing that was said is left."""
        return not self.example_id

    @property
    def verdicts(self) -> dict[str, Any]:
        """The values of the judgments that the expert answered, by judgment id."""
        judgment = self.content.get("judgment")
        own = {} if judgment is None else {judgment["id"]: judgment["value"]}
        return {**self.content.get("other_verdicts", {}), **own}


def row_of(episode_id: str, item: Item, embedder: str) -> EpisodeRow:
    """Build a row from a stored record, without validating all of the record."""
    names = episode_id, item["content"], item["word"]
    if "episode" not in item:
        gone, never = {"status": item["status"]}, datetime.min.replace(tzinfo=UTC)
        return EpisodeRow(*names, gone, item["status"] == "pending", "", "", None, never, None)
    content = item["episode"]
    text, _ = text_of(content["example"]["inputs"], content["example"]["outputs"])
    return EpisodeRow(
        *names,
        content=content,
        starts_pending=content.get("status") == "pending",
        vector_key=vector_key(embedder, text),
        example_id=content["example_id"],
        value=content.get("value"),
        given_at=datetime.fromisoformat(content["given_at"]),
        past_verdict=_past_verdict(content.get("judgment")),
    )


def _past_verdict(judgment: Any) -> PastVerdict | None:
    if not isinstance(judgment, Mapping):
        return None
    evidence = judgment.get("evidence")
    is_decided = isinstance(evidence, Mapping) and "verdict" in evidence
    return PastVerdict(
        judgment["evidence"]["verdict"] if is_decided else judgment.get("value"),
        judgment.get("probabilities"),
        judgment.get("review"),
        # The same few ids are in many judgments: one text each.
        tuple(map(intern, judgment.get("episode_ids") or ())),
        dict(_checked(judgment.get("checks") or ())),
        *(intern(name) if (name := judgment.get(of)) else None for of in ("model", "judge_key")),
    )


def _checked(checks: Iterable[Mapping[str, Any]]) -> Iterator[tuple[str, float]]:
    for check in checks:
        answer = check["held"] if check.get("probability") is None else check["probability"]
        if answer is not None:
            yield intern(check["asked"]), float(answer)
