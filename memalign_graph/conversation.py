"""What a gate reads in a conversation, and what it writes into it."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any
from uuid import uuid4

from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    HumanMessage,
    RemoveMessage,
    ToolMessage,
    convert_to_messages,
)
from pydantic import BaseModel

from memalign_graph.errors import InvalidInputError
from memalign_graph.scales import PassRule
from memalign_graph.settings import ExampleFrom
from memalign_graph.types import Criterion, Example, Feedback, Judgment, read_example

Loop = Mapping[str, Any]
"""What a gate keeps while an answer is being revised; JSON values only.

The `status` and `revisions` of its last verdict; the `settings` of the run's context, gone after an
interrupt; `asked_id`, the message that the turn began with; `began`, if none of it is of an earlier
turn; `sent_back`, the messages that were. An agent's gate also keeps the `inputs` as it first saw
them, and whether the model `spoke` since the turn began, or since it was sent back.
"""

NOTHING: Loop = MappingProxyType({})

# How a message tells in its `additional_kwargs` who wrote it, as LangChain's middleware does.
_SOURCE, _GATE_SOURCE, _GATE = "lc_source", "quality_gate", "gate"

NO_ANSWER = "There is no answer to judge: write one."


def wrote(message: Any, name: str | None = None) -> bool:
    """Tell whether a gate wrote a message: any gate, or the one of a name."""
    about = message.additional_kwargs if isinstance(message, BaseMessage) else {}
    return about.get(_SOURCE) == _GATE_SOURCE and name in (None, about.get(_GATE))


def was_sent_back(messages: Any, name: str) -> bool:
    """Tell whether the last that was asked for is a revision, by the gate of a name."""
    turns = reversed(messages if isinstance(messages, Sequence) else [])
    return wrote(next((turn for turn in turns if isinstance(turn, HumanMessage)), None), name)


def critique_message(critique: str, name: str) -> HumanMessage:
    return HumanMessage(
        f"{critique}\n\nWrite the whole answer again so that it passes. Reply with the new answer "
        "alone, without a word about this review.",
        additional_kwargs={_SOURCE: _GATE_SOURCE, _GATE: name},
        id=str(uuid4()),
    )


def critique_text(
    criterion: Criterion,
    rule: PassRule,
    judgment: Judgment,
    feedback: Feedback | None,
    broken: Sequence[str],
) -> str:
    outweighed = judgment.verdict != judgment.value and rule.passes(judgment.verdict)
    value = judgment.value if feedback is None else feedback.value
    asked = f"The answer did not pass. It was checked for this: {criterion.instructions.strip()}"
    if value is not None:
        asked += f"\nThe result is: {criterion.scale.render(value)}."
        asked += f" It has to be: {rule.wanted}." if rule.wanted else ""
    parts = [asked]
    if feedback is not None and feedback.rationale:
        parts.append(f"An expert says: {feedback.rationale}")
    elif judgment.value != value:
        # What the judge says speaks for the answer.
        parts.append("An expert decided so, and gave no reason.")
    elif outweighed:
        parts.append("Experts did not accept the answers most like this one.")
    elif judgment.rationale:
        parts.append(f"The review says: {judgment.rationale}")
    if broken and judgment.value == value and not outweighed:
        lines = "\n".join(f"- {guideline}" for guideline in broken)
        parts.append(f"What it has to heed:\n{lines}")
    return "\n\n".join(parts)


def fallback_messages(messages: Any, fallback: str, loop: Loop) -> list[BaseMessage]:
    """Put a text in the place of a turn's last answer, and of what gates sent back before it."""
    turn: list[BaseMessage] = list(messages or [])
    asked = loop.get("asked_id")
    begins = [message.id == asked if asked else is_human(message) for message in turn]
    if any(begins):
        turn = turn[len(begins) - begins[::-1].index(True) :]
    gone = {*loop.get("sent_back", ()), *answer_ids(turn)}
    for index, message in enumerate(turn):
        if isinstance(message, HumanMessage) and wrote(message):
            gone |= {message.id, *answer_ids(turn[:index])}
    removed = [RemoveMessage(str(message.id)) for message in turn if message.id in gone]
    return [*removed, AIMessage(fallback, additional_kwargs={_SOURCE: _GATE_SOURCE})]


