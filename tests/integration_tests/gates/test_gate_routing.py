"""Routing of answers by one gate and by several gates."""

import json
import operator
from collections.abc import Callable
from typing import Annotated, Any

import pytest
from langchain_core.messages import HumanMessage
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import tools_condition
from langgraph.types import Command, Send
from typing_extensions import TypedDict

from memalign_graph import GateVerdict, Numeric
from tests.conftest import CRITERION, DOWN, Bench, Graph, judgings, thread
from tests.integration_tests.gates.support import (
    LENGTH,
    QUESTION,
    REASON,
    Builder,
    WithCritique,
    Writer,
    always,
    asked,
    gate_on,
    gated,
    gather,
    judge_rule,
    texts,
    verdict,
    writing,
)
from tests.loopback import ChatRequest, Rule


async def test_verdict_on_an_answer_that_passes(bench: Bench) -> None:
    result = await bench.invoke(gated(bench, Writer("Sorry!"), name="tone"), asked())
    gate: Any = result["tone"]
    judgment, turn = gate.pop("judgment"), result["messages"][0].id
    expected = {"gate": "tone", "example_id": judgment["example_id"], "turn": turn}
    expected |= {"status": "accepted", "passed": True, "let_through": True, "critique": ""}
    expected |= {"value": True, "decided_by": "judge", "revisions": 0}
    assert gate == expected | dict.fromkeys(("error", "feedback", "learned"))


async def test_decided_value_is_compared_with_passing_values(bench: Bench) -> None:
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
    await bench.invoke(graph, asked(), "rescaled")
    rescaled = CRITERION.model_copy(update={"scale": Numeric(minimum=1, maximum=3)})
    graph = gated(bench, Writer(), rescaled, passes=2, review="always", revise=None)
    gate = (await bench.resume(graph, {"type": "ignore"}, "rescaled"))["quality_gate"]
    assert (gate["value"], gate["status"]) == (None, "exhausted")


async def test_critique_names_the_guidelines_reported_as_broken(bench: Bench) -> None:
    guideline = await bench.add_guideline("Call the customer by name.")
    broken = await bench.add_guideline("Begins with a word of regret.")
    numbers: list[Any] = [[2, "2", 99, 0, -1, "one", True, None], "two", None, {"1": 1}, 99, [[1]]]
    for number, cited in enumerate(numbers):
        writer = Writer()
        bench.server.script(verdict(False, broken_guidelines=cited), verdict(True))
        result = await bench.invoke(gated(bench, writer), asked(), str(number))
        assert result["quality_gate"]["status"] == "accepted"
        critique = writer.seen[1]["messages"][-1].text
        assert critique.count(broken.text) == (number == 0)
        assert guideline.text not in critique
    await bench.invoke(gated(bench, Writer(), cite_guidelines=False), asked())
    schema = judgings(bench.server)[-1].schema or {}
    assert list(schema["properties"]) == ["rationale", "value"]


async def test_critique_key_is_cleared_when_the_turn_ends(bench: Bench) -> None:
    writer = Writer()
    options: dict[str, Any] = {
        "state": WithCritique,
        "critique_key": "critique",
        "max_revisions": 1,
    }
    graph = gated(bench, writer, **options)
    bench.server.script(verdict(False), verdict(True))
    parts = await bench.stream(graph, asked(), stream_mode="values")
    has_critique = [REASON in part.get("critique", "") for part in parts]
    assert has_critique == [False, False, True, True, False]
    assert texts(parts[-1]["messages"]) == [QUESTION, "Draft 1.", "Draft 2."]
    for replies in ((verdict(False), DOWN), (verdict(False), verdict(False))):
        bench.server.script(*replies)
        result = await bench.invoke(graph, asked("And now?"))
        assert result["critique"] == ""
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
async def test_custom_schemas_are_unchanged(bench: Bench, output: Any) -> None:
    builder: Builder = StateGraph(Private, input_schema=Asking, output_schema=output)
    builder.add_node("write", lambda _: {"answer": "Sorry!"})
    builder.add_edge(START, "write")

    def example(state: Any) -> dict[str, Any]:
        return {"inputs": state["question"], "outputs": state["answer"]}

    gate_on(bench, builder, example=example, critique_key="critique")
    graph = bench.compile(builder)
    bench.server.script(verdict(False), verdict(True))
    result = await bench.invoke(graph, {"question": "Where is it?"})
    assert set(result) == set(output.__annotations__)
    values = (await bench.state(graph)).values
    assert (values["quality_gate"]["status"], values["critique"]) == ("accepted", "")
    assert list(graph.get_input_jsonschema()["properties"]) == ["question"]
    assert set(graph.get_output_jsonschema()["properties"]) == set(result)
    plain = gated(bench, Writer(), revise=None, critique_key="critique")
    assert list(plain.get_input_jsonschema()["properties"]) == ["messages"]
    returned = set(plain.get_output_jsonschema()["properties"])
    assert returned == {"messages", "quality_gate", "critique"}


