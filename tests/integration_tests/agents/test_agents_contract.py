"""A gate as middleware and as a tool, in every store, blocking and awaited; each call anew."""

import json

from langchain_core.messages import ToolMessage

from memalign_graph import MemAlignContext, create_quality_gate_tool
from tests.conftest import COLD, CRITERION, EVERY_WAY, Bench, Graph, judgings
from tests.integration_tests.agents.support import AgentModel, agent, ask, calls, gate, said
from tests.integration_tests.gates.support import QUESTION, inputs, models, outputs, pending

pytestmark = EVERY_WAY

APPROVE = {"decisions": [{"type": "approve"}]}
TEAM = ("team-a",)


async def test_middleware(bench: Bench) -> None:
    model = AgentModel(bench.server, "Wait.", "So sorry!")

    def graph() -> Graph:
        made = gate(bench, review="always", max_revisions=1)
        return agent(bench, made, system_prompt="Be brief.", context_schema=MemAlignContext)

    given = await bench.invoke(graph(), ask(), context=MemAlignContext(namespace=TEAM))
    assert pending(given)["name"] == "review_judgment"
    await bench.refuse(graph(), 7)
    given = await bench.resume(graph(), COLD)
    revising = model.requests[1].messages
    assert [message["role"] for message in revising] == ["system", "user", "assistant", "user"]
    assert f"An expert says: {COLD['rationale']}" in str(revising[-1]["content"])
    [guideline] = await bench.guidelines(namespace=TEAM)
    assert guideline.text in judgings(bench.server)[1].text
    assert guideline.text in pending(given)["description"]
    given = await bench.resume(graph(), APPROVE)
    verdict = given["quality_gate"]
    assert (verdict["status"], verdict["revisions"]) == ("accepted", 1)
    assert (verdict["decided_by"], verdict["feedback"]["value"]) == ("expert", True)
    assert verdict["learned"]["episode_ids"]
    assert json.loads(json.dumps(verdict)) == verdict
    assert set(given) == {"messages", "quality_gate"}
    assert [kind for kind, _ in said(given)] == ["human", "ai", "human", "ai"]
    assert outputs(bench.server) == ["Wait.", "So sorry!"]
    assert inputs(bench.server) == [QUESTION] * 2
    assert len(model.requests) == len(judgings(bench.server)) == 2
    assert await bench.episodes() == []
    assert len(await bench.episodes(namespace=TEAM)) == 2
    model.then("A new cup comes.")
    modes = ["custom", "updates"]
    parts = await bench.stream(graph(), ask("The cup is broken."), stream_mode=modes)
    events = [part["status"] for mode, part in parts if mode == "custom"]
    assert events == ["judging", "asking"]
    assert "__interrupt__" in parts[-1][1]
    state = await bench.state(graph())
    assert (state.next, state.values["quality_gate"]) == (("quality_gate.after_agent",), {})
    given = await bench.resume(graph(), {"type": "ignore"})
    assert (given["quality_gate"]["status"], given["quality_gate"]["revisions"]) == ("accepted", 0)
    assert (inputs(bench.server)[-1], outputs(bench.server)[-1]) == (
        "The cup is broken.",
        "A new cup comes.",
    )


async def test_tool(bench: Bench) -> None:
    check = ("check_quality", QUESTION)
    drafts = [calls(check[0], inputs=check[1], outputs=text) for text in ("Wait.", "So sorry!")]
    model = AgentModel(bench.server, *drafts, "So sorry!")

    def graph() -> Graph:
        tool = create_quality_gate_tool(CRITERION, review="always", **models(bench))
        return agent(bench, tools=[tool], context_schema=MemAlignContext)

    given = await bench.invoke(graph(), ask(), context=MemAlignContext(namespace=TEAM))
    assert pending(given)["name"] == "review_judgment"
    await bench.refuse(graph(), 7)
    given = await bench.resume(graph(), COLD, context=MemAlignContext(namespace=TEAM))
    assert "So sorry!" in pending(given)["description"]
    given = await bench.resume(graph(), APPROVE)
    first, second = [one for one in given["messages"] if isinstance(one, ToolMessage)]
    assert f"An expert says: {COLD['rationale']}" in str(first.content)
    assert f"An expert says: {COLD['rationale']}" in str(model.requests[1].messages[-1]["content"])
    assert (first.artifact["status"], first.artifact["decided_by"]) == ("revise", "expert")
    assert first.artifact["learned"]["guidelines"]
    assert json.loads(json.dumps(first.artifact)) == first.artifact
    assert (second.content, second.status) == ("The answer passed.", "success")
    assert (second.artifact["gate"], second.artifact["passed"]) == ("check_quality", True)
    assert (inputs(bench.server), outputs(bench.server)) == ([QUESTION] * 2, ["Wait.", "So sorry!"])
    assert (len(judgings(bench.server)), len(model.requests)) == (2, 3)
    assert await bench.episodes() == []
    assert len(await bench.episodes(namespace=TEAM)) == 2
    [offered] = model.requests[0].body["tools"]
    assert CRITERION.instructions in offered["function"]["description"]
    assert set(offered["function"]["parameters"]["properties"]) == {"inputs", "outputs"}
