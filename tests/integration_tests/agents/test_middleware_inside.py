"""An agent with a gate inside other graphs, with contexts of the application's, and streamed."""

from dataclasses import dataclass
from typing import Annotated, Any, NotRequired

import pytest
from langgraph.graph import START, MessagesState, StateGraph
from pydantic import BaseModel
from typing_extensions import TypedDict

from memalign_graph import GateVerdict, MemAlignContext
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
from tests.integration_tests.gates.support import outputs


class Judged(MessagesState):
    """A parent that also wants to know what the gate said."""

    quality_gate: NotRequired[GateVerdict]


class AsDict(TypedDict):
    """A context of the application's own."""

    user: str
    memalign: dict[str, Any]


@dataclass
class AsDataclass:
    """Likewise."""

    user: str
    memalign: MemAlignContext


class AsModel(BaseModel):
    """Likewise."""

    user: str
    memalign: dict[str, Any]


CONTEXTS = [
    (AsDict, {"user": "ann", "memalign": {"namespace": ["team-a"]}}),
    (AsDataclass, AsDataclass("ann", MemAlignContext(namespace=("team-a",)))),
    (AsModel, {"user": "ann", "memalign": {"namespace": ["team-a"]}}),
    (MemAlignContext, {"namespace": ["team-a"]}),
]


def parent_of(bench: Bench, state: Any = Judged, **options: Any) -> Graph:
    """A graph that has an agent for a node; store and checkpointer are its own."""
    inner = agent(bench, gate(bench, **options), store=None, checkpointer=None)
    builder: StateGraph[Any, Any, Any, Any] = StateGraph(state)
    builder.add_node("agent", inner)
    builder.add_edge(START, "agent")
    return bench.compile(builder)


async def test_agent_within_a_graph_asks_and_goes_on(bench: Bench) -> None:
    model = AgentModel(bench.server, "Wait.", "So sorry!")
    graph = parent_of(bench, review="always", max_revisions=1)
    assert pending(await bench.invoke(graph, ask()))["name"] == "review_judgment"
    given = await bench.resume(graph, COLD)
    assert pending(given)["args"]["value"] is True
    given = await bench.resume(graph, {"decisions": [{"type": "approve"}]})
    verdict = given["quality_gate"]
    assert (verdict["status"], verdict["revisions"]) == ("accepted", 1)
    assert outputs(bench.server) == ["Wait.", "So sorry!"]
    assert len(model.requests) == len(judgings(bench.server)) == 2
    assert [one for one, _ in said(given)] == ["human", "ai", "human", "ai"]


async def test_agent_within_a_graph_counts_each_turn_anew(bench: Bench) -> None:
    AgentModel(bench.server, *(f"Draft {n}." for n in range(4)))
    bench.server.rules = fails("Draft")
    graph = parent_of(bench, max_revisions=1)
    for _ in range(2):
        given = await bench.invoke(graph, ask())
        assert given["quality_gate"]["revisions"] == 1
        assert given["quality_gate"]["status"] == "exhausted"


async def test_agent_that_a_node_calls_keeps_its_verdict_to_itself(bench: Bench) -> None:
    AgentModel(bench.server, "Wait.", "So sorry!")
    bench.server.rules = fails("Wait.")
    inner = agent(bench, gate(bench), store=None, checkpointer=None)

    def call(state: MessagesState) -> dict[str, Any]:
        given = inner.invoke({"messages": state["messages"]})
        return {"messages": [given["messages"][-1]]}

    async def acall(state: MessagesState) -> dict[str, Any]:
        given = await inner.ainvoke({"messages": state["messages"]})
        return {"messages": [given["messages"][-1]]}

    builder: StateGraph[Any, Any, Any, Any] = StateGraph(MessagesState)
    builder.add_node("call", acall if bench.awaits else call)
    builder.add_edge(START, "call")
    given = await bench.invoke(bench.compile(builder), ask())
    assert [text for _, text in said(given)][1:] == ["So sorry!"]


@pytest.mark.parametrize(
    ("schema", "context"), CONTEXTS, ids=lambda one: getattr(one, "__name__", "")
)
async def test_settings_are_found_in_the_agents_context(
    bench: Bench, schema: Any, context: Any
) -> None:
    AgentModel(bench.server, "Wait.")
    graph = agent(bench, gate(bench, review="always", max_revisions=0), context_schema=schema)
    await bench.invoke(graph, ask(), context=context)
    await bench.resume(graph, COLD)
    assert await bench.episodes() == []
    assert len(await bench.episodes(namespace=("team-a",))) == 1


async def test_progress_is_streamed_and_the_judges_own_words_are_not(bench: Bench) -> None:
    AgentModel(bench.server, "Wait.", "So sorry!")
    bench.server.rules = fails("Wait.", rationale="Secret reason.")
    graph = agent(bench, gate(bench))
    modes = ["custom", "messages", "updates"]
    parts = await bench.stream(graph, ask(), stream_mode=modes)
    events = [part for mode, part in parts if mode == "custom"]
    assert [one["status"] for one in events] == ["judging", "revise", "judging", "accepted"]
    assert {one["type"] for one in events} == {"quality_gate"}
    tokens = [
        part[0].text
        for mode, part in parts
        if mode == "messages" and part[0].type in ("ai", "AIMessageChunk")
    ]
    assert "".join(tokens).replace("Wait.", "").replace("So sorry!", "") == ""
    nodes = [name for mode, part in parts if mode == "updates" for name in part]
    assert nodes.count("quality_gate.after_agent") == 2


async def test_streamed_agent_with_tools_is_gated(bench: Bench) -> None:
    def track(order: str) -> str:
        """Where an order is."""
        return f"{order} is in Rome."

    AgentModel(bench.server, calls("track", order="1"), "It is in Rome.")
    graph = agent(bench, gate(bench), tools=[track])
    parts = await bench.stream(graph, ask(), stream_mode="messages")
    text = "".join(one.text for one, _ in parts if one.type == "AIMessageChunk")
    assert text == "It is in Rome."
    state = await bench.state(graph)
    assert state.values["quality_gate"]["status"] == "accepted"


async def test_question_is_streamed_with_the_stream(bench: Bench) -> None:
    AgentModel(bench.server, "Wait.")
    graph = agent(bench, gate(bench, review="always"))
    parts = await bench.stream(graph, ask(), stream_mode="updates")
    [asked] = [part["__interrupt__"] for part in parts if "__interrupt__" in part]
    assert asked[0].value["action_requests"][0]["name"] == "review_judgment"
    state = await bench.state(graph)
    assert state.next == ("quality_gate.after_agent",)


async def test_other_keys_of_the_state_are_left_alone(bench: Bench) -> None:
    from langchain.agents import AgentState

    def add(old: list[str], new: list[str]) -> list[str]:
        return old + new

    class State(AgentState[Any]):
        notes: Annotated[list[str], add]

    AgentModel(bench.server, "Wait.", "So sorry!")
    bench.server.rules = fails("Wait.")
    graph = agent(bench, gate(bench), state_schema=State)
    given = await bench.invoke(graph, {**ask(), "notes": ["one"]})
    assert given["notes"] == ["one"]
    assert given["quality_gate"]["revisions"] == 1
