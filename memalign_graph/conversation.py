"""What a gate reads from a conversation, and the messages it writes."""

import json
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, TypeGuard
from uuid import uuid4

from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    HumanMessage,
    RemoveMessage,
    SystemMessage,
    ToolCall,
    ToolMessage,
    convert_to_messages,
)
from pydantic_core import to_jsonable_python

from memalign_graph.errors import InvalidInputError
from memalign_graph.identity import storable
from memalign_graph.scales import PassRule
from memalign_graph.settings import Sees
from memalign_graph.transcript import is_binary, is_provider_run, message_fields, read_messages
from memalign_graph.types import Criterion, Example, Feedback, Judgment, parse_example

TurnState = Mapping[str, Any]
"""A gate's state of one turn; the keys are stored.

`asked_id` and `asked` are the id and the text of the message that began the turn, and `settings`
are those of the run's context, which an interrupt does not keep. `turn`, `status` and `revisions`
are those of the gate's last verdict: a gate that is wired by hand keeps only its verdict. In an
agent there are also `tools`; `steps`: the names of the tools whose results are not the answer;
`called`: whether the model was called since the last `after_model`; `spoke`: the id of the last
human message that the model answered, False, or True if it has no id; and `verdict`: that of the
last answer that was sent back.
"""

COUNTED: Final = ("turn", "status", "revisions")

# The keys of `additional_kwargs` that name the writer of a message, as in LangChain's middleware.
_SOURCE, _GATE_SOURCE, _GATE = "lc_source", "quality_gate", "gate"
# langgraph-supervisor marks so the messages with which a worker hands back.
_HANDOFF_BACK = "__is_handoff_back"

NO_ANSWER = "There is no answer to judge: write one."
_BEGINNING_REMOVED = "The first messages of this turn were removed from the conversation."


@dataclass(frozen=True)
class Turn:
    """A turn of a conversation, as one gate sees it."""

    messages: Sequence[Any] = ()  # also those of earlier turns
    asked_id: str | None = None  # of the message that began the turn, if it has an id
    is_last_question: bool = False  # whether that message is known to be the last question
    state: TurnState = field(default_factory=dict)
    sent_back: Collection[str] = ()  # ids of drafts whose critiques are under a key of their own
    structured: Any = None  # an agent's structured response, which replaces its text
    has_skipped_beginning: bool = False  # whether `before_turn` has not run: `settings` are older

    @property
    def is_revised(self) -> bool:
        """Whether the last answer was sent back."""
        return self.state.get("status") == "revise"

    @property
    def revisions(self) -> int:
        """How many answers were sent back; without `before_turn`, how many in a row."""
        is_counted = self.is_revised or "asked_id" in self.state
        return max(self.state.get("revisions", 0), 0) if is_counted else 0


def read_turn(
    messages: Any,
    state: TurnState,
    *,
    sent_back: Collection[str] = (),
    structured: Any = None,
) -> Turn:
    """Return the current turn, without the state of another one."""
    messages = messages if isinstance(messages, list | tuple) else ()
    begun_id = state.get("asked_id")
    if begun_id is not None:
        state = {**state, **request_in(messages, begun_id)}
    question_ids = [messages[place].id for place in questions_of_gate(messages, begun_id)]
    last_id = question_ids[-1] if question_ids else begun_id
    has_ended = state.get("status", "revise") != "revise"
    # `Command(goto=...)` skips `before_turn`, and a gate that begins the turn runs beside it.
    has_skipped = begun_id is not None and has_ended and question_ids[-1:] != [begun_id]
    asked_id = last_id if has_skipped else begun_id or last_id
    is_last = question_ids[-1:] == [asked_id]
    if has_skipped or state.get("turn", asked_id) != asked_id:
        outdated = COUNTED if has_skipped else (*COUNTED, "settings")
        state = {name: value for name, value in state.items() if name not in outdated}
        state = {**state, "asked_id": asked_id} if has_skipped else state
    return Turn(messages, asked_id, is_last, state, sent_back, structured, has_skipped)


def is_question(message: Any, asked_id: str | None = None) -> bool:
    """Return whether a user wrote a message, and not middleware, which sets `lc_source`.

    The message `asked_id` counts even if it has that key: its sender may have set it.
    """
    if not isinstance(message, HumanMessage):
        return False
    begins_turn = asked_id is not None and message.id == asked_id
    return begins_turn or _SOURCE not in message.additional_kwargs


def questions_in(messages: Sequence[Any], asked_ids: Collection[str]) -> list[int]:
    """Return the places of the user's messages.

    A human message after a tool's call or result counts as the tool's, such as a screenshot, unless
    it is known to have begun a turn.
    """
    places, is_tools = [], False
    for place, message in enumerate(messages):
        if not isinstance(message, HumanMessage):
            is_tools = isinstance(message, ToolMessage) or bool(_calls(message))
        elif message.id in asked_ids or (is_question(message) and not is_tools):
            places.append(place)
    return places


