"""A gate beside other middleware: summaries, limits, guards, rewritten answers, approvals."""

from typing import Any

import pytest
from langchain.agents.middleware import (
    AgentMiddleware,
    HumanInTheLoopMiddleware,
    ModelCallLimitMiddleware,
    ModelRetryMiddleware,
    PIIMiddleware,
    SummarizationMiddleware,
    ToolCallLimitMiddleware,
    hook_config,
)
from langchain_core.messages import AIMessage, RemoveMessage
from langchain_core.tools import tool

from tests.conftest import COLD, DOWN, Bench, judgings
from tests.integration_tests.agents.support import (
    APPROVE,
    AgentModel,
    Calls,
    agent,
    ask,
    calls,
    fails,
    gate,
    messages_of,
    track,
)
from tests.integration_tests.gates.support import QUESTION, inputs, outputs, pending

REMOVED = "1. system: The first messages of this turn were removed from the conversation."
ORDERS = pytest.mark.parametrize("gate_first", [True, False], ids=["gate-first", "gate-last"])


def both(made: Any, other: Any, *, gate_first: bool) -> list[Any]:
    return [made, other] if gate_first else [other, made]


def signed(state: Any) -> dict[str, Any]:
    """Append a signature as a separate message."""
    last = state["messages"][-1]
    return {"messages": [RemoveMessage(id=last.id), AIMessage(f"{last.text} Signed: cold.")]}


class SignsAfterModel(AgentMiddleware[Any, Any, Any]):
    def after_model(self, state: Any, runtime: Any) -> dict[str, Any]:
        return signed(state)


class SignsAfterAgent(AgentMiddleware[Any, Any, Any]):
    def after_agent(self, state: Any, runtime: Any) -> dict[str, Any]:
        return signed(state)


class SignsInPlace(AgentMiddleware[Any, Any, Any]):
    def after_agent(self, state: Any, runtime: Any) -> dict[str, Any]:
        last = state["messages"][-1]
        return {"messages": [AIMessage(f"{last.text} Signed: cold.", id=last.id)]}


class Guard(AgentMiddleware[Any, Any, Any]):
    """Refuses the request before the model is called."""

    @hook_config(can_jump_to=["end"])
    def before_agent(self, state: Any, runtime: Any) -> dict[str, Any] | None:
        if "harm" not in state["messages"][-1].text:
            return None
        return {"messages": [AIMessage("I may not help with that.")], "jump_to": "end"}


def find() -> str:
    """Find the last order."""
    return "It is 4711."


def summarizing(bench: Bench, after: int, keep: int = 1) -> SummarizationMiddleware:
    model = bench.server.chat_model(max_retries=0)
    return SummarizationMiddleware(model, trigger=("messages", after), keep=("messages", keep))


async def test_summarized_conversation_is_judged_with_its_last_question(bench: Bench) -> None:
    """Also if the question is summarized away during a revision."""
    summary = summarizing(bench, 3)
    bench.server.rules = fails("Draft")
    model = AgentModel(bench.server, "Draft 1.", "They spoke of an order.", "So sorry!")
    graph = agent(bench, summary, gate(bench))
    result = await bench.invoke(graph, ask())
    assert result["quality_gate"]["status"] == "accepted"
    model.then("They spoke of one and two.", "Second.")
    result = await bench.invoke(graph, ask("Two?"))
    assert "They spoke of one and two." in messages_of(result)[0][1]
    assert inputs(bench.server) == [QUESTION, QUESTION, "Two?"]
    first, revised, last = outputs(bench.server)
    assert (first, last, model.left) == ("Draft 1.", "Second.", 0)
    assert revised.splitlines() == [REMOVED, "2. assistant (final answer): So sorry!"]


async def test_answer_is_judged_after_its_question_was_redacted_and_summarized(
    bench: Bench,
) -> None:
    summary = summarizing(bench, 4, keep=2)
    redacting = PIIMiddleware("email", strategy="redact")
    track_twice = [calls("track", order="1"), calls("track", order="2")]
    AgentModel(bench.server, *track_twice, "They asked for an order.", "So sorry!")
    graph = agent(bench, redacting, summary, gate(bench), tools=[track])
    result = await bench.invoke(graph, ask("I am bob@example.com."))
    assert result["quality_gate"]["status"] == "accepted"
    assert inputs(bench.server) == ["I am [REDACTED_EMAIL]."]
    assert "bob@" not in str((await bench.state(graph)).values)
    [judged] = outputs(bench.server)
    assert judged.splitlines() == [
        REMOVED,
        '2. called track(order="2")',
        "   returned: 2 is in Rome.",
        "3. assistant (final answer): So sorry!",
    ]


