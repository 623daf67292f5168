"""What is answered instead of what a gate neither lets through nor sends back."""

from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage

from tests.conftest import CRITERION, Bench
from tests.integration_tests.gates.support import (
    DOWN,
    IN_MEMORY,
    LENGTH,
    QUESTION,
    Told,
    Writer,
    always,
    asked,
    gate_on,
    gated,
    judges,
    texts,
    verdict,
    writing,
)

LATER = "A colleague will write to you today."


async def test_it_takes_the_place_of_the_turns_drafts_and_critiques(bench: Bench) -> None:
    graph = gated(bench, Writer(), max_revisions=1, fallback=LATER)
    bench.server.rules = always(False)
    given = await bench.invoke(graph, asked())
    assert texts(given["messages"]) == [QUESTION, LATER]
    assert isinstance(given["messages"][-1], AIMessage)
    gate = given["quality_gate"]
    assert (gate["status"], gate["let_through"], gate["revisions"]) == ("exhausted", False, 1)
    bench.server.rules = []
    given = await bench.invoke(graph, asked("And now?"))
    assert given["quality_gate"]["status"] == "accepted"
    assert texts(given["messages"]) == [QUESTION, LATER, "And now?", "Draft 3."]


@pytest.mark.parametrize(
    ("replies", "options", "answer"),
    [
        ([DOWN], {}, LATER),
        ([DOWN], {"on_judge_error": "open"}, "Draft 1."),
        ([verdict(True)], {}, "Draft 1."),
        ([verdict(False), verdict(True)], {}, "Draft 2."),
        ([verdict(False)], {"revise": None}, LATER),
    ],
    ids=["closed", "open", "passes", "revised", "nobody-revises"],
)
async def test_only_what_is_not_let_through_is_replaced(
    bench: Bench, replies: list[Any], options: dict[str, Any], answer: str
) -> None:
    bench.server.script(*replies)
    given = await bench.invoke(gated(bench, Writer(), fallback=LATER, **options), asked())
    assert given["messages"][-1].text == answer


async def test_expert_who_lets_the_answer_pass_goes_before_it(bench: Bench) -> None:
    bench.server.rules = always(False)
    options: dict[str, Any] = {"review": "exhausted", "max_revisions": 0, "fallback": LATER}
    graph = gated(bench, Writer(), **options)
    for value, answer in ((True, "Draft 1."), (False, LATER)):
        await bench.invoke(graph, asked(), answer)
        given = await bench.resume(graph, {"value": value}, answer)
        assert given["quality_gate"]["decided_by"] == "expert"
        assert (given["messages"][-1].text == LATER) is not value


@IN_MEMORY
async def test_it_is_given_also_where_there_is_no_answer(bench: Bench) -> None:
    graph = gated(bench, lambda _: {}, revise=None, fallback=LATER)
    given = await bench.invoke(graph, asked())
    assert texts(given["messages"]) == [QUESTION, LATER]


@IN_MEMORY
async def test_tools_that_answer_leave_with_the_call_that_asked_them(bench: Bench) -> None:
    call = {"name": "find", "args": {}, "id": "1", "type": "tool_call"}
    looked = [AIMessage("", tool_calls=[call]), ToolMessage("In Rome.", tool_call_id="1")]
    bench.server.rules = always(False)
    graph = gated(bench, lambda _: {"messages": looked}, revise=None, fallback=LATER)
    given = await bench.invoke(graph, asked())
    assert texts(given["messages"]) == [QUESTION, LATER]


@IN_MEMORY
async def test_what_a_user_said_within_the_turn_stays(bench: Bench) -> None:
    def write(_state: Any) -> dict[str, Any]:
        return {"messages": [AIMessage("Which?"), HumanMessage("4711"), AIMessage("Wait.")]}

    bench.server.rules = always(False)
    graph = gated(bench, write, max_revisions=1, fallback=LATER)
    given = await bench.invoke(graph, asked())
    assert texts(given["messages"]) == [QUESTION, *["Which?", "4711"] * 2, LATER]


@IN_MEMORY
async def test_drafts_are_gone_also_where_critiques_have_a_key_of_their_own(bench: Bench) -> None:
    bench.server.rules = always(False)
    options: dict[str, Any] = {"critique_key": "critique", "max_revisions": 1, "fallback": LATER}
    given = await bench.invoke(gated(bench, Writer(), state=Told, **options), asked())
    assert texts(given["messages"]) == [QUESTION, LATER]
    assert given["critique"] == ""


@IN_MEMORY
async def test_second_gate_of_a_chain_replaces_what_the_first_sent_back(bench: Bench) -> None:
    builder = writing(Writer())
    gate_on(bench, builder, CRITERION, name="tone", accept="short", fallback=LATER)
    options: dict[str, Any] = {"name": "short", "max_revisions": 0, "fallback": "Too long."}
    gate_on(bench, builder, LENGTH, after=None, **options)
    bench.server.rules = [judges(LENGTH.instructions, False)]
    bench.server.script(verdict(False), verdict(True), verdict(False))
    given = await bench.invoke(bench.compile(builder), asked())
    assert (given["tone"]["status"], given["short"]["status"]) == ("accepted", "exhausted")
    assert texts(given["messages"]) == [QUESTION, "Too long."]
