"""How a gate extracts the example from a conversation, and its critiques."""

import random
from dataclasses import dataclass
from typing import Any, get_args

import pytest
from langchain_core.messages import AIMessage, ChatMessage, HumanMessage, SystemMessage, ToolMessage
from langgraph.graph import add_messages
from pydantic import BaseModel

from memalign_graph import Criterion, Example, Feedback, InvalidInputError, Judgment, Numeric
from memalign_graph.conversation import (
    NO_ANSWER,
    before_answer,
    critique_message,
    critique_text,
    is_from_gate,
    parse_seen,
    read_key,
    read_turn,
    what_gate_sees,
)
from memalign_graph.memory.index import retrieval_text
from memalign_graph.scales import PassRule
from memalign_graph.settings import Sees
from memalign_graph.types import Evidence
from tests.builders import make_judgment
from tests.conftest import CRITERION

ASKED = HumanMessage("Where is it?")
CALL = {"name": "find", "args": {}, "id": "1", "type": "tool_call"}
CALLING = AIMessage("I look it up.", tool_calls=[CALL])
FOUND = ToolMessage("In Kiel.", tool_call_id="1")
CRITIQUE = critique_message("Too cold.", "quality_gate")
FOUND_IT = ("Where is it?", "In Kiel.")
BACK = {"name": "transfer_back_to_boss", "args": {}, "id": "2", "type": "tool_call"}
MOVING = [AIMessage("", tool_calls=[BACK]), ToolMessage("Moved.", tool_call_id="2")]
MARK = {"__is_handoff_back": True}
HANDS_BACK = [
    AIMessage("Transferring back to boss", tool_calls=[BACK], response_metadata=MARK),
    ToolMessage(
        "Successfully transferred back to boss",
        tool_call_id="2",
        name="transfer_back_to_boss",
        response_metadata=MARK,
    ),
]

FINDS: dict[str, tuple[list[Any], tuple[str, str] | None]] = {
    "tuples": ([("user", "Q"), ("assistant", "A")], ("Q", "A")),
    "blocks": (
        [
            HumanMessage([{"type": "text", "text": "Where "}, {"type": "text", "text": "is it?"}]),
            AIMessage([{"type": "text", "text": " In Kiel. "}]),
        ],
        ("Where is it?", "In Kiel."),
    ),
    "reasoning": (
        [
            ASKED,
            AIMessage([{"type": "reasoning", "reasoning": "?"}, {"type": "text", "text": "A"}]),
        ],
        ("Where is it?", "A"),
    ),
    "after-tools": ([ASKED, CALLING, FOUND, AIMessage("Kiel.")], ("Where is it?", "Kiel.")),
    "system-after": ([ASKED, AIMessage("A"), SystemMessage("S")], ("Where is it?", "A")),
    "revised-twice": (
        [ASKED, AIMessage("a"), CRITIQUE, AIMessage("b"), CRITIQUE, AIMessage("c")],
        ("Where is it?", "c"),
    ),
    "turn-after-critique": (
        [ASKED, AIMessage("a"), CRITIQUE, AIMessage("b"), HumanMessage("2"), AIMessage("c")],
        ("2", "c"),
    ),
    "no-text-asked": ([HumanMessage([]), AIMessage("A")], ("(no text)", "A")),
    "blank-asked": ([HumanMessage(" \n"), AIMessage("A")], ("(no text)", "A")),
    "calls-tools": ([ASKED, CALLING], None),
    "tool-speaks": ([ASKED, CALLING, FOUND], ("Where is it?", "In Kiel.")),
    "tool-says-nothing": ([ASKED, CALLING, ToolMessage(" ", tool_call_id="1")], None),
    "hands-back-to-a-supervisor": ([ASKED, AIMessage("In Kiel."), *HANDS_BACK], FOUND_IT),
    "hands-back-without-an-answer": ([ASKED, *HANDS_BACK], None),
    "tool-of-an-old-turn": ([ASKED, CALLING, FOUND, HumanMessage("2")], None),
    "nobody-answered": ([ASKED], None),
    "not-revised": ([ASKED, AIMessage("a"), CRITIQUE], None),
    "picture": ([ASKED, AIMessage([{"type": "image", "url": "https://example.org/a"}])], None),
    "picture-asked": (
        [HumanMessage(["Is it mine?", {"type": "image", "url": "x"}]), AIMessage("Yes.")],
        ("Is it mine?\n[image]", "Yes."),
    ),
    "refusal": (
        [ASKED, AIMessage([{"type": "refusal", "refusal": "No."}])],
        ("Where is it?", "No."),
    ),
    "refusal-beside": (
        [ASKED, AIMessage("", additional_kwargs={"refusal": "No."})],
        ("Where is it?", "No."),
    ),
    "tool-returns-json": (
        [ASKED, CALLING, ToolMessage([{"type": "json", "day": 1}], tool_call_id="1")],
        ("Where is it?", '{"day": 1, "type": "json"}'),
    ),
    "text-no-store-keeps": (
        [HumanMessage("Where\x00 is it?"), AIMessage("Kiel.")],
        ("Where is it?", "Kiel."),
    ),
    "blank-after-good": ([ASKED, AIMessage("a"), AIMessage("")], None),
    "other-role": ([ASKED, ChatMessage(content="A", role="critic")], None),
}


