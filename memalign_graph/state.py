"""What flows through the graphs: JSON values only, so that any checkpointer can keep them."""

from typing import Annotated, Any, NotRequired

from langgraph.channels import EphemeralValue
from typing_extensions import TypedDict


# The channels live for one step: what a later run on the same thread does not give is then not
# there, rather than left over from an earlier run.
class ExampleInput(TypedDict):
    """What is to be judged."""

    inputs: Annotated[Any, EphemeralValue]
    """What the application was given: text, or any other JSON value; not empty."""

    outputs: Annotated[Any, EphemeralValue]
    """What the application answered; not empty."""

    reference_outputs: NotRequired[Annotated[Any, EphemeralValue]]
    """What it should have answered, where that is known."""


class ExampleView(TypedDict, total=False):
    """The same as a node sees it: plain, so that nodes fit graphs with channels of their own."""

    inputs: Any
    outputs: Any
    reference_outputs: Any


class JudgeOutput(TypedDict):
    """What the judge graph returns."""

    judgment: dict[str, Any]
    """The `Judgment` as JSON."""


class Cited(TypedDict):
    """What graphs that were built with `cite_guidelines` return besides."""

    broken_guidelines: list[dict[str, Any]]
    """The `Guideline`s that the outputs break, by the judge's own account, as JSON."""

    judge_settings: dict[str, Any]
    """The run's settings, as they were found when it began."""


class CitingJudgeOutput(JudgeOutput, Cited):
    """What such a judge graph returns."""


class ReviewOutput(JudgeOutput):
    """What the review graph returns."""

    feedback: dict[str, Any] | None
    """The expert's `Feedback` as JSON; None if none was asked for or given."""

    learned: dict[str, Any] | None
    """What memory made of it: `episode_ids`, `guidelines` (an entry for each that was added,
    revised or retired, with `action`, `guideline_id`, `text`, `episode_ids`), the
    `memory_version` after it, and `warnings`: what it did without; None if there was no
    feedback."""


class CitingReviewOutput(ReviewOutput, Cited):
    """What a review graph returns that was built with `cite_guidelines`."""


class Retrieved(TypedDict):
    """What `retrieve_episodes` leaves for the nodes after it."""

    judge_example: dict[str, Any]
    """The `Example` as JSON."""

    judge_settings: dict[str, Any]
    """The run's settings; kept here because a context is gone after an interrupt."""

    recalled: list[dict[str, Any]]
    """Similar examples, `RecalledExample` as JSON, most similar first."""

    recall_version: str
    """The memory's version when they were recalled."""

    recall_vector: str | None
    """The example's own embedding in base64, so that feedback on it embeds nothing again."""

    recall_nearness: NotRequired[dict[str, float]]
    """The similarity of further episodes, by id: it tells which guidelines bear on the example."""

    recall_warnings: list[str]
    """What retrieval did without."""


class Assembled(TypedDict):
    """What `assemble_guidelines` leaves for the nodes after it."""

    guidelines: list[dict[str, Any]]
    """The `Guideline`s that stand, as JSON, in their order."""


class Distilled(TypedDict):
    """What `distill_feedback` leaves for `commit_memory`."""

    operations: list[dict[str, Any]]
    """`GuidelineOperation`s as JSON."""

    distilled: dict[str, str]
    """What was read: the word of each episode (`Episode.word`) by its id."""

    rewordings: NotRequired[list[dict[str, Any]]]
    """`GuidelineOperation`s as JSON for guidelines that had lost a source."""

    reworded: NotRequired[dict[str, str]]
    """What was read for those: the word of each episode by its id."""

    refused: NotRequired[list[str]]
    """What the model proposed that was not kept, and why, a sentence each."""


class Questioned(TypedDict):
    """What `question_feedback` leaves for the nodes after it."""

    clarification: NotRequired[Annotated[dict[str, Any] | None, EphemeralValue]]
    """What the expert is to be asked back: `question` and `example`; None if nothing. The
    `episode_id` tells a purge that this thread carries the expert's words."""

    learning_warnings: NotRequired[list[str]]
    """What learning does without."""