async def test_events_report_the_status_of_every_draft(bench: Bench) -> None:
    bench.server.script(verdict(False), verdict(True))
    writer = Writer()
    graph = gated(bench, writer, name="tone", max_revisions=3)
    parts = await bench.stream(graph, asked(), stream_mode=["custom", "updates"])
    events = [part for mode, part in parts if mode == "custom"]
    assert json.loads(json.dumps(events)) == events
    steps = [(event["status"], event["revisions"]) for event in events]
    assert steps == [("judging", 0), ("revise", 1), ("judging", 1), ("accepted", 1)]
    shared: dict[str, Any] = {"type": "quality_gate", "gate": "tone", "criterion": CRITERION.name}
    shared |= {"max_revisions": 3, "error": None}
    assert all(event.items() >= shared.items() for event in events)
    critique = writer.seen[1]["messages"][-1]
    assert type(critique) is HumanMessage
    assert critique.text.startswith(events[1]["critique"])
    assert all(text in events[1]["critique"] for text in (REASON, "The result is: false."))
    assert (events[3]["value"], events[3]["decided_by"]) == (True, "judge")
    updates = [part for mode, part in parts if mode == "updates"]
    nodes = [next(iter(part)) for part in updates if "tone.before_turn" not in part]
    assert nodes == ["write", "tone"] * 2
    assert "messages" not in updates[-1]["tone"]


async def test_edges_to_the_gate_may_be_added_later(bench: Bench) -> None:
    builder: Builder = StateGraph(MessagesState)
    builder.add_node("write", Writer())
    gate_on(bench, builder, after=None)
    ways: Any = {"tools": END, END: "quality_gate"}
    builder.add_conditional_edges("write", tools_condition, ways)
    builder.add_edge(START, "write")
    result = await bench.invoke(bench.compile(builder), asked())
    assert result["quality_gate"]["status"] == "accepted"


async def test_an_update_as_the_gate_without_a_verdict_does_not_pass(bench: Bench) -> None:
    builder = writing(Writer())
    builder.add_node("escalated", lambda _: {})
    builder.add_node("accepted", lambda _: {})
    gate_on(bench, builder, accept="accepted", escalate="escalated")
    graph = bench.compile(builder)
    graph.update_state(thread("t"), asked(), as_node="quality_gate")
    assert graph.get_state(thread("t")).next == ("escalated",)


TONE_ASKED, LENGTH_ASKED = CRITERION.instructions, LENGTH.instructions
ITEMS = ["one", "two", "three"]


def first_draft(question: str) -> Callable[[ChatRequest], bool]:
    return lambda chat: question in chat.text and "Draft 1." in chat.text


def chain(bench: Bench, writer: Any, **options: Any) -> Graph:
    builder = writing(writer)
    gate_on(bench, builder, name="tone", **{"accept": "short", **options})
    gate_on(bench, builder, LENGTH, after=None, name="short", **options)
    return bench.compile(builder)