def is_human(message: BaseMessage) -> bool:
    return isinstance(message, HumanMessage) and not wrote(message)


def answer_ids(messages: Sequence[BaseMessage]) -> list[str | None]:
    """Name the messages that make the last answer: what a model wrote, and tools after it."""
    ids = []
    for message in reversed(messages):
        if isinstance(message, AIMessage | ToolMessage):
            ids.append(message.id)
        if not isinstance(message, ToolMessage):
            break
    return ids


def example_in(
    state: Any, example: ExampleFrom | None, messages_key: str, loop: Loop = NOTHING
) -> Example | str:
    """Take the example out of a state; or say, for the writer, why there is nothing to judge."""
    found: Any = _exchange(state, messages_key, loop) if example is None else example(state)
    outputs = found.get("outputs", "?") if isinstance(found, Mapping) else "?"
    if found is None or _is_blank(outputs):
        return NO_ANSWER
    try:
        return read_example(found)
    except InvalidInputError as error:
        # What a model wrote is for the model to mend; another type is the caller's mistake.
        if str(error).startswith("outputs") and _is_json(outputs) and "outputs" in found:
            return f"The answer can't be judged. {error}"
        raise


def _exchange(state: Any, messages_key: str, loop: Loop) -> dict[str, Any] | None:
    """Take the last human message and the last answer out of a conversation."""
    kept = read_key(state, messages_key)
    messages = convert_to_messages(kept) if isinstance(kept, list | tuple) else []
    begun = loop.get("asked_id")
    asked = [
        message.text
        for message in messages
        if isinstance(message, HumanMessage)
        and ((begun and message.id == begun) or _SOURCE not in message.additional_kwargs)
    ]
    if not messages or not (asked or "inputs" in loop):
        why = "none of the messages is human"
        why = why if messages else "the state has no messages there to judge"
        raise InvalidInputError(
            f"{messages_key}: {why}: give `example=`, a function that makes `inputs` and `outputs` "
            "of the state."
        )
    outputs: Any = state.get("structured_response") if isinstance(state, Mapping) else None
    if outputs is None or isinstance(messages[-1], HumanMessage):
        outputs = _answer(messages)
    elif isinstance(outputs, BaseModel):
        outputs = outputs.model_dump(mode="json")
    # Other middleware may have folded the question into a summary meanwhile.
    inputs = loop["inputs"] if "inputs" in loop else asked[-1] or "(no text)"
    return {"inputs": inputs, "outputs": outputs} if outputs else None


def _answer(messages: Sequence[BaseMessage]) -> str:
    """Return the last text that was answered since a human, or a gate, last spoke."""
    for message in reversed(messages):
        if isinstance(message, HumanMessage):
            break
        # A tool whose result is the answer ends an agent (`return_direct`).
        if isinstance(message, AIMessage | ToolMessage):
            return "" if getattr(message, "tool_calls", None) else message.text.strip()
    return ""


def _is_blank(outputs: Any) -> bool:
    if isinstance(outputs, dict | list):
        return all(map(_is_blank, outputs.values() if isinstance(outputs, dict) else outputs))
    return outputs is None or (isinstance(outputs, str) and not outputs.strip())


def _is_json(value: Any) -> bool:
    """Tell whether a value is of JSON's types, whatever is wrong with its texts."""
    if isinstance(value, dict):
        return all(isinstance(key, str) and _is_json(value[key]) for key in value)
    if isinstance(value, list):
        return all(map(_is_json, value))
    return value is None or isinstance(value, str | int | float | bool)


def read_key(state: Any, key: str) -> Any:
    return state.get(key) if isinstance(state, Mapping) else getattr(state, key, None)
