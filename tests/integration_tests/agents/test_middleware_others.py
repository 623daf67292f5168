"""A gate beside langchain's own middleware, and on agents that answer in a shape."""

from typing import Any

import pytest
from langchain.agents.middleware import (
    AgentMiddleware,
    HumanInTheLoopMiddleware,
    ModelCallLimitMiddleware,
    SummarizationMiddleware,
    ToolCallLimitMiddleware,
    hook_config,
)
from langchain.agents.structured_output import ProviderStrategy, ToolStrategy
from langchain_core.messages import AIMessage, RemoveMessage

from tests.conftest import COLD, Bench, judgings
from tests.integration_tests.agents.support import (
    AgentModel,
    agent,
    ask,
    calls,
    fails,
    gate,
    said,
    track,
)
from tests.integration_tests.gates.support import DOWN, QUESTION, REASON, inputs, outputs, pending

APPROVE = {"decisions": [{"type": "approve"}]}
ORDERS = pytest.mark.parametrize("gate_first", [True, False], ids=["gate-first", "gate-last"])


def both(made: Any, other: Any, *, gate_first: bool) -> list[Any]:
    return [made, other] if gate_first else [other, made]


def signed(state: Any) -> dict[str, Any]:
    """Sign what the model wrote, in a message of its own."""
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
    """Refuses what is asked for before the model has seen it."""

    @hook_config(can_jump_to=["end"])
    def before_agent(self, state: Any, runtime: Any) -> dict[str, Any] | None:
        if "harm" not in state["messages"][-1].text:
            return None
        return {"messages": [AIMessage("I may not help with that.")], "jump_to": "end"}


async def test_conversation_that_is_summarised_is_judged_by_its_last_question(bench: Bench) -> None:
    """Also where the summary takes the question away while its answer is revised."""
    summary = SummarizationMiddleware(
        bench.server.chat_model(max_retries=0), trigger=("messages", 3), keep=("messages", 1)
    )
    bench.server.rules = fails("Draft")
    model = AgentModel(bench.server, "Draft 1.", "They spoke of an order.", "So sorry!")
    graph = agent(bench, summary, gate(bench))
    given = await bench.invoke(graph, ask())
    assert given["quality_gate"]["status"] == "accepted"
    model.then("They spoke of one and two.", "Second.")
    given = await bench.invoke(graph, ask("Two?"))
    assert "They spoke of one and two." in said(given)[0][1]
    assert inputs(bench.server) == [QUESTION, QUESTION, "Two?"]
    assert outputs(bench.server) == ["Draft 1.", "So sorry!", "Second."]
    assert model.left == 0


@pytest.mark.parametrize("limit", [1, 2])
async def test_notice_that_the_limit_is_reached_is_not_sent_back_again_and_again(
    bench: Bench, limit: int
) -> None:
    model = AgentModel(bench.server, *["Draft 1.", "Draft 2."][:limit])
    bench.server.rules = fails("Draft", "limit")
    limits = ModelCallLimitMiddleware(run_limit=limit, exit_behavior="end")
    given = await bench.invoke(agent(bench, limits, gate(bench, max_revisions=5)), ask())
    notices = [text for _, text in said(given) if "Model call limits exceeded" in text]
    assert len(notices) == 1
    assert len(model.requests) == len(outputs(bench.server)) == limit
    assert (given["quality_gate"]["status"], given["quality_gate"]["let_through"]) == (
        "exhausted",
        False,
    )


@ORDERS
@pytest.mark.parametrize("limit", [ModelCallLimitMiddleware, ToolCallLimitMiddleware])
async def test_notice_after_a_tool_was_called_is_no_answer(
    bench: Bench, limit: Any, *, gate_first: bool
) -> None:
    model = AgentModel(bench.server, calls("track", order="1"), calls("track", order="2"))
    made = gate(bench, review="always")
    limits = limit(run_limit=1, exit_behavior="end")
    graph = agent(bench, *both(made, limits, gate_first=gate_first), tools=[track])
    given = await bench.invoke(graph, ask())
    assert "__interrupt__" not in given
    assert judgings(bench.server) == []
    assert len(model.requests) == (1 if limit is ModelCallLimitMiddleware else 2)
    assert "limit" in said(given)[-1][1]
    assert given["quality_gate"] == {}


@ORDERS
async def test_refusal_of_a_guard_is_not_judged_nor_sent_to_the_model(
    bench: Bench, *, gate_first: bool
) -> None:
    """Nor has it the verdict of a turn that broke off."""
    model = AgentModel(bench.server, "Draft 1.", DOWN)
    bench.server.rules = fails("Draft", "I may not")
    made = gate(bench, fallback="Later.")
    graph = agent(bench, *both(made, Guard(), gate_first=gate_first))
    with pytest.raises(Exception, match="It broke"):
        await bench.invoke(graph, ask())
    assert (await bench.state(graph)).values["quality_gate"]["status"] == "revise"
    given = await bench.invoke(graph, ask("Do harm."))
    assert said(given)[-1] == ("ai", "I may not help with that.")
    assert not given["quality_gate"].get("judgment")
    brought = {"status": "revise", "judgment": 1}
    given = await bench.invoke(graph, {**ask("Do harm."), "quality_gate": brought}, "u")
    assert given["quality_gate"] == {}
    assert len(model.requests) == 2


