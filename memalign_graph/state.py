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


class ReviewOutput(JudgeOutput):
    """What the review graph returns."""

    feedback: dict[str, Any] | None
    """The expert's `Feedback` as JSON; None if none was asked for or given."""

    learned: dict[str, Any] | None
    """What memory made of it: `episode_ids`, `guidelines` (an entry for each that was added,
    revised or retired, with `action`, `guideline_id`, `text`, `episode_ids`) and the
    `memory_version` after it; None if there was no feedback."""


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


class JudgeState(ExampleInput, Retrieved, Assembled, JudgeOutput):
    """All channels of the judge graph."""


class ReviewState(JudgeState, ReviewOutput, Distilled):
    """All channels of the review graph."""
