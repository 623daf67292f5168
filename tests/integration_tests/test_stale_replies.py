"""A reply applies only to the verdict that was shown, for each durability mode."""

import threading
from collections.abc import Callable
from typing import Any

import pytest
from langchain_core.messages import AIMessage
from langgraph.func import entrypoint
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode
from langgraph.types import Command
from typing_extensions import TypedDict

from memalign_graph import (
    Criterion,
    InvalidInputError,
    create_panel_graph,
    create_quality_gate_tool,
    create_review_graph,
)
from tests.conftest import CASE, CRITERION, EVERY_WAY, Bench, Graph, judgings, thread
from tests.integration_tests.agents.support import AgentModel, agent, calls, gate
from tests.integration_tests.gates.support import Counted, Writer, asked, gated, models, wired
from tests.integration_tests.panels.support import FACTS, LENGTH, TONE, Parent, reviewed
from tests.loopback import ChatRequest, LoopbackServer, Rule

APPROVE = {"type": "approve"}
CHECK = calls("check_quality", inputs="My order never came.", outputs="Wait.")


class Judged(TypedDict):
    inputs: Any
    outputs: Any
    judgment: Any
    feedback: Any
    learned: Any


def judge_that_changes(server: LoopbackServer, count: int = 1) -> None:
    """A judge whose first verdicts pass and later ones fail."""
    replies_left = [True] * count

    def is_later(chat: ChatRequest) -> bool:
        return chat.schema_name == "judgment" and not (replies_left and replies_left.pop())

    server.rules = [Rule(is_later, value=False, rationale="On second thought, no.")]


def outer_graph(bench: Bench, inner: Any, state: Any, **compiled: Any) -> Graph:
    builder = StateGraph(state)
    builder.add_node("inner", inner.compile(**compiled))
    builder.add_edge(START, "inner")
    return bench.compile(builder)


def review(bench: Bench, **options: Any) -> Any:
    return create_review_graph(CRITERION, **models(bench), **options)


def with_tool(bench: Bench) -> Graph:
    AgentModel(bench.server, CHECK, "Done.")
    tool = create_quality_gate_tool(CRITERION, **models(bench, review="always"))
    return agent(bench, tools=[tool])


def with_middleware(bench: Bench) -> Graph:
    AgentModel(bench.server, "Wait.")
    return agent(bench, gate(bench, review="always"))


ALWAYS: Any = {"review": "always"}
GRAPHS: dict[str, Callable[[Bench], Graph]] = {
    "gate": lambda bench: gated(bench, Writer("Wait."), **ALWAYS),
    "gate, wired": lambda bench: wired(bench, Writer("Wait."), Counted, **ALWAYS),
    "middleware": with_middleware,
    "tool": with_tool,
    "review": lambda bench: outer_graph(bench, review(bench), Judged),
    "panel in a graph": lambda bench: outer_graph(
        bench, create_panel_graph([CRITERION], **models(bench, **ALWAYS)), Parent
    ),
}


@EVERY_WAY("memory-sync", "sqlite-async")
@pytest.mark.parametrize("kind", GRAPHS)
async def test_thread_saved_at_exit_is_judged_once(bench: Bench, kind: str) -> None:
    judge_that_changes(bench.server)
    case = CASE if kind.startswith(("review", "panel")) else asked()
    graph = GRAPHS[kind](bench)
    stopped = await bench.invoke(graph, case, durability="exit")
    assert "__interrupt__" in stopped
    await bench.resume(graph, APPROVE, durability="exit")
    assert len(judgings(bench.server)) == 1
    [episode] = await bench.episodes()
    assert episode.value is True


OTHER_CASE = {"inputs": "The cup is broken.", "outputs": "Send it back."}


