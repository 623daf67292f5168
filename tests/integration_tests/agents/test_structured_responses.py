"""Structured responses of agents, and a gate."""

from typing import Any

import pytest
from langchain.agents.structured_output import ProviderStrategy, ToolStrategy
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from pydantic import BaseModel, Field

from tests.conftest import Bench
from tests.integration_tests.agents.support import (
    APPROVE,
    AgentModel,
    Calls,
    agent,
    ask,
    calls,
    fails,
    gate,
    track,
)
from tests.integration_tests.gates.support import REASON, outputs

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
    """The model's structured responses."""
    bodies = [{"text": text, "sure": True} for text in texts]
    return [calls("reply", **body) if strategy is ToolStrategy else body for body in bodies]


@STRATEGIES
async def test_failed_structured_response_is_regenerated(bench: Bench, strategy: Any) -> None:
    model = AgentModel(bench.server, *replies(strategy, "Wait.", "So sorry!"))
    bench.server.rules = fails("Wait.")
    graph = agent(bench, gate(bench), response_format=strategy(SHAPE))
    result = await bench.invoke(graph, ask())
    assert result["structured_response"] == {"text": "So sorry!", "sure": True}
    assert result["quality_gate"]["revisions"] == 1
    last = model.requests[1].messages[-1]
    assert (last["role"], REASON in str(last["content"])) == ("user", True)
    model.then(*replies(strategy, "A new cup comes."))
    result = await bench.invoke(graph, ask("The cup is broken."))
    assert result["structured_response"]["text"] == "A new cup comes."
    drafts = ("Wait.", "So sorry!", "A new cup comes.")
    for judged, text in zip(outputs(bench.server), drafts, strict=True):
        assert f'"text": "{text}"' in judged
        assert judged.count('"text"') == judged.count('"sure": true') == 1


class Order(BaseModel):
    """An order."""

    order_id: str = Field(alias="orderId")


async def test_approval_counts_where_a_strict_serializer_restores_field_names(bench: Bench) -> None:
    AgentModel(bench.server, calls("Order", orderId="A7"))
    saver = InMemorySaver(serde=JsonPlusSerializer(allowed_msgpack_modules=None))
    made = gate(bench, review="always", max_revisions=0)
    graph = agent(bench, made, response_format=ToolStrategy(Order), checkpointer=saver)
    await bench.invoke(graph, ask())
    result = await bench.resume(graph, APPROVE)
    assert (result["quality_gate"]["status"], len(outputs(bench.server))) == ("accepted", 1)


@STRATEGIES
async def test_answer_before_a_fallback_is_removed(bench: Bench, strategy: Any) -> None:
    AgentModel(bench.server, *replies(strategy, "Wait."))
    bench.server.rules = fails("Wait.")
    made = gate(bench, max_revisions=0, fallback="Later.")
    result = await bench.invoke(agent(bench, made, response_format=strategy(SHAPE)), ask())
    assert result.get("structured_response") is None
    assert result["messages"][-1].text == "Later."
    assert "Wait." not in str(result["messages"])


async def test_structured_response_beside_a_tools_call_is_judged(bench: Bench) -> None:
    """The judge sees what the tool did, also beside a response that was sent back."""
    replies = [
        Calls(("track", {"order": order}), ("reply", {"text": text, "sure": True}))
        for order, text in (("1", "Wait."), ("2", "Wait!"))
    ]
    bench.server.rules = fails("Wait")
    for revisions in (0, 1):
        bench.server.chats.clear()
        AgentModel(bench.server, *replies)
        made = gate(bench, max_revisions=revisions, fallback="Later.")
        graph = agent(bench, made, tools=[track], response_format=ToolStrategy(SHAPE))
        result = await bench.invoke(graph, ask(), str(revisions))
        assert result["quality_gate"]["status"] == "exhausted"
        assert result.get("structured_response") is None
    judged = outputs(bench.server)[-1].splitlines()
    assert judged == [
        '1. called track(order="1")',
        "   returned: 1 is in Rome.",
        '2. called track(order="2")',
        "   returned: 2 is in Rome.",
        '3. assistant (final answer): {"text": "Wait!", "sure": true}',
    ]
