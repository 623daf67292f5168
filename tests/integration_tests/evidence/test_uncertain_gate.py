"""Gates with `review="uncertain"`: asked where the judge is not sure, whatever it says."""

from typing import Any

import pytest

from memalign_graph import (
    InvalidInputError,
    Uncertain,
    add_quality_gate,
    create_quality_gate_tool,
)
from tests.conftest import CRITERION, Bench
from tests.integration_tests.evidence.uncertain_support import case, log, sure, teach
from tests.integration_tests.gates.support import Writer, gated, models, writing

OPTIONS: dict[str, Any] = {
    "review": Uncertain(sample_share=0),
    "example": lambda state: {
        "inputs": case(5000)["inputs"],
        "outputs": state["messages"][-1].text,
    },
}


def answer() -> Writer:
    return Writer(case(1)["outputs"])


async def test_gate_asks_where_its_judge_is_not_sure(bench: Bench) -> None:
    await teach(bench)
    graph = gated(bench, answer(), confidence=True, **OPTIONS)
    bench.server.rules = sure(0.97)
    given = await bench.invoke(graph, {"messages": []}, "sure")
    gate = given["quality_gate"]
    assert (gate["status"], gate["decided_by"]) == ("accepted", "judge")
    assert gate["judgment"]["review"]["asks"] is False
    bench.server.rules = sure(0.6)
    given = await bench.invoke(graph, {"messages": []}, "doubt")
    [interrupt] = given["__interrupt__"]
    assert "not sure enough" in interrupt.value["action_requests"][0]["description"]
    given = await bench.resume(graph, {"value": False, "rationale": "Say sorry."}, "doubt")
    assert len(await log(bench)) >= 2


async def test_gate_decides_by_evidence(bench: Bench) -> None:
    await teach(bench)
    graph = gated(bench, answer(), decide="evidence", **OPTIONS)
    given = await bench.invoke(graph, {"messages": []})
    if "__interrupt__" in given:
        given = await bench.resume(graph, {"value": True})
    judgment = given["quality_gate"]["judgment"]
    assert judgment["evidence"] is not None
    assert judgment["review"] is not None
    assert len(await log(bench)) == 1


async def test_gate_keeps_to_a_budget_over_its_revisions(bench: Bench) -> None:
    await teach(bench)
    review = Uncertain(sample_share=0, per_day=1)
    graph = gated(bench, answer(), confidence=True, **{**OPTIONS, "review": review})
    bench.server.rules = sure(0.6)
    await bench.invoke(graph, {"messages": []})
    given = await bench.resume(graph, {"value": False, "rationale": "Say sorry."})
    assert given["quality_gate"]["status"] == "accepted"
    assert given["quality_gate"]["revisions"] == 1
    assert "no_budget" in given["quality_gate"]["judgment"]["review"]["reasons"]


async def test_context_of_the_parent_switches_a_gate(bench: Bench) -> None:
    graph = gated(bench, answer(), confidence=True, **OPTIONS)
    given = await bench.invoke(graph, {"messages": []}, context={"memalign": {"review": "never"}})
    assert "__interrupt__" not in given
    assert await log(bench) == []


async def test_gates_refuse_what_they_cannot_do(bench: Bench) -> None:
    def gate(**options: Any) -> None:
        add_quality_gate(
            writing(answer()), CRITERION, after="write", revise="write", **models(bench, **options)
        )

    with pytest.raises(InvalidInputError, match="confidence=True"):
        gate(review="uncertain")
    with pytest.raises(InvalidInputError, match="confidence=True"):
        gate(review=Uncertain(per_day=3))
    with pytest.raises(InvalidInputError, match="'exhausted', 'uncertain'"):
        gate(review="sometimes")
    tool = create_quality_gate_tool(CRITERION, **models(bench, review="uncertain", confidence=True))
    assert tool.name
