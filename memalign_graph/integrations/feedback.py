"""What another tool holds, read as feedback: what is taken, what is not, and why."""

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from langchain_core.messages import BaseMessage, convert_to_openai_messages
from pydantic import Field
from pydantic_core import to_jsonable_python

from memalign_graph.errors import InvalidInputError
from memalign_graph.scales import Scale
from memalign_graph.types import Criterion, Feedback, FrozenModel, is_missing, plain, read_feedback

Fields = dict[str, Any]


class RejectedFeedback(FrozenModel):
    """A person's word on the criterion that can't be used: its id where it came from, and why."""

    id: str | None
    reason: str


class ImportedFeedback(FrozenModel):
    """What was found in another tool; what is no person's word on the criterion is counted."""

    feedback: list[Feedback] = Field(default_factory=list)
    rejected: list[RejectedFeedback] = Field(default_factory=list)
    passed_over: Counter[str] = Field(default_factory=Counter)


def add(
    found: ImportedFeedback, scale: Scale, make_example: Callable[[], Fields], **fields: Any
) -> None:
    """Take feedback, or reject it with the reason."""
    try:
        if fields["value"] is not None:
            fields["value"] = scale.validate_value(fields["value"])
        found.feedback.append(read_feedback({**fields, "example": make_example()}))
    except RecursionError:
        reject(found, fields["id"], "the example is nested too deep: flatten it.")
    except ValueError as error:
        reject(found, fields["id"], str(error))


def reject(found: ImportedFeedback, feedback_id: Any, reason: str) -> None:
    """Say why a person's word can't be used."""
    name = None if feedback_id is None else str(feedback_id)
    found.rejected.append(RejectedFeedback(id=name, reason=reason))


def scale_of(criterion: Any) -> Scale:
    """Return a criterion's scale, or refuse what is no criterion."""
    if not isinstance(criterion, Criterion):
        kind = type(criterion).__name__
        raise InvalidInputError(f"criterion: give a Criterion, not a value of type {kind}.")
    return criterion.scale


def present(value: Any) -> Any:
    """Return a value, or None where a tool or a table writes that there is none."""
    value = plain(value)
    is_empty = isinstance(value, dict | list | str) and not value
    return None if is_empty or is_missing(value) else value


def plain_json(value: Any) -> Any:
    """Turn what applications return into plain JSON: messages, models, tuples, ids, times."""
    if isinstance(value, BaseMessage):
        value = convert_to_openai_messages(value)
    if isinstance(value, Mapping):
        return {name: plain_json(item) for name, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain_json(item) for item in value]
    try:
        return to_jsonable_python(plain(value))
    except (TypeError, ValueError):
        return value  # the example says what is wrong with it