@pytest.mark.parametrize("limit", [1, 2])
async def test_model_call_limit_notice_is_not_revised(bench: Bench, limit: int) -> None:
    model = AgentModel(bench.server, *["Draft 1.", "Draft 2."][:limit])
    bench.server.rules = fails("Draft", "limit")
    limits = ModelCallLimitMiddleware(run_limit=limit, exit_behavior="end")
    result = await bench.invoke(agent(bench, limits, gate(bench, max_revisions=5)), ask())
    notices = [text for _, text in messages_of(result) if "Model call limits exceeded" in text]
    assert len(notices) == 1
    assert len(model.requests) == len(outputs(bench.server)) == limit
    verdict = result["quality_gate"]
    assert (verdict["status"], verdict["let_through"]) == ("exhausted", False)


@ORDERS
@pytest.mark.parametrize("limit", [ModelCallLimitMiddleware, ToolCallLimitMiddleware])
async def test_limit_notice_is_not_judged(bench: Bench, limit: Any, *, gate_first: bool) -> None:
    model = AgentModel(bench.server, calls("track", order="1"), calls("track", order="2"))
    made = gate(bench, review="always")
    limits = limit(run_limit=1, exit_behavior="end")
    graph = agent(bench, *both(made, limits, gate_first=gate_first), tools=[track])
    result = await bench.invoke(graph, ask())
    assert "__interrupt__" not in result
    assert judgings(bench.server) == []
    assert len(model.requests) == (1 if limit is ModelCallLimitMiddleware else 2)
    assert "limit" in messages_of(result)[-1][1]
    assert result["quality_gate"] == {}


class Budget(AgentMiddleware[Any, Any, Any]):
    """Ends the turn after a tool."""

    @hook_config(can_jump_to=["end"])
    def before_model(self, state: Any, runtime: Any) -> dict[str, Any] | None:
        return {"jump_to": "end"} if messages_of(state)[-1][0] == "tool" else None


@ORDERS
async def test_tools_result_is_no_answer_if_a_guard_ends_the_turn(
    bench: Bench, *, gate_first: bool
) -> None:
    """Also if the last of two results would be the answer by itself."""
    AgentModel(
        bench.server, calls("track", order="1"), Calls(("track", {"order": "2"}), ("find", {}))
    )
    made = gate(bench, review="always", fallback="Later.")
    middleware = both(made, Budget(), gate_first=gate_first)
    graph = agent(bench, *middleware, tools=[tool(return_direct=True)(find), track])
    for thread in ("one tool", "two tools"):
        result = await bench.invoke(graph, ask(), thread)
        assert (result["quality_gate"], "__interrupt__" in result) == ({}, False)
        assert messages_of(result)[-1][0] == "tool"
    assert judgings(bench.server) == []


@ORDERS
async def test_refusal_of_a_guard_is_not_judged(bench: Bench, *, gate_first: bool) -> None:
    """The verdict of an earlier failed turn is not reused."""
    model = AgentModel(bench.server, "Draft 1.", DOWN)
    bench.server.rules = fails("Draft", "I may not")
    made = gate(bench, fallback="Later.")
    graph = agent(bench, *both(made, Guard(), gate_first=gate_first))
    with pytest.raises(Exception, match="It broke"):
        await bench.invoke(graph, ask())
    assert (await bench.state(graph)).values["quality_gate"]["status"] == "revise"
    result = await bench.invoke(graph, ask("Do harm."))
    assert messages_of(result)[-1] == ("ai", "I may not help with that.")
    assert not result["quality_gate"].get("judgment")
    brought = {"status": "revise", "judgment": 1}
    result = await bench.invoke(graph, {**ask("Do harm."), "quality_gate": brought}, "u")
    assert result["quality_gate"] == {}
    assert len(model.requests) == 2


@pytest.mark.parametrize("broken_off", [False, True])
@pytest.mark.parametrize("is_first", [False, True])
async def test_later_refusal_of_a_guard(bench: Bench, *, is_first: bool, broken_off: bool) -> None:
    """A guard before the gate skips the node that resets the gate's state."""
    bench.server.rules = fails("may not")
    model = AgentModel(bench.server, "Good.")
    middleware = [Guard(), gate(bench, review="always" if broken_off else "never")]
    graph = agent(bench, *(middleware if is_first else reversed(middleware)))
    await bench.invoke(graph, ask())
    result = await bench.invoke(graph, ask("Do harm."))
    assert messages_of(result)[-1] == ("ai", "I may not help with that.")
    assert result["quality_gate"] == {}
    assert len(model.requests) == len(judgings(bench.server)) == 1


