"""Gates with durability "exit": a reply applies to the judged answer."""

import pytest

from memalign_graph import create_quality_gate_tool
from tests.conftest import COLD, CRITERION, Bench, Graph, judgings
from tests.integration_tests.agents.support import AgentModel, agent, ask, calls, gate
from tests.integration_tests.gates.support import QUESTION, Writer, asked, gated, models, pending
from tests.loopback import Rule


def gated_graph(bench: Bench, kind: str) -> Graph:
    if kind == "node":
        return gated(bench, Writer("Wait."), review="always", max_revisions=0)
    if kind == "middleware":
        return agent(bench, gate(bench, review="always", max_revisions=0))
    return agent(
        bench, tools=[create_quality_gate_tool(CRITERION, review="always", **models(bench))]
    )


@pytest.mark.parametrize("kind", ["node", "middleware", "tool"])
@pytest.mark.every_way("memory-sync", "memory-async", "sqlite-sync")
async def test_interrupt_keeps_the_judged_answer(bench: Bench, kind: str) -> None:
    check = calls("check_quality", inputs=QUESTION, outputs="Wait.")
    AgentModel(bench.server, *([check] if kind == "tool" else ["Wait."]), "Done.")
    graph = gated_graph(bench, kind)
    graph_input = asked() if kind == "node" else ask()
    stopped = await bench.invoke(graph, graph_input, durability="exit")
    judgment_id = pending(stopped)["args"]["judgment_id"]
    bench.server.rules = [Rule(lambda _: True, value=True, rationale="Another verdict.")]
    await bench.resume(graph, COLD, durability="exit")
    assert len(judgings(bench.server)) == 1
    [episode] = await bench.episodes()
    assert episode.judgment is not None
    assert (episode.judgment.id, episode.value) == (judgment_id, False)
