"""Agents within agents, each with a gate of its own, and settings that reach them all."""

from typing import Any

from langchain_core.messages import HumanMessage
from langchain_core.tools import BaseTool, StructuredTool

from tests.conftest import COLD, Bench, Graph, judgings
from tests.integration_tests.agents.support import (
    AgentModel,
    agent,
    ask,
    calls,
    fails,
    gate,
    pending,
    said,
)
from tests.integration_tests.gates.support import LENGTH, inputs, outputs

APPROVE = {"decisions": [{"type": "approve"}]}


def as_tool(inner: Graph) -> BaseTool:
    """An agent as another agent's tool."""

    def helper(question: str) -> str:
        """Ask a colleague."""
        given = inner.invoke({"messages": [HumanMessage(question)]})
        return str(given["messages"][-1].text)

    async def ahelper(question: str) -> str:
        given = await inner.ainvoke({"messages": [HumanMessage(question)]})
        return str(given["messages"][-1].text)

    return StructuredTool.from_function(helper, coroutine=ahelper, name="helper")


def team(bench: Bench, inner: dict[str, Any], outer: dict[str, Any]) -> Graph:
    colleague = agent(bench, gate(bench, **inner), store=None, checkpointer=None)
    return agent(bench, gate(bench, LENGTH, **outer), tools=[as_tool(colleague)])


async def test_gates_of_an_agent_and_of_its_tool_ask_one_after_the_other(bench: Bench) -> None:
    graph = team(bench, {"review": "always"}, {"review": "always"})
    model = AgentModel(bench.server, calls("helper", question="Which?"), "This one.", "It is so.")
    given = await bench.invoke(graph, ask())
    assert "This one." in pending(given)["description"]
    given = await bench.resume(graph, APPROVE)
    assert "It is so." in pending(given)["description"]
    assert pending(given)["description"].startswith("## length")
    given = await bench.resume(graph, APPROVE)
    assert given["quality_gate"]["judgment"]["criterion"] == LENGTH.name
    assert given["quality_gate"]["status"] == "accepted"
    assert [one for one, _ in said(given)] == ["human", "ai", "tool", "ai"]
    assert (inputs(bench.server)[0], outputs(bench.server)) == (
        "Which?",
        ["This one.", "It is so."],
    )
    assert (len(model.requests), len(judgings(bench.server))) == (3, 2)
    assert len(await bench.episodes()) == len(await bench.episodes(criterion=LENGTH)) == 1


async def test_gate_of_a_tool_sends_back_within_the_tool(bench: Bench) -> None:
    graph = team(bench, {"max_revisions": 1, "fallback": "Nobody knows."}, {})
    bench.server.rules = fails("Draft")
    AgentModel(bench.server, calls("helper", question="Which?"), "Draft 1.", "Draft 2.", "None.")
    given = await bench.invoke(graph, ask())
    assert said(given)[2] == ("tool", "Nobody knows.")
    assert given["quality_gate"]["revisions"] == 0
    assert outputs(bench.server) == ["Draft 1.", "Draft 2.", "None."]


async def test_settings_of_the_run_reach_the_gate_of_a_tool_after_an_interrupt(
    bench: Bench,
) -> None:
    graph = team(bench, {"review": "always", "max_revisions": 0}, {"review": "always"})
    AgentModel(bench.server, calls("helper", question="Which?"), "This one.", "It is so.")
    await bench.invoke(graph, ask(), context={"memalign": {"namespace": ["team-a"]}})
    await bench.resume(graph, COLD)
    await bench.resume(graph, APPROVE)
    for options in ({}, {"criterion": LENGTH}):
        assert await bench.episodes(**options) == []
        assert len(await bench.episodes(namespace=("team-a",), **options)) == 1


async def test_settings_need_no_schema_of_a_context(bench: Bench) -> None:
    AgentModel(bench.server, "Wait.")
    graph = agent(bench, gate(bench, review="always", max_revisions=0))
    await bench.invoke(graph, ask(), context={"memalign": {"namespace": ["team-a"]}})
    await bench.resume(graph, COLD)
    assert await bench.episodes() == []
    assert len(await bench.episodes(namespace=("team-a",))) == 1


async def test_judging_is_seen_by_who_streams_subgraphs(bench: Bench) -> None:
    AgentModel(bench.server, "So sorry!")
    graph = agent(bench, gate(bench))
    parts = await bench.stream(graph, ask(), stream_mode="updates", subgraphs=True)
    within = {node for place, update in parts if place for node in update}
    assert within == {"retrieve_episodes", "assemble_guidelines", "judge"}
    [place] = {place for place, _ in parts if place}
    assert place[0].startswith("quality_gate.after_agent:")


async def test_stop_after_the_gate_leaves_its_verdict_to_be_looked_at(bench: Bench) -> None:
    AgentModel(bench.server, "Wait.", "So sorry!")
    bench.server.rules = fails("Wait.")
    graph = agent(bench, gate(bench), interrupt_after=["quality_gate.after_agent"])
    await bench.invoke(graph, ask())
    state = await bench.state(graph)
    assert state.values["quality_gate"]["status"] == "revise"
    assert state.next == ("model",)
    await bench.invoke(graph, None)
    state = await bench.state(graph)
    assert (state.values["quality_gate"]["status"], state.next) == ("accepted", ())
    assert outputs(bench.server) == ["Wait.", "So sorry!"]


async def test_turn_of_an_agent_in_a_graph_is_asked_by_the_human_who_spoke_last(
    bench: Bench,
) -> None:
    """Also where the parent has had a gate's critique in the conversation before."""
    graph = team(bench, {}, {"max_revisions": 1})
    bench.server.rules = fails("Wait.")
    AgentModel(bench.server, "Wait.", calls("helper", question="Which?"), "This.", "So sorry!")
    given = await bench.invoke(graph, ask("One?"))
    assert inputs(bench.server) == ["One?", "Which?", "One?"]
    assert given["quality_gate"]["revisions"] == 1
