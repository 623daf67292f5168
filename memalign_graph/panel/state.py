"""What flows through a panel's graph: JSON values only, most of them by criterion."""

from typing import Annotated, Any

from typing_extensions import TypedDict

from memalign_graph.state import Assembled, ExampleInput, Retrieved, merge_or_clear

ByCriterion = Annotated[dict[str, Any], merge_or_clear]
"""Values by the criterion's name, written side by side."""


class PanelOutput(TypedDict):
    """What a panel returns."""

    judgments: ByCriterion
    """The `Judgment` on each criterion, as JSON."""

    errors: ByCriterion
    """Why a criterion could not be judged, or an expert's word on it not distilled, a sentence
    each."""

    aggregate: dict[str, Any] | None
    """The `AggregateResult`; None if none was asked for."""

    feedback: dict[str, Any] | None
    """The expert's `Feedback` on each criterion that has any; None if nobody was asked, or had
    anything to say."""

    learned: ByCriterion
    """What each memory made of it, as in a review graph."""


class PanelRetrieved(TypedDict):
    """What `retrieve_episodes` leaves for the nodes after it."""

    judge_example: dict[str, Any]
    """The `Example` as JSON."""

    judge_settings: dict[str, Any]
    """The run's settings; kept here because a context is gone after an interrupt."""

    memories: dict[str, Any]
    """What each memory has on the example: `Remembered` by criterion."""


class Remembered(Retrieved, Assembled):
    """What one criterion's memory has on the example."""


class OneCriterion(Remembered):
    """What `judge_criterion` is sent."""

    criterion: str
    """The criterion's name."""


class OneFeedback(Remembered):
    """What `learn_criterion` is sent."""

    criterion: str
    """The criterion's name."""

    feedback: dict[str, Any]
    """The expert's `Feedback` on it, as JSON."""


class PanelState(ExampleInput, PanelRetrieved, PanelOutput):
    """All channels of a panel's graph."""

    kinds: ByCriterion
    """The class of the error of each criterion that could not be judged, by its name."""
