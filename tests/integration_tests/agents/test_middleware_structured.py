"""A gate on agents that answer in a shape, with a tool of their own or the provider's."""

from typing import Any

import pytest
from langchain.agents.structured_output import ProviderStrategy, ToolStrategy
from pydantic import BaseModel

from tests.conftest import COLD, Bench, judgings
from tests.integration_tests.agents.support import AgentModel, agent, ask, calls, fails, gate
from tests.integration_tests.gates.support import REASON, outputs, pending

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


@STRATEGIES
async def test_structured_response_is_reviewed_and_learned_from(
    bench: Bench, strategy: Any
) -> None:
    model = AgentModel(bench.server, *replies(strategy, "Wait."))
    made = gate(bench, review="always", max_revisions=0)
    graph = agent(bench, made, response_format=strategy(SHAPE))
    assert "Wait." in pending(await bench.invoke(graph, ask()))["description"]
    await bench.resume(graph, COLD)
    [episode] = await bench.episodes()
    assert episode.example.outputs == {"text": "Wait.", "sure": True}
    assert len(model.requests) == len(judgings(bench.server)) == 1


async def test_response_of_a_wrong_shape_is_mended_before_it_is_judged(bench: Bench) -> None:
    class Reply(BaseModel):
        """A reply to a customer."""

        text: str

    AgentModel(bench.server, calls("Reply", words="?"), calls("Reply", text="So sorry!"))
    graph = agent(bench, gate(bench), response_format=ToolStrategy(Reply), checkpointer=None)
    given = await bench.invoke(graph, ask(), None)
    assert given["structured_response"] == Reply(text="So sorry!")
    assert given["quality_gate"]["revisions"] == 0
    assert outputs(bench.server) == ["So sorry!"]
