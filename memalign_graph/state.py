"""What flows through the graphs: JSON values only, so that any checkpointer can keep them."""

from typing import Annotated, Any, NotRequired

from langgraph.channels import EphemeralValue
from typing_extensions import TypedDict


class ExampleInput(TypedDict):
    """What is to be judged."""

    inputs: Any
    """What the application was given: text, messages, or any other JSON value; not empty."""
    outputs: Any
    """What the application answered; not empty."""
    reference_outputs: NotRequired[Any]
    """What it should have answered, where that is known."""


class RunInput(TypedDict):
    """The same of a graph that begins with judging: the channels live for one step.

    What a later run on the same thread does not give is then not there, rather than left over.
    """

    inputs: Annotated[Any, EphemeralValue]
    outputs: Annotated[Any, EphemeralValue]
    reference_outputs: NotRequired[Annotated[Any, EphemeralValue]]


class JudgeOutput(TypedDict):
    """What the judge graph returns."""

    judgment: dict[str, Any]
    """The `Judgment` as JSON."""


class ReviewOutput(JudgeOutput):
    """What the review graph returns."""

    feedback: dict[str, Any] | None
    """The expert's `Feedback` as JSON; None if none was asked for or given."""
    learned: dict[str, Any] | None
    """What memory made of it: `episode_ids`, `guidelines` (an entry for each that was added,
    revised or retired, with `action`, `guideline_id`, `text`, `episode_ids`), the
    `memory_version` after it, and `warnings`: what it did without; None if there was no
    feedback."""


class JudgeChannels(JudgeOutput):
    """What judging leaves in the state."""

    broken_guidelines: NotRequired[list[dict[str, Any]]]
    """The `Guideline`s that the outputs break, by the judge's own account, as JSON."""
    judge_run: dict[str, Any]
    """The `example` and the run's `settings`: a context is gone after an interrupt."""
    judge_memory: dict[str, Any] | None
    """What memory gave, by ids (`Retrieved`), until nobody needs it any more."""


class ReviewChannels(JudgeChannels, ReviewOutput):
    """What judging, asking and learning leave in the state."""

    judge_lesson: dict[str, Any]
    """The lesson under way: what the expert is asked back, and what is to be committed."""


class JudgeState(ExampleInput, JudgeChannels):
    """All channels of judging; derive from it to put the nodes into a graph of one's own.

    `judge_run` and `judge_memory` are the nodes' own.
    """


class ReviewState(ExampleInput, ReviewChannels):
    """All channels of judging and asking; `judge_lesson`, too, is the nodes' own."""


class JudgeRunState(RunInput, JudgeChannels):
    """All channels of the judge graph."""


class ReviewRunState(RunInput, ReviewChannels):
    """All channels of the review graph."""


class LaterFeedback(TypedDict):
    """An expert's feedback on an earlier judgment."""

    judgment_id: Annotated[str, EphemeralValue]
    reply: Annotated[Any, EphemeralValue]
    """Any reply that the review interrupt takes: `value`, `rationale` and `author`, or text, ..."""


class FeedbackState(ReviewRunState, LaterFeedback):
    """All channels of the feedback graph."""


class AlignmentInput(TypedDict):
    """What is to be learned."""

    feedback: Annotated[list[Any], EphemeralValue]
    """`Feedback`, or its fields, any number; what is pending in memory is learned along."""


class AlignmentOutput(TypedDict):
    """What the alignment graph returns."""

    report: dict[str, Any]
    """The `AlignmentReport` as JSON."""


class AlignmentState(AlignmentInput, AlignmentOutput):
    """All channels of the alignment graph; the last two are the nodes' own."""

    judge_run: dict[str, Any]
    judge_lesson: dict[str, Any]
