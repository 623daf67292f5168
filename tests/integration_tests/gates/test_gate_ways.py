"""A graph that leads past its gate, or into nothing at all, says so before a model is called."""

from typing import Any

import pytest
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import tools_condition

from memalign_graph import InvalidInputError, create_quality_gate_node
from tests.conftest import CRITERION, EVERY_WAY, Bench
from tests.integration_tests.gates.support import (
    Builder,
    Writer,
    always,
    asked,
    gate_on,
    models,
    wired,
    writing,
)

pytestmark = EVERY_WAY


def without_a_way_in() -> Builder:
    builder: Builder = StateGraph(MessagesState)
    builder.add_node("write", Writer())
    return builder


async def refused(bench: Bench, builder: Builder) -> str:
    """Run a graph that can't be; returns why."""
    with pytest.raises(InvalidInputError) as caught:
        await bench.invoke(bench.compile(builder), asked())
    assert bench.server.chats == []
    return str(caught.value)


async def test_graph_that_nothing_leads_into_says_so(bench: Bench) -> None:
    reason = await refused(bench, gate_on(bench, without_a_way_in()))
    assert "builder: nothing leads from START" in reason


async def test_way_in_may_be_added_after_the_gate(bench: Bench) -> None:
    builder = gate_on(bench, without_a_way_in())
    builder.add_edge(START, "write")
    given = await bench.invoke(bench.compile(builder), asked())
    assert given["quality_gate"]["status"] == "accepted"


async def test_choice_past_the_gate_is_told_how_to_lead_to_it(bench: Bench) -> None:
    builder = writing(Writer())
    builder.add_conditional_edges("write", tools_condition, {"tools": END, END: END})
    with pytest.raises(InvalidInputError, match="leave `after` out") as caught:
        gate_on(bench, builder)
    assert "END: 'quality_gate'" in str(caught.value)


async def test_writer_with_tools_leads_to_the_gate_itself(bench: Bench) -> None:
    builder = gate_on(bench, writing(Writer()), after=None)
    ways: Any = {"tools": END, END: "quality_gate"}
    builder.add_conditional_edges("write", tools_condition, ways)
    given = await bench.invoke(bench.compile(builder), asked())
    assert given["quality_gate"]["status"] == "accepted"


async def test_gate_after_a_gate_is_named_as_where_that_one_accepts(bench: Bench) -> None:
    builder = gate_on(bench, writing(Writer()), name="tone")
    with pytest.raises(InvalidInputError, match="'tone' is a gate: name this one, 'facts', as its"):
        gate_on(bench, builder, after="tone", name="facts")


async def test_node_by_hand_refuses_a_state_without_its_key(bench: Bench) -> None:
    """It could not count, and the writer would go round for ever."""
    writer = Writer()
    builder = writing(writer)
    node: Any = create_quality_gate_node(CRITERION, **models(bench), max_revisions=1)
    builder.add_node("quality_gate", node)
    builder.add_edge("write", "quality_gate")
    builder.add_conditional_edges(
        "quality_gate",
        lambda state: "write" if state["messages"][-1].type == "human" else END,
        ["write", END],
    )
    bench.server.rules = always(False)
    with pytest.raises(InvalidInputError, match="name: the state has no key 'quality_gate'"):
        await bench.invoke(bench.compile(builder), asked())
    assert len(writer.seen) == 2


async def test_node_by_hand_in_a_subgraph_begins_each_turn_anew(bench: Bench) -> None:
    """Its verdicts stay in the subgraph, and its critiques are in the parent's messages."""

    class State(MessagesState):
        quality_gate: dict[str, Any]

    writer = Writer()
    worker = wired(
        bench, writer, State, lambda state: str(state["quality_gate"]["status"]), max_revisions=1
    )
    worker.store = worker.checkpointer = None
    graph = bench.compile(writing(worker))
    bench.server.rules = always(False)
    for _ in range(2):
        await bench.invoke(graph, asked())
    assert len(writer.seen) == 4
