"""Messages of runs, traces and spans become turns as judged by gates."""

import json
from datetime import UTC, date, datetime
from types import SimpleNamespace
from typing import Any

import pytest
from langchain_core.load import dumpd
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, SystemMessage, ToolMessage

from memalign_graph import Example, InvalidInputError
from memalign_graph.conversation import critique_message, parse_seen, read_turn, what_gate_sees
from memalign_graph.integrations import example_from_opentelemetry
from memalign_graph.integrations.recorded import example_fields

CALL = {"name": "refund", "args": {"order": "A7"}, "id": "c1", "type": "tool_call"}
ASKED = HumanMessage("Refund A7.", id="h1")
STEPS: list[AnyMessage] = [
    AIMessage("", tool_calls=[CALL], id="a1"),
    ToolMessage("paid back", tool_call_id="c1", name="refund"),
    AIMessage("Done.", id="a2"),
]
SEARCHED = AIMessage([{"type": "mcp_call", "name": "find", "output": "Paid."}, "No."])
HISTORY: list[AnyMessage] = [HumanMessage("Hi"), AIMessage("Yes?")]
VERDICT = {"gate": "quality_gate", "let_through": True, "judgment": None}


def judged(*messages: AnyMessage) -> Example:
    """The example that a gate extracts from these messages."""
    example = parse_seen(what_gate_sees(read_turn(messages, {}), "messages", "turn"))
    assert isinstance(example, Example)
    return example


def openai(message: AnyMessage) -> Any:
    return Example(inputs=[message], outputs="x").inputs[0]


ASKED_IN = {"messages": [dumpd(ASKED)]}
ORDER, NO_FORM = {"order": 7}, {"messages": 7}
DRAFT = AIMessage("Wait.", id="a0")
REVISED: list[AnyMessage] = [ASKED, DRAFT, critique_message("Too cold.", "quality_gate"), *STEPS]
SUMMARY = HumanMessage("So far: hello.", additional_kwargs={"lc_source": "summarization"})
HANDS_BACK = AIMessage("Back to boss", response_metadata={"__is_handoff_back": True})
IN_PARTS = HumanMessage([{"type": "text", "text": "Refund "}, {"type": "text", "text": "A7."}])
MODEL_CALL = {"messages": [[dumpd(SystemMessage("Be kind.")), *map(dumpd, [ASKED, *STEPS[:2]])]]}
MALFORMED = AIMessage(
    "", invalid_tool_calls=[{"name": "refund", "args": "{bad", "id": "c1", "error": None}], id="a1"
)
MALFORMED_IN_JSON = {
    "role": "assistant",
    "content": "",
    "tool_calls": [
        {"id": "c1", "type": "function", "function": {"name": "refund", "arguments": "{bad"}}
    ],
}
TURN = judged(ASKED, *STEPS)


def unchanged(inputs: Any, outputs: Any) -> tuple[Any, Any, Example]:
    return inputs, outputs, Example(inputs=inputs, outputs=outputs)