class JudgeState(ExampleInput, Retrieved, Assembled, JudgeOutput):
    """All channels of the judge graph."""


class ReviewState(JudgeState, ReviewOutput, Distilled, Questioned):
    """All channels of the review graph."""


class LaterFeedback(TypedDict):
    """An expert's word on an earlier judgment."""

    judgment_id: Annotated[str, EphemeralValue]
    """The judgment's `id`."""

    reply: Annotated[Any, EphemeralValue]
    """Any reply that the review interrupt takes: `value`, `rationale` and `author`, or text, ..."""


def merge_or_clear(old: dict[str, Any] | None, new: dict[str, Any] | None) -> dict[str, Any]:
    """Bring what nodes wrote side by side together; None begins anew, None for a key drops it."""
    if new is None:
        return {}
    return {key: one for key, one in {**(old or {}), **new}.items() if one is not None}


def add_or_begin(old: list[Any] | None, new: list[Any]) -> list[Any]:
    """Append what nodes wrote; an entry that `begins` a run drops the run before."""
    return new if any(one.get("begins") for one in new) else [*(old or []), *new]


class AlignmentInput(TypedDict):
    """What is to be learned."""

    feedback: Annotated[list[Any], EphemeralValue]
    """`Feedback`, or its fields, any number; what is pending in memory is learned along."""


class FeedbackView(TypedDict, total=False):
    """The same as a node sees it."""

    feedback: Any


class AlignmentOutput(TypedDict):
    """What the alignment graph returns."""

    report: dict[str, Any]
    """The `AlignmentReport` as JSON."""


class Received(TypedDict):
    """What `remember_feedback` leaves for the nodes after it."""

    judge_settings: dict[str, Any]
    """The run's settings; kept here because a context is gone after an interrupt."""

    received: dict[str, Any]
    """The report's first part: what became of the feedback, and how far the experts agree."""

    batches: list[dict[str, Any]]
    """What is to be distilled: `number`, `of`, and `episode_ids` or a pending `guideline_id`."""

    guidelines_before: list[dict[str, Any]]
    """The guidelines when the run began, as JSON."""

    new_ids: list[str]
    """The episodes that were not there, or said something else, when the run began."""

    feedback_ids: list[str]
    """The episodes that the feedback became; also tells a purge that this thread carried them."""


class JudgedCases(TypedDict):
    """What `judge_cases` leaves for the nodes after it."""

    judged: NotRequired[dict[str, Any] | None]
    """How many `cases` it judged, and its `warnings`; None where it was not asked to."""


class Batched(TypedDict):
    """What `distill_batch` is sent."""

    judge_settings: dict[str, Any]
    """The run's settings."""

    batch: dict[str, Any]
    """One of `Received.batches`."""


class Proposed(TypedDict):
    """What `distill_batch` leaves for the nodes after it."""

    proposals: Annotated[dict[str, Any], merge_or_clear]
    """By batch: `operations`, the words `read` by episode id, what was `cut`, and what was
    `refused`; or an `error`."""


class Consolidated(TypedDict):
    """What `consolidate_guidelines` leaves for the nodes after it."""

    merged: dict[str, Any] | None
    """`operations` on guidelines, `rewordings` of pending ones, and `conflicts`."""


class Settled(TypedDict):
    """What `settle_conflicts` leaves for the nodes after it."""

    decisions: dict[str, str] | None
    """What the expert decided, by conflict id; None if nobody was asked."""


class Replayed(TypedDict):
    """What `replay_cases` leaves for the nodes after it."""

    guarded: dict[str, Any] | None
    """The `operations` that broke nothing, and the report's part on it; None without a guard."""


class Measured(TypedDict):
    """What every node of an alignment adds to."""

    usage: Annotated[list[dict[str, Any]], add_or_begin]
    """Model calls, tokens, and from when to when, an entry a node."""


class AlignmentState(
    AlignmentInput,
    AlignmentOutput,
    Received,
    JudgedCases,
    Proposed,
    Consolidated,
    Settled,
    Replayed,
    Measured,
):
    """All channels of the alignment graph."""