@dataclass
class Conversation:
    messages: list[Any]


class Modelled(BaseModel):
    messages: list[Any]


def example_in(state: Any, messages_key: str = "messages", sees: Sees = "answer") -> Example | str:
    turn = read_turn(read_key(state, messages_key), {})
    return parse_seen(what_gate_sees(turn, messages_key, sees))


@pytest.mark.parametrize("case", list(FINDS))
def test_last_question_and_last_answer(case: str) -> None:
    messages, expected = FINDS[case]
    for state in ({"messages": messages}, Conversation(messages), Modelled(messages=messages)):
        example = example_in(state)
        if expected is None:
            assert example == NO_ANSWER
        else:
            assert example == Example(inputs=expected[0], outputs=expected[1])


@pytest.mark.parametrize("state", [{}, {"messages": []}, {"messages": None}, {"messages": "Hi"}, 7])
def test_missing_messages_raise_one_sentence(state: Any) -> None:
    with pytest.raises(InvalidInputError, match="messages: the state has no messages") as caught:
        example_in(state)
    assert "example=" in str(caught.value)


@pytest.mark.parametrize("messages", [[AIMessage("A")], [SystemMessage("S")], [CRITIQUE]])
def test_conversation_without_a_human_message_raises_one_sentence(messages: list[Any]) -> None:
    with pytest.raises(InvalidInputError, match="chat: no message is human"):
        example_in({"chat": messages}, "chat")


TEXT_ALONE = [
    *("tuples", "blocks", "reasoning", "system-after", "revised-twice", "blank-asked"),
    *("picture-asked", "refusal", "refusal-beside", "text-no-store-keeps"),
    *("calls-tools", "tool-says-nothing", "hands-back-to-a-supervisor", "picture", "other-role"),
]


