"""The channels of the graphs: JSON values only, so that any checkpointer can store them."""

from typing import Annotated, Any, NotRequired

from langgraph.channels import EphemeralValue
from pydantic import Field
from typing_extensions import TypedDict


class ExampleInput(TypedDict):
    """What is to be judged."""

    inputs: Any
    """The application's input: text, messages, or any other JSON value; not empty."""
    outputs: Any
    """The application's output; not empty."""
    reference_outputs: NotRequired[Any]
    """What it should have answered, if that is known."""


# Studio shows the docstring and the descriptions of an input.
# The channels last for one step: a later run on the thread can't read an earlier run's values.
class RunInput(TypedDict):
    """What is to be judged."""

    inputs: Annotated[Any, Field(description="The application's input, not empty."), EphemeralValue]
    outputs: Annotated[Any, Field(description="The application's output."), EphemeralValue]
    reference_outputs: NotRequired[
        Annotated[Any, Field(description="The right answer, if it is known."), EphemeralValue]
    ]


class JudgeOutput(TypedDict):
    """What the judge graph returns."""

    judgment: dict[str, Any]
    """The `Judgment` as JSON."""


class ReviewOutput(JudgeOutput):
    """What the review graph returns."""

    feedback: dict[str, Any] | None
    """The expert's `Feedback` as JSON; None if no expert was asked, or none answered."""
    learned: dict[str, Any] | None
    """What the memory learned: `episode_ids`, `guidelines` (an entry for each that was added,
    revised or retired, with `action`, `guideline_id`, `text`, `episode_ids`), the new
    `memory_version`, and `warnings`; None without feedback."""


class JudgeChannels(JudgeOutput):
    """The channels that judging writes."""

    broken_guidelines: NotRequired[list[dict[str, Any]]]
    """The `Guideline`s that the outputs break, according to the judge, as JSON."""
    judge_run: dict[str, Any]
    """The `example` and the run's `settings`, since an interrupt does not keep the context."""
    judge_memory: dict[str, Any] | None
    """The retrieved ids (`Retrieved`), as long as they are needed."""


class ReviewChannels(JudgeChannels, ReviewOutput):
    """The channels that judging, asking and learning write."""

    judge_lesson: dict[str, Any]
    """The clarifying question, and the operations to commit."""


class JudgeState(ExampleInput, JudgeChannels):
    """All channels of judging, to derive your own graph's state from.

    `judge_run` and `judge_memory` are private.
    """


class ReviewState(ExampleInput, ReviewChannels):
    """All channels of judging and asking; `judge_lesson` is private, too."""


class JudgeRunState(RunInput, JudgeChannels):
    """All channels of the judge graph."""


class ReviewRunState(RunInput, ReviewChannels):
    """All channels of the review graph."""


class LaterFeedback(TypedDict):
    """An expert's feedback on an earlier judgment."""

    judgment_id: Annotated[str, Field(description="Of a kept judgment."), EphemeralValue]
    reply: Annotated[Any, Field(description="Any reply that a review accepts."), EphemeralValue]


class FeedbackState(ReviewRunState, LaterFeedback):
    """All channels of the feedback graph."""


class AlignmentInput(TypedDict):
    """The feedback to learn from."""

    feedback: Annotated[list[Any], Field(description="`Feedback` as JSON."), EphemeralValue]
    """Any number of `Feedback`, or its fields; pending feedback in memory is learned, too."""


class AlignmentOutput(TypedDict):
    """What the alignment graph returns."""

    report: dict[str, Any]
    """The `AlignmentReport` as JSON."""


class AlignmentState(AlignmentInput, AlignmentOutput):
    """All channels of the alignment graph; the last two are private."""

    judge_run: dict[str, Any]
    judge_lesson: dict[str, Any]