def questions_of_gate(messages: Sequence[Any], asked_id: str | None) -> list[int]:
    """Return the places of the user's messages; the message `asked_id` began the turn."""
    if asked_id is not None:
        return questions_in(messages, [asked_id])
    # A gate that does not know what began the turn must not miss a request.
    return [place for place, message in enumerate(messages) if is_question(message)]


def with_notes_as_results(messages: Sequence[Any]) -> list[Any]:
    """Return messages in which a note of middleware, such as a summary, is not the user's."""

    def shown(message: Any) -> Any:
        if not isinstance(message, HumanMessage) or is_question(message):
            return message
        name = str(message.additional_kwargs[_SOURCE])
        return ToolMessage(message.content, name=name, tool_call_id=_SOURCE)

    return list(map(shown, messages))


def is_from_gate(message: BaseMessage) -> bool:
    return message.additional_kwargs.get(_SOURCE) == _GATE_SOURCE


def is_revision_request(messages: Sequence[Any], name: str) -> bool:
    """Return whether the last human message is a critique by the gate with this name."""
    humans = [message for message in messages if isinstance(message, HumanMessage)]
    gates = [each.additional_kwargs.get(_GATE) for each in humans[-1:] if is_from_gate(each)]
    return gates == [name]


def critique_message(critique: str, name: str) -> HumanMessage:
    return HumanMessage(
        f"{critique}\n\nWrite the whole answer again so that it passes. Reply with the new answer "
        "only, and do not mention this review.",
        additional_kwargs={_SOURCE: _GATE_SOURCE, _GATE: name},
        id=str(uuid4()),
    )


def critique_text(
    criterion: Criterion,
    rule: PassRule,
    judgment: Judgment,
    feedback: Feedback | None,
    broken: Sequence[str],
    judged: str = "answer",
) -> str:
    """Tell the writer what is wrong with an answer, or with something else that was judged."""
    overruled = judgment.verdict != judgment.value and rule.passes(judgment.verdict)
    value = judgment.value if feedback is None else feedback.value
    asked = f"The {judged} did not pass. It was checked for this: {criterion.instructions.strip()}"
    if value is not None:
        asked += f"\nThe result is: {criterion.scale.render(value)}."
        asked += f" It has to be: {rule.passing_values}." if rule.passing_values else ""
    parts = [asked]
    if feedback is not None and feedback.rationale:
        parts.append(f"An expert says: {feedback.rationale}")
    elif judgment.value != value:
        # The judge's rationale is in favor of the answer.
        parts.append("An expert decided so, and gave no reason.")
    elif overruled:
        parts.append(f"Experts did not accept the {judged}s most like this one.")
    elif judgment.rationale:
        parts.append(f"The review says: {judgment.rationale}")
    if broken and judgment.value == value and not overruled:
        lines = "\n".join(f"- {guideline}" for guideline in broken)
        parts.append(f"The {judged} must follow these guidelines:\n{lines}")
    return "\n\n".join(parts)


def fallback_messages(turn: Turn, fallback: str) -> list[BaseMessage]:
    """Replace a turn's last answer, its drafts and their critiques by a text."""
    begins = [place for place, each in enumerate(turn.messages) if each.id == turn.asked_id]
    written = turn.messages[begins[-1] + 1 if begins else 0 :]
    removed = [RemoveMessage(message_id) for message_id in rejected_ids(written, turn)]
    return [*removed, AIMessage(fallback, additional_kwargs={_SOURCE: _GATE_SOURCE})]


def rejected_ids(messages: Sequence[Any], turn: Turn) -> list[str]:
    """Return the ids of the last answer, and of the drafts and critiques before it."""
    judged = judged_messages(messages)
    last = range(len(judged) - len(last_answer(judged)), len(judged))
    ids = (judged[place].id for place in sorted({*_drafts(judged, turn), *last}))
    return [message_id for message_id in ids if message_id is not None]


def judged_messages(messages: Sequence[Any]) -> list[BaseMessage]:
    """Leave out what is no part of a conversation to judge, such as messages of the system."""
    return [each for each in messages if isinstance(each, HumanMessage | AIMessage | ToolMessage)]


def _drafts(messages: Sequence[Any], turn: Turn) -> set[int]:
    """Return the places of answers that a gate sent back, and of its critiques."""
    # A writer may replace a draft under its id.
    before = messages[: len(messages) - len(last_answer(messages))]
    places = {place for place, message in enumerate(before) if message.id in turn.sent_back}
    for place, message in enumerate(messages):
        is_asked = is_question(message, turn.asked_id)
        if isinstance(message, HumanMessage) and is_from_gate(message) and not is_asked:
            places |= {*range(place - len(last_answer(messages[:place])), place + 1)}
    return places


