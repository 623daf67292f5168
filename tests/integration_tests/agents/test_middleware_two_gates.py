"""Two gates on one agent: each has its say, and their names keep them apart."""

import pytest
from typing_extensions import TypedDict

from memalign_graph import MemAlignContext
from tests.conftest import COLD, CRITERION, Bench, judgings
from tests.integration_tests.agents.support import (
    AgentModel,
    agent,
    ask,
    fails,
    gate,
    pending,
    said,
)
from tests.integration_tests.gates.support import LENGTH, outputs
from tests.loopback import Rule

APPROVE = {"decisions": [{"type": "approve"}]}


class Context(TypedDict):
    """A context of the application's own."""

    memalign: MemAlignContext


async def test_both_judge_what_passes(bench: Bench) -> None:
    AgentModel(bench.server, "So sorry!")
    graph = agent(bench, gate(bench, name="tone"), gate(bench, LENGTH, name="length"))
    given = await bench.invoke(graph, ask())
    assert set(given) == {"messages", "tone", "length"}
    assert given["tone"]["judgment"]["criterion"] == CRITERION.name
    assert given["length"]["judgment"]["criterion"] == LENGTH.name
    assert given["tone"]["gate"] == "tone"
    assert outputs(bench.server) == ["So sorry!"] * 2


@pytest.mark.parametrize("strict", ["tone", "length"])
async def test_either_sends_back_and_both_judge_the_next_draft(bench: Bench, strict: str) -> None:
    AgentModel(bench.server, "Wait.", "So sorry!")
    asks = {"tone": "appropriate for the customer", "length": "short enough"}[strict]
    [rule] = fails("Wait.")
    bench.server.rules = [
        type(rule)(lambda chat: asks in chat.text and rule.when(chat), value=False)
    ]
    graph = agent(bench, gate(bench, name="tone"), gate(bench, LENGTH, name="length"))
    given = await bench.invoke(graph, ask())
    assert {given[name]["status"] for name in ("tone", "length")} == {"accepted"}
    assert [one for one, _ in said(given)] == ["human", "ai", "human", "ai"]
    assert outputs(bench.server)[-2:] == ["So sorry!"] * 2


async def test_gates_that_never_agree_come_to_an_end(bench: Bench) -> None:
    model = AgentModel(bench.server, *["Long and cold."] * 20)
    bench.server.rules = fails("Long and cold.")
    gates = [
        gate(bench, name="tone", max_revisions=2),
        gate(bench, LENGTH, name="length", max_revisions=1),
    ]
    given = await bench.invoke(agent(bench, *gates), ask())
    assert {given[name]["status"] for name in ("tone", "length")} == {"exhausted"}
    assert len(model.requests) <= 6


async def test_same_name_is_told(bench: Bench) -> None:
    with pytest.raises(AssertionError, match="duplicate middleware"):
        agent(bench, gate(bench), gate(bench, LENGTH))


async def test_both_ask_one_after_the_other(bench: Bench) -> None:
    model = AgentModel(bench.server, "Wait.")
    gates = [
        gate(bench, name="tone", review="always", max_revisions=0),
        gate(bench, LENGTH, name="length", review="always", max_revisions=0),
    ]
    graph = agent(bench, *gates)
    first = pending(await bench.invoke(graph, ask()))
    second = pending(await bench.resume(graph, COLD))
    assert {first["description"][:9], second["description"][:9]} == {"## suppor", "## length"}
    given = await bench.resume(graph, APPROVE)
    assert "__interrupt__" not in given
    assert {given[name]["decided_by"] for name in ("tone", "length")} == {"expert"}
    assert len(judgings(bench.server)) == 2
    assert len(model.requests) == 1
    assert len(await bench.episodes()) == len(await bench.episodes(criterion=LENGTH)) == 1


async def test_namespace_of_the_run_holds_for_the_gate_after_the_one_that_asked(
    bench: Bench,
) -> None:
    AgentModel(bench.server, "Wait.")
    gates = [
        gate(bench, name="tone", review="always", max_revisions=0),
        gate(bench, LENGTH, name="length", review="always", max_revisions=0),
    ]
    graph = agent(bench, *gates, context_schema=Context)
    context = {"memalign": MemAlignContext(namespace=("team-a",))}
    await bench.invoke(graph, ask(), context=context)
    await bench.resume(graph, {"value": True})
    await bench.resume(graph, {"value": True})
    for criterion in (CRITERION, LENGTH):
        assert await bench.episodes(criterion=criterion) == []
        assert len(await bench.episodes(criterion=criterion, namespace=("team-a",))) == 1


async def test_fallback_of_one_gate_is_not_judged_as_an_answer_by_the_other(bench: Bench) -> None:
    model = AgentModel(bench.server, "Wait.", "Wait.")
    bench.server.rules = fails("Wait.", "Ask us later.")
    gates = [
        gate(bench, name="tone", max_revisions=1, fallback="Ask us later."),
        gate(bench, LENGTH, name="length", max_revisions=0, fallback="Ask us later."),
    ]
    given = await bench.invoke(agent(bench, *gates), ask())
    assert said(given)[-1] == ("ai", "Ask us later.")
    assert "Ask us later." not in outputs(bench.server)
    assert len(model.requests) == 1


@pytest.mark.parametrize("order", [("tone", "length"), ("length", "tone")], ids="-".join)
async def test_drafts_that_either_sent_back_are_not_left_beside_a_fallback(
    bench: Bench, order: tuple[str, str]
) -> None:
    AgentModel(bench.server, "Cold 1.", "Long 2.", "Long 3.")
    [cold], [long] = fails("Cold 1."), fails("Long 2.", "Long 3.")
    asks = "appropriate for the customer"
    bench.server.rules = [
        Rule(lambda chat: asks in chat.text and cold.when(chat), value=False),
        Rule(lambda chat: asks not in chat.text and long.when(chat), value=False),
    ]
    gates = {
        "tone": gate(bench, name="tone", max_revisions=1, fallback="Later."),
        "length": gate(bench, LENGTH, name="length", max_revisions=1, fallback="Later."),
    }
    given = await bench.invoke(agent(bench, *(gates[name] for name in order)), ask())
    assert given["length"]["status"] == "exhausted"
    assert [text for kind, text in said(given) if kind == "ai"] == ["Later."]
