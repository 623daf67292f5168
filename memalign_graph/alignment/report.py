"""The report of an alignment, as its graph returns it."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from pydantic import Field

from memalign_graph.agreement import Agreement
from memalign_graph.tracing import Usage
from memalign_graph.types import FrozenModel, Guideline


class Rejected(FrozenModel):
    """A record that is invalid."""

    index: int
    """Its index in the list, from 0."""
    reason: str
    """The problem, in a sentence that names the field."""


class FeedbackCounts(FrozenModel):
    """Counts of the feedback of a run."""

    new: int
    """Feedback that was not in memory."""
    changed: int
    """Feedback that replaced earlier feedback of the same expert on the same example."""
    unchanged: int
    """Feedback that was in memory already. Records that are older than the same expert's feedback
    in memory count nowhere; a warning counts them."""
    rejected: int
    """Invalid records."""


class GuidelineChange(FrozenModel):
    """A guideline that an alignment changed, with its sources."""

    id: str
    """The guideline."""
    text: str
    """Its wording; the last one if it is retired."""
    episode_ids: list[str]
    """Its source episodes."""
    before: str | None = None
    """Its wording before; None if it is new or is not reworded."""
    superseded_by: str | None = None
    """The guideline that replaces a retired one, if any."""
    reason: str | None = None
    """The reason why it is retired."""


class GuidelineChanges(FrozenModel):
    """The guidelines that an alignment changed."""

    added: list[GuidelineChange]
    """New guidelines."""
    revised: list[GuidelineChange]
    """Guidelines with another wording or other sources."""
    retired: list[GuidelineChange]
    """Guidelines that are no longer active: contradicted, merged, or without sources."""


class Cost(Usage):
    """Model calls, tokens and seconds."""

    seconds: float
    """The running time of the nodes, without the time that the run waited to be resumed."""


class BrokenCase(FrozenModel):
    """A seen case that agreed with its expert until a guideline was proposed."""

    example_id: str
    """The example."""
    episode_ids: list[str]
    """The experts' episodes on it."""
    expected: Any
    """The expert's value."""
    got: Any
    """The judge's value with the guideline."""
    guideline: str
    """The guideline, as it was proposed."""
    outcome: Literal["dropped"] = "dropped"
    """The guideline was dropped."""


class Replay(FrozenModel):
    """The result of judging seen cases again."""

    cases: int
    """The number of cases that were judged again."""
    agreed_before: int
    """How many of them agreed with their expert before."""
    agree_after: int
    """How many of those that agreed before still agree with the committed guidelines."""
    newly_agree: int
    """How many of the others agree now."""
    chat_calls: int
    """The chat calls of the replay."""
    broken: list[BrokenCase]
    """The cases that agree again without the dropped guidelines."""
    turned_by_episodes: list[str] = Field(default_factory=list)
    """Only in reports of version 0.2: the cases that new episodes in the prompt regressed."""
    failed: dict[str, str] = Field(default_factory=dict)
    """The reason why a case could not be judged again, by example id; the case is not counted."""


class ConflictSide(FrozenModel):
    """One of two guidelines that contradict each other."""

    guideline_id: str
    """The guideline."""
    text: str
    """Its wording."""
    episode_ids: list[str]
    """Its sources."""
    by_expert: bool = False
    """Whether an expert wrote it by hand."""
    experts: int = 0
    """The number of experts behind its sources."""
    said: list[str] = Field(default_factory=list)
    """The newest comments behind it, each with author and date."""


class Conflict(FrozenModel):
    """Two guidelines that contradict each other."""

    id: str
    """The name of the conflict in the question to the expert, such as `C1-5f0c2a9e`: a number, and
    a hash of both guidelines."""
    first: ConflictSide
    """The earlier guideline."""
    second: ConflictSide
    """The later guideline."""
    newer: Literal["first", "second"]
    """The side with newer feedback; a guideline written by hand always counts as newer."""
    default: Literal["first", "second", "both"] = "both"
    """The side that stays if no expert decides: the newer one, or both if it is outweighed."""


class AlignmentReport(FrozenModel):
    """The report of an alignment."""

    feedback: FeedbackCounts
    """Counts of the feedback."""
    rejected: list[Rejected]
    """The invalid records."""
    agreement: Agreement
    """The agreement of the experts over the whole memory, before distilling."""
    guidelines: GuidelineChanges
    """The guidelines that changed."""
    conflicts: list[Conflict] = Field(default_factory=list)
    """Guidelines that contradicted each other."""
    decisions: dict[str, str] | None = None
    """The expert's decisions by conflict id; None if nobody was asked."""
    replay: Replay | None = None
    """The result of judging seen cases again; None without `guard="replay"`."""
    judged_cases: int = 0
    """The number of cases judged as if they were new; 0 without `judge_cases`."""
    batches: int
    """The number of distilled batches."""
    cost: Cost
    """Model calls, tokens and seconds."""
    memory_version_before: str
    """The memory's version when the run began."""
    memory_version_after: str
    """The memory's version now."""
    warnings: list[str]
    """What failed or was left out, a sentence each."""


def compare_guidelines(
    before: Sequence[Guideline], after: Sequence[Guideline], learned: Sequence[Mapping[str, Any]]
) -> GuidelineChanges:
    """Return the changed guidelines; `learned` has the reasons of retired ones."""
    entries = {entry["guideline_id"]: entry for entry in learned}
    previous = {guideline.id: guideline for guideline in before}
    added, revised, retired = [], [], []
    for guideline in after:
        old = previous.pop(guideline.id, None)
        if old is None:
            added.append(_change(guideline))
        elif (old.text, old.episode_ids) != (guideline.text, guideline.episode_ids):
            text = None if old.text == guideline.text else old.text
            revised.append(_change(guideline, before=text))
    for guideline in previous.values():
        entry = entries.get(guideline.id, {})
        why = {name: entry.get(name) for name in ("superseded_by", "reason")}
        retired.append(_change(guideline, **why))
    return GuidelineChanges(added=added, revised=revised, retired=retired)


def sum_usage(entries: Sequence[Mapping[str, Any]]) -> Cost:
    """Add up the usage and seconds of the nodes, which run one after the other."""
    usage = sum((Usage.model_validate(entry["used"]) for entry in entries), Usage())
    seconds = sum(max(entry["stop"] - entry["start"], 0) for entry in entries)
    return Cost(**usage.model_dump(), seconds=round(seconds, 3))


def _change(guideline: Guideline, **more: Any) -> GuidelineChange:
    return GuidelineChange(
        id=guideline.id, text=guideline.text, episode_ids=guideline.episode_ids, **more
    )