def last_answer(messages: Sequence[Any]) -> list[BaseMessage]:
    """Return the last answer, newest first: a model's message, and those of tools after it."""
    answer: list[BaseMessage] = []
    for message in reversed(messages):
        if isinstance(message, AIMessage | ToolMessage):
            answer.append(message)
        if not isinstance(message, ToolMessage) and not _hands_back(message):
            break
    return answer


def _hands_back(message: Any) -> bool:
    """Return whether a message only hands a worker's result back to its supervisor."""
    return isinstance(message, AIMessage | ToolMessage) and bool(
        message.response_metadata.get(_HANDOFF_BACK)
    )


def _calls(message: Any) -> list[ToolCall]:
    return message.tool_calls if isinstance(message, AIMessage) else []


def parse_seen(fields: Any, *, is_models: bool = True) -> Example | str:
    """Return the example to judge, or a text that tells the writer why there is none."""
    outputs = fields.get("outputs", ...) if isinstance(fields, Mapping) else ...
    if fields is None or _is_blank(outputs):
        return NO_ANSWER
    try:
        return parse_example(fields)
    except InvalidInputError as error:
        # A model can correct what it wrote; anything else is the caller's mistake.
        if str(error).startswith("outputs") and (is_models or isinstance(outputs, str)):
            return f"The answer can't be judged. {error}"
        raise


def what_gate_sees(turn: Turn, messages_key: str, sees: Sees) -> dict[str, Any] | None:
    """Return the inputs and outputs to judge; None if there is no answer."""
    messages = judged_messages(_langchain_messages(turn.messages, messages_key))
    questions = questions_of_gate(messages, turn.asked_id)
    # Other middleware may have replaced the question by a summary.
    if not messages or not (questions or "asked" in turn.state):
        why = "no message is human" if turn.messages else "the state has no messages to judge"
        raise InvalidInputError(
            f"{messages_key}: {why}. Use `example=`, a function from the state to `inputs` and "
            "`outputs`."
        )
    outputs = _final_answer(messages, turn.structured)
    if not outputs:
        return None
    asked = questions[-1] if questions else -1
    request: Any = request_text(messages[asked]) if questions else turn.state["asked"]
    request = request or "(no text)"
    if sees == "answer":
        return {"inputs": request, "outputs": outputs}
    shown = _shown(messages, turn)
    before = [message for place, message in shown if place < asked]
    steps = [message for place, message in shown if asked < place]
    has_steps = any({"tool_calls", "tool_call_id"} & each.keys() for each in _as_json(steps) or [])
    if not questions:
        steps, has_steps = [SystemMessage(_BEGINNING_REMOVED), *steps], True
    if turn.structured is not None:
        text = outputs if isinstance(outputs, str) else json.dumps(outputs, ensure_ascii=False)
        steps.append(AIMessage(text))
    if sees == "conversation" and (before or has_steps):
        outputs = _as_json([*before, HumanMessage(request), *steps])
        first = next((request_text(messages[place]) for place in questions), "")
        request, before = first or request, []
    elif has_steps:
        outputs = _as_json(steps)
    tools = turn.state.get("tools")
    if before or tools:
        system = [SystemMessage(tools)] if tools else []
        request = _as_json([*system, *before, HumanMessage(request)])
    return {"inputs": request, "outputs": outputs}


def _langchain_messages(messages: Sequence[Any], name: str) -> list[BaseMessage]:
    converted: list[BaseMessage] = []
    for index, message in enumerate(messages):
        try:
            converted += convert_to_messages([_readable(message)])
        except (LookupError, NotImplementedError, TypeError, ValueError) as error:
            raise InvalidInputError(
                f"{name}[{index}]: LangChain can't read this {type(message).__name__} as a "
                "message. Use LangChain's messages, or dicts with `role` and `content`."
            ) from error
    return converted


def _readable(message: Any) -> Any:
    """Complete a message that is a dict; LangChain has calls without valid arguments apart."""
    fields = message_fields(message) if isinstance(message, dict) else None
    if fields is None:
        return message
    calls, role = fields.pop("tool_calls"), fields["role"]
    unread = ("type", "invalid_tool_calls")
    fields = {"content": "", **{key: fields[key] for key in fields if key not in unread}}
    if role == "tool":
        fields["tool_call_id"] = str(fields.get("tool_call_id") or "")
    if role != "assistant" or not calls:
        return fields
    valid = [call for call in calls if _is_object(call["function"]["arguments"])]
    [converted] = convert_to_messages([{**fields, "tool_calls": valid}])
    malformed = [call for call in calls if call not in valid]
    return converted.model_copy(update={"invalid_tool_calls": malformed})


