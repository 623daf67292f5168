"""Examples and feedback that other tools recorded: plain JSON, messages as a gate sees them."""

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from langchain_core.messages import BaseMessage, convert_to_openai_messages
from langgraph.graph.message import add_messages
from pydantic import Field
from pydantic_core import to_jsonable_python

from memalign_graph.conversation import read_turn, what_gate_sees
from memalign_graph.errors import InvalidInputError
from memalign_graph.scales import Scale
from memalign_graph.transcript import message_fields, read_messages
from memalign_graph.types import (
    Criterion,
    Example,
    Feedback,
    FrozenModel,
    is_missing,
    parse_example,
    parse_feedback,
    to_python_scalar,
)

Fields = dict[str, Any]

# Where messages that a gate does not judge, such as critiques, are marked.
_MARKS = ("additional_kwargs", "response_metadata", "artifact")


class RejectedFeedback(FrozenModel):
    """A person's feedback that cannot be used."""

    id: str | None  # its id in the other tool
    reason: str


class ImportedFeedback(FrozenModel):
    """Feedback from another tool."""

    feedback: list[Feedback] = Field(default_factory=list)
    rejected: list[RejectedFeedback] = Field(default_factory=list)
    passed_over: Counter[str] = Field(default_factory=Counter)
    """Numbers of records that are no feedback by a person on the criterion, by reason."""


@contextmanager
def rejecting(imported: ImportedFeedback, feedback_id: Any) -> Iterator[None]:
    """Add the reason why a person's feedback cannot be read or used, if the block fails."""
    try:
        yield
    except (AttributeError, KeyError, RecursionError, TypeError, ValueError) as error:
        reason = str(error)
        if not isinstance(error, ValueError):
            reason = f"{type(error).__name__}: {reason}"
            reason = f"it or its run is not as the tool exports it ({reason}): export it again."
        name = None if feedback_id is None else str(feedback_id)
        imported.rejected.append(RejectedFeedback(id=name, reason=reason))


def add_feedback(imported: ImportedFeedback, scale: Scale, **fields: Any) -> None:
    if fields["value"] is not None:
        fields["value"] = scale.validate_value(fields["value"])
    imported.feedback.append(parse_feedback(fields))


def scale_of(criterion: Any) -> Scale:
    """Return a criterion's scale."""
    if not isinstance(criterion, Criterion):
        kind = type(criterion).__name__
        raise InvalidInputError(f"criterion: give a Criterion, not a value of type {kind}.")
    return criterion.scale


def none_if_empty(value: Any) -> Any:
    """Return a value, or None for the empty values and NaN of tools and tables."""
    value = to_python_scalar(value)
    is_empty = isinstance(value, dict | list | str) and not value
    return None if is_empty or is_missing(value) else value


def maybe_json(value: Any) -> Any:
    """Parse text as JSON; other text stays as it is."""
    try:
        return json.loads(value) if isinstance(value, str) else value
    except (ValueError, RecursionError):
        return value


def plain_json(value: Any) -> Any:
    """Convert messages, models, tuples, ids and times to JSON values."""
    if isinstance(value, BaseMessage):
        value = convert_to_openai_messages(value)
    if isinstance(value, Mapping):
        return {name: plain_json(item) for name, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain_json(item) for item in value]
    try:
        return to_jsonable_python(to_python_scalar(value))
    except (TypeError, ValueError):
        return value  # refused with a reason when it becomes an example


def example_fields(inputs: Any, outputs: Any, reference_outputs: Any = None) -> Fields:
    """Return the fields of a run's example; messages become the turn that a gate judges."""
    messages = _messages_in(reference_outputs, "reference_outputs")
    reference = reference_outputs if messages is None else messages
    try:
        return plain_json({**_turn_fields(inputs, outputs), "reference_outputs": reference})  # type: ignore[no-any-return] # a dict
    except RecursionError as error:
        raise InvalidInputError("example: it is nested too deep. Flatten it.") from error


def _turn_fields(inputs: Any, outputs: Any) -> Fields:
    request, reply = _messages_in(inputs, "inputs"), _messages_in(outputs, "outputs")
    if reply is None:
        return {"inputs": inputs if request is None else request, "outputs": outputs}
    conversation = _joined(request or [], reply)
    from_user = [message for message in conversation if message["role"] == "user"]
    if request is None and inputs is None and from_user:
        # agentevals' evaluators get a conversation without inputs.
        return {"inputs": _plain(from_user)[0]["content"], "outputs": conversation}
    # A graph takes its messages in short forms, too, and mostly returns them as messages.
    is_state = isinstance(inputs, Mapping) and inputs.keys() == {"messages"}
    if is_state and request is None and not from_user:
        with suppress(NotImplementedError, ValueError):
            return _turn_fields(add_messages([], inputs["messages"]), outputs)
    turn = read_turn(conversation, {})
    seen = what_gate_sees(turn, "messages", "turn") if from_user and (request or is_state) else None
    return seen or {"inputs": request or inputs, "outputs": reply}


