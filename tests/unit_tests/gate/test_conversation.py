"""How a gate extracts the example from a conversation, and its critiques."""

from dataclasses import dataclass
from typing import Any

import pytest
from langchain_core.messages import AIMessage, ChatMessage, HumanMessage, SystemMessage, ToolMessage
from pydantic import BaseModel

from memalign_graph import Criterion, Example, Feedback, InvalidInputError, Judgment, Numeric
from memalign_graph.conversation import (
    NO_ANSWER,
    critique_message,
    critique_text,
    parse_seen,
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


def example_in(messages: Any, sees: Sees = "answer", **fields: Any) -> Example | str:
    return parse_seen(what_gate_sees(read_turn(messages, {}, **fields), "chat", sees))


@pytest.mark.parametrize("case", list(FINDS))
def test_last_question_and_last_answer(case: str) -> None:
    messages, expected = FINDS[case]
    example = NO_ANSWER if expected is None else Example(inputs=expected[0], outputs=expected[1])
    assert example_in(messages) == example


NO_REQUESTS: list[tuple[Any, str]] = [
    *((nothing, "the state has no messages") for nothing in ((), None, "Hi", 7)),
    *(([odd], "no message is human") for odd in (AIMessage("A"), SystemMessage("S"), CRITIQUE)),
]


@pytest.mark.parametrize(("messages", "why"), NO_REQUESTS)
def test_conversation_without_a_request_raises_one_sentence(messages: Any, why: str) -> None:
    with pytest.raises(InvalidInputError, match=f"^chat: {why}.* Use `example=`"):
        example_in(messages)


TEXT_ALONE = [
    *("tuples", "blocks", "reasoning", "system-after", "revised-twice", "blank-asked"),
    *("picture-asked", "refusal", "refusal-beside", "text-no-store-keeps"),
    *("calls-tools", "tool-says-nothing", "hands-back-to-a-supervisor", "picture", "other-role"),
]


@pytest.mark.parametrize("sees", ["turn", "conversation"])
@pytest.mark.parametrize("case", TEXT_ALONE)
def test_turn_without_calls_and_history_is_the_last_exchange(case: str, sees: Sees) -> None:
    messages, _ = FINDS[case]
    assert example_in(messages, sees) == example_in(messages)


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
BROKEN = AIMessage([{"type": "invalid_tool_call", **UNNAMED}], invalid_tool_calls=[UNNAMED])
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
    "call-with-the-id-of-a-gates-call": (
        [
            *(ASKED, CALLING, FOUND),
            AIMessage("", tool_calls=[{**CHECK, "id": "1"}]),
            ToolMessage("The answer passed.", tool_call_id="1", artifact=VERDICT),
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


@pytest.mark.parametrize("case", list(SEEN))
def test_turn_and_whole_conversation_are_judged_as_steps(case: str) -> None:
    messages, inputs, outputs = SEEN[case]
    steps = outputs if isinstance(outputs, list) else [outputs]
    steps = [assistant(step) if isinstance(step, str) else step for step in steps]
    seen = steps if isinstance(outputs, list) else outputs
    assert example_in(messages, "turn") == Example(inputs=inputs, outputs=seen)
    before = inputs if isinstance(inputs, list) else [user(inputs)]
    whole = Example(inputs=before[0]["content"], outputs=[*before, *steps])
    assert example_in(messages, "conversation") == whole


@pytest.mark.parametrize("is_structured", [True, False])
def test_a_tools_result_that_was_sent_back_is_a_step(*, is_structured: bool) -> None:
    """A structured response may be the call of a tool that does nothing."""
    steps = [CALLING, FOUND]
    structured = {"city": "Kiel"} if is_structured else None
    seen = example_in([ASKED, *steps, CRITIQUE, *steps], "turn", structured=structured)
    twice = Example(inputs="Where is it?", outputs=[*STEPS, *STEPS])
    assert seen == (twice.model_copy(update={"outputs": structured}) if is_structured else twice)
    assert example_in([ASKED, *steps, *steps], "turn", has_unmarked_drafts=True) == twice


def test_last_answer_of_each_turn_counts_if_critiques_have_their_own_key() -> None:
    first = [HumanMessage("Hi"), AIMessage("Yo"), AIMessage("Yes?")]
    now = [ASKED, CALLING, FOUND, AIMessage("a"), CALLING, FOUND, AIMessage("b")]
    for is_marked, answers in ((False, ["Yes?", "b"]), (True, ["Yo", "Yes?", "a", "b"])):
        extracted = example_in([*first, *now], "turn", has_unmarked_drafts=not is_marked)
        assert isinstance(extracted, Example)
        messages = [*extracted.inputs, *extracted.outputs]
        texts = [message["content"] for message in messages if message["role"] == "assistant"]
        assert [text for text in texts if text != "I look it up."] == answers


class Form(BaseModel):
    city: str = "Kiel"


@dataclass
class Fields:
    city: str = "Kiel"


@pytest.mark.parametrize("structured", [Form(), Fields(), {"city": "Kiel"}])
def test_structured_response_of_an_agent_is_the_answer(structured: Any) -> None:
    extracted = example_in([ASKED, CALLING], "turn", structured=structured)
    assert extracted == Example(inputs="Where is it?", outputs={"city": "Kiel"})
    messages = [ASKED, CALLING, FOUND, AIMessage('{"city":"Kiel"}')]
    extracted = example_in(messages, "turn", structured=structured)
    answer = assistant('{"city": "Kiel"}')
    assert extracted == Example(inputs="Where is it?", outputs=[*STEPS, answer])


def test_tools_precede_the_request_and_are_not_embedded() -> None:
    tools = "The assistant's tools:\n- find: finds"
    turn = read_turn([ASKED, AIMessage("Kiel.")], {"tools": tools})
    seen = what_gate_sees(turn, "messages", "turn") or {}
    assert seen["inputs"] == [{"role": "system", "content": tools}, user("Where is it?")]
    assert "finds" not in retrieval_text(Example(**seen))[0]


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


WARM = {"value": True, "rationale": "It is warm."}
OVERRULED = {"value": False, "rationale": "It is warm.", "evidence": OUTWEIGHED}
REJECTED = {"value": False, "rationale": "Too cold."}


@pytest.mark.parametrize(
    ("judged", "feedback", "reason"),
    [
        (WARM, REJECTED, "An expert says: Too cold."),
        (WARM, {"value": False}, "An expert decided so, and gave no reason."),
        (OVERRULED, {}, "Experts did not accept the answers most like this one."),
        (OVERRULED, REJECTED, "An expert says: Too cold."),
    ],
)
def test_critique_has_no_reason_of_a_judge_that_was_overruled(
    judged: Any, feedback: Any, reason: str
) -> None:
    text = critique_of(CRITERION, judgment(**judged), "Say sorry.", **feedback)
    assert "The result is: false." in text
    assert text.endswith(reason)
    assert "It is warm." not in text
