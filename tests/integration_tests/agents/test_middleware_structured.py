"""A gate on agents that answer in a shape, with a tool of their own or the provider's."""

from typing import Any

import pytest
from langchain.agents.structured_output import ProviderStrategy, ToolStrategy

from tests.conftest import COLD, Bench, judgings
from tests.integration_tests.agents.support import (
    AgentModel,
    agent,
    ask,
    calls,
    fails,
    gate,
    pending,
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
STRATEGIES = pytest.mark.parametrize("by_tool", [True, False], ids=["tool", "provider"])


def replies(*texts: str, by_tool: bool) -> list[Any]:
    """What the agent's model answers, in the shape."""
    bodies = [{"text": text, "sure": True} for text in texts]
    return [calls("reply", **body) for body in bodies] if by_tool else list(bodies)


def strategy(*, by_tool: bool) -> Any:
    return ToolStrategy(SHAPE) if by_tool else ProviderStrategy(SHAPE)


@STRATEGIES
async def test_structured_response_is_what_is_judged(bench: Bench, *, by_tool: bool) -> None:
    AgentModel(bench.server, *replies("So sorry!", by_tool=by_tool))
    graph = agent(bench, gate(bench), response_format=strategy(by_tool=by_tool))
    given = await bench.invoke(graph, ask())
    assert given["structured_response"] == {"text": "So sorry!", "sure": True}
    assert given["quality_gate"]["status"] == "accepted"
    [judged] = outputs(bench.server)
    assert '"text": "So sorry!"' in judged
    assert '"sure": true' in judged


@STRATEGIES
async def test_structured_response_that_fails_is_made_again(bench: Bench, *, by_tool: bool) -> None:
    model = AgentModel(bench.server, *replies("Wait.", "So sorry!", by_tool=by_tool))
    bench.server.rules = fails("Wait.")
    graph = agent(bench, gate(bench), response_format=strategy(by_tool=by_tool))
    given = await bench.invoke(graph, ask())
    assert given["structured_response"]["text"] == "So sorry!"
    assert given["quality_gate"]["revisions"] == 1
    assert REASON in str(model.requests[1].messages[-1]["content"])
    assert model.requests[1].messages[-1]["role"] == "user"
    assert [('"Wait."' in one, '"So sorry!"' in one) for one in outputs(bench.server)] == [
        (True, False),
        (False, True),
    ]


@STRATEGIES
async def test_fallback_leaves_no_structured_response(bench: Bench, *, by_tool: bool) -> None:
    AgentModel(bench.server, *replies("Wait.", by_tool=by_tool))
    bench.server.rules = fails("Wait.")
    made = gate(bench, max_revisions=0, fallback="Later.")
    graph = agent(bench, made, response_format=strategy(by_tool=by_tool))
    given = await bench.invoke(graph, ask())
    assert given.get("structured_response") is None
    assert given["messages"][-1].text == "Later."


@STRATEGIES
async def test_answer_that_a_fallback_replaced_is_nowhere_to_be_read(
    bench: Bench, *, by_tool: bool
) -> None:
    AgentModel(bench.server, *replies("Wait.", by_tool=by_tool))
    bench.server.rules = fails("Wait.")
    made = gate(bench, max_revisions=0, fallback="Later.")
    graph = agent(bench, made, response_format=strategy(by_tool=by_tool))
    given = await bench.invoke(graph, ask())
    assert "Wait." not in str(given["messages"])


@STRATEGIES
async def test_structured_response_is_reviewed_and_learned_from(
    bench: Bench, *, by_tool: bool
) -> None:
    model = AgentModel(bench.server, *replies("Wait.", by_tool=by_tool))
    graph = agent(
        bench,
        gate(bench, review="always", max_revisions=0),
        response_format=strategy(by_tool=by_tool),
    )
    given = await bench.invoke(graph, ask())
    assert "Wait." in pending(given)["description"]
    given = await bench.resume(graph, COLD)
    [episode] = await bench.episodes()
    assert episode.example.outputs == {"text": "Wait.", "sure": True}
    assert len(model.requests) == len(judgings(bench.server)) == 1


@STRATEGIES
async def test_next_turn_is_judged_by_its_own_response(bench: Bench, *, by_tool: bool) -> None:
    model = AgentModel(bench.server, *replies("So sorry!", by_tool=by_tool))
    graph = agent(bench, gate(bench), response_format=strategy(by_tool=by_tool))
    await bench.invoke(graph, ask())
    model.then(*replies("A new cup comes.", by_tool=by_tool))
    given = await bench.invoke(graph, ask("The cup is broken."))
    assert given["structured_response"]["text"] == "A new cup comes."
    assert "A new cup comes." in outputs(bench.server)[1]
    assert "So sorry!" not in outputs(bench.server)[1]


async def test_response_of_a_wrong_shape_is_mended_before_it_is_judged(bench: Bench) -> None:
    from pydantic import BaseModel

    class Reply(BaseModel):
        """A reply to a customer."""

        text: str

    AgentModel(bench.server, calls("Reply", words="?"), calls("Reply", text="So sorry!"))
    graph = agent(bench, gate(bench), response_format=ToolStrategy(Reply), checkpointer=None)
    given = await bench.invoke(graph, ask(), None)
    assert given["structured_response"] == Reply(text="So sorry!")
    assert given["quality_gate"]["revisions"] == 0
    assert outputs(bench.server) == ["So sorry!"]