def _messages_in(value: Any, name: str) -> list[Fields] | None:
    """Return the messages in a run's input or output; None if it holds none, or more than them."""
    messages = value
    match value:
        case {"messages": [[*all_messages]] | [*all_messages]} if _holds_only_messages(value):
            messages = all_messages  # in a list of one for a model's call in LangSmith
        case {"choices": [{"message": message}, *_]}:
            messages = [message]
        case {"generations": [[{"message": message}, *_], *_]}:
            messages = [message]
    try:
        read = read_messages(messages, name)
    except ValueError as error:
        raise InvalidInputError(str(error)) from error
    return read and [_with_marks(message) for message in messages]


def _with_marks(recorded: Any) -> Fields:
    """Return a message with what a gate reads beside the text: parts of the content, and marks."""
    fields = message_fields(recorded) or {}
    # A result's call may be in another part of the conversation: the name says which it is.
    kinds = {**dict.fromkeys(_MARKS, Mapping), "content": list, "name": str}
    read = {key: fields[key] for key, kind in kinds.items() if isinstance(fields.get(key), kind)}
    return {**_plain([recorded])[-1], **read}


def _holds_only_messages(value: Mapping[str, Any]) -> bool:
    """Return whether nothing but a model's options or gates' verdicts is next to the messages."""
    rest = (none_if_empty(part) for key, part in value.items() if key != "messages")
    filled = (part for part in rest if part is not None)
    are_verdicts = (isinstance(part, Mapping) and "let_through" in part for part in filled)
    return "model" in value or all(are_verdicts)


def _joined(request: list[Fields], reply: list[Fields]) -> list[Fields]:
    """Join the messages given and returned; graphs return those they were given, too."""
    asked, answered = _plain(request), _plain(reply)
    repeats = any(answered[start:][: len(asked)] == asked for start in range(len(answered)))
    return reply if repeats else [*request, *reply]


def _plain(messages: list[Fields]) -> list[Fields]:
    return read_messages(messages, "messages") or []


def example_from_opentelemetry(span: Any) -> Example:
    """Make an example from a span with OpenTelemetry's attributes for generative AI.

    `gen_ai.input.messages` and `gen_ai.output.messages` become the request with the conversation
    before it, and the turn: tool calls, their results and the answer. This is the example that a
    gate with `sees="turn"` judges.

    Args:
        span: A span with `attributes`, its `to_json()`, or the attributes; messages as lists or as
            JSON text.

    Returns:
        The example.

    Raises:
        InvalidInputError: If a span has no such messages, or one holds content that is not text.
    """
    span = maybe_json(span)
    fields = span if isinstance(span, Mapping) else {"attributes": getattr(span, "attributes", {})}
    inner = fields.get("attributes")
    attributes = inner if isinstance(inner, Mapping) else fields
    inputs, outputs = (
        _span_messages(attributes, f"gen_ai.{kind}.messages") for kind in ("input", "output")
    )
    return parse_example(_turn_fields(inputs, outputs))


def _span_messages(attributes: Mapping[str, Any], name: str) -> list[Fields]:
    messages = maybe_json(attributes.get(name))
    has_parts = are_mappings(messages) and all(are_mappings(item.get("parts")) for item in messages)
    if not has_parts:
        raise InvalidInputError(
            f"span: {name} is no list of messages with `parts`, nor one in JSON. Switch on the "
            "recording of content, and give the span's attributes as a dict."
        )
    return [part for message in messages for part in _openai_messages(message)]


def are_mappings(value: Any) -> bool:
    is_list = isinstance(value, list | tuple)
    return is_list and all(isinstance(item, Mapping) for item in value)


def _openai_messages(message: Mapping[str, Any]) -> Iterator[Fields]:
    """Convert a message with parts to OpenAI's: one for each tool result, one for the rest."""
    content: list[Any] = []
    calls: list[Any] = []
    for part in message["parts"]:
        match part.get("type"):
            case "text" | "reasoning" | "thinking":
                content.append({**part, "text": part.get("content")})
            case "tool_call":
                calls.append(part)
            case "tool_call_response":
                result = part.get("response", part.get("result"))
                if not isinstance(result, str):
                    result = json.dumps(result, ensure_ascii=False, default=str)
                yield {"role": "tool", "tool_call_id": part.get("id"), "content": result}
            case "blob" | "uri":
                content.append({"type": part.get("modality") or "file"})
            case _:
                content.append(part)
    if content or calls:
        names = {key: message.get(key) for key in ("role", "name")}
        yield {**names, "content": content, "tool_calls": calls}