class JumpsToTheModel(AgentMiddleware[Any, Any, Any]):
    @hook_config(can_jump_to=["model"])
    def before_agent(self, state: Any, runtime: Any) -> dict[str, Any]:
        return {"jump_to": "model"}


async def test_every_turn_is_judged_if_middleware_jumps_past_the_gates_hook(bench: Bench) -> None:
    AgentModel(bench.server, "Good.", "Draft 1.", "Draft 2.")
    bench.server.rules = fails("Draft")
    graph = agent(bench, JumpsToTheModel(), gate(bench, max_revisions=0, fallback="Later."))
    answers = [messages_of(await bench.invoke(graph, ask()))[-1][1] for _ in range(3)]
    assert answers == ["Good.", "Later.", "Later."]


class Wrapper(AgentMiddleware[Any, Any, Any]):
    """Answers instead of the model."""

    def wrap_model_call(self, request: Any, handler: Any) -> AIMessage:
        return AIMessage("I may not help with that.")


@pytest.mark.parametrize("gate_first", [True, False])
async def test_gate_judges_only_what_the_calls_around_it_left_to_the_model(
    bench: Bench, *, gate_first: bool
) -> None:
    retries = ModelRetryMiddleware(max_retries=0, on_failure="continue")
    for other, model_calls in ((retries, 1), (Wrapper(), 0)):
        model = AgentModel(bench.server, DOWN)
        graph = agent(bench, *both(gate(bench), other, gate_first=gate_first))
        result = await bench.invoke(graph, ask(), str(model_calls))
        assert (result["quality_gate"] == {}) is not gate_first
        assert len(model.requests) == model_calls
    assert len(judgings(bench.server)) == (2 if gate_first else 0)


@pytest.mark.parametrize(
    ("signs", "gate_first"),
    [
        (SignsAfterModel, True),
        (SignsAfterModel, False),
        (SignsAfterAgent, True),
        (SignsInPlace, True),
    ],
)
async def test_rewritten_answer_is_judged(bench: Bench, *, signs: Any, gate_first: bool) -> None:
    AgentModel(bench.server, "So sorry!")
    bench.server.rules = fails("Signed: cold.")
    made = gate(bench, max_revisions=0, fallback="Later.")
    result = await bench.invoke(agent(bench, *both(made, signs(), gate_first=gate_first)), ask())
    assert outputs(bench.server) == ["So sorry! Signed: cold."]
    assert result["quality_gate"]["status"] == "exhausted"
    assert messages_of(result)[-1] == ("ai", "Later.")


class Shop:
    """A tool that needs approval."""

    def __init__(self) -> None:
        self.refunded: list[str] = []

    def refund(self, order: str) -> str:
        """Pay an order back."""
        self.refunded.append(order)
        return f"{order} is paid back."


@ORDERS
async def test_approvals_and_reviews_on_one_thread(bench: Bench, *, gate_first: bool) -> None:
    shop = Shop()
    approvals = HumanInTheLoopMiddleware({"refund": True})
    made = gate(bench, review="always", max_revisions=1, sees="answer")
    graph = agent(bench, *both(made, approvals, gate_first=gate_first), tools=[shop.refund])
    texts = ("Paid back.", calls("refund", order="2"), "I may not, sorry!")
    model = AgentModel(bench.server, calls("refund", order="1"), *texts)
    context = {"memalign": {"namespace": ["team-a"]}}
    result = await bench.invoke(graph, ask(), context=context)
    assert pending(result)["name"] == "refund"
    assert (shop.refunded, judgings(bench.server)) == ([], [])
    result = await bench.resume(graph, APPROVE)
    assert pending(result)["name"] == "review_judgment"
    two = {"decisions": [{"type": "approve"}, {"type": "approve"}]}
    assert "the reply has 2 decisions: send one" in await bench.refuse(graph, two)
    result = await bench.resume(graph, COLD)
    assert pending(result)["name"] == "refund"
    reply = {"decisions": [{"type": "reject", "message": "No more refunds today."}]}
    result = await bench.resume(graph, reply)
    assert pending(result)["args"]["value"] is True
    verdict = (await bench.resume(graph, APPROVE))["quality_gate"]
    assert (verdict["status"], verdict["revisions"]) == ("accepted", 1)
    assert outputs(bench.server) == ["Paid back.", "I may not, sorry!"]
    assert (len(model.requests), shop.refunded) == (4, ["1"])
    assert await bench.episodes() == []
    assert len(await bench.episodes(namespace=("team-a",))) == 2
