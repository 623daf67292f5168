"""What a gate reads in a conversation, and what it writes into it."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    HumanMessage,
    RemoveMessage,
    SystemMessage,
    ToolMessage,
    convert_to_messages,
)
from pydantic import BaseModel

from memalign_graph.errors import InvalidInputError
from memalign_graph.scales import PassRule
from memalign_graph.settings import ExampleFrom, Sees
from memalign_graph.transcript import read_messages
from memalign_graph.types import Criterion, Example, Feedback, Judgment, parse_example

TurnState = Mapping[str, Any]
"""What a gate keeps of one turn; JSON values only, and the keys are stored.

`asked_id` is the message that the turn began with, and `settings` are those of the run's context,
which is gone after an interrupt. `turn`, `status` and `revisions` are those of the gate's last
verdict: a gate that is wired up by hand keeps its verdict alone. `sent_back` are the messages that
were. In an agent there are also the `inputs` as first judged, and `spoke`: whether the model
answered since the turn began, or since its answer was sent back.
"""

# How a message tells in its `additional_kwargs` who wrote it, as LangChain's middleware does.
_SOURCE, _GATE_SOURCE, _GATE = "lc_source", "quality_gate", "gate"
# How langgraph-supervisor names the tool by which a worker hands back.
_HANDOFF_BACK = "transfer_back_to_"

NO_ANSWER = "There is no answer to judge: write one."


@dataclass(frozen=True)
class Turn:
    """A turn of a conversation, as one gate sees it."""

    messages: Sequence[Any] = ()
    """All messages of the conversation, also those of earlier turns."""
    asked_id: str | None = None
    """The message that asks; None where no message has an id."""
    is_last_question: bool = False
    """Whether that message is known to be the last one that asks."""
    state: TurnState = field(default_factory=dict)
    has_unmarked_drafts: bool = False
    """Whether critiques go elsewhere, so that no message tells which answers were sent back."""

    @property
    def is_revised(self) -> bool:
        """Whether the last answer was sent back."""
        return self.state.get("status") == "revise"

    @property
    def revisions(self) -> int:
        """How many answers were sent back."""
        return self.state["revisions"] if self.is_revised else 0


def read_turn(messages: Any, state: TurnState, *, has_unmarked_drafts: bool = False) -> Turn:
    """Find the present turn; the state of another one is left out."""
    messages = messages if isinstance(messages, list | tuple) else ()
    begun = state.get("asked_id")
    questions = [message.id for message in messages if is_question(message, begun)]
    asked_id = begun or next(reversed(questions), None)
    if state.get("turn", asked_id) != asked_id:
        state = {}
    is_last = questions[-1:] == [asked_id]
    return Turn(messages, asked_id, is_last, state, has_unmarked_drafts)


def is_question(message: Any, asked_id: str | None = None) -> bool:
    """Tell whether a human wrote a message: its source may be claimed, but not that of a turn's."""
    if not isinstance(message, HumanMessage):
        return False
    begins_turn = asked_id is not None and message.id == asked_id
    return begins_turn or _SOURCE not in message.additional_kwargs


def is_from_gate(message: Any, name: str | None = None) -> bool:
    """Tell whether a gate wrote a message: any gate, or the one with this name."""
    source = message.additional_kwargs if isinstance(message, BaseMessage) else {}
    return source.get(_SOURCE) == _GATE_SOURCE and name in (None, source.get(_GATE))


def is_revision_request(messages: Any, name: str) -> bool:
    """Tell whether the last human message is a critique by the gate with this name."""
    newest_first = reversed(messages if isinstance(messages, list | tuple) else [])
    humans = (message for message in newest_first if isinstance(message, HumanMessage))
    return is_from_gate(next(humans, None), name)


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
    overruled = judgment.verdict != judgment.value and rule.passes(judgment.verdict)
    value = judgment.value if feedback is None else feedback.value
    asked = f"The answer did not pass. It was checked for this: {criterion.instructions.strip()}"
    if value is not None:
        asked += f"\nThe result is: {criterion.scale.render(value)}."
        asked += f" It has to be: {rule.passing_values}." if rule.passing_values else ""
    parts = [asked]
    if feedback is not None and feedback.rationale:
        parts.append(f"An expert says: {feedback.rationale}")
    elif judgment.value != value:
        # The judge's rationale speaks for the answer.
        parts.append("An expert decided so, and gave no reason.")
    elif overruled:
        parts.append("Experts did not accept the answers most like this one.")
    elif judgment.rationale:
        parts.append(f"The review says: {judgment.rationale}")
    if broken and judgment.value == value and not overruled:
        lines = "\n".join(f"- {guideline}" for guideline in broken)
        parts.append(f"What it has to heed:\n{lines}")
    return "\n\n".join(parts)


