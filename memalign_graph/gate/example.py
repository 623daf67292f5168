"""The example a gate judges, taken out of its parent's state."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    HumanMessage,
    ToolMessage,
    convert_to_messages,
)
from pydantic import BaseModel

from memalign_graph.errors import InvalidInputError
from memalign_graph.reading import PLAIN_FUNCTION, ExampleLike, read_example
from memalign_graph.types import Example

ExampleFrom = Callable[[Any], ExampleLike]
"""A function of the parent's state that gives the example, or its fields."""

SOURCE = "lc_source"
"""Where LangChain's middleware tells in a message's `additional_kwargs` that it wrote it."""

GATE_SOURCE = "quality_gate"
"""What a gate's critiques tell there, and the answers it puts in another's place."""

GATE = "gate"
"""Where a critique tells which gate wrote it."""

NO_ANSWER = "There is no answer to judge: write one."
"""The critique where nothing is to be judged."""


def last_exchange(
    state: Any, messages_key: str = "messages", *, turn: Mapping[str, Any] = MappingProxyType({})
) -> dict[str, Any] | None:
    """Take the last human message and the last answer out of a conversation."""
    given = state.get(messages_key) if isinstance(state, Mapping) else None
    given = getattr(state, messages_key, None) if given is None else given
    if not isinstance(given, Sequence) or isinstance(given, str) or not given:
        raise InvalidInputError(
            f"{messages_key}: the state has no messages there to judge: give `example=`, a "
            "function that makes `inputs` and `outputs` of the state."
        )
    messages = convert_to_messages(given)
    human = [one for one in messages if isinstance(one, HumanMessage)]
    begun = turn.get("asked_id")
    asked = [
        one.text
        for one in human
        if (begun and one.id == begun) or SOURCE not in one.additional_kwargs
    ]
    if not asked and "inputs" not in turn:
        raise InvalidInputError(
            f"{messages_key}: none of the messages is human: give `example=`, a function that "
            "makes `inputs` and `outputs` of the state."
        )
    structured = state.get("structured_response") if isinstance(state, Mapping) else None
    is_answered = structured is not None and not isinstance(messages[-1], HumanMessage)
    outputs = _json(structured) if is_answered else _answer(messages)
    if not outputs:
        return None
    # Other middleware may have folded the question into a summary meanwhile.
    inputs = turn["inputs"] if "inputs" in turn else asked[-1] or "(no text)"
    return {"inputs": inputs, "outputs": outputs}


def check_example(example: Any) -> None:
    """Check the function that makes the example."""
    if example is not None and not callable(example):
        raise InvalidInputError(
            "example: give a function of the state that makes `inputs` and `outputs`, not a value "
            f"of type {type(example).__name__}."
        )
    if inspect.iscoroutinefunction(example):
        raise InvalidInputError(f"example: {PLAIN_FUNCTION}")


def own_critiques(state: Any, messages_key: str, name: str) -> int:
    """Count how often a gate has sent an answer back since a human last spoke."""
    given = state.get(messages_key) if isinstance(state, Mapping) else None
    messages = convert_to_messages(given) if isinstance(given, list) else []
    count = 0
    for message in reversed(messages):
        if isinstance(message, HumanMessage):
            if not wrote(message):
                break
            count += message.additional_kwargs.get(GATE) == name
    return count


def wrote(message: BaseMessage) -> bool:
    """Tell whether a gate wrote a message."""
    return message.additional_kwargs.get(SOURCE) == GATE_SOURCE


def example_in(
    state: Any,
    example: ExampleFrom | None,
    messages_key: str,
    *,
    turn: Mapping[str, Any] = MappingProxyType({}),
) -> Example | str:
    """Take the example out of a state."""
    if example is None:
        found: Any = last_exchange(state, messages_key, turn=turn)
    else:
        found = example(state)
    if found is None or (isinstance(found, Mapping) and _is_blank(found.get("outputs", "?"))):
        return NO_ANSWER
    try:
        return read_example(found)
    except InvalidInputError as error:
        # What a model wrote is for the model to mend; another type is the caller's mistake.
        outputs = found.get("outputs") if isinstance(found, Mapping) else None
        if outputs is not None and str(error).startswith("outputs") and _is_json(outputs):
            return f"The answer can't be judged. {error}"
        raise


def _answer(messages: Sequence[BaseMessage]) -> str:
    """Return the last text that was answered since a human, or a gate, last spoke."""
    for message in reversed(messages):
        # A tool whose result is the answer ends an agent (`return_direct`).
        if isinstance(message, ToolMessage):
            return message.text.strip()
        if isinstance(message, HumanMessage):
            return ""
        if isinstance(message, AIMessage):
            return "" if message.tool_calls else message.text.strip()
    return ""


def _is_blank(outputs: Any) -> bool:
    """Tell whether an answer says nothing, whatever its shape."""
    match outputs:
        case str():
            return not outputs.strip()
        case dict():
            return all(map(_is_blank, outputs.values()))
        case list():
            return all(map(_is_blank, outputs))
    return outputs is None


def _is_json(value: Any) -> bool:
    """Tell whether a value is of JSON's types, whatever is wrong with its texts."""
    match value:
        case dict():
            return all(isinstance(key, str) for key in value) and all(map(_is_json, value.values()))
        case list():
            return all(map(_is_json, value))
    return value is None or isinstance(value, str | int | float | bool)


def _json(value: Any) -> Any:
    return value.model_dump(mode="json") if isinstance(value, BaseModel) else value