@pytest.mark.parametrize(
    ("durability", "checkpointer"), [("sync", None), ("exit", True), ("exit", None)]
)
async def test_two_graphs_in_one_node(bench: Bench, durability: Any, checkpointer: Any) -> None:
    inner = review(bench).compile(checkpointer=checkpointer)

    def judge_both(_state: Any) -> dict[str, Any]:
        inner.invoke(CASE)
        inner.invoke(OTHER_CASE)
        return {}

    builder: Any = StateGraph(Judged)
    builder.add_node("both", judge_both)
    builder.add_edge(START, "both")
    graph = bench.compile(builder)
    await bench.invoke(graph, CASE, durability=durability)
    stopped = await bench.resume(graph, {"value": True}, durability=durability)
    [question] = stopped["__interrupt__"]
    named = question.value["action_requests"][0]["args"]["judgment_id"]
    reply = {"value": False, "judgment_id": named}
    if (durability, checkpointer) == ("exit", None):
        # LangGraph asks the first question again; the id shows that the answer is to the second.
        assert "the answer is to the judgment" in await bench.refuse(graph, reply)
        assert [episode.value for episode in await bench.episodes()] == [True]
        return
    assert "__interrupt__" not in await bench.resume(graph, reply, durability=durability)
    values_by_inputs = {episode.example.inputs: episode.value for episode in await bench.episodes()}
    assert values_by_inputs == {CASE["inputs"]: True, OTHER_CASE["inputs"]: False}
    assert len(judgings(bench.server)) == 2


async def test_decision_is_not_applied_to_an_unseen_verdict(bench: Bench) -> None:
    """Without its own checkpointer, the inner graph judges again when resumed."""
    judge_that_changes(bench.server)
    graph = outer_graph(bench, review(bench), Judged, checkpointer=False)
    [question] = (await bench.invoke(graph, CASE))["__interrupt__"]
    assert question.value["action_requests"][0]["args"]["value"] is True
    edit = {"type": "edit", "args": {"value": True, "rationale": "Fine."}}
    replies: list[Any] = [APPROVE, edit, {"type": "reject", "message": "No."}, [{"type": "accept"}]]
    for reply in replies:
        reason = await bench.refuse(graph, reply)
        assert "judged again when the run was resumed: give a `value`" in reason
    assert await bench.episodes() == []
    feedback = (await bench.resume(graph, "Say sorry first."))["feedback"]
    assert (feedback["value"], feedback["rationale"]) == (None, "Say sorry first.")
    assert feedback["judgment"] is None
    assert "On second thought" not in bench.server.chats[-1].text


async def test_panel_applies_no_decision_to_unseen_verdicts(bench: Bench) -> None:
    judge_that_changes(bench.server)
    inner = create_panel_graph([TONE], **models(bench, review="always"))
    graph = outer_graph(bench, inner, Parent, checkpointer=False)
    await bench.invoke(graph, CASE)
    edit = {"type": "edit", "args": {"tone": False, "tone_rationale": "No."}}
    for reply in (APPROVE, edit, {"tone": APPROVE}):
        reason = await bench.refuse(graph, reply)
        assert "judged again" in reason or "no judgment to decide on" in reason
    assert await bench.episodes(criterion=TONE) == []
    done = await bench.resume(graph, {"tone": {"value": True}})
    assert done["feedback"]["tone"]["value"] is True
    assert done["feedback"]["tone"]["judgment"] is None


async def test_reply_about_a_former_criterion_is_not_learned(bench: Bench) -> None:
    """A deployment renames the criterion while an expert is asked."""
    renamed = Criterion(name="accuracy", instructions="Is it true?")
    gates = [gated(bench, Writer("a"), each, **ALWAYS) for each in (CRITERION, renamed)]
    reviews = [bench.review_graph(each) for each in (CRITERION, renamed)]
    for on, graphs, case in (("gate", gates, asked()), ("review", reviews, CASE)):
        await bench.invoke(graphs[0], case, on)
        with pytest.raises(InvalidInputError, match=r"asked about 'support_tone', but .* 'accu"):
            await bench.resume(graphs[1], {"value": True, "author": "ann"}, on)
        # The refused reply does not take the place of the next one.
        await bench.resume(graphs[0], {"value": False, "author": on}, on)
    said = {(each.author, each.value) for each in await bench.episodes()}
    assert said == {("gate", False), ("review", False)}
    assert await bench.episodes(criterion=renamed) == []


