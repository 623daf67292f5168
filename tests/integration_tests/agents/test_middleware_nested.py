"""Several gates on one agent, nested agents, and their settings."""

from typing import Annotated, Any, NotRequired

import pytest
from langchain.agents.middleware import ModelCallLimitMiddleware
from langchain_core.messages import AIMessage, HumanMessage, ToolCall, ToolMessage
from langchain_core.tools import InjectedToolCallId, tool
from langgraph.graph import MessagesState
from langgraph.types import Command

from memalign_graph import GateVerdict
from memalign_graph.settings import Sees
from tests.conftest import COLD, CRITERION, Bench, Graph, judgings
from tests.integration_tests.agents.support import (
    APART,
    APPROVE,
    AgentModel,
    Calls,
    agent,
    as_tool,
    ask,
    calls,
    fails,
    gate,
    messages_of,
)
from tests.integration_tests.gates.support import (
    LENGTH,
    QUESTION,
    inputs,
    outputs,
    pending,
    writing,
)
from tests.loopback import ChatRequest, Rule

TEAM = {"memalign": {"namespace": ["team-a"]}}
TONE_ASKED = CRITERION.instructions


def pair(bench: Bench, **options: Any) -> list[Any]:
    return [gate(bench, name="tone", **options), gate(bench, LENGTH, name="length", **options)]


def objects(text: str, *, to_tone: bool) -> Rule:
    """Make one of the two judges reject outputs with a text."""
    [response] = fails(text)

    def when(chat: ChatRequest) -> bool:
        return response.when(chat) and (TONE_ASKED in chat.text) is to_tone

    return Rule(when, value=False)


@pytest.mark.parametrize("tone_objects", [True, False])
async def test_both_gates_judge_the_revised_draft(bench: Bench, *, tone_objects: bool) -> None:
    AgentModel(bench.server, "Wait.", "So sorry!")
    bench.server.rules = [objects("Wait.", to_tone=tone_objects)]
    result = await bench.invoke(agent(bench, *pair(bench)), ask())
    assert set(result) == {"messages", "tone", "length"}
    for name, criterion in (("tone", CRITERION), ("length", LENGTH)):
        assert (result[name]["status"], result[name]["gate"]) == ("accepted", name)
        assert result[name]["judgment"]["criterion"] == criterion.name
    assert [kind for kind, _ in messages_of(result)] == ["human", "ai", "human", "ai"]
    assert outputs(bench.server)[-2:] == ["So sorry!"] * 2


async def test_conflicting_gates_terminate(bench: Bench) -> None:
    model = AgentModel(bench.server, *["Long and cold."] * 20)
    bench.server.rules = fails("Long and cold.")
    result = await bench.invoke(agent(bench, *pair(bench, max_revisions=2)), ask())
    assert {result[name]["status"] for name in ("tone", "length")} == {"exhausted"}
    assert len(model.requests) <= 9
    with pytest.raises(AssertionError, match="duplicate middleware"):
        agent(bench, gate(bench), gate(bench, LENGTH))


@pytest.mark.parametrize("context", [None, {"memalign": {"k": 3}}])
@pytest.mark.parametrize("instructed", [False, True])
async def test_first_gate_judges_the_revision_in_the_runs_namespace(
    bench: Bench, *, context: Any, instructed: bool
) -> None:
    """The first gate has already accepted, and the resumed run has no namespace."""
    AgentModel(bench.server, "Wait.", "So sorry!")
    graph = agent(bench, *pair(bench, review="always", max_revisions=1))
    question = ask()
    question["messages"] += [("system", "The customer speaks German.")] if instructed else []
    first = pending(await bench.invoke(graph, question, context=TEAM))
    result = await bench.resume(graph, APPROVE, context=context)
    named = {first["description"][:9], pending(result)["description"][:9]}
    assert named == {"## suppor", "## length"}
    for reply in (COLD, APPROVE, APPROVE):
        result = await bench.resume(graph, reply, context=context)
    for name in ("tone", "length"):
        assert result[name]["status"] == "accepted"
        assert result[name]["turn"] == result["messages"][0].id
    for criterion in (CRITERION, LENGTH):
        assert await bench.episodes(criterion=criterion) == []
        assert len(await bench.episodes(criterion=criterion, namespace=("team-a",))) == 2