def fallback_messages(turn: Turn, fallback: str) -> list[BaseMessage]:
    """Put a text in the place of a turn's last answer, and of what gates sent back before it."""
    messages: list[BaseMessage] = list(turn.messages)
    begins = [message.id == turn.asked_id for message in messages]
    if any(begins):
        messages = messages[len(begins) - begins[::-1].index(True) :]
    replaced = {*turn.state.get("sent_back", ()), *answer_ids(messages)}
    for index, message in enumerate(messages):
        if isinstance(message, HumanMessage) and is_from_gate(message):
            replaced |= {message.id, *answer_ids(messages[:index])}
    removed = [RemoveMessage(str(message.id)) for message in messages if message.id in replaced]
    return [*removed, AIMessage(fallback, additional_kwargs={_SOURCE: _GATE_SOURCE})]


def last_answer(messages: Sequence[Any]) -> list[BaseMessage]:
    """Return the last answer, newest first: what a model wrote, and tools after it."""
    answer: list[BaseMessage] = []
    for message in reversed(messages):
        if isinstance(message, AIMessage | ToolMessage):
            answer.append(message)
        if not isinstance(message, ToolMessage) and not _hands_back(message):
            break
    return answer


def answer_ids(messages: Sequence[Any]) -> list[str | None]:
    return [message.id for message in last_answer(messages)]


def _hands_back(message: Any) -> bool:
    """Tell whether a message is a worker's note to its supervisor, and no answer."""
    if isinstance(message, ToolMessage):
        return (message.name or "").startswith(_HANDOFF_BACK)
    calls = message.tool_calls if isinstance(message, AIMessage) else []
    return bool(calls) and all(call["name"].startswith(_HANDOFF_BACK) for call in calls)


def extract_example(
    state: Any,
    example: ExampleFrom | None,
    turn: Turn,
    messages_key: str = "messages",
    sees: Sees = "turn",
) -> Example | str:
    """Return what is to be judged; or tell the writer why there is nothing to judge."""
    fields: Any = what_gate_sees(turn, messages_key, sees) if example is None else example(state)
    outputs = fields.get("outputs", "?") if isinstance(fields, Mapping) else "?"
    if fields is None or _is_blank(outputs):
        return NO_ANSWER
    try:
        return parse_example(fields)
    except InvalidInputError as error:
        # The model can correct what it wrote; another type is the caller's mistake.
        if str(error).startswith("outputs") and _is_json(outputs) and "outputs" in fields:
            return f"The answer can't be judged. {error}"
        raise


def what_gate_sees(
    turn: Turn, messages_key: str, sees: Sees, structured: Any = None, tools: str = ""
) -> dict[str, Any] | None:
    """Take what is judged out of a conversation; None if nothing was answered.

    `structured` is an agent's answer in a shape of its own, which goes before the text; `tools`
    are what the agent could have called.
    """
    messages = convert_to_messages(turn.messages)
    begun = turn.state.get("asked_id")
    questions = [place for place, message in enumerate(messages) if is_question(message, begun)]
    if not messages or not (questions or "inputs" in turn.state):
        why = "none of the messages is human"
        why = why if messages else "the state has no messages there to judge"
        raise InvalidInputError(
            f"{messages_key}: {why}: give `example=`, a function that makes `inputs` and `outputs` "
            "of the state."
        )
    if isinstance(messages[-1], HumanMessage) or structured is None:
        final = _final_message(messages)
        outputs: Any = "" if final is None or _calls_tools(final) else final.text.strip()
        replaced: list[BaseMessage] = []
    else:
        is_model = isinstance(structured, BaseModel)
        outputs = structured.model_dump(mode="json") if is_model else structured
        replaced = last_answer(messages)
    if not outputs:
        return None
    asked = questions[-1] if questions else -1
    request: Any = (messages[asked].text if questions else "") or "(no text)"
    left_out = set(map(id, replaced))
    shown = [pair for pair in _shown(messages, turn) if id(pair[1]) not in left_out]
    before = [message for place, message in shown if place < asked]
    steps = [message for place, message in shown if place > asked]
    calls_tools = any(isinstance(message, ToolMessage) for message in steps)
    if replaced:
        text = outputs if isinstance(outputs, str) else json.dumps(outputs, ensure_ascii=False)
        steps.append(AIMessage(text))
    if sees == "conversation" and (before or calls_tools):
        steps = [*before, HumanMessage(request), *steps]
        request = next((messages[place].text for place in questions), "") or request
        before, calls_tools = [], True
    if sees != "answer" and calls_tools:
        outputs = _as_json(steps)
    if sees != "answer" and (before or tools):
        system = [SystemMessage(tools)] if tools else []
        request = _as_json([*system, *before, HumanMessage(request)])
    # Other middleware may have folded the question into a summary meanwhile.
    return {"inputs": turn.state.get("inputs", request), "outputs": outputs}