async def test_panel_may_lose_and_gain_a_criterion_while_an_expert_is_asked(bench: Bench) -> None:
    await bench.invoke(reviewed(bench, [TONE, FACTS]), CASE)
    graph = reviewed(bench, [TONE, LENGTH])
    assert "'facts', which is not a criterion" in await bench.refuse(graph, {"facts": False})
    done = await bench.resume(graph, {"tone": False, "length": True})
    judged = {name: each["judgment"] is not None for name, each in done["feedback"].items()}
    assert judged == {"tone": True, "length": False}


async def test_gate_tool_does_not_report_another_call_of_the_same_step(bench: Bench) -> None:
    """LangGraph matches subgraphs of one task by order; this test changes the order."""
    bench.server.rules = [Rule(lambda chat: "First." in chat.text, value=False)]
    tool = create_quality_gate_tool(CRITERION, **models(bench, review="always"))
    seen: list[str] = []
    ended = [threading.Event() for _ in range(3)]

    def in_turn(request: Any, handler: Any) -> Any:
        """Run the first call first in round one, and last afterwards."""
        name = request.tool_call["id"]
        turn = len(seen) // 2
        seen.append(name)
        if (name == "First.") is (turn > 0):
            assert ended[turn].wait(10)
        try:
            return handler(request)
        finally:
            ended[turn].set()

    def call_both(_: Any) -> Any:
        texts = ("First.", "Second.")
        values = {text: {"inputs": "?", "outputs": text} for text in texts}
        calls = [{"name": tool.name, "id": text, "args": args} for text, args in values.items()]
        return {"messages": [AIMessage("", tool_calls=calls)]}

    builder: Any = StateGraph(MessagesState)
    builder.add_node("call", call_both)
    builder.add_node("tools", ToolNode([tool], wrap_tool_call=in_turn))
    builder.add_edge(START, "call")
    builder.add_edge("call", "tools")
    graph = bench.compile(builder)
    result = await bench.invoke(graph, asked())
    while questions := result.get("__interrupt__"):
        result = await bench.resume(graph, {question.id: APPROVE for question in questions})
    answers = result["messages"][-2:]
    assert all("one call of this tool" in answer.text for answer in answers)
    episodes = {episode.example.outputs: episode.value for episode in await bench.episodes()}
    assert episodes == {"First.": False, "Second.": True}


async def test_reply_through_another_graph_counts(bench: Bench) -> None:
    """For example a tool that resumes other threads."""
    judge_that_changes(bench.server)
    inner = bench.review_graph(review="always")
    await bench.invoke(inner, CASE, "asked")

    def answer(_: Any) -> dict[str, Any]:
        inner.invoke(Command(resume=APPROVE), thread("asked"))
        return {}

    builder: Any = StateGraph(MessagesState)
    builder.add_node("answer", answer)
    builder.add_edge(START, "answer")
    await bench.invoke(bench.compile(builder), asked())
    assert (await bench.state(inner, "asked")).values["feedback"]["value"] is True
    assert len(judgings(bench.server)) == 1


def test_task_of_the_functional_api_is_judged_once(bench: Bench) -> None:
    judge_that_changes(bench.server)
    inner = review(bench).compile()

    @entrypoint(checkpointer=bench.saver, store=bench.store)
    def flow(case: dict[str, Any]) -> Any:
        return inner.invoke(case)["feedback"]

    assert "__interrupt__" in flow.invoke(CASE, thread("t"))
    feedback: Any = flow.invoke(Command(resume=APPROVE), thread("t"))
    assert (feedback["value"], feedback["judgment"]["value"]) == (True, True)
    assert len(judgings(bench.server)) == 1
