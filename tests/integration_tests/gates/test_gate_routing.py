"""Where an answer goes from a gate, what its writer is told, and what can be seen of it."""

import json
from typing import Annotated, Any

import pytest
from langchain_core.messages import AnyMessage, HumanMessage
from langgraph.graph import END, START, MessagesState, StateGraph, add_messages
from langgraph.prebuilt import tools_condition
from pydantic import BaseModel, ConfigDict
from typing_extensions import TypedDict

from memalign_graph import GateVerdict, Numeric
from tests.conftest import CRITERION, Bench, judgings
from tests.integration_tests.gates.support import (
    DOWN,
    QUESTION,
    REASON,
    Builder,
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


async def test_answer_that_passes_and_one_that_goes_back(bench: Bench) -> None:
    graph = gated(bench, Writer("Sorry!"), name="tone")
    given = await bench.invoke(graph, asked())
    assert set(given) == {"messages", "tone"}
    gate: GateVerdict = given["tone"]
    assert (gate["status"], gate["passed"], gate["let_through"]) == ("accepted", True, True)
    assert (gate["gate"], gate["value"], gate["decided_by"]) == ("tone", True, "judge")
    assert (gate["critique"], gate["revisions"], gate["error"]) == ("", 0, None)
    assert (gate["feedback"], gate["learned"]) == (None, None)
    assert gate["judgment"] is not None
    assert gate["judgment"]["criterion"] == CRITERION.name
    assert gate["example_id"] == gate["judgment"]["example_id"]
    assert texts(given["messages"]) == [QUESTION, "Sorry!"]
    writer = Writer("Check the page.", "Sorry!")
    bench.server.script(verdict(False), verdict(True))
    given = await bench.invoke(gated(bench, writer), asked(), "u")
    critique = writer.seen[1]["messages"][-1]
    assert type(critique) is HumanMessage
    assert REASON in critique.text
    assert "The result is: false." in critique.text
    assert texts(given["messages"])[::3] == [QUESTION, "Sorry!"]


async def test_value_that_decides_is_held_against_the_rule(bench: Bench) -> None:
    score = CRITERION.model_copy(update={"scale": Numeric(minimum=1, maximum=5, integer=True)})
    bench.server.rules = always(5)
    graph = gated(bench, Writer(), score, passes=4, review="always", revise=None)
    replies: list[Any] = [{"value": 4}, {"value": 3}, {"type": "ignore"}, "Too long."]
    statuses = {}
    for reply in replies:
        await bench.invoke(graph, asked(), str(reply))
        gate = (await bench.resume(graph, reply, str(reply)))["quality_gate"]
        statuses[gate["value"]] = gate["status"]
        assert gate["judgment"]["value"] == 5
    assert statuses == {4: "accepted", 3: "exhausted", 5: "accepted", None: "exhausted"}
    assert len(await bench.episodes(criterion=score)) == 3


async def test_guidelines_broken_by_the_judges_account_stand_in_the_critique(bench: Bench) -> None:
    kept = await bench.add_guideline("Call the customer by name.")
    broken = await bench.add_guideline("Begins with a word of regret.")
    numbers: list[Any] = [[2, "2", 99, 0, -1, "one", True, None], "two", None, {"1": 1}, 99, [[1]]]
    for number, said in enumerate(numbers):
        writer = Writer()
        bench.server.script(verdict(False, broken_guidelines=said), verdict(True))
        given = await bench.invoke(gated(bench, writer), asked(), str(number))
        assert given["quality_gate"]["status"] == "accepted"
        critique = writer.seen[1]["messages"][-1].text
        assert critique.count(broken.text) == (number == 0)
        assert kept.text not in critique
    bench.server.chats.clear()
    bench.server.script(verdict(False), verdict(True))
    await bench.invoke(gated(bench, Writer(), cite_guidelines=False), asked())
    schema = judgings(bench.server)[0].schema
    assert schema is not None
    assert list(schema["properties"]) == ["rationale", "value"]


async def test_critique_stands_in_a_key_of_its_own_until_its_turn_ends(bench: Bench) -> None:
    writer = Writer()
    options: dict[str, Any] = {"state": Told, "critique_key": "critique", "max_revisions": 1}
    graph = gated(bench, writer, **options)
    bench.server.script(verdict(False), verdict(True))
    parts = await bench.stream(graph, asked(), stream_mode="values")
    shown = [REASON in part.get("critique", "") for part in parts]
    assert shown == [False, False, True, True, False]
    assert texts(parts[-1]["messages"]) == [QUESTION, "Draft 1.", "Draft 2."]
    for replies in ((verdict(False), DOWN), (verdict(False), verdict(False))):
        bench.server.script(*replies)
        given = await bench.invoke(graph, asked("And now?"))
        assert given["critique"] == ""
    assert [REASON in state["critique"] for state in writer.seen[1:]] == [True, False] * 2 + [True]


class Answer(TypedDict):
    answer: str


class AnswerAndVerdict(Answer):
    quality_gate: GateVerdict


class Asking(TypedDict):
    question: str


class Private(Asking, Answer, total=False):
    critique: str


@pytest.mark.parametrize("output", [Answer, AnswerAndVerdict])
async def test_schemas_of_ones_own_are_left_alone(bench: Bench, output: Any) -> None:
    builder: Builder = StateGraph(Private, input_schema=Asking, output_schema=output)
    builder.add_node("write", lambda _: {"answer": "Sorry!"})
    builder.add_edge(START, "write")

    def example(state: Any) -> dict[str, Any]:
        return {"inputs": state["question"], "outputs": state["answer"]}

    gate_on(bench, builder, example=example, critique_key="critique")
    graph = bench.compile(builder)
    bench.server.script(verdict(False), verdict(True))
    given = await bench.invoke(graph, {"question": "Where is it?"})
    assert set(given) == set(output.__annotations__)
    values = (await bench.state(graph)).values
    assert (values["quality_gate"]["status"], values["critique"]) == ("accepted", "")
    assert list(graph.get_input_jsonschema()["properties"]) == ["question"]
    assert set(graph.get_output_jsonschema()["properties"]) == set(given)
    plain = gated(bench, Writer(), revise=None, critique_key="critique")
    assert list(plain.get_input_jsonschema()["properties"]) == ["messages"]
    returned = set(plain.get_output_jsonschema()["properties"])
    assert returned == {"messages", "quality_gate", "critique"}


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")
    messages: Annotated[list[AnyMessage], add_messages] = []


class Declared(MessagesState):
    quality_gate: GateVerdict


@pytest.mark.parametrize("state", [Strict, Declared])
async def test_key_of_the_verdict_may_be_declared_or_not(bench: Bench, state: Any) -> None:
    bench.server.script(verdict(False), verdict(True))
    given = await bench.invoke(gated(bench, Writer(), state=state), asked())
    assert set(given) == {"messages", "quality_gate"}
    assert (given["quality_gate"]["status"], given["quality_gate"]["revisions"]) == ("accepted", 1)


async def test_events_tell_what_becomes_of_every_draft(bench: Bench) -> None:
    bench.server.script(verdict(False), verdict(True))
    graph = gated(bench, Writer(), name="tone", max_revisions=3)
    parts = await bench.stream(graph, asked(), stream_mode=["custom", "updates"])
    events = [part for mode, part in parts if mode == "custom"]
    assert json.loads(json.dumps(events)) == events
    assert [event["status"] for event in events] == ["judging", "revise", "judging", "accepted"]
    assert [event["revisions"] for event in events] == [0, 1, 1, 1]
    for event in events:
        assert (event["type"], event["gate"]) == ("quality_gate", "tone")
        assert (event["criterion"], event["max_revisions"]) == (CRITERION.name, 3)
    assert REASON in events[1]["critique"]
    last = events[3]
    assert (last["value"], last["decided_by"], last["error"]) == (True, "judge", None)
    updates = [part for mode, part in parts if mode == "updates"]
    nodes = [next(iter(part)) for part in updates if "tone.before_turn" not in part]
    assert nodes == ["write", "tone"] * 2
    assert "messages" not in updates[-1]["tone"]


async def test_judges_words_are_in_no_message_stream(bench: Bench) -> None:
    model = bench.server.chat_model()
    bench.server.script("Wait for it.", verdict(False), "Sorry!", verdict(True))
    graph = gated(bench, lambda state: {"messages": [model.invoke(state["messages"])]})
    parts = await bench.stream(graph, asked(), stream_mode="messages", subgraphs=True)
    told = [(about["langgraph_node"], chunk.text) for _, (chunk, about) in parts]
    assert "".join(text for node, text in told if node == "write") == "Wait for it.Sorry!"
    assert not any("value" in text for node, text in told if node != "write")


def test_picture_shows_the_ways_out_and_the_judge_inside(bench: Bench) -> None:
    builder = writing(Writer())
    builder.add_node("boss", Writer())
    builder.add_edge("boss", END)
    assert gate_on(bench, builder, escalate="boss", review="always") is builder
    graph = bench.compile(builder)
    picture = graph.get_graph()
    ways = {edge.target: edge.data for edge in picture.edges if edge.source == "quality_gate"}
    assert ways == {"write": "revise", END: "accepted", "boss": "escalated / judge_error"}
    assert "write --> quality_gate" in picture.draw_mermaid()
    assert [name for name, _ in graph.get_subgraphs()] == ["quality_gate"]
    drawn = graph.get_graph(xray=True).draw_mermaid()
    for node in ("retrieve_episodes", "judge", "collect_feedback", "commit_memory"):
        assert f"quality_gate\\3a{node}({node})" in drawn


async def test_graph_may_be_led_to_the_gate_afterwards(bench: Bench) -> None:
    builder: Builder = StateGraph(MessagesState)
    builder.add_node("write", Writer())
    gate_on(bench, builder, after=None)
    ways: Any = {"tools": END, END: "quality_gate"}
    builder.add_conditional_edges("write", tools_condition, ways)
    builder.add_edge(START, "write")
    given = await bench.invoke(bench.compile(builder), asked())
    assert given["quality_gate"]["status"] == "accepted"