@pytest.mark.parametrize("reverse", [True, False])
async def test_fallback_removes_the_drafts_of_all_gates(bench: Bench, *, reverse: bool) -> None:
    model = AgentModel(bench.server, "Cold 1.", "Long 2.", "Long 3.")
    bench.server.rules = [
        objects("Cold 1.", to_tone=True),
        objects("Long", to_tone=False),
        *fails("Later."),
    ]
    gates = pair(bench, max_revisions=1, fallback="Later.")
    graph = agent(bench, *(reversed(gates) if reverse else gates))
    result = await bench.invoke(graph, ask())
    assert result["length"]["status"] == "exhausted"
    assert [text for kind, text in messages_of(result) if kind == "ai"] == ["Later."]
    assert "Later." not in outputs(bench.server)
    assert len(model.requests) == 3


async def test_verdict_is_empty_if_another_gates_fallback_ended_the_turn(bench: Bench) -> None:
    AgentModel(bench.server, "Long 1.")
    bench.server.rules = [objects("Long", to_tone=False)]
    result = await bench.invoke(
        agent(bench, *pair(bench, max_revisions=0, fallback="Later.")), ask()
    )
    assert (result["length"]["status"], result["tone"]) == ("exhausted", {})


def team(bench: Bench, inner: dict[str, Any], outer: dict[str, Any]) -> Graph:
    colleague = agent(bench, gate(bench, **inner), **APART)
    return agent(bench, gate(bench, LENGTH, **outer), tools=[as_tool(colleague)])


async def test_gates_of_an_agent_and_of_its_subagent_interrupt_in_turn(bench: Bench) -> None:
    graph = team(bench, {"review": "always"}, {"review": "always", "sees": "answer"})
    model = AgentModel(bench.server, calls("helper", question="Which?"), "This one.", "It is so.")
    result = await bench.invoke(graph, ask(), context=TEAM)
    assert "This one." in pending(result)["description"]
    result = await bench.resume(graph, APPROVE)
    assert "It is so." in pending(result)["description"]
    assert pending(result)["description"].startswith("## length")
    result = await bench.resume(graph, APPROVE)
    assert result["quality_gate"]["judgment"]["criterion"] == LENGTH.name
    assert result["quality_gate"]["status"] == "accepted"
    assert [kind for kind, _ in messages_of(result)] == ["human", "ai", "tool", "ai"]
    assert inputs(bench.server)[0] == "Which?"
    assert outputs(bench.server) == ["This one.", "It is so."]
    assert (len(model.requests), len(judgings(bench.server))) == (3, 2)
    for criterion in (CRITERION, LENGTH):
        assert await bench.episodes(criterion=criterion) == []
        assert len(await bench.episodes(criterion=criterion, namespace=("team-a",))) == 1


async def test_gate_of_a_subagent_requests_revisions_within_the_tool(bench: Bench) -> None:
    """Its question is the last human message, even after a critique in the parent's turn."""
    graph = team(bench, {"max_revisions": 1, "fallback": "Nobody knows."}, {"max_revisions": 1})
    bench.server.rules = fails("Draft", "Wait.")
    helper = calls("helper", question="Which?")
    AgentModel(bench.server, "Wait.", helper, "Draft 1.", "Draft 2.", "None.")
    result = await bench.invoke(graph, ask("One?"))
    assert messages_of(result)[4] == ("tool", "Nobody knows.")
    assert result["quality_gate"]["revisions"] == 1
    *others, last = outputs(bench.server)
    assert others == ["Wait.", "Draft 1.", "Draft 2."]
    assert last.endswith("2. assistant (final answer): None.")
    assert inputs(bench.server) == ["One?", "Which?", "Which?", "One?"]


class Judged(MessagesState):
    """A parent state with the gate's verdict."""

    quality_gate: NotRequired[GateVerdict]


@tool
def screenshot(call_id: Annotated[str, InjectedToolCallId]) -> Command[Any]:
    """Take a screenshot."""
    shown = [ToolMessage("See below.", tool_call_id=call_id), HumanMessage("The screenshot")]
    return Command(update={"messages": shown})


