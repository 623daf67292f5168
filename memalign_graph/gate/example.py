"""The example a gate judges, taken out of its parent's state."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, convert_to_messages
from pydantic import BaseModel

from memalign_graph.errors import InvalidInputError
from memalign_graph.reading import ExampleLike, read_example
from memalign_graph.types import Example

ExampleFrom = Callable[[Any], ExampleLike]
"""A function of the parent's state that gives the example, or its fields."""

SOURCE = "lc_source"
"""Where LangChain's middleware tells in a message's `additional_kwargs` that it wrote it."""

CRITIQUE_SOURCE = "quality_gate"
"""What a gate's critiques tell there."""

NO_ANSWER = "There is no answer to judge: write one."
"""The critique where nothing is to be judged."""


def last_exchange(state: Any, messages_key: str = "messages") -> dict[str, Any] | None:
    """Take the last human message and the last answer out of a conversation.

    The answer is what an AI wrote last, unless that calls tools, or a human or a gate has spoken
    since. An agent's `structured_response`, where the state has one, is the answer.

    Args:
        state: A state with messages.
        messages_key: Where the messages are.

    Returns:
        `inputs` and `outputs`; None where there is no answer with text in it.

    Raises:
        InvalidInputError: If there are no messages, or none of them is human.
    """
    given = state.get(messages_key) if isinstance(state, Mapping) else None
    given = getattr(state, messages_key, None) if given is None else given
    if not isinstance(given, Sequence) or isinstance(given, str) or not given:
        raise InvalidInputError(
            f"{messages_key}: the state has no messages there to judge: give `example=`, a "
            "function that makes `inputs` and `outputs` of the state."
        )
    messages = convert_to_messages(given)
    asked = [one.text for one in messages if isinstance(one, HumanMessage) and not wrote(one)]
    if not asked:
        raise InvalidInputError(
            f"{messages_key}: none of the messages is human: give `example=`, a function that "
            "makes `inputs` and `outputs` of the state."
        )
    structured = state.get("structured_response") if isinstance(state, Mapping) else None
    outputs = _answer(messages) if structured is None else _json(structured)
    if not outputs:
        return None
    return {"inputs": asked[-1] or "(no text)", "outputs": outputs}


def wrote(message: BaseMessage) -> bool:
    """Tell whether a gate wrote a message.

    Args:
        message: The message.

    Returns:
        Whether it is a critique.
    """
    return message.additional_kwargs.get(SOURCE) == CRITIQUE_SOURCE


def example_in(state: Any, example: ExampleFrom | None, messages_key: str) -> Example | str:
    """Take the example out of a state.

    Args:
        state: The state.
        example: How; by default the last exchange.
        messages_key: Where the messages are.

    Returns:
        The example; or why there is no answer that can be judged, in words for its writer.

    Raises:
        InvalidInputError: If what was taken out is no example, for another reason than the answer.
    """
    found = last_exchange(state, messages_key) if example is None else example(state)
    if found is None or (isinstance(found, Mapping) and _is_blank(found.get("outputs", "?"))):
        return NO_ANSWER
    try:
        return read_example(found)
    except InvalidInputError as error:
        # What a model wrote is for the model to mend.
        if str(error).startswith("outputs") and isinstance(found, Mapping) and "outputs" in found:
            return f"The answer can't be judged. {error}"
        raise


def _answer(messages: Sequence[BaseMessage]) -> str:
    """Return the last text that an AI wrote since a human, or a gate, last spoke."""
    for message in reversed(messages):
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


def _json(value: Any) -> Any:
    return value.model_dump(mode="json") if isinstance(value, BaseModel) else value