@pytest.mark.parametrize(
    ("signs", "gate_first"),
    [
        (SignsAfterModel, True),
        (SignsAfterModel, False),
        (SignsAfterAgent, True),
        (SignsInPlace, True),
    ],
)
async def test_answer_that_another_middleware_rewrites_is_judged_as_it_will_be_read(
    bench: Bench, *, signs: Any, gate_first: bool
) -> None:
    AgentModel(bench.server, "So sorry!")
    bench.server.rules = fails("Signed: cold.")
    made = gate(bench, max_revisions=0, fallback="Later.")
    given = await bench.invoke(agent(bench, *both(made, signs(), gate_first=gate_first)), ask())
    assert outputs(bench.server) == ["So sorry! Signed: cold."]
    assert given["quality_gate"]["status"] == "exhausted"
    assert said(given)[-1] == ("ai", "Later.")


class Shop:
    """A tool that must not run unasked."""

    def __init__(self) -> None:
        self.refunded: list[str] = []

    def refund(self, order: str) -> str:
        """Pay an order back."""
        self.refunded.append(order)
        return f"{order} is paid back."


@ORDERS
async def test_approvals_and_reviews_follow_each_other_on_one_thread(
    bench: Bench, *, gate_first: bool
) -> None:
    shop = Shop()
    approvals = HumanInTheLoopMiddleware({"refund": True})
    made = gate(bench, review="always", max_revisions=1, sees="answer")
    graph = agent(bench, *both(made, approvals, gate_first=gate_first), tools=[shop.refund])
    texts = ("Paid back.", calls("refund", order="2"), "I may not, sorry!")
    model = AgentModel(bench.server, calls("refund", order="1"), *texts)
    context = {"memalign": {"namespace": ["team-a"]}}
    given = await bench.invoke(graph, ask(), context=context)
    assert pending(given)["name"] == "refund"
    assert (shop.refunded, judgings(bench.server)) == ([], [])
    given = await bench.resume(graph, APPROVE)
    assert pending(given)["name"] == "review_judgment"
    two = {"decisions": [{"type": "approve"}, {"type": "approve"}]}
    assert "one judgment to decide on" in await bench.refuse(graph, two)
    given = await bench.resume(graph, COLD)
    assert pending(given)["name"] == "refund"
    reply = {"decisions": [{"type": "reject", "message": "No more refunds today."}]}
    given = await bench.resume(graph, reply)
    assert pending(given)["args"]["value"] is True
    verdict = (await bench.resume(graph, APPROVE))["quality_gate"]
    assert (verdict["status"], verdict["revisions"]) == ("accepted", 1)
    assert outputs(bench.server) == ["Paid back.", "I may not, sorry!"]
    assert (len(model.requests), shop.refunded) == (4, ["1"])
    assert await bench.episodes() == []
    assert len(await bench.episodes(namespace=("team-a",))) == 2


SHAPE: dict[str, Any] = {
    "title": "reply",
    "type": "object",
    "description": "A reply to a customer.",
    "properties": {"text": {"type": "string"}, "sure": {"type": "boolean"}},
    "required": ["text", "sure"],
    "additionalProperties": False,
}
STRATEGIES = pytest.mark.parametrize("strategy", [ToolStrategy, ProviderStrategy])


def replies(strategy: Any, *texts: str) -> list[Any]:
    """What the agent's model answers, in the shape."""
    bodies = [{"text": text, "sure": True} for text in texts]
    return [calls("reply", **body) if strategy is ToolStrategy else body for body in bodies]


@STRATEGIES
async def test_structured_response_that_fails_is_made_again(bench: Bench, strategy: Any) -> None:
    model = AgentModel(bench.server, *replies(strategy, "Wait.", "So sorry!"))
    bench.server.rules = fails("Wait.")
    graph = agent(bench, gate(bench), response_format=strategy(SHAPE))
    given = await bench.invoke(graph, ask())
    assert given["structured_response"] == {"text": "So sorry!", "sure": True}
    assert given["quality_gate"]["revisions"] == 1
    last = model.requests[1].messages[-1]
    assert (last["role"], REASON in str(last["content"])) == ("user", True)
    model.then(*replies(strategy, "A new cup comes."))
    given = await bench.invoke(graph, ask("The cup is broken."))
    assert given["structured_response"]["text"] == "A new cup comes."
    for judged, text in zip(
        outputs(bench.server), ("Wait.", "So sorry!", "A new cup comes."), strict=True
    ):
        assert f'"text": "{text}"' in judged
        assert judged.count('"text"') == judged.count('"sure": true') == 1


@STRATEGIES
async def test_answer_that_a_fallback_replaced_is_nowhere_to_be_read(
    bench: Bench, strategy: Any
) -> None:
    AgentModel(bench.server, *replies(strategy, "Wait."))
    bench.server.rules = fails("Wait.")
    made = gate(bench, max_revisions=0, fallback="Later.")
    given = await bench.invoke(agent(bench, made, response_format=strategy(SHAPE)), ask())
    assert given.get("structured_response") is None
    assert given["messages"][-1].text == "Later."
    assert "Wait." not in str(given["messages"])
