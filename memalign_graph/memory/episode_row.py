"""Feedback of one expert on one example: its stored record, its row in a process, and merging."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from sys import intern
from typing import Any

from memalign_graph.identity import digest
from memalign_graph.memory.facts import Item
from memalign_graph.memory.index import text_of, vector_key
from memalign_graph.types import Episode, Feedback

_NOT_IN_KEY = {"status", "created_at", "updated_at"}


@dataclass(frozen=True, slots=True)
class PastVerdict:
    """The judge's verdict at the time of the feedback, to be compared with the expert's label."""

    verdict: Any
    """The judge's own value."""
    probabilities: Mapping[str, float] | None
    """The probability of each value, if it was measured."""
    review: Mapping[str, Any] | None
    """Why the expert was asked, with `review="uncertain"`."""
    shown: tuple[str, ...] = ()
    """The episodes in the judge's prompt: it may have seen the label of its own case."""
    checks: Mapping[str, float] = field(default_factory=dict)
    """The probability that the case meets each guideline, by `asked_id`."""
    model: str | None = None
    judge_key: str | None = None
    """Identifies the judge; None in feedback that an earlier version stored."""


@dataclass(frozen=True, slots=True)
class EpisodeRow:
    """An active episode, not validated: thousands are read at once."""

    id: str
    content_hash: str
    feedback_hash: str
    """The hash of value and rationale (`Episode.word`)."""
    content: Mapping[str, Any]
    """The episode as JSON; its status alone after a purge."""
    starts_pending: bool
    """Whether it is pending until a lesson reads it."""
    vector_key: str
    example_id: str
    value: Any
    """The expert's value as stored; None if there is none."""
    given_at: datetime
    past_verdict: PastVerdict | None

    @property
    def is_purged(self) -> bool:
        return not self.example_id

    @property
    def verdicts(self) -> dict[str, Any]:
        """The values of the judgments that the expert answered, by judgment id."""
        judgment = self.content.get("judgment")
        own = {} if judgment is None else {judgment["id"]: judgment["value"]}
        return {**self.content.get("other_verdicts", {}), **own}


def feedback_record(episode: Episode, feedback_hash: str, taken: Collection[str]) -> Item:
    """Build the stored record of feedback; lessons name it by `feedback_hash`."""
    content = episode.to_json()
    key = content_hash = digest({name: content[name] for name in content.keys() - _NOT_IN_KEY})
    while key in taken:
        key = digest([key])
    return {"key": key, "content": content_hash, "word": feedback_hash, "episode": content}


def redacted_record(record: Mapping[str, Any]) -> Item:
    """Return a stored record of feedback without its content."""
    status = record["episode"]["status"] if "episode" in record else record["status"]
    return {
        **{name: record[name] for name in ("key", "content", "word")},
        "status": status,
        "purged": True,
    }


def row_of(episode_id: str, record: Item, embedder: str) -> EpisodeRow:
    """Build a row from a stored record, without validating the episode."""
    names = episode_id, record["content"], record["word"]
    if "episode" not in record:
        gone, never = {"status": record["status"]}, datetime.min.replace(tzinfo=UTC)
        return EpisodeRow(*names, gone, record["status"] == "pending", "", "", None, never, None)
    content = record["episode"]
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
        # Many judgments name the same few ids: interning stores each text once.
        tuple(map(intern, judgment.get("episode_ids") or ())),
        dict(_check_probabilities(judgment.get("checks") or ())),
        *(intern(name) if (name := judgment.get(of)) else None for of in ("model", "judge_key")),
    )


def _check_probabilities(checks: Iterable[Mapping[str, Any]]) -> Iterator[tuple[str, float]]:
    for check in checks:
        answer = check["held"] if check.get("probability") is None else check["probability"]
        if answer is not None:
            yield intern(check["asked"]), float(answer)


def order_after(stored: Episode | None, feedback: Feedback) -> Feedback:
    """Date new feedback later than the stored one, whichever clock dated that."""
    if stored is None:
        return feedback
    latest = datetime.max.replace(tzinfo=UTC)
    after = stored.given_at + min(timedelta(microseconds=1), latest - stored.given_at)
    return feedback.model_copy(update={"given_at": max(feedback.given_at, after)})


def merge_feedback(stored: Episode | None, new: Episode, *, replaces: bool = False) -> Episode:
    """Return the episode to keep; `replaces` means that the expert edits the stored feedback."""
    if stored is None:
        return new
    threads = list(dict.fromkeys([*stored.thread_ids, *new.thread_ids]))
    confirms = new.rationale is None and stored.value in (None, new.value)
    repeats = new.value is None and new.rationale == stored.rationale
    adds_nothing = repeats or stored.says_the_same_as(new) or stored.given_at > new.given_at
    is_revision = replaces and new.given_at >= stored.given_at
    is_new = is_revision or not (adds_nothing or confirms)
    judgment = new.judgment if is_new else stored.judgment or new.judgment
    verdicts = {**stored.verdicts, **new.verdicts}
    if judgment is not None:
        del verdicts[judgment.id]
    common = {
        "thread_ids": threads,
        "feedback_id": new.feedback_id or stored.feedback_id,
        "judgment": judgment,
        "other_verdicts": verdicts,
    }
    if is_new:
        return new.model_copy(update={**common, "created_at": stored.created_at})
    value = stored.value if adds_nothing else new.value
    merged = stored.model_copy(update={**common, "value": value})
    return stored if merged == stored else merged.model_copy(update={"updated_at": new.updated_at})


def withdraws_support(stored: Episode, after: Episode) -> bool:
    """Return whether guidelines that rest on the stored feedback lose it as a source."""
    return stored.rationale != after.rationale or stored.value not in (None, after.value)
