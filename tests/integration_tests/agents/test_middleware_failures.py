"""A gate whose judge fails, fallbacks, options that can't be used, and an agent without a store."""

import logging
from typing import Any

import pytest
from langchain_core.messages import AIMessage

from memalign_graph import InvalidInputError, Numeric, Pairwise, QualityGateMiddleware
from tests.conftest import COLD, CRITERION, Bench, distillings, judgings
from tests.integration_tests.agents.support import (
    AgentModel,
    agent,
    ask,
    fails,
    gate,
    said,
)
from tests.integration_tests.gates.support import DOWN, outputs
from tests.loopback import Rule, refusal

LATER = "A colleague will write to you today."
BROKEN = [Rule(lambda chat: chat.schema_name == "judgment", reply=DOWN)]


async def test_closed_gate_lets_nothing_through_when_the_judge_fails(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    model = AgentModel(bench.server, "So sorry!")
    bench.server.rules = BROKEN
    with caplog.at_level(logging.WARNING):
        given = await bench.invoke(agent(bench, gate(bench)), ask())
    verdict = given["quality_gate"]
    assert (verdict["status"], verdict["let_through"], verdict["passed"]) == (
        "judge_error",
        False,
        False,
    )
    assert "It broke." in verdict["error"]
    assert "'quality_gate' failed, and the gate is closed" in caplog.text
    assert said(given)[-1] == ("ai", "So sorry!")
    assert len(model.requests) == 1


async def test_open_gate_lets_it_through_and_says_so(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    AgentModel(bench.server, "So sorry!")
    bench.server.rules = BROKEN
    graph = agent(bench, gate(bench, on_judge_error="open", fallback=LATER))
    with caplog.at_level(logging.WARNING):
        given = await bench.invoke(graph, ask())
    verdict = given["quality_gate"]
    assert (verdict["status"], verdict["let_through"], verdict["passed"]) == (
        "judge_error",
        True,
        False,
    )
    assert "goes on unjudged" in caplog.text
    assert said(given)[-1] == ("ai", "So sorry!")


async def test_judge_that_answers_nonsense_has_failed(bench: Bench) -> None:
    AgentModel(bench.server, "So sorry!")
    bench.server.rules = [Rule(lambda chat: chat.schema_name == "judgment", reply=refusal())]
    given = await bench.invoke(agent(bench, gate(bench, fallback=LATER)), ask())
    assert given["quality_gate"]["status"] == "judge_error"
    assert said(given)[-1] == ("ai", LATER)


async def test_failure_of_learning_fails_the_run_and_loses_nothing(bench: Bench) -> None:
    AgentModel(bench.server, "Wait.")
    graph = agent(bench, gate(bench, review="always", max_revisions=0, on_judge_error="open"))
    await bench.invoke(graph, ask())
    broken = Rule(lambda chat: chat.schema_name == "guideline_operations", reply=DOWN)
    bench.server.rules = [broken]
    with pytest.raises(Exception, match="It broke"):
        await bench.resume(graph, COLD)
    assert [one.status for one in await bench.episodes()] == ["pending"]
    bench.server.rules = []
    given = await bench.invoke(graph, None)
    assert given["quality_gate"]["learned"]["guidelines"]
    assert len(judgings(bench.server)) == 1
    assert len(distillings(bench.server)) == 2


async def test_fallback_takes_the_place_of_what_is_not_let_through(bench: Bench) -> None:
    AgentModel(bench.server, "Draft 1.", "Draft 2.")
    bench.server.rules = fails("Draft")
    graph = agent(bench, gate(bench, max_revisions=1, fallback=LATER))
    given = await bench.invoke(graph, ask())
    assert said(given)[-1] == ("ai", LATER)
    assert isinstance(given["messages"][-1], AIMessage)
    assert "Draft 2." not in str(given["messages"])
    state = await bench.state(graph)
    assert "Draft 2." not in str(state.values["messages"])
    assert given["quality_gate"]["let_through"] is False
    assert outputs(bench.server) == ["Draft 1.", "Draft 2."]


async def test_drafts_that_were_sent_back_are_not_left_beside_the_fallback(bench: Bench) -> None:
    AgentModel(bench.server, "Draft 1.", "Draft 2.")
    bench.server.rules = fails("Draft")
    graph = agent(bench, gate(bench, max_revisions=1, fallback=LATER))
    given = await bench.invoke(graph, ask())
    assert [text for kind, text in said(given) if kind == "ai"] == [LATER]


async def test_fallback_is_given_where_there_is_no_answer(bench: Bench) -> None:
    AgentModel(bench.server, " ", "")
    given = await bench.invoke(agent(bench, gate(bench, max_revisions=1, fallback=LATER)), ask())
    assert said(given)[-1] == ("ai", LATER)
    assert judgings(bench.server) == []
    assert given["quality_gate"]["status"] == "exhausted"


async def test_turn_after_a_fallback_goes_on(bench: Bench) -> None:
    model = AgentModel(bench.server, "Draft 1.")
    bench.server.rules = fails("Draft")
    graph = agent(bench, gate(bench, max_revisions=0, fallback=LATER))
    await bench.invoke(graph, ask())
    model.then("So sorry!")
    given = await bench.invoke(graph, ask("And now?"))
    assert given["quality_gate"]["status"] == "accepted"
    shown = [str(one["content"]) for one in model.requests[-1].messages]
    assert LATER in shown
    assert "Draft 1." not in shown


@pytest.mark.parametrize("on_judge_error", ["closed", "open"])
async def test_agent_without_a_store_is_told(bench: Bench, on_judge_error: Any) -> None:
    AgentModel(bench.server, "So sorry!")
    graph = agent(bench, gate(bench, on_judge_error=on_judge_error), store=None)
    with pytest.raises(InvalidInputError, match=r"^store: "):
        await bench.invoke(graph, ask())


async def test_agent_without_a_store_is_told_before_its_model_is_called(bench: Bench) -> None:
    model = AgentModel(bench.server, "So sorry!")
    graph = agent(bench, gate(bench), store=None)
    with pytest.raises(InvalidInputError, match=r"^store: "):
        await bench.invoke(graph, ask())
    assert model.requests == []


async def test_context_that_can_not_be_used_is_told(bench: Bench) -> None:
    AgentModel(bench.server, "So sorry!")
    graph = agent(bench, gate(bench), context_schema=dict)
    with pytest.raises(InvalidInputError, match=r"^context: "):
        await bench.invoke(graph, ask(), context={"memalign": {"k": -1}})


@pytest.mark.parametrize("name", ["messages", "structured_response", "jump_to"])
def test_name_that_every_agent_has_a_key_of_is_told(bench: Bench, name: str) -> None:
    with pytest.raises(InvalidInputError, match=f"^name: '{name}' is a key of every agent"):
        gate(bench, name=name)


@pytest.mark.parametrize("scale", [Numeric(minimum=0, maximum=1), Pairwise()])
def test_scale_without_a_rule_is_told(bench: Bench, scale: Any) -> None:
    with pytest.raises(InvalidInputError, match=r"^passes: say which values pass"):
        gate(bench, CRITERION.model_copy(update={"scale": scale}))


def test_criterion_that_is_none_is_told(bench: Bench) -> None:
    with pytest.raises(InvalidInputError, match=r"^criterion: "):
        QualityGateMiddleware("is it kind?")  # type: ignore[arg-type]