RUNS: dict[str, tuple[Any, Any, Example]] = {
    "a graph": (
        {"messages": [ASKED.model_dump()]},
        {"messages": [value.model_dump() for value in [ASKED, *STEPS]], "quality_gate": VERDICT},
        TURN,
    ),
    "a graph with a checkpointer": (
        ASKED_IN,
        {"messages": [*map(dumpd, [*HISTORY, ASKED, *STEPS])]},
        judged(*HISTORY, ASKED, *STEPS),
    ),
    "a gate that sent a draft back": (ASKED_IN, {"messages": [*map(dumpd, REVISED)]}, TURN),
    "a supervisor, as JSON": (
        ASKED_IN,
        {"messages": [message.model_dump() for message in [SUMMARY, ASKED, *STEPS, HANDS_BACK]]},
        TURN,
    ),
    "a result after the next request": (
        ASKED_IN,
        {"messages": [ASKED, STEPS[0], *HISTORY[:1], *STEPS[1:]]},
        judged(ASKED, STEPS[0], *HISTORY[:1], *STEPS[1:]),
    ),
    "a tool that the provider ran": (ASKED_IN, {"messages": [SEARCHED]}, judged(ASKED, SEARCHED)),
    "a tool that the provider ran before": (
        {"messages": [*HISTORY[:1], SEARCHED, ASKED]},
        {"messages": [*HISTORY[:1], SEARCHED, ASKED, *STEPS]},
        judged(*HISTORY[:1], SEARCHED, ASKED, *STEPS),
    ),
    "text in parts": (
        {"messages": [IN_PARTS.model_dump()]},
        {"messages": [IN_PARTS, AIMessage("No.")]},
        judged(IN_PARTS, AIMessage("No.")),
    ),
    "a model's call": (
        MODEL_CALL,
        {"generations": [[{"text": "Done.", "message": dumpd(STEPS[2])}]], "llm_output": None},
        TURN,
    ),
    "OpenAI's client": (
        {"model": "gpt-4.1", "messages": [openai(value) for value in [*HISTORY, ASKED]]},
        {"id": "x", "choices": [{"index": 0, "message": {"role": "assistant", "content": "No."}}]},
        judged(*HISTORY, ASKED, AIMessage("No.")),
    ),
    "an answer alone": (
        ASKED_IN,
        {"messages": [AIMessage("No.")]},
        judged(ASKED, AIMessage("No.")),
    ),
    "a call with malformed arguments": (
        ASKED_IN,
        {"messages": [openai(ASKED), MALFORMED_IN_JSON, *STEPS[1:]]},
        judged(ASKED, MALFORMED, *STEPS[1:]),
    ),
    "a malformed call without a result": (
        {"messages": [ASKED]},
        {"messages": [MALFORMED, STEPS[2]]},
        Example(inputs="Refund A7.", outputs=[MALFORMED, STEPS[2]]),
    ),
    "other inputs": (ORDER, {"messages": STEPS}, Example(inputs=ORDER, outputs=STEPS)),
    "a conversation alone": (
        None,
        [*HISTORY, ASKED, *STEPS],
        Example(inputs="Hi", outputs=[*HISTORY, ASKED, *STEPS]),
    ),
    "more than messages": unchanged(
        {"messages": [], "question": "Q"},
        {"answer": "A", "messages": [{"role": "user", "content": "Q"}]},
    ),
    "values that are false or zero": unchanged(
        {"messages": [[openai(ASKED)]], "items": 0},
        {"messages": [openai(STEPS[2])], "escalated": False, "note": "", "files": {}},
    ),
    "empty values": (
        {**ASKED_IN, "error": None},
        {"messages": STEPS, "note": "", "files": {}, "todos": []},
        TURN,
    ),
    "text": unchanged("Q", "A"),
    **{
        f"a graph, asked as {short}, that returns {len(returned)} messages": (
            {"messages": short},
            {"messages": returned},
            TURN,
        )
        for short in ("Refund A7.", [["user", "Refund A7."]], openai(ASKED))
        for returned in ([ASKED, *STEPS], STEPS)
    },
    "messages in no form": (NO_FORM, {"messages": STEPS}, Example(inputs=NO_FORM, outputs=STEPS)),
}


@pytest.mark.parametrize("case", list(RUNS))
def test_run_is_the_turn_that_a_gate_judges(case: str) -> None:
    inputs, outputs, expected = RUNS[case]
    assert Example(**example_fields(inputs, outputs, None)) == expected


@pytest.mark.parametrize(
    ("call", "arguments"),
    [
        ({"function": {"name": "run", "arguments": "{bad"}}, "{bad"),
        ({"function": {"name": "run", "arguments": "[1]"}}, "[1]"),
        ({"function": {"name": "run", "arguments": "[" * 9_999}}, "[" * 9_999),
        ({"type": "custom", "custom": {"name": "run", "input": "rm *"}}, "rm *"),
    ],
)
def test_malformed_arguments_are_shown_as_they_are(call: Any, arguments: str) -> None:
    other = {"id": "c1", "function": {"name": "refund", "arguments": '{"order": "A7"}'}}
    calls = {"role": "assistant", "content": None, "tool_calls": [other, {"id": "c2", **call}]}
    example = Example(**example_fields([ASKED], [calls, *STEPS[1:]]))
    called = [call["function"] for call in example.outputs[0]["tool_calls"]]
    assert called == [other["function"], {"name": "run", "arguments": arguments}]