async def test_each_gate_of_a_chain_counts_its_own_revisions(bench: Bench) -> None:
    bench.server.rules = [
        judge_rule("cold long\n</outputs>", False, "It is cold."),
        judge_rule(TONE_ASKED, True),
        judge_rule("warm long\n</outputs>", False, "It is long."),
        judge_rule(LENGTH_ASKED, True),
    ]
    writer = Writer("cold long", "warm long", "warm short")
    result = await bench.invoke(chain(bench, writer, max_revisions=1), asked())
    assert set(result) == {"messages", "tone", "short"}
    for name in ("tone", "short"):
        assert (result[name]["status"], result[name]["gate"]) == ("accepted", name)
    assert result["short"]["revisions"] == 1
    critiques = [item.text for item in result["messages"] if isinstance(item, HumanMessage)][1:]
    assert ["cold" in critiques[0], "long" in critiques[1]] == [True, True]


@pytest.mark.parametrize("bad", ["short", "tone"])
async def test_parallel_gates_share_a_critique_key(bench: Bench, bad: str) -> None:
    writer = Writer()
    builder = writing(writer, WithCritique)
    for name, criterion in (("tone", CRITERION), ("short", LENGTH)):
        gate_on(bench, builder, criterion, name=name, critique_key="critique")
    first = first_draft(TONE_ASKED if bad == "tone" else LENGTH_ASKED)
    bench.server.rules = [Rule(first, value=False), *always(True)]
    states = await bench.stream(bench.compile(builder), asked(), stream_mode="values")
    critiques = [state.get("critique") for state in states if len(state["messages"]) == 2]
    assert "did not pass" in critiques[-1]
    assert [states[-1][name]["status"] for name in ("tone", "short")] == ["accepted"] * 2
    assert (len(writer.seen), len(judgings(bench.server))) == (2, 4)


class FanState(TypedDict, total=False):
    items: list[str]
    done: Annotated[list[str], operator.add]
    item: dict[str, Any]
    quality_gate: Annotated[list[GateVerdict], gather]


def straight(bench: Bench, **options: Any) -> Graph:
    """Items sent straight to the gate."""
    builder: Builder = StateGraph(FanState)
    builder.add_node("boss", lambda _: {"done": ["boss"]})
    arguments = {"example": lambda state: state["item"], **options}
    gate_on(bench, builder, CRITERION, after=None, revise=None, **arguments)

    def send(state: Any) -> list[Send]:
        cases = [{"item": {"inputs": "Q", "outputs": item}} for item in state["items"]]
        return [Send("quality_gate", case) for case in cases]

    builder.add_conditional_edges(START, send, ["quality_gate"])
    return bench.compile(builder)


async def test_items_sent_to_one_gate_are_routed_separately(bench: Bench) -> None:
    bench.server.rules = [judge_rule("two\n</outputs>", False), *always(True)]
    graph = straight(bench, critique_key="critique", escalate="boss")
    result = await bench.invoke(graph, {"items": ITEMS})
    statuses = [verdict["status"] for verdict in result["quality_gate"]]
    assert statuses == ["accepted", "escalated", "accepted"]
    assert REASON in result["quality_gate"][1]["critique"]
    assert result["done"] == ["boss"]


async def test_one_invalid_reply_keeps_only_its_own_interrupt_pending(bench: Bench) -> None:
    graph = straight(bench, review="always")
    result = await bench.invoke(graph, {"items": ITEMS})
    actions = {item.id: item.value["action_requests"][0] for item in result["__interrupt__"]}
    interrupts = {key: action["description"] for key, action in actions.items()}
    replies: Any = {key: {"value": "two" not in text} for key, text in interrupts.items()}
    bad = next(key for key, text in interrupts.items() if "two" in text)
    with pytest.raises(ValueError, match="not on the scale"):
        await bench.invoke(graph, Command(resume={**replies, bad: {"value": "perhaps"}}))
    ids = {interrupt.id for interrupt in (await bench.state(graph)).interrupts}
    assert bad in ids
    result = await bench.resume(graph, {key: replies[key] for key in ids})
    statuses = [verdict["status"] for verdict in result["quality_gate"]]
    assert statuses == ["accepted", "exhausted", "accepted"]
    assert [verdict["decided_by"] for verdict in result["quality_gate"]] == ["expert"] * 3
    assert len(judgings(bench.server)) == 3