@pytest.mark.parametrize("sees", ["turn", "conversation"])
@pytest.mark.parametrize("case", TEXT_ALONE)
def test_turn_without_calls_and_history_is_the_last_exchange(case: str, sees: Sees) -> None:
    state = {"messages": FINDS[case][0]}
    assert example_in(state, sees=sees) == example_in(state)


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def assistant(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


FIND = {"id": "1", "type": "function", "function": {"name": "find", "arguments": "{}"}}
MOVE = {"name": "transfer_back_to_boss", "arguments": "{}"}
STEPS = [
    {**assistant("I look it up."), "tool_calls": [FIND]},
    {"role": "tool", "tool_call_id": "1", "content": "In Kiel."},
]
CHECK = {"name": "check_quality", "args": {}, "id": "8", "type": "tool_call"}
VERDICT = {"gate": "check_quality", "let_through": True, "judgment": None}
SUMMARY = HumanMessage("So far: hello.", additional_kwargs={"lc_source": "summarization"})

UNNAMED = {"name": None, "args": "{\x00", "id": "1", "error": None}
BROKEN = AIMessage("", invalid_tool_calls=[UNNAMED])
NAMELESS = {**FIND, "function": {"name": "", "arguments": "{"}}

SEEN: dict[str, tuple[list[Any], Any, Any]] = {
    "calls": ([ASKED, CALLING, FOUND, AIMessage("Kiel.")], "Where is it?", [*STEPS, "Kiel."]),
    "calls-without-results": (
        [ASKED, CALLING, AIMessage("Kiel.")],
        "Where is it?",
        [STEPS[0], "Kiel."],
    ),
    "call-without-a-name": (
        [HumanMessage("Hi"), BROKEN, AIMessage("Yes?"), ASKED, AIMessage("Kiel.")],
        [
            user("Hi"),
            {**assistant(""), "tool_calls": [NAMELESS]},
            assistant("Yes?"),
            user("Where is it?"),
        ],
        "Kiel.",
    ),
    "answers-directly": ([ASKED, CALLING, FOUND], "Where is it?", STEPS),
    "history": (
        [HumanMessage("Hi"), AIMessage("Yes?"), ASKED, AIMessage("Kiel.")],
        [user("Hi"), assistant("Yes?"), user("Where is it?")],
        "Kiel.",
    ),
    "calls-of-an-old-turn": (
        [ASKED, CALLING, FOUND, AIMessage("Kiel."), HumanMessage("Yes"), AIMessage("Done.")],
        [user("Where is it?"), *STEPS, assistant("Kiel."), user("Yes")],
        "Done.",
    ),
    "drafts": (
        [ASKED, AIMessage("a"), CRITIQUE, CALLING, FOUND, AIMessage("b"), CRITIQUE, AIMessage("c")],
        "Where is it?",
        [*STEPS, "c"],
    ),
    "drafts-of-an-old-turn": (
        [HumanMessage("Hi"), AIMessage("Yo"), CRITIQUE, AIMessage("Yes?"), ASKED, AIMessage("A")],
        [user("Hi"), assistant("Yes?"), user("Where is it?")],
        "A",
    ),
    "notes-of-others": (
        [SystemMessage("S"), SUMMARY, ASKED, CALLING, FOUND, AIMessage("Kiel."), *HANDS_BACK],
        "Where is it?",
        [*STEPS, "Kiel."],
    ),
    "tool-named-like-a-handoff": (
        [ASKED, *MOVING, AIMessage("Done.")],
        "Where is it?",
        [
            {**assistant(""), "tool_calls": [{**FIND, "id": "2", "function": MOVE}]},
            {"role": "tool", "tool_call_id": "2", "content": "Moved."},
            "Done.",
        ],
    ),
    "gate-called-as-a-tool": (
        [
            ASKED,
            AIMessage("", tool_calls=[CHECK]),
            ToolMessage("The answer passed.", tool_call_id="8", artifact=VERDICT),
            AIMessage("I look it up.", tool_calls=[CALL, {**CHECK, "id": "9"}]),
            FOUND,
            ToolMessage("Too cold.", tool_call_id="9", artifact=VERDICT),
            AIMessage("Kiel."),
        ],
        "Where is it?",
        [*STEPS, "Kiel."],
    ),
    "picture-before": (
        [HumanMessage([{"type": "image", "url": "x"}]), AIMessage("A dog."), ASKED, AIMessage("A")],
        [user("[image]"), assistant("A dog."), user("Where is it?")],
        "A",
    ),
}


def seen_outputs(outputs: Any) -> Any:
    if not isinstance(outputs, list):
        return outputs
    return [assistant(step) if isinstance(step, str) else step for step in outputs]


@pytest.mark.parametrize("case", list(SEEN))
def test_turn_is_judged_as_steps(case: str) -> None:
    messages, inputs, outputs = SEEN[case]
    example = example_in({"messages": messages}, sees="turn")
    assert example == Example(inputs=inputs, outputs=seen_outputs(outputs))


@pytest.mark.parametrize("is_structured", [True, False])
def test_a_tools_result_that_was_sent_back_is_a_step(*, is_structured: bool) -> None:
    """A structured response may be the call of a tool that does nothing."""
    messages = [ASKED, CALLING, FOUND, CRITIQUE, CALLING, FOUND]
    structured = {"city": "Kiel"} if is_structured else None
    seen = what_gate_sees(read_turn(messages, {}, structured=structured), "messages", "turn")
    assert seen is not None
    assert seen["outputs"] == ({"city": "Kiel"} if is_structured else [*STEPS, *STEPS])
    unmarked = read_turn([*messages[:3], *messages[4:]], {}, has_unmarked_drafts=True)
    assert what_gate_sees(unmarked, "messages", "turn") == {**seen, "outputs": [*STEPS, *STEPS]}


@pytest.mark.parametrize("case", list(SEEN))
def test_whole_conversation_is_judged_as_steps(case: str) -> None:
    messages, inputs, outputs = SEEN[case]
    before = inputs if isinstance(inputs, list) else [user(inputs)]
    steps = seen_outputs(outputs)
    steps = steps if isinstance(steps, list) else [assistant(steps)]
    example = example_in({"messages": messages}, sees="conversation")
    first = "(no text)" if case == "picture-before" else before[0]["content"]
    assert isinstance(example, Example)
    assert example.outputs == [*before, *steps]
    assert case == "picture-before" or example.inputs == first


def test_a_removed_draft_is_not_a_step_of_the_turn() -> None:
    """Also if its critique is still there."""
    first: list[Any] = [ASKED, CALLING, FOUND, AIMessage("a"), CRITIQUE, AIMessage("b")]
    drafts: Any = add_messages([], first)
    begun = {"asked_id": drafts[0].id}
    judged = before_answer(read_turn(drafts, begun))
    later = [SUMMARY, *drafts[4:], critique_message("Too long.", "quality_gate"), AIMessage("c")]
    turn = read_turn(later, {**begun, "before_answer": judged})
    extracted = parse_seen(what_gate_sees(turn, "messages", "turn"))
    assert extracted == Example(inputs="Where is it?", outputs=[*STEPS, assistant("c")])


def random_steps(random_: random.Random, name: str) -> list[Any]:
    """Return calls with results, some after a note of middleware; ids of calls may repeat."""
    steps: list[Any] = []
    for number in range(random_.randrange(3)):
        call = {**CALL, "name": name, "args": {"n": number}, "id": random_.choice("12")}
        steps += [SUMMARY] if random_.random() < 0.2 else []
        steps += [AIMessage("", tool_calls=[call])]
        steps += [ToolMessage(f"{name} {number}", tool_call_id=call["id"])]
    return steps


@pytest.mark.parametrize("seed", range(30))
def test_messages_that_are_removed_between_drafts_are_judged_in_their_places(seed: int) -> None:
    random_ = random.Random(seed)  # noqa: S311 - a simulation
    first = [HumanMessage("Hi"), *random_steps(random_, "greet"), AIMessage("Hello.")]
    every: list[Any] = add_messages([], [*first, ASKED, *random_steps(random_, "find")])  # type: ignore[assignment] # a list
    left, begun = list(every), {"asked_id": every[len(first)].id}
    state: dict[str, Any] = begun
    for number in range(3):
        draft = AIMessage(f"Draft {number}.", id=f"draft {number}")
        every, left = [*every, draft], [*left, draft]
        for sees in get_args(Sees):
            seen = what_gate_sees(read_turn(left, state), "messages", sees)
            assert seen == what_gate_sees(read_turn(every, begun), "messages", sees)
        state = {**begun, "before_answer": before_answer(read_turn(left, state))}
        share = random_.choice([0, 0.4, 1])
        left = [each for each in left if is_from_gate(each) or random_.random() >= share]
        critique = critique_message("Too cold.", "quality_gate")
        later = add_messages([], [critique, *random_steps(random_, f"again{number}")])
        every, left = [*every, *later], [SUMMARY, *left, *later]


def test_last_answer_of_each_turn_counts_if_critiques_have_their_own_key() -> None:
    first = [HumanMessage("Hi"), AIMessage("Yo"), AIMessage("Yes?")]
    now = [ASKED, CALLING, FOUND, AIMessage("a"), CALLING, FOUND, AIMessage("b")]
    for is_marked, answers in ((False, ["Yes?", "b"]), (True, ["Yo", "Yes?", "a", "b"])):
        turn = read_turn([*first, *now], {}, has_unmarked_drafts=not is_marked)
        extracted = parse_seen(what_gate_sees(turn, "messages", "turn"))
        assert isinstance(extracted, Example)
        messages = [*extracted.inputs, *extracted.outputs]
        feedback = [message["content"] for message in messages if message["role"] == "assistant"]
        assert [text for text in feedback if text != "I look it up."] == answers


class Form(BaseModel):
    city: str = "Kiel"


@pytest.mark.parametrize("structured", [Form(), {"city": "Kiel"}])
def test_structured_response_of_an_agent_is_the_answer(structured: Any) -> None:
    turn = read_turn([ASKED, CALLING], {}, structured=structured)
    turn_view = what_gate_sees(turn, "messages", "turn")
    assert turn_view == {"inputs": "Where is it?", "outputs": {"city": "Kiel"}}
    messages = [ASKED, CALLING, FOUND, AIMessage('{"city":"Kiel"}')]
    turn_view = what_gate_sees(read_turn(messages, {}, structured=structured), "messages", "turn")
    outputs = [*STEPS, assistant('{"city": "Kiel"}')]
    assert turn_view == {"inputs": "Where is it?", "outputs": outputs}


def test_tools_precede_the_request_and_are_not_embedded() -> None:
    tools = "The assistant's tools:\n- find: finds"
    turn = read_turn([ASKED, AIMessage("Kiel.")], {"tools": tools})
    turn_view = what_gate_sees(turn, "messages", "turn")
    assert turn_view is not None
    assert turn_view["inputs"] == [
        {"role": "system", "content": tools},
        user("Where is it?"),
    ]
    assert "finds" not in retrieval_text(Example(**turn_view))[0]


def test_call_that_shares_its_id_with_a_gates_is_judged() -> None:
    """Some models number the calls of each message."""
    checked = {"gate": "check_quality", "let_through": True, "judgment": None}
    messages = [
        HumanMessage("Refund me.", id="1"),
        AIMessage("", tool_calls=[{"name": "refund", "args": {"cents": 900}, "id": "call_0"}]),
        ToolMessage("Refunded.", tool_call_id="call_0"),
        AIMessage("", tool_calls=[{"name": "check_quality", "args": {}, "id": "call_0"}]),
        ToolMessage("The answer passed.", tool_call_id="call_0", artifact=checked),
        AIMessage("Done."),
    ]
    seen = what_gate_sees(read_turn(messages, {"asked_id": "1"}), "messages", "turn")
    assert seen is not None
    message = str(seen["outputs"])
    assert "refund" in message
    assert "Refunded." in message
    assert "check_quality" not in message


def test_structured_response_in_a_custom_graph_is_not_the_answer() -> None:
    """It may belong to an earlier turn."""
    state = {"messages": [ASKED, AIMessage("A")], "structured_response": Form()}
    assert example_in(state) == Example(inputs="Where is it?", outputs="A")


def test_function_may_return_an_example_or_its_fields() -> None:
    example = Example(inputs="Q", outputs="A", reference_outputs="R")
    assert parse_seen(example) == parse_seen(example.to_json()) == example


EXAMPLE = Example(inputs="Q", outputs="A")
OUTWEIGHED = Evidence(decided_by="evidence", reason="It foretells better.", verdict=True)


def judgment(value: Any, rationale: str = "It is cold.", **more: Any) -> Judgment:
    return make_judgment(EXAMPLE.id, value=value, rationale=rationale, **more)


def critique_of(criterion: Criterion, judged: Judgment, *broken: str, **fields: Any) -> str:
    feedback = Feedback(example=EXAMPLE, **fields) if fields else None
    passes = 4 if isinstance(criterion.scale, Numeric) else True
    pass_rule = PassRule.of(criterion.scale, passes)
    return critique_text(criterion, pass_rule, judged, feedback, broken)


def test_critique_has_rationale_value_and_broken_guidelines() -> None:
    text = critique_of(CRITERION, judgment(False), "Say sorry.", "Be brief.")
    for part in ("false", "It is cold.", "- Say sorry.", "- Be brief."):
        assert part in text
    assert "expert" not in text
    stars = CRITERION.model_copy(update={"scale": Numeric(minimum=1, maximum=5, integer=True)})
    assert "The result is: 2. It has to be: 4 or more." in critique_of(stars, judgment(2))
    assert not critique_of(CRITERION, judgment(False, "")).rstrip().endswith("says:")


def test_experts_feedback_replaces_the_judges_rationale() -> None:
    judgment_made = judgment(True, "It is warm.")
    text = critique_of(CRITERION, judgment_made, "Say sorry.", value=False, rationale="Too cold.")
    assert "false" in text
    assert "An expert says: Too cold." in text
    bare = critique_of(CRITERION, judgment_made, "Say sorry.", value=False)
    assert "An expert decided so, and gave no reason." in bare
    for comment in (text, bare):
        assert "It is warm." not in comment
        assert "Say sorry." not in comment


def test_rationale_of_an_overruled_judge_is_not_in_the_critique() -> None:
    judgment_made = judgment(False, "It is warm.", evidence=OUTWEIGHED)
    text = critique_of(CRITERION, judgment_made, "Say sorry.")
    assert "It is warm." not in text
    assert "Say sorry." not in text
    assert "Experts did not accept the answers most like this one." in text
    text = critique_of(CRITERION, judgment_made, value=False, rationale="Too cold.")
    assert "Too cold." in text
    assert "most like this one" not in text


def test_critique_is_a_human_message_marked_as_from_the_gate() -> None:
    message = critique_message("Too cold.", "quality_gate")
    assert type(message) is HumanMessage
    assert message.text.startswith("Too cold.")
    assert is_from_gate(message)
    assert not is_from_gate(HumanMessage(message.text))
