"""Where an answer goes from a gate, what its writer is told, and how often."""

from typing import Any

import pytest
from langchain_core.messages import HumanMessage
from langgraph.graph import END, MessagesState

from memalign_graph import GateVerdict, InvalidInputError
from tests.conftest import CRITERION, Bench, judgings
from tests.integration_tests.gates.support import (
    DOWN,
    IN_MEMORY,
    QUESTION,
    REASON,
    Told,
    Writer,
    always,
    asked,
    gate_on,
    gated,
    texts,
    verdict,
    writing,
)


async def test_good_answer_is_accepted_at_once(bench: Bench) -> None:
    writer = Writer("Sorry!")
    given = await bench.invoke(gated(bench, writer), asked())
    gate: GateVerdict = given["quality_gate"]
    assert gate["status"] == "accepted"
    assert gate["passed"]
    assert gate["let_through"]
    assert (gate["gate"], gate["value"], gate["decided_by"]) == ("quality_gate", True, "judge")
    assert (gate["critique"], gate["revisions"], gate["error"]) == ("", 0, None)
    assert (gate["feedback"], gate["learned"]) == (None, None)
    assert gate["judgment"] is not None
    assert gate["judgment"]["criterion"] == CRITERION.name
    assert texts(given["messages"]) == [QUESTION, "Sorry!"]
    assert set(gate) == set(GateVerdict.__annotations__)


async def test_critique_reaches_the_writer_as_a_human_message(bench: Bench) -> None:
    writer = Writer("Check the page.", "Sorry!")
    bench.server.script(verdict(False), verdict(True))
    given = await bench.invoke(gated(bench, writer), asked())
    assert (given["quality_gate"]["status"], given["quality_gate"]["revisions"]) == ("accepted", 1)
    critique = writer.seen[1]["messages"][-1]
    assert isinstance(critique, HumanMessage)
    assert REASON in critique.text
    assert "false" in critique.text
    question, draft, _, answer = texts(given["messages"])
    assert (question, draft, answer) == (QUESTION, "Check the page.", "Sorry!")


async def test_guidelines_broken_by_the_judges_account_stand_in_the_critique(bench: Bench) -> None:
    kept = await bench.add_guideline("Call the customer by name.")
    broken = await bench.add_guideline("Begins with a word of regret.")
    writer = Writer()
    numbers = [2, 2, 99, 0, -1, "1", True, 1.0, None]
    bench.server.script(verdict(False, broken_guidelines=numbers), verdict(True))
    given = await bench.invoke(gated(bench, writer), asked())
    critique = writer.seen[1]["messages"][-1].text
    assert critique.count(broken.text) == 1
    assert kept.text not in critique
    assert given["quality_gate"]["status"] == "accepted"
    first = judgings(bench.server)[0]
    assert first.schema is not None
    assert list(first.schema["properties"]) == ["rationale", "value", "broken_guidelines"]


@IN_MEMORY
@pytest.mark.parametrize("numbers", ["1", None, {"1": 1}, 1, [[1]], "missing"])
async def test_guidelines_of_another_kind_than_asked_for_are_ignored(
    bench: Bench, numbers: Any
) -> None:
    await bench.add_guideline("Begins with a word of regret.")
    answer = verdict(False) if numbers == "missing" else verdict(False, broken_guidelines=numbers)
    writer = Writer()
    bench.server.script(answer, verdict(True))
    given = await bench.invoke(gated(bench, writer), asked())
    assert given["quality_gate"]["status"] == "accepted"
    assert len(judgings(bench.server)) == 2
    assert "word of regret" not in writer.seen[1]["messages"][-1].text


@IN_MEMORY
async def test_gate_need_not_cite_guidelines(bench: Bench) -> None:
    guideline = await bench.add_guideline("Begins with a word of regret.")
    bench.server.script(verdict(False), verdict(True))
    writer = Writer()
    given = await bench.invoke(gated(bench, writer, cite_guidelines=False), asked())
    assert given["quality_gate"]["status"] == "accepted"
    schema = judgings(bench.server)[0].schema
    assert schema is not None
    assert list(schema["properties"]) == ["rationale", "value"]
    assert guideline.text not in writer.seen[1]["messages"][-1].text


async def test_critique_goes_to_its_own_key_and_is_cleared_after_acceptance(bench: Bench) -> None:
    class State(MessagesState):
        critique: str

    writer = Writer()
    bench.server.script(verdict(False), verdict(True))
    graph = gated(bench, writer, state=State, critique_key="critique")
    given = await bench.invoke(graph, asked())
    assert REASON in writer.seen[1]["critique"]
    assert texts(writer.seen[1]["messages"]) == [QUESTION, "Draft 1."]
    assert given["critique"] == ""
    await bench.invoke(graph, asked("And now?"))
    assert writer.seen[2]["critique"] == ""


