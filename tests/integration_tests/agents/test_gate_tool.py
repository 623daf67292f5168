"""A gate as middleware and as a tool, sync and async, and the tool's results."""

import json
from typing import Any

import pytest
from langchain_core.messages import AIMessage, ToolMessage
from langgraph.prebuilt import ToolNode
from langgraph.types import Command

from memalign_graph import InvalidInputError, MemAlignContext, create_quality_gate_tool
from tests.conftest import COLD, CRITERION, DOWN, EVERY_WAY, Bench, Graph, judgings
from tests.integration_tests.agents.support import (
    APPROVE,
    AgentModel,
    Calls,
    agent,
    ask,
    gate,
    messages_of,
)
from tests.integration_tests.gates.support import (
    QUESTION,
    ended,
    inputs,
    models,
    outputs,
    pending,
    writing,
)
from tests.loopback import Rule

TEAM = ("team-a",)


@EVERY_WAY
async def test_middleware(bench: Bench) -> None:
    model = AgentModel(bench.server, "Wait.", "So sorry!")

    def graph() -> Graph:
        made = gate(bench, review="always", max_revisions=1, sees="answer")
        return agent(bench, made, system_prompt="Be brief.", context_schema=MemAlignContext)

    result = await bench.invoke(graph(), ask(), context=MemAlignContext(namespace=TEAM))
    assert pending(result)["name"] == "review_judgment"
    await bench.refuse(graph(), 7)
    result = await bench.resume(graph(), COLD)
    revising = model.requests[1].messages
    assert [message["role"] for message in revising] == ["system", "user", "assistant", "user"]
    assert f"An expert says: {COLD['rationale']}" in str(revising[-1]["content"])
    [guideline] = await bench.guidelines(namespace=TEAM)
    assert guideline.text in judgings(bench.server)[1].text
    assert guideline.text in pending(result)["description"]
    result = await bench.resume(graph(), APPROVE)
    verdict = result["quality_gate"]
    assert (verdict["status"], verdict["revisions"]) == ("accepted", 1)
    assert (verdict["decided_by"], verdict["feedback"]["value"]) == ("expert", True)
    assert verdict["learned"]["episode_ids"]
    assert json.loads(json.dumps(verdict)) == verdict
    assert set(result) == {"messages", "quality_gate"}
    assert [kind for kind, _ in messages_of(result)] == ["human", "ai", "human", "ai"]
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
    result = await bench.resume(graph(), {"type": "ignore"})
    assert ended(result) == ("accepted", 0)
    assert inputs(bench.server)[-1] == "The cup is broken."
    assert outputs(bench.server)[-1] == "A new cup comes."


@EVERY_WAY
async def test_tool(bench: Bench) -> None:
    drafts = [Calls(check(text)) for text in ("Wait.", "So sorry!")]
    model = AgentModel(bench.server, *drafts, "So sorry!")

    def graph() -> Graph:
        tool = create_quality_gate_tool(CRITERION, review="always", **models(bench))
        return agent(bench, tools=[tool], context_schema=MemAlignContext)

    result = await bench.invoke(graph(), ask(), context=MemAlignContext(namespace=TEAM))
    assert pending(result)["name"] == "review_judgment"
    await bench.refuse(graph(), 7)
    result = await bench.resume(graph(), COLD, context=MemAlignContext(namespace=TEAM))
    assert "So sorry!" in pending(result)["description"]
    result = await bench.resume(graph(), APPROVE)
    first, second = [item for item in result["messages"] if isinstance(item, ToolMessage)]
    assert f"An expert says: {COLD['rationale']}" in str(first.content)
    assert f"An expert says: {COLD['rationale']}" in str(model.requests[1].messages[-1]["content"])
    assert (first.artifact["status"], first.artifact["decided_by"]) == ("revise", "expert")
    assert (first.artifact["revisions"], second.artifact["revisions"]) == (0, 0)
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


def checking(bench: Bench, **options: Any) -> Any:
    return create_quality_gate_tool(CRITERION, **models(bench, **options))


def check(text: str, inputs: str = QUESTION) -> tuple[str, dict[str, Any]]:
    return "check_quality", {"inputs": inputs, "outputs": text}


def called(*arguments: tuple[str, dict[str, Any]]) -> dict[str, Any]:
    made = [
        {"name": name, "args": args, "id": f"call_{number}", "type": "tool_call"}
        for number, (name, args) in enumerate(arguments)
    ]
    return {"messages": [("human", QUESTION), AIMessage("", tool_calls=made)]}


def node_of(bench: Bench, tool: Any) -> Graph:
    """A graph with only a tool node."""
    return bench.compile(writing(ToolNode([tool])))


def tool_message(result: dict[str, Any]) -> list[ToolMessage]:
    return [message for message in result["messages"] if isinstance(message, ToolMessage)]


async def test_two_calls_in_one_tool_node_get_their_own_verdicts(bench: Bench) -> None:
    """LangGraph runs both in one task and matches interrupts by order, so they run in sequence."""
    graph = node_of(bench, checking(bench, review="always")).with_config(max_concurrency=1)
    result = await bench.invoke(graph, called(check("Draft 1."), check("Draft 2.")))
    for _ in range(2):
        if "__interrupt__" not in result:
            break
        replies = {}
        for interrupt in result["__interrupt__"]:
            # After that, the other draft may appear as a few-shot case.
            case, _, _ = interrupt.value["action_requests"][0]["description"].partition(
                "### The judge"
            )
            replies[interrupt.id] = {"value": "Draft 1." in case}
        result = await bench.invoke(graph, Command(resume=replies))
    by_id = {message.tool_call_id: message.artifact["passed"] for message in tool_message(result)}
    assert by_id == {"call_0": True, "call_1": False}
    assert sorted(outputs(bench.server)) == ["Draft 1.", "Draft 2."]


@pytest.mark.parametrize(
    ("mode", "end"),
    [
        ("closed", "The answer could not be checked, and it did not pass."),
        ("open", "The answer could not be checked, and give it as it is."),
    ],
)
async def test_failing_judge(bench: Bench, mode: Any, end: str) -> None:
    bench.server.rules = [Rule(lambda _: True, reply=DOWN)]
    graph = node_of(bench, checking(bench, on_judge_error=mode))
    [message] = tool_message(await bench.invoke(graph, called(check("So sorry!"))))
    assert message.content == end
    assert message.artifact["status"] == "judge_error"
    assert message.artifact["let_through"] is (mode == "open")
    assert "It broke." in message.artifact["error"]


async def test_tool_returns_the_reason_if_nothing_can_be_judged(bench: Bench) -> None:
    graph = node_of(bench, checking(bench))
    wrong = [
        *((check(text), "outputs") for text in ("", "  ", "a \x00 b")),
        *((check("Sorry!", text), "inputs") for text in ("", "  ", "a \x00 b")),
        (("check_quality", {"outputs": "Sorry!"}), "inputs"),
    ]
    for number, (values, field) in enumerate(wrong):
        [message] = tool_message(await bench.invoke(graph, called(values), str(number)))
        assert field in str(message.content)
        assert (message.status, message.artifact) == ("error", None)
    assert judgings(bench.server) == []


async def test_tool_without_a_graph_or_a_store_raises(bench: Bench) -> None:
    AgentModel(bench.server, Calls(check("So sorry!")))
    tool = checking(bench, on_judge_error="open")
    with pytest.raises(InvalidInputError, match=r"^store: "):
        await bench.invoke(agent(bench, tools=[tool], store=None), ask())
    with pytest.raises(InvalidInputError, match="graph"):
        await tool.ainvoke({"inputs": QUESTION, "outputs": "So sorry!"})
