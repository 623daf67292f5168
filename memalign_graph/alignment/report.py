"""What an alignment did, as its graph returns it."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from memalign_graph.agreement import Agreement
from memalign_graph.tracing import Usage
from memalign_graph.types import Guideline


class _ReportModel(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Rejected(_ReportModel):
    """A record that can't be used."""

    index: int
    """Its place in the list, from 0 on."""

    reason: str
    """What is wrong with it, in a sentence that names the field."""


class FeedbackCounts(_ReportModel):
    """What became of the feedback."""

    new: int
    """Feedback that memory did not have."""

    changed: int
    """Feedback that replaced earlier feedback of the same expert on the same example."""

    unchanged: int
    """Feedback that memory had already. What newer feedback of the same expert on the same example
    outdates counts nowhere; a warning names how much that is."""

    rejected: int
    """Records that can't be used."""


class GuidelineChange(_ReportModel):
    """A guideline that an alignment touched, with its sources."""

    id: str
    """The guideline."""

    text: str
    """Its wording; of one retired, its last."""

    episode_ids: list[str]
    """Its sources."""

    before: str | None = None
    """Its wording before; None if it is new or is not reworded."""

    superseded_by: str | None = None
    """Of one retired: what took its place, if anything did."""

    reason: str | None = None
    """Of one retired: why."""


class GuidelineChanges(_ReportModel):
    """What became of the guidelines."""

    added: list[GuidelineChange]
    """New ones."""

    revised: list[GuidelineChange]
    """Those with another wording or other sources."""

    retired: list[GuidelineChange]
    """Those that are no longer active: contradicted, merged into another, or without sources."""


class Cost(Usage):
    """What it cost."""

    seconds: float
    """How long its nodes ran, without the time that the run waited to be resumed."""


class BrokenCase(_ReportModel):
    """A seen case that a proposed guideline turned against its expert."""

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
    """What became of the guideline."""


class Replay(_ReportModel):
    """What judging seen cases again showed."""

    cases: int
    """How many cases were judged again."""

    agreed_before: int
    """How many of them agreed with their expert before."""

    agree_after: int
    """How many of those that agreed before agree with what is committed."""

    newly_agree: int
    """How many that did not agree before do now."""

    chat_calls: int
    """The calls this took."""

    broken: list[BrokenCase]
    """The cases that agree again without the guidelines that were dropped."""

    turned_by_episodes: list[str] = []
    """The ids of examples whose verdict turned for another reason than the guidelines: by the new
    episodes in the prompt."""

    failed: dict[str, str] = {}
    """Why a case could not be judged again, by the example's id; it is counted nowhere."""


class ConflictSide(_ReportModel):
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
    """How many experts gave its sources."""

    said: list[str] = []
    """The newest comments behind it: who, when, and what."""


class Conflict(_ReportModel):
    """Two guidelines that contradict each other."""

    id: str
    """Names the conflict in the question to the expert: `C1`, `C2`, ..."""

    first: ConflictSide
    """The one that came first."""

    second: ConflictSide
    """The other."""

    newer: Literal["first", "second"]
    """Which has newer feedback behind it; one that an expert wrote by hand always has."""


class AlignmentReport(_ReportModel):
    """What an alignment did."""

    feedback: FeedbackCounts
    """What became of the feedback."""

    rejected: list[Rejected]
    """The records that can't be used, and why."""

    agreement: Agreement
    """How far the experts agree, over the whole memory, before anything was distilled."""

    guidelines: GuidelineChanges
    """What became of the guidelines."""

    conflicts: list[Conflict]
    """Guidelines that contradicted each other."""

    decisions: dict[str, str] | None
    """What the expert decided by conflict id; None if nobody was asked."""

    replay: Replay | None
    """What judging seen cases again showed; None without `guard="replay"`."""

    judged_cases: int = 0
    """How many cases the judge was asked about as if they were new; 0 without `judge_cases`."""

    batches: int
    """How many batches were distilled."""

    cost: Cost
    """Model calls, tokens and seconds."""

    memory_version_before: str
    """The memory's version when the run began."""

    memory_version_after: str
    """The memory's version now."""

    warnings: list[str]
    """What was done without, a sentence each."""

    def to_json(self) -> dict[str, Any]:
        """Return the report as plain JSON values."""
        return self.model_dump(mode="json")


def compare_guidelines(
    before: Sequence[Guideline],
    after: Sequence[Guideline],
    learned: Sequence[Mapping[str, Any]] = (),
) -> GuidelineChanges:
    """Tell what became of guidelines; of retired ones, what was learned says why."""
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
    """Add up what the nodes used; they run one after the other."""
    usage = sum((Usage.model_validate(entry["used"]) for entry in entries), Usage())
    seconds = sum(max(entry["stop"] - entry["start"], 0) for entry in entries)
    return Cost(**usage.model_dump(), seconds=round(seconds, 3))


def _change(guideline: Guideline, **more: Any) -> GuidelineChange:
    return GuidelineChange(
        id=guideline.id, text=guideline.text, episode_ids=guideline.episode_ids, **more
    )