async def test_nested_gate_judges_the_draft_after_a_tools_human_message(bench: Bench) -> None:
    AgentModel(bench.server, "Draft 1.", calls("screenshot"), "Draft 2.")
    bench.server.rules = fails("Draft")
    made = gate(bench, max_revisions=1, fallback="Later.")
    inner = agent(bench, made, tools=[screenshot], **APART)
    result = await bench.invoke(bench.compile(writing(inner, Judged)), ask())
    assert result["quality_gate"]["status"] == "exhausted"
    assert messages_of(result)[-1] == ("ai", "Later.")


@pytest.mark.parametrize("sees", ["answer", "turn"])
async def test_a_human_message_of_a_tool_is_not_the_request(bench: Bench, sees: Sees) -> None:
    AgentModel(bench.server, calls("screenshot"), "Draft.", calls("screenshot"), "So sorry!")
    bench.server.rules = fails("Draft")
    result = await bench.invoke(agent(bench, gate(bench, sees=sees), tools=[screenshot]), ask())
    verdict = result["quality_gate"]
    assert (verdict["status"], verdict["revisions"]) == ("accepted", 1)
    assert inputs(bench.server) == [QUESTION, QUESTION]
    shown = outputs(bench.server)[-1]
    assert shown == "So sorry!" if sees == "answer" else "user: The screenshot" in shown


@pytest.mark.parametrize("handed_over", [True, False])
@pytest.mark.parametrize("nested", [True, False])
async def test_a_request_after_a_tools_result_is_judged(
    bench: Bench, *, nested: bool, handed_over: bool
) -> None:
    """Such as after a run that broke, or after a tool whose result was the answer."""
    AgentModel(bench.server, "Second.")
    options = APART if nested else {}
    graph = agent(bench, gate(bench, sees="answer"), tools=[screenshot], **options)
    graph = bench.compile(writing(graph, Judged)) if nested else graph
    call = ToolCall(name="screenshot", args={}, id="1")
    tools = [AIMessage("", tool_calls=[call]), ToolMessage("See below.", tool_call_id="1")]
    after = [("ai", "My colleague will help.")] * (nested and handed_over)
    asked = {"messages": [*ask()["messages"], *tools, ("human", "Two?"), *after]}
    result = await bench.invoke(graph, asked)
    assert result["quality_gate"]["status"] == "accepted"
    assert inputs(bench.server) == ["Two?"]


@pytest.mark.parametrize("colleagues", [1, 2])
async def test_verdicts_of_subagents_do_not_replace_the_agents(
    bench: Bench, colleagues: int
) -> None:
    """deepagents copies the keys of a subagent's state into the agent's."""

    @tool
    def consult(call_id: Annotated[str, InjectedToolCallId]) -> Command[Any]:
        """Ask a colleague."""
        verdict = {"gate": "quality_gate", "status": "accepted", "passed": True, "value": True}
        verdict |= {"let_through": True, "turn": "another"}
        answer = [ToolMessage("Fine.", tool_call_id=call_id)]
        return Command(update={"quality_gate": verdict, "messages": answer})

    AgentModel(bench.server, "Draft.", Calls(*[("consult", {})] * colleagues))
    bench.server.rules = fails("Draft")
    limit = ModelCallLimitMiddleware(run_limit=2, exit_behavior="end")
    result = await bench.invoke(agent(bench, limit, gate(bench), tools=[consult]), ask())
    verdict = result["quality_gate"]
    assert (verdict["status"], verdict["revisions"]) == ("exhausted", 1)
    assert (verdict["passed"], verdict["let_through"], verdict["value"]) == (False, False, False)


async def test_agent_in_a_parent_graph_counts_revisions_per_turn(bench: Bench) -> None:
    AgentModel(bench.server, *(f"Draft {number}." for number in range(4)))
    inner = agent(bench, gate(bench, review="always", max_revisions=1), **APART)
    graph = bench.compile(writing(inner, Judged))
    for drafts in (1, 2):
        assert pending(await bench.invoke(graph, ask()))["name"] == "review_judgment"
        assert pending(await bench.resume(graph, COLD))["args"]["value"] is True
        result = await bench.resume(graph, {"value": False})
        assert result["quality_gate"]["status"] == "exhausted"
        assert result["quality_gate"]["revisions"] == 1
        assert len(judgings(bench.server)) == 2 * drafts
    assert [kind for kind, _ in messages_of(result)][:4] == ["human", "ai", "human", "ai"]
