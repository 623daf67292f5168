"""What an import of other people's feedback came to: what is taken, what is not, and why."""

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict

from memalign_graph.errors import InvalidInputError
from memalign_graph.integrations.plain import plain_json, value_on_scale
from memalign_graph.reading import read_feedback
from memalign_graph.types import Criterion, Example, Feedback


class RejectedFeedback(BaseModel):
    """A person's word on the criterion that can't be used."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: str | None
    """The id it has where it came from."""

    reason: str
    """Why, in one sentence."""


class ImportedFeedback(BaseModel):
    """What was found in another tool."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    feedback: list[Feedback]
    """What people said about the criterion, to be remembered or aligned with."""

    rejected: list[RejectedFeedback]
    """What they said about it that can't be used, each with the reason."""

    passed_over: dict[str, int]
    """What is no person's word on the criterion, or was replaced since: why, and how many."""


class Import:
    """Gathers what an import finds."""

    def __init__(self, criterion: Criterion) -> None:
        """Begin."""
        if not isinstance(criterion, Criterion):
            raise InvalidInputError(
                "criterion: give a Criterion(name=..., instructions=...), not a value of type "
                f"{type(criterion).__name__}."
            )
        self.criterion = criterion
        self._feedback: list[Feedback] = []
        self._rejected: list[RejectedFeedback] = []
        self._passed_over: Counter[str] = Counter()

    def add(self, *, value: Any, example: Any, **fields: Any) -> None:
        """Take feedback, or reject it with the reason."""
        try:
            if value is not None:
                value = value_on_scale(value, self.criterion.scale)
            made = example() if callable(example) else example
            read = read_feedback({**fields, "value": value, "example": made})
        except RecursionError:
            self.reject(fields.get("id"), "the example is nested too deep: flatten it.")
        except ValueError as error:
            self.reject(fields.get("id"), str(error))
        else:
            self._feedback.append(read)

    def reject(self, feedback_id: Any, reason: str) -> None:
        """Say why a person's word can't be used."""
        named = None if feedback_id is None else str(feedback_id)
        self._rejected.append(RejectedFeedback(id=named, reason=reason))

    def pass_over(self, why: str) -> None:
        """Count what is not meant for the criterion."""
        self._passed_over[why] += 1

    def result(self) -> ImportedFeedback:
        """Return what was found."""
        return ImportedFeedback(
            feedback=self._feedback,
            rejected=self._rejected,
            passed_over=dict(self._passed_over),
        )


def make_example(
    fields: Mapping[str, Any], mapping: Callable[[Any], Any] | None, source: Any
) -> dict[str, Any]:
    """Make an example's fields out of what a tool holds."""
    made = fields if mapping is None else mapping(source)
    if isinstance(made, Example):
        return made.to_json()
    if not isinstance(made, Mapping):
        raise InvalidInputError(
            "example: the function has to return an Example, or a dict with `inputs` and "
            f"`outputs`, not a value of type {type(made).__name__}."
        )
    return {name: plain_json(one) for name, one in made.items()}