def test_reference_messages_are_kept() -> None:
    example = Example(**example_fields("Q", STEPS, {"messages": STEPS}))
    assert example.reference_outputs == example.outputs


def parts(role: str, *parts: Any, **fields: Any) -> dict[str, Any]:
    texts = ({"type": "text", "content": part} if isinstance(part, str) else part for part in parts)
    return {"role": role, "parts": list(texts), **fields}


BLOB = {"type": "blob", "modality": "image"}
REFUNDS = {"type": "tool_call", "id": "c1", "name": "refund", "arguments": {"order": "A7"}}
INPUT = [
    parts("system", "Be kind."),
    parts("user", "Refund A7."),
    parts("assistant", {"type": "reasoning", "content": "Hm."}, REFUNDS),
    parts("tool", {"type": "tool_call_response", "id": "c1", "response": "paid back"}),
]
OUTPUT = [parts("assistant", "Done.", finish_reason="stop")]


@pytest.mark.parametrize("encode", [json.dumps, list])
def test_span_of_opentelemetry_is_the_turn_that_a_gate_judges(encode: Any) -> None:
    attributes = {"gen_ai.input.messages": encode(INPUT), "gen_ai.output.messages": encode(OUTPUT)}
    exported = {"name": "chat", "attributes": attributes}
    spans = (attributes, SimpleNamespace(attributes=attributes), exported, json.dumps(exported))
    for span in spans:
        assert example_from_opentelemetry(span) == TURN


@pytest.mark.parametrize(
    ("result", "text"),
    [
        (datetime(2026, 1, 31, tzinfo=UTC), '"2026-01-31 00:00:00+00:00"'),
        ({"on": date(2026, 1, 31), "as": {1: None}}, '{"on": "2026-01-31", "as": {"1": null}}'),
    ],
)
def test_result_of_a_tool_that_is_no_json_becomes_text(result: Any, text: str) -> None:
    response = {"type": "tool_call_response", "id": "c1", "response": result}
    messages = [*INPUT[:3], parts("tool", response)]
    span = {"gen_ai.input.messages": messages, "gen_ai.output.messages": OUTPUT}
    outputs: Any = example_from_opentelemetry(span).outputs
    assert outputs[1]["content"] == text


def test_example_that_is_nested_too_deep_is_refused() -> None:
    deep: Any = "x"
    for _ in range(2_000):
        deep = [deep]
    with pytest.raises(InvalidInputError, match=r"^example: it is nested too deep"):
        example_fields("q", deep)


def test_span_keeps_the_names_of_participants() -> None:
    asked = parts("user", "Hi", name="ann")
    span = {"gen_ai.input.messages": [asked, *INPUT], "gen_ai.output.messages": OUTPUT}
    first = {"role": "user", "name": "ann", "content": "Hi"}
    assert example_from_opentelemetry(span).inputs[0] == first


@pytest.mark.parametrize(
    ("messages", "problem"),
    [
        *(
            (messages, "span: gen_ai.output.messages is no list of messages with `parts`")
            for messages in (
                None,
                "[" * 100_000,
                [{"role": "assistant", "content": "Hi."}],
                [{"role": "assistant", "parts": ["Hi."]}],
            )
        ),
        ([parts("assistant", BLOB)], "outputs.* content of the type 'image'"),
    ],
)
def test_span_that_cannot_be_judged_is_refused(messages: Any, problem: str) -> None:
    attributes = {"gen_ai.input.messages": INPUT, "gen_ai.output.messages": messages}
    with pytest.raises(InvalidInputError, match=problem):
        example_from_opentelemetry(attributes)
