"""What is answered instead of what a gate neither lets through nor sends back."""

from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage

from tests.conftest import Bench
from tests.integration_tests.gates.support import (
    DOWN,
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
    keyed: dict[str, Any] = {"state": Told, "critique_key": "critique"}
    for options in ({}, keyed):
        bench.server.rules = always(False)
        graph = gated(bench, Writer(), max_revisions=1, fallback=LATER, **options)
        given = await bench.invoke(graph, asked(), str(options))
        assert texts(given["messages"]) == [QUESTION, LATER]
        assert isinstance(given["messages"][-1], AIMessage)
        assert given.get("critique", "") == ""
        gate = given["quality_gate"]
        assert (gate["status"], gate["let_through"], gate["revisions"]) == ("exhausted", False, 1)
        bench.server.rules = []
        given = await bench.invoke(graph, asked("And now?"), str(options))
        assert given["quality_gate"]["status"] == "accepted"
        assert texts(given["messages"]) == [QUESTION, LATER, "And now?", "Draft 3."]


@pytest.mark.parametrize(
    ("replies", "options", "answer"),
    [
        ([DOWN], {}, LATER),
        ([DOWN], {"on_judge_error": "open"}, "Draft 1."),
        ([verdict(False), verdict(True)], {}, "Draft 2."),
        ([verdict(False)], {"revise": None}, LATER),
    ],
    ids=["closed", "open", "revised", "nobody-revises"],
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
    graph = gated(bench, Writer("Wait.", "Wait."), **options)
    for value, answer in ((True, "Wait."), (False, LATER)):
        await bench.invoke(graph, asked(), answer)
        given = await bench.resume(graph, {"value": value}, answer)
        assert given["quality_gate"]["decided_by"] == "expert"
        assert given["messages"][-1].text == answer


CALL = {"name": "find", "args": {}, "id": "1", "type": "tool_call"}
TURNS: dict[str, tuple[list[Any], list[str]]] = {
    "nothing": ([], []),
    "tools": ([AIMessage("", tool_calls=[CALL]), ToolMessage("In Rome.", tool_call_id="1")], []),
    "user-within": (
        [AIMessage("Which?"), HumanMessage("4711"), AIMessage("Wait.")],
        ["Which?", "4711"],
    ),
}


@pytest.mark.parametrize("case", list(TURNS))
async def test_the_answer_leaves_and_what_a_user_said_stays(bench: Bench, case: str) -> None:
    written, left = TURNS[case]
    bench.server.rules = always(False)
    graph = gated(bench, lambda _: {"messages": written}, revise=None, fallback=LATER)
    given = await bench.invoke(graph, asked())
    assert texts(given["messages"]) == [QUESTION, *left, LATER]


async def test_second_gate_of_a_chain_replaces_what_the_first_sent_back(bench: Bench) -> None:
    builder = writing(Writer())
    gate_on(bench, builder, name="tone", accept="short", fallback=LATER)
    options: dict[str, Any] = {"name": "short", "max_revisions": 0, "fallback": "Too long."}
    gate_on(bench, builder, LENGTH, after=None, **options)
    bench.server.rules = [judges(LENGTH.instructions, False), judges("Draft 1.", False)]
    given = await bench.invoke(bench.compile(builder), asked())
    assert (given["tone"]["status"], given["short"]["status"]) == ("accepted", "exhausted")
    assert texts(given["messages"]) == [QUESTION, "Too long."]
