"""Messages in what other tools recorded: runs, traces and spans, read as a gate sees a turn."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from langchain_core.messages import convert_to_messages

from memalign_graph.conversation import read_turn, what_gate_sees
from memalign_graph.errors import InvalidInputError
from memalign_graph.integrations.feedback import Fields, plain_json
from memalign_graph.transcript import read_messages
from memalign_graph.types import Example, parse_example


def turn_fields(inputs: Any, outputs: Any) -> Fields:
    """Return inputs and outputs as a gate sees them, where they hold messages; others as they are.

    Raises:
        InvalidInputError: If a message holds content that is no text.
    """
    given, made = messages_in(inputs, "inputs"), messages_in(outputs, "outputs")
    if made is None:
        return {"inputs": inputs if given is None else given, "outputs": outputs}
    whole = _joined(given or [], made)
    asked = [message["content"] for message in whole if message["role"] == "user"]
    if given is None and inputs is None and asked:
        # A conversation without inputs, as agentevals judges it, says itself what was asked.
        return {"inputs": asked[0], "outputs": whole}
    turn = read_turn(convert_to_messages(whole), {})
    seen = what_gate_sees(turn, "messages", "turn") if given and asked else None
    return seen or {"inputs": given or inputs, "outputs": made}


def messages_in(value: Any, name: str) -> list[Fields] | None:
    """Return the messages in what an application or a model took or returned; None if none."""
    found = value
    match value:
        case {"messages": [[*first]]}:  # as LangSmith records a model's call
            found = first
        case {"messages": [*messages]} if _holds_nothing_else(value):
            found = messages
        case {"choices": [{"message": message}, *_]}:
            found = [message]
        case {"generations": [[{"message": message}, *_], *_]}:
            found = [message]
    try:
        return read_messages(found, name)  # type: ignore[no-any-return] # messages, or None
    except ValueError as error:
        raise InvalidInputError(str(error)) from error


def example_fields(inputs: Any, outputs: Any, reference: Any) -> Fields:
    """Return the fields of an example of a run, which is a turn where it holds messages."""
    references = messages_in(reference, "reference_outputs")
    reference = reference if references is None else references
    return plain_json({**turn_fields(inputs, outputs), "reference_outputs": reference})  # type: ignore[no-any-return] # a dict


def _holds_nothing_else(value: Mapping[str, Any]) -> bool:
    """Tell whether messages are all that matters: beside a model's options, or gates' verdicts."""
    rest = [part for key, part in value.items() if key != "messages" and part]
    are_verdicts = (isinstance(part, Mapping) and "let_through" in part for part in rest)
    return "model" in value or all(are_verdicts)


def _joined(given: list[Fields], made: list[Fields]) -> list[Fields]:
    """Put what was returned after what was given, which graphs return as well."""
    size = len(given)
    repeats = any(made[at : at + size] == given for at in range(len(made) - size + 1))
    return made if repeats else [*given, *made]


def example_from_opentelemetry(span: Any) -> Example:
    """Make an example of a span by OpenTelemetry's conventions for generative AI.

    The span's `gen_ai.input.messages` and `gen_ai.output.messages` become the request with the
    conversation before it, and the turn: tool calls, their results and the answer. So it is the
    example that a gate with `sees="turn"` judges.

    Args:
        span: A span with `attributes`, or the attributes; messages as lists or as JSON text.

    Returns:
        The example.

    Raises:
        InvalidInputError: If a span has no such messages, or one holds content that is no text.
    """
    attributes = span if isinstance(span, Mapping) else getattr(span, "attributes", None) or {}
    inputs, outputs = (
        _recorded(attributes, f"gen_ai.{kind}.messages") for kind in ("input", "output")
    )
    return parse_example(turn_fields(inputs, outputs))


def _recorded(attributes: Mapping[str, Any], name: str) -> list[Fields]:
    messages = attributes.get(name)
    try:
        messages = json.loads(messages) if isinstance(messages, str) else messages
    except ValueError as error:
        raise InvalidInputError(f"span: {name} is no JSON: {error}.") from error
    if not isinstance(messages, list | tuple) or not all(
        isinstance(one, Mapping) for one in messages
    ):
        raise InvalidInputError(
            f"span: it has no list of messages in {name}: switch on the recording of content."
        )
    return [part for message in messages for part in _plain_messages(message)]


def _plain_messages(message: Mapping[str, Any]) -> Iterator[Fields]:
    """Write a message with parts as OpenAI's: a message for each result, one for the rest."""
    content: list[Any] = []
    calls: list[Any] = []
    for part in message.get("parts") or ():
        match part.get("type"):
            case "text" | "reasoning" | "thinking":
                content.append({**part, "text": part.get("content")})
            case "tool_call":
                calls.append(part)
            case "tool_call_response":
                result = part.get("response", part.get("result"))
                text = result if isinstance(result, str) else json.dumps(result, ensure_ascii=False)
                yield {"role": "tool", "tool_call_id": part.get("id"), "content": text}
            case "blob" | "uri":
                content.append({"type": part.get("modality") or "file"})
            case _:
                content.append(part)
    if content or calls:
        yield {"role": message.get("role"), "content": content, "tool_calls": calls}