def _is_object(text: str) -> bool:
    with suppress(ValueError, RecursionError):
        return isinstance(json.loads(text, strict=False), dict)
    return False


def _final_answer(messages: Sequence[BaseMessage], structured: Any) -> Any:
    """Return the answer, or nothing."""
    if structured is not None and not isinstance(messages[-1], HumanMessage):
        # Of a model or a dataclass. A strict serializer restores its fields under their names.
        return to_jsonable_python(structured, by_alias=False)
    # The result of a tool with `return_direct` is an agent's answer.
    answer = last_answer(messages)
    final = next((message for message in answer if not _hands_back(message)), None)
    return "" if final is None or _calls(final) else _answer_text(final)


def request_in(messages: Sequence[Any], asked_id: Any) -> dict[str, str]:
    """Return the text of the request `asked_id` as the messages have it now, such as redacted."""
    humans = [message for message in messages if isinstance(message, HumanMessage)]
    texts = [request_text(message) for message in humans if message.id == asked_id]
    return {"asked": texts[-1]} if texts else {}


def request_text(message: BaseMessage) -> str:
    """Return a request's text, with the names of other content; empty if it is blank."""
    parts = message.content if isinstance(message.content, list) else []
    is_text = all(isinstance(part, str) or part.get("type") == "text" for part in parts)
    text = storable(message.text) if is_text else _content(message)
    return text if text.strip() else ""


def _answer_text(message: BaseMessage) -> str:
    """Return an answer's text, a model's refusal, or a tool's result; of a picture, its type."""
    parts = message.content if isinstance(message.content, list) else []
    is_text = not any(isinstance(part, dict) and is_binary(part) for part in parts)
    return (is_text and message.text.strip()) or _content(message).strip()


def _content(message: BaseMessage) -> str:
    return str(_as_json([message])[-1]["content"])


def _shown(messages: Sequence[BaseMessage], turn: Turn) -> list[tuple[int, BaseMessage]]:
    """Return the messages to judge by their place: no drafts, critiques, or notes of middleware."""
    drafts, is_structured = _drafts(messages, turn), turn.structured is not None
    if is_structured:
        drafts |= {*range(len(messages) - len(last_answer(messages)), len(messages))}

    def acted(place: int, name: str | None) -> bool:
        """Return whether a tool did something, unlike that of a structured response."""
        return not (is_structured and place in drafts) or name in turn.state.get("steps", ())

    shown: list[tuple[int, BaseMessage]] = []
    checked: set[str] = set()  # the calls of a gate's tool
    for place, message in reversed([*enumerate(messages)]):
        visible, calls = message, _calls(message)
        if calls:
            # An agent that calls a gate as a tool passes a draft to it. Some models number the
            # calls of each message.
            left = [call for call in calls if call["id"] not in checked]
            left = [call for call in left if acted(place, call["name"])]
            visible = message.model_copy(update={"tool_calls": left})
            checked.clear()
        # What a tool did stays a step, also if its result was sent back as an answer.
        is_result = isinstance(message, ToolMessage) and acted(place, message.name)
        is_draft = place in drafts and not (is_result or _calls(visible))
        is_note = isinstance(message, HumanMessage) and not is_question(message, turn.asked_id)
        if is_draft and isinstance(message, AIMessage):
            ran = [*filter(is_provider_run, message.content)]
            visible, is_draft = visible.model_copy(update={"content": ran}), not ran
        if _is_gate_tool_result(message):
            checked.add(message.tool_call_id)
        elif is_note or is_draft or _hands_back(message):
            continue
        elif not calls or _calls(visible) or message.text:
            shown.append((place, visible))
    return shown[::-1]


def _is_gate_tool_result(message: BaseMessage) -> TypeGuard[ToolMessage]:
    artifact = message.artifact if isinstance(message, ToolMessage) else None
    return isinstance(artifact, Mapping) and artifact.keys() >= {"gate", "let_through", "judgment"}


def _as_json(messages: list[BaseMessage]) -> Any:
    return read_messages(messages, "messages", lenient=True)


def _is_blank(outputs: Any) -> bool:
    if isinstance(outputs, dict | list):
        parts = outputs.values() if isinstance(outputs, dict) else outputs
        # An empty list in an answer says that there is nothing to list.
        return all(part != [] and _is_blank(part) for part in parts)
    return outputs is None or (isinstance(outputs, str) and not outputs.strip())


def read_key(state: Any, key: str) -> Any:
    return state.get(key) if isinstance(state, Mapping) else getattr(state, key, None)
