"""Feedback imported from another tool, with the records that were rejected and the reasons."""

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from langchain_core.messages import BaseMessage, convert_to_openai_messages
from pydantic import Field
from pydantic_core import to_jsonable_python

from memalign_graph.errors import InvalidInputError
from memalign_graph.scales import Scale
from memalign_graph.types import (
    Criterion,
    Feedback,
    FrozenModel,
    is_missing,
    parse_feedback,
    to_python_scalar,
)

Fields = dict[str, Any]


class RejectedFeedback(FrozenModel):
    """A person's feedback that cannot be used: its id in the other tool, and the reason."""

    id: str | None
    reason: str


class ImportedFeedback(FrozenModel):
    """Feedback from another tool; records that are no feedback on the criterion are counted."""

    feedback: list[Feedback] = Field(default_factory=list)
    rejected: list[RejectedFeedback] = Field(default_factory=list)
    passed_over: Counter[str] = Field(default_factory=Counter)


def add_feedback(
    imported: ImportedFeedback, scale: Scale, make_example: Callable[[], Fields], **fields: Any
) -> None:
    """Add feedback, or the reason why it cannot be used."""
    try:
        if fields["value"] is not None:
            fields["value"] = scale.validate_value(fields["value"])
        imported.feedback.append(parse_feedback({**fields, "example": make_example()}))
    except RecursionError:
        add_rejected(imported, fields["id"], "the example is nested too deep: flatten it.")
    except ValueError as error:
        add_rejected(imported, fields["id"], str(error))


def add_rejected(imported: ImportedFeedback, feedback_id: Any, reason: str) -> None:
    """Add the reason why a person's feedback cannot be used."""
    name = None if feedback_id is None else str(feedback_id)
    imported.rejected.append(RejectedFeedback(id=name, reason=reason))


def scale_of(criterion: Any) -> Scale:
    """Return a criterion's scale, or refuse what is no criterion."""
    if not isinstance(criterion, Criterion):
        kind = type(criterion).__name__
        raise InvalidInputError(f"criterion: give a Criterion, not a value of type {kind}.")
    return criterion.scale


def none_if_empty(value: Any) -> Any:
    """Return a value, or None where a tool or a table writes that there is none."""
    value = to_python_scalar(value)
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
        return to_jsonable_python(to_python_scalar(value))
    except (TypeError, ValueError):
        return value  # the example says what is wrong with it