@IN_MEMORY
async def test_critique_key_that_no_writer_could_read_is_told(bench: Bench) -> None:
    with pytest.raises(InvalidInputError, match="critique_key: the state has no key 'critique'"):
        gated(bench, Writer(), critique_key="critique")


@IN_MEMORY
async def test_critique_stands_in_its_key_until_an_answer_passes(bench: Bench) -> None:
    bench.server.script(verdict(False), verdict(True))
    graph = gated(bench, Writer(), state=Told, critique_key="critique")
    parts = await bench.stream(graph, asked(), stream_mode="values")
    assert [REASON in one.get("critique", "") for one in parts] == [False, False, True, True, False]
    assert parts[-1]["critique"] == ""
    assert texts(parts[-1]["messages"]) == [QUESTION, "Draft 1.", "Draft 2."]


@IN_MEMORY
async def test_critique_of_one_turn_does_not_reach_the_next(bench: Bench) -> None:
    class State(MessagesState):
        critique: str

    writer = Writer()
    bench.server.rules = always(False)
    graph = gated(bench, writer, state=State, critique_key="critique", max_revisions=0)
    await bench.invoke(graph, asked())
    await bench.invoke(graph, asked("Where do I send it back to?"))
    assert not writer.seen[1].get("critique")


@IN_MEMORY
@pytest.mark.parametrize("escalates", [True, False])
@pytest.mark.parametrize("most", [0, 1, 3])
async def test_revisions_run_out(bench: Bench, most: int, escalates: Any) -> None:
    writer, boss = Writer(), Writer("A person will call you.")
    builder = writing(writer)
    builder.add_node("boss", boss)
    builder.add_edge("boss", END)
    bench.server.rules = always(False)
    options: dict[str, Any] = {"max_revisions": most, "escalate": "boss" if escalates else None}
    graph = bench.compile(gate_on(bench, builder, CRITERION, **options))
    given = await bench.invoke(graph, asked())
    gate = given["quality_gate"]
    assert gate["status"] == ("escalated" if escalates else "exhausted")
    assert (gate["passed"], gate["let_through"], gate["revisions"]) == (False, False, most)
    assert REASON in gate["critique"]
    assert len(writer.seen) == len(judgings(bench.server)) == most + 1
    assert len(boss.seen) == (1 if escalates else 0)


@IN_MEMORY
async def test_without_a_writer_to_go_back_to_nothing_is_sent_back(bench: Bench) -> None:
    writer = Writer()
    bench.server.rules = always(False)
    given = await bench.invoke(gated(bench, writer, revise=None, max_revisions=5), asked())
    assert given["quality_gate"]["status"] == "exhausted"
    assert len(writer.seen) == 1
    assert len(given["messages"]) == 2


@IN_MEMORY
async def test_accepted_answers_go_on_to_the_named_node(bench: Bench) -> None:
    writer, publish = Writer("Sorry!"), Writer("Published.")
    builder = writing(writer)
    builder.add_node("publish", publish)
    options: dict[str, Any] = {"accept": "publish"}
    graph = bench.compile(gate_on(bench, builder, CRITERION, **options))
    bench.server.script(verdict(False), verdict(True))
    await bench.invoke(graph, asked())
    assert (len(writer.seen), len(publish.seen)) == (2, 1)
    assert publish.seen[0]["messages"][-1].text == "Draft 2."


@IN_MEMORY
async def test_every_status_is_told_apart(bench: Bench) -> None:
    script: dict[str, tuple[Any, dict[str, Any]]] = {
        "accepted": (verdict(True), {}),
        "exhausted": (verdict(False), {"max_revisions": 0}),
        "escalated": (verdict(False), {"max_revisions": 0, "escalate": "boss"}),
        "judge_error": (DOWN, {}),
    }
    for number, (status, (reply, options)) in enumerate(script.items()):
        builder = writing(Writer())
        builder.add_node("boss", Writer())
        builder.add_edge("boss", END)
        graph = bench.compile(gate_on(bench, builder, CRITERION, **options))
        bench.server.script(reply)
        given = await bench.invoke(graph, asked(), str(number))
        assert given["quality_gate"]["status"] == status
        assert given["quality_gate"]["passed"] is (status == "accepted")