def _shown(messages: Sequence[BaseMessage], turn: Turn) -> list[tuple[int, BaseMessage]]:
    """Return what was said and done, by its place: no drafts, critiques or notes of middleware."""
    drafts = {*turn.state.get("sent_back", ())} - {None}
    hidden: set[int] = set()
    answered: int | None = None  # where the turn was answered before
    for place, message in enumerate(messages):
        if turn.has_unmarked_drafts and isinstance(message, AIMessage) and not message.tool_calls:
            hidden |= set() if answered is None else {answered}
            answered = place
        elif is_question(message, turn.asked_id):
            answered = None
        is_note = isinstance(message, HumanMessage) and not is_question(message, turn.asked_id)
        if is_note or message.id in drafts or _hands_back(message):
            hidden.add(place)
        if is_note and is_from_gate(message):
            count = len(last_answer(messages[:place]))
            hidden |= set(range(place - count, place))
    # A gate that the agent called as a tool speaks of a draft, too.
    gates = {
        message.tool_call_id
        for message in messages
        if isinstance(message, ToolMessage) and _is_gates(message)
    }
    shown: list[tuple[int, BaseMessage]] = []
    for place, message in enumerate(messages):
        visible: BaseMessage | None = message if place not in hidden else None
        if isinstance(visible, ToolMessage):
            visible = None if visible.tool_call_id in gates else visible
        elif isinstance(visible, AIMessage) and any(
            call["id"] in gates for call in visible.tool_calls
        ):
            calls = [call for call in visible.tool_calls if call["id"] not in gates]
            visible = (
                visible.model_copy(update={"tool_calls": calls}) if calls or visible.text else None
            )
        if isinstance(visible, HumanMessage | AIMessage | ToolMessage):
            shown.append((place, visible))
    return shown


def _is_gates(message: ToolMessage) -> bool:
    artifact = message.artifact
    return isinstance(artifact, Mapping) and artifact.keys() >= {"gate", "let_through", "judgment"}


def _as_json(messages: list[BaseMessage]) -> Any:
    return read_messages(messages, "messages", lenient=True)


def _final_message(messages: Sequence[BaseMessage]) -> AIMessage | ToolMessage | None:
    """Return the last message that answers since a human, or a gate, last spoke."""
    for message in reversed(messages):
        if isinstance(message, HumanMessage):
            break
        # A tool whose result is the answer ends an agent (`return_direct`).
        if isinstance(message, AIMessage | ToolMessage) and not _hands_back(message):
            return message
    return None


def _calls_tools(message: BaseMessage) -> bool:
    return isinstance(message, AIMessage) and bool(message.tool_calls)


def _is_blank(outputs: Any) -> bool:
    if isinstance(outputs, dict | list):
        return all(map(_is_blank, outputs.values() if isinstance(outputs, dict) else outputs))
    return outputs is None or (isinstance(outputs, str) and not outputs.strip())


def _is_json(value: Any) -> bool:
    """Tell whether a value has JSON's types; its texts may still be invalid."""
    if isinstance(value, dict):
        return all(isinstance(key, str) and _is_json(value[key]) for key in value)
    if isinstance(value, list):
        return all(map(_is_json, value))
    return value is None or isinstance(value, str | int | float | bool)


def read_key(state: Any, key: str) -> Any:
    return state.get(key) if isinstance(state, Mapping) else getattr(state, key, None)
