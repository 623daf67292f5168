"""How a gate extracts the example from a conversation, and its critiques."""

import json
from dataclasses import dataclass
from typing import Any, get_args

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

WHERE = "Where is it?"
ASKED, NEXT = HumanMessage(WHERE), HumanMessage("Thanks!")
CALL = {"name": "find", "args": {}, "id": "1", "type": "tool_call"}
CALLING = AIMessage("I look it up.", tool_calls=[CALL])
FOUND = ToolMessage("In Kiel.", tool_call_id="1")
DRAFT, OTHER, KIEL = AIMessage("a"), AIMessage("b"), AIMessage("Kiel.")
CRITIQUE = critique_message("Too cold.", "quality_gate")
BACK = {"name": "transfer_back_to_boss", "args": {}, "id": "2", "type": "tool_call"}
MOVING = [AIMessage("", tool_calls=[BACK]), ToolMessage("Moved.", tool_call_id="2")]
HANDS_BACK = [
    message.model_copy(update={"response_metadata": {"__is_handoff_back": True}})
    for message in MOVING
]
PICTURE = {"type": "image", "url": "https://example.org/a"}
REASONING = {"type": "reasoning", "reasoning": "?"}
THOUGHT = {"type": "non_standard", "value": {"type": "redacted_thinking", "data": "?"}}
SEARCH = {"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {}}
HITS = {"type": "web_search_tool_result", "tool_use_id": "s1", "content": [{"title": "Kiel"}]}
REFUSAL = {"type": "refusal", "refusal": "No."}
TEXTS: list[Any] = [{"type": "text", "text": "Where "}, {"type": "text", "text": "is it?"}]
JSON = ToolMessage([{"type": "json", "day": 1}], tool_call_id="1")

ANSWERS: dict[str, tuple[list[Any], str | None]] = {
    "blocks": (
        [
            AIMessage(
                [REASONING, THOUGHT, {"type": "text", "text": " In Kiel. ", "citations": [HITS]}]
            )
        ],
        "In Kiel.",
    ),
    "system-after": ([KIEL, SystemMessage("S")], "Kiel."),
    "revised-twice": ([DRAFT, CRITIQUE, OTHER, CRITIQUE, KIEL], "Kiel."),
    "refusal": ([AIMessage([REFUSAL])], "No."),
    "refusal-beside": ([AIMessage("", additional_kwargs={"refusal": "No."})], "No."),
    "hands-back-to-a-supervisor": ([KIEL, *HANDS_BACK], "Kiel."),
    "hands-back-without-an-answer": (HANDS_BACK, None),
    "calls-tools": ([CALLING], None),
    "tool-says-nothing": ([CALLING, ToolMessage(" ", tool_call_id="1")], None),
    "picture": ([AIMessage([PICTURE])], "[image]"),
    "other-role": ([ChatMessage(content="A", role="critic")], None),
    "nobody-answered": ([], None),
    "not-revised": ([DRAFT, CRITIQUE], None),
    "blank-after-good": ([KIEL, AIMessage("")], None),
    "tool-of-an-old-turn": ([CALLING, FOUND, NEXT], None),
}
AFTER_TOOLS: dict[str, tuple[list[Any], str]] = {
    "after-tools": ([CALLING, FOUND, KIEL], "Kiel."),
    "tool-speaks": ([CALLING, FOUND], "In Kiel."),
    "tool-returns-json": ([CALLING, JSON], '{"day": 1, "type": "json"}'),
    "provider-ran-a-tool": ([AIMessage(["In ", SEARCH, HITS, "Kiel."])], "In Kiel."),
    "provider-made-a-picture": ([AIMessage([SEARCH, "A dog: ", PICTURE])], "A dog: [image]"),
}
REQUESTS: dict[str, tuple[Any, str]] = {
    "tuple": (("user", "Q"), "Q"),
    "blocks": (HumanMessage(TEXTS), WHERE),
    "no-text": (HumanMessage([]), "(no text)"),
    "blank": (HumanMessage(" \n"), "(no text)"),
    "picture": (HumanMessage(["Is it mine?", PICTURE]), "Is it mine?\n[image]"),
    "text-no-store-keeps": (HumanMessage("Where\x00 is it?"), WHERE),
}
NO_REQUESTS: list[tuple[Any, str]] = [
    *((nothing, "the state has no messages") for nothing in ((), None, "Hi", 7)),
    *(([odd], "no message is human") for odd in (KIEL, SystemMessage("S"), CRITIQUE)),
]
EVERY_VIEW = pytest.mark.parametrize("sees", get_args(Sees))


def example_in(messages: Any, sees: Sees = "answer", **fields: Any) -> Example | str:
    return parse_seen(what_gate_sees(read_turn(messages, {}, **fields), "chat", sees))


@EVERY_VIEW
@pytest.mark.parametrize("case", ANSWERS)
def test_text_that_answers_a_first_request(case: str, sees: Sees) -> None:
    messages, answer = ANSWERS[case]
    expected = NO_ANSWER if answer is None else Example(inputs=WHERE, outputs=answer)
    assert example_in([ASKED, *messages], sees) == expected


@pytest.mark.parametrize("case", AFTER_TOOLS)
def test_answer_after_tools_without_their_steps(case: str) -> None:
    messages, answer = AFTER_TOOLS[case]
    assert example_in([ASKED, *messages]) == Example(inputs=WHERE, outputs=answer)


@EVERY_VIEW
@pytest.mark.parametrize("case", REQUESTS)
def test_text_of_a_request(case: str, sees: Sees) -> None:
    request, text = REQUESTS[case]
    assert example_in([request, KIEL], sees) == Example(inputs=text, outputs="Kiel.")


@pytest.mark.parametrize(("messages", "why"), NO_REQUESTS)
def test_conversation_without_a_request_raises_one_sentence(messages: Any, why: str) -> None:
    with pytest.raises(InvalidInputError, match=f"^chat: {why}.* Use `example=`"):
        example_in(messages)


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def assistant(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def called(name: str, call_id: str = "1", arguments: str = "{}", text: str = "") -> dict[str, Any]:
    function = {"name": name, "arguments": arguments}
    call = {"id": call_id, "type": "function", "function": function}
    return {**assistant(text), "tool_calls": [call]}


def checking(call_id: str, *calls: Any, text: str = "") -> list[Any]:
    """Calls of a gate's tool, after others, and its verdict."""
    check = {"name": "check_quality", "args": {}, "id": call_id, "type": "tool_call"}
    verdict = {"gate": "check_quality", "let_through": True, "judgment": None}
    results = [FOUND] if calls else []
    checked = ToolMessage("The answer passed.", tool_call_id=call_id, artifact=verdict)
    return [AIMessage(text, tool_calls=[*calls, check]), *results, checked]


STEPS = [
    called("find", text="I look it up."),
    {"role": "tool", "tool_call_id": "1", "content": "In Kiel."},
]
SUMMARY = HumanMessage("So far: hello.", additional_kwargs={"lc_source": "summarization"})
UNNAMED = {"name": None, "args": "{\x00", "id": "1", "error": None}
BROKEN = AIMessage([{"type": "invalid_tool_call", **UNNAMED}], invalid_tool_calls=[UNNAMED])
MOVED = {"role": "tool", "tool_call_id": "2", "content": "Moved."}
HI, HELLO = [HumanMessage("Hi"), AIMessage("Yes?")], [user("Hi"), assistant("Yes?")]
REVISED = [ASKED, DRAFT, CRITIQUE, CALLING, FOUND, OTHER, CRITIQUE, KIEL]
DOG = [HumanMessage([PICTURE]), AIMessage("A dog.")]
RAN = [
    {"role": "tool", "tool_call_id": "", "name": name, "content": json.dumps(part, sort_keys=True)}
    for name, part in {"web_search": SEARCH, "web_search_tool_result": HITS}.items()
]

SEEN: dict[str, tuple[list[Any], Any, Any]] = {
    "calls": ([ASKED, CALLING, FOUND, KIEL], WHERE, [*STEPS, "Kiel."]),
    "calls-without-results": ([ASKED, CALLING, KIEL], WHERE, [STEPS[0], "Kiel."]),
    "call-without-a-name": (
        [HI[0], BROKEN, HI[1], ASKED, KIEL],
        [HELLO[0], called("", arguments="{"), HELLO[1], user(WHERE)],
        "Kiel.",
    ),
    "answers-directly": ([ASKED, CALLING, FOUND], WHERE, STEPS),
    "history": ([*HI, ASKED, KIEL], [*HELLO, user(WHERE)], "Kiel."),
    "calls-of-an-old-turn": (
        [ASKED, CALLING, FOUND, KIEL, NEXT, AIMessage("Done.")],
        [user(WHERE), *STEPS, assistant("Kiel."), user("Thanks!")],
        "Done.",
    ),
    "drafts": (REVISED, WHERE, [*STEPS, "Kiel."]),
    "drafts-of-an-old-turn": (
        [HI[0], DRAFT, CRITIQUE, HI[1], ASKED, KIEL],
        [*HELLO, user(WHERE)],
        "Kiel.",
    ),
    "notes-of-others": (
        [SystemMessage("S"), SUMMARY, ASKED, CALLING, FOUND, KIEL, *HANDS_BACK],
        WHERE,
        [*STEPS, "Kiel."],
    ),
    "tool-named-like-a-handoff": (
        [ASKED, *MOVING, KIEL],
        WHERE,
        [called("transfer_back_to_boss", "2"), MOVED, "Kiel."],
    ),
    "gate-called-as-a-tool": (
        [ASKED, *checking("8"), *checking("9", CALL, text="I look it up."), KIEL],
        WHERE,
        [*STEPS, "Kiel."],
    ),
    "call-with-the-id-of-a-gates-call": (
        [ASKED, CALLING, FOUND, *checking("1"), KIEL],
        WHERE,
        [*STEPS, "Kiel."],
    ),
    "tools-that-the-provider-ran": (
        [ASKED, AIMessage([REASONING, THOUGHT, SEARCH, HITS, "Kiel."])],
        WHERE,
        [*RAN, "Kiel."],
    ),
    "draft-for-which-the-provider-ran-tools": (
        [ASKED, AIMessage([SEARCH, HITS, "a"]), CRITIQUE, KIEL],
        WHERE,
        [*RAN, "", "Kiel."],
    ),
    "picture-before": (
        [*DOG, ASKED, KIEL],
        [user("[image]"), assistant("A dog."), user(WHERE)],
        "Kiel.",
    ),
}


@pytest.mark.parametrize("case", SEEN)
def test_turn_and_whole_conversation_are_judged_as_steps(case: str) -> None:
    messages, inputs, outputs = SEEN[case]
    steps = outputs if isinstance(outputs, list) else [outputs]
    steps = [assistant(step) if isinstance(step, str) else step for step in steps]
    seen = steps if isinstance(outputs, list) else outputs
    assert example_in(messages, "turn") == Example(inputs=inputs, outputs=seen)
    before = inputs if isinstance(inputs, list) else [user(inputs)]
    whole = Example(inputs=before[0]["content"], outputs=[*before, *steps])
    assert example_in(messages, "conversation") == whole


RESULT = {"role": "tool", "content": "In Kiel."}
LANGCHAINS_CALL = {"name": "find", "args": {}}


@pytest.mark.parametrize(
    ("written", "seen"),
    [
        (
            [called("find", arguments="{bad"), STEPS[1]],
            [called("find", arguments="{bad"), STEPS[1]],
        ),
        ([called("find", arguments="[1]")], [called("find", arguments="[1]")]),
        ([RESULT], [{**RESULT, "tool_call_id": ""}]),
        ([{"type": "ai", "tool_calls": [LANGCHAINS_CALL]}], [called("find", call_id="")]),
    ],
)
def test_incomplete_messages_in_the_state_are_judged(written: Any, seen: Any) -> None:
    example = example_in([user(WHERE), *written, assistant("Kiel.")], "turn")
    assert example == Example(inputs=WHERE, outputs=[*seen, assistant("Kiel.")])


@pytest.mark.parametrize(
    "odd", [None, {"role": "assistant"}, {**user("Q"), "role": "boss"}, {1: 2}]
)
def test_unreadable_message_is_named_by_its_key_and_place(odd: Any) -> None:
    with pytest.raises(InvalidInputError, match=r"^chat\[1\]: .* `role` and `content`"):
        example_in([user(WHERE), odd, assistant("Kiel.")])


@pytest.mark.parametrize("is_structured", [True, False])
def test_a_tools_result_that_was_sent_back_is_a_step(*, is_structured: bool) -> None:
    """A structured response may be the call of a tool that does nothing."""
    steps = [CALLING, FOUND]
    structured = {"city": "Kiel"} if is_structured else None
    seen = example_in([ASKED, *steps, CRITIQUE, *steps], "turn", structured=structured)
    twice = Example(inputs=WHERE, outputs=[*STEPS, *STEPS])
    assert seen == (twice.model_copy(update={"outputs": structured}) if is_structured else twice)


def test_drafts_that_no_critique_marks() -> None:
    first = [HumanMessage("Hi"), AIMessage("Yo", id="1"), AIMessage("Yes?")]
    now = [ASKED, CALLING, FOUND, AIMessage("a", id="2"), CALLING, FOUND, AIMessage("b", id="3")]
    turn = read_turn([*first, *now], {}, sent_back=["2", "3"])  # an answer may keep a draft's id
    seen = what_gate_sees(turn, "messages", "turn") or {}
    messages = [*seen["inputs"], *seen["outputs"]]
    texts = [message["content"] for message in messages if message["role"] == "assistant"]
    assert [text for text in texts if text != "I look it up."] == ["Yo", "Yes?", "b"]


class Form(BaseModel):
    city: str = "Kiel"


@dataclass
class Fields:
    city: str = "Kiel"


@pytest.mark.parametrize("structured", [Form(), Fields(), {"city": "Kiel"}])
def test_structured_response_of_an_agent_is_the_answer(structured: Any) -> None:
    extracted = example_in([ASKED, CALLING], "turn", structured=structured)
    assert extracted == Example(inputs=WHERE, outputs={"city": "Kiel"})
    messages = [ASKED, CALLING, FOUND, AIMessage('{"city":"Kiel"}')]
    extracted = example_in(messages, "turn", structured=structured)
    answer = assistant('{"city": "Kiel"}')
    assert extracted == Example(inputs=WHERE, outputs=[*STEPS, answer])


@pytest.mark.parametrize("structured", [{"city": "\x00"}, "\ud800"])
def test_the_model_is_told_that_its_answer_cannot_be_stored(structured: Any) -> None:
    told = example_in([ASKED, CALLING], structured=structured)
    assert str(told).startswith("The answer can't be judged. outputs")


def test_tools_precede_the_request_and_are_not_embedded() -> None:
    tools = "The assistant's tools:\n- find: finds"
    turn = read_turn([ASKED, AIMessage("Kiel.")], {"tools": tools})
    seen = what_gate_sees(turn, "messages", "turn") or {}
    assert seen["inputs"] == [{"role": "system", "content": tools}, user(WHERE)]
    assert "finds" not in retrieval_text(Example(**seen))[0]


@pytest.mark.parametrize(
    "blank", [" ", {}, [], {"a": " "}, ["", ""], {"a": None, "b": [{"c": ""}]}]
)
def test_blank_outputs_are_no_answer(blank: Any) -> None:
    assert parse_seen({"inputs": "Q", "outputs": blank}) == parse_seen(None) == NO_ANSWER


@pytest.mark.parametrize("answer", [0, False, {"rows": 0}, {"open orders": []}])
def test_outputs_that_are_falsy_are_an_answer(answer: Any) -> None:
    fields = {"inputs": "Q", "outputs": answer}
    assert parse_seen(fields) == Example(**fields)


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
