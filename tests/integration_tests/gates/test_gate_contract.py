"""Gates by edges and by hand, in every store, blocking and awaited; each call on a new graph."""

import json
from typing import Any

from langgraph.graph import MessagesState
from langgraph.types import Command

from memalign_graph import GateVerdict, Judgment
from tests.conftest import COLD, EVERY_WAY, Bench, Graph, judgings, thread
from tests.integration_tests.gates.support import (
    QUESTION,
    Writer,
    always,
    asked,
    gate_on,
    inputs,
    outputs,
    pending,
    wired,
    writing,
)

pytestmark = EVERY_WAY

OPTIONS: dict[str, Any] = {"review": "always", "max_revisions": 1}
CONTEXT = {"memalign": {"namespace": ["team-a"]}}
APPROVE = {"decisions": [{"type": "approve"}]}


class State(MessagesState):
    quality_gate: dict[str, Any]


async def check_turn(bench: Bench, graph: Any, writer: Writer, **later: Any) -> GateVerdict:
    """Have an expert object to a draft, and approve of the next."""
    given = await bench.invoke(graph(), asked(), context=CONTEXT)
    assert pending(given)["args"]["value"] is True
    assert not given.get("quality_gate")
    for reply, problem in (({"value": "perhaps"}, "not on the scale"), (" ", "is empty")):
        assert problem in await bench.refuse(graph(), reply)
        state = await bench.state(graph())
        assert (state.next, len(state.interrupts)) == (("quality_gate",), 1)
    given = await bench.resume(graph(), COLD, **later)
    assert f"An expert says: {COLD['rationale']}" in writer.seen[1]["messages"][-1].text
    [guideline] = await bench.guidelines(namespace=("team-a",))
    assert guideline.text in judgings(bench.server)[-1].text
    assert guideline.text in pending(given)["description"]
    given = await bench.resume(graph(), APPROVE, **later)
    assert outputs(bench.server) == ["Wait.", "Sorry!"]
    assert inputs(bench.server) == [QUESTION] * 2
    assert await bench.episodes() == []
    assert len(await bench.episodes(namespace=("team-a",))) == 2
    verdict: GateVerdict = given["quality_gate"]
    assert (verdict["status"], verdict["revisions"]) == ("accepted", 1)
    assert (verdict["value"], verdict["decided_by"]) == (True, "expert")
    assert verdict["learned"] is not None
    assert set(verdict) == set(GateVerdict.__annotations__)
    assert json.loads(json.dumps(verdict)) == verdict
    return verdict


async def inner_state(bench: Bench, graph: Graph) -> Any:
    """The state of the judge within a gate that asks."""
    found = (
        await graph.aget_state(thread("t"), subgraphs=True)
        if bench.awaits
        else graph.get_state(thread("t"), subgraphs=True)
    )
    [task] = found.tasks
    return task.state


async def test_gate_by_edges(bench: Bench) -> None:
    writer = Writer("Wait.", "Sorry!")

    def graph() -> Graph:
        return bench.compile(gate_on(bench, writing(writer), **OPTIONS))

    await check_turn(bench, graph, writer)
    parts = await bench.stream(graph(), asked("And now?"), stream_mode="custom")
    assert [event["status"] for event in parts] == ["judging", "asking"]
    state = await bench.state(graph())
    assert not state.values["quality_gate"]
    inner = await inner_state(bench, graph())
    assert inner.next == ("collect_feedback",)
    assert Judgment.model_validate(inner.values["judgment"]).value is True
    assert inner.tasks[0].interrupts[0].id == state.interrupts[0].id
    reply: Any = Command(resume={"value": True})
    parts = await bench.stream(graph(), reply, stream_mode="custom")
    assert [event["status"] for event in parts] == ["accepted"]
    assert len(judgings(bench.server)) == len(writer.seen) == 3


async def test_node_wired_up_by_hand(bench: Bench) -> None:
    writer = Writer("Wait.", "Sorry!")

    def graph() -> Graph:
        return wired(bench, writer, State, **OPTIONS)

    await check_turn(bench, graph, writer, context=CONTEXT)
    bench.server.rules = always(False)
    await bench.invoke(graph(), asked("And now?"))
    for _ in range(2):
        given = await bench.resume(graph(), APPROVE)
    verdict = given["quality_gate"]
    assert (verdict["status"], verdict["revisions"]) == ("exhausted", 1)
    assert len(judgings(bench.server)) == len(writer.seen) == 4
