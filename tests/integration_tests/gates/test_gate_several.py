"""Several gates in one graph: in a chain, side by side, and one a worker under `Send`."""

import operator
from collections.abc import Callable
from typing import Annotated, Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.types import Command, Send
from typing_extensions import TypedDict

from memalign_graph import GateVerdict, create_quality_gate_node
from tests.conftest import COLD, CRITERION, Bench, Graph, judgings, thread
from tests.integration_tests.gates.support import (
    IN_MEMORY,
    LENGTH,
    REASON,
    Builder,
    Told,
    Writer,
    always,
    asked,
    gate_on,
    gather,
    judges,
    models,
    writing,
)
from tests.loopback import ChatRequest, Rule

TONE_ASKED, LENGTH_ASKED = CRITERION.instructions, LENGTH.instructions
ITEMS = ["one", "two", "three"]


def _first_draft(question: str) -> Callable[[ChatRequest], bool]:
    return lambda chat: question in chat.text and "Draft 1." in chat.text


def chain(bench: Bench, writer: Any, **options: Any) -> Graph:
    builder = writing(writer)
    first = {"name": "tone", "accept": "short", **options}
    gate_on(bench, builder, CRITERION, **first)
    gate_on(bench, builder, LENGTH, after=None, **{"name": "short", **options, "accept": END})
    return bench.compile(builder)


async def test_chain_passes_what_passes_every_gate(bench: Bench) -> None:
    given = await bench.invoke(chain(bench, Writer()), asked())
    assert (given["tone"]["status"], given["short"]["status"]) == ("accepted", "accepted")
    assert (given["tone"]["gate"], given["short"]["gate"]) == ("tone", "short")
    assert len(judgings(bench.server)) == 2


async def test_each_gate_of_a_chain_counts_its_own_revisions(bench: Bench) -> None:
    class Improving(Writer):
        """Mends its tone with the second draft, its length with the third."""

    writer = Improving("cold long", "warm long", "warm short")
    bench.server.rules = [
        judges("cold long\n</outputs>", False, "It is cold."),
        judges(TONE_ASKED, True),
        judges("warm long\n</outputs>", False, "It is long."),
        judges(LENGTH_ASKED, True),
    ]
    given = await bench.invoke(chain(bench, writer, max_revisions=1), asked())
    assert (given["tone"]["status"], given["short"]["status"]) == ("accepted", "accepted")
    assert given["short"]["revisions"] == 1
    told = [one.text for one in given["messages"] if isinstance(one, HumanMessage)][1:]
    assert ["cold" in told[0], "long" in told[1]] == [True, True]


async def test_answer_that_never_passes_the_second_gate_ends_the_chain(bench: Bench) -> None:
    writer = Writer()
    bench.server.rules = [judges(TONE_ASKED, True), judges(LENGTH_ASKED, False)]
    given = await bench.invoke(chain(bench, writer, max_revisions=2), asked())
    assert (given["tone"]["status"], given["short"]["status"]) == ("accepted", "exhausted")
    assert len(writer.seen) == 3


async def test_questions_of_both_gates_are_asked_in_turn(bench: Bench) -> None:
    graph = chain(bench, Writer(), review="always")
    first = await bench.invoke(graph, asked())
    second = await bench.resume(graph, {"value": True})
    names = [
        one["__interrupt__"][0].value["action_requests"][0]["description"].split()[1]
        for one in (first, second)
    ]
    assert names == [CRITERION.name, LENGTH.name]
    given = await bench.resume(graph, {"value": False, "rationale": "Too long."})
    assert "Too long." in given["messages"][-2].text
    assert len(await bench.episodes()) == len(await bench.episodes(criterion=LENGTH)) == 1


@IN_MEMORY
async def test_two_gates_after_one_node_judge_side_by_side(bench: Bench) -> None:
    writer = Writer()
    builder = writing(writer)
    gate_on(bench, builder, CRITERION, name="tone")
    gate_on(bench, builder, LENGTH, name="short")
    bench.server.rules = [judges("Draft 1.", False), *always(True)]
    given = await bench.invoke(bench.compile(builder), asked())
    assert (given["tone"]["status"], given["short"]["status"]) == ("accepted", "accepted")
    assert len(writer.seen) == 2
    assert len(judgings(bench.server)) == 4


@IN_MEMORY
@pytest.mark.parametrize("bad", ["short", "tone"])
async def test_gates_side_by_side_that_share_a_critique_key(bench: Bench, bad: str) -> None:
    writer = Writer()
    builder = writing(writer, Told)
    for name, criterion in (("tone", CRITERION), ("short", LENGTH)):
        options: dict[str, Any] = {"name": name, "critique_key": "critique"}
        gate_on(bench, builder, criterion, **options)
    first = _first_draft(TONE_ASKED if bad == "tone" else LENGTH_ASKED)
    bench.server.rules = [Rule(first, value=False), *always(True)]
    events = await bench.stream(bench.compile(builder), asked(), stream_mode="values")
    told = [one.get("critique") for one in events if len(one["messages"]) == 2]
    assert "did not pass" in told[-1]
    assert len(writer.seen) == 2


@IN_MEMORY
async def test_questions_of_gates_side_by_side_are_answered_by_id(bench: Bench) -> None:
    writer = Writer()
    builder = writing(writer)
    for name, criterion in (("tone", CRITERION), ("short", LENGTH)):
        options: dict[str, Any] = {"name": name, "review": "always"}
        gate_on(bench, builder, criterion, **options)
    graph = bench.compile(builder)
    given = await bench.invoke(graph, asked())
    by_gate = {
        one.value["action_requests"][0]["description"].split()[1]: one.id
        for one in given["__interrupt__"]
    }
    given = await bench.resume(graph, {by_gate[LENGTH.name]: {"value": True}})
    assert [one.id for one in given["__interrupt__"]] == [by_gate[CRITERION.name]]
    given = await bench.resume(graph, {by_gate[CRITERION.name]: {"value": True}})
    assert (given["tone"]["status"], given["short"]["status"]) == ("accepted", "accepted")
    assert (len(judgings(bench.server)), len(writer.seen)) == (2, 1)


@IN_MEMORY
async def test_two_gates_joined_by_hand_judge_side_by_side(bench: Bench) -> None:
    class State(MessagesState):
        tone: dict[str, Any]
        short: dict[str, Any]

    writer = Writer()
    builder = writing(writer, State)
    for name, criterion in (("tone", CRITERION), ("short", LENGTH)):
        node = create_quality_gate_node(criterion, name=name, max_revisions=1, **models(bench))
        builder.add_node(name, node)
        builder.add_edge("write", name)
    builder.add_node("join", lambda _: {})
    builder.add_edge(["tone", "short"], "join")

    def way(state: Any) -> str:
        both = {state["tone"]["status"], state["short"]["status"]}
        return "write" if "revise" in both else END

    builder.add_conditional_edges("join", way, ["write", END])
    bench.server.rules = [
        Rule(_first_draft(TONE_ASKED), value=False, rationale="It is cold."),
        Rule(_first_draft(LENGTH_ASKED), value=False, rationale="It is long."),
    ]
    given = await bench.invoke(bench.compile(builder), asked())
    assert (given["tone"]["status"], given["short"]["status"]) == ("accepted", "accepted")
    told = "".join(one.text for one in writer.seen[1]["messages"][-2:])
    assert "It is cold." in told
    assert "It is long." in told


class FanState(TypedDict, total=False):
    items: list[str]
    done: Annotated[list[str], operator.add]
    item: dict[str, Any]
    quality_gate: Annotated[list[GateVerdict], gather]


class WorkerState(MessagesState, total=False):
    item: str
    done: Annotated[list[str], operator.add]


class WorkerOutput(TypedDict):
    done: list[str]


def fan(bench: Bench, **options: Any) -> Graph:
    """A worker for each item; each goes round its own loop."""

    def write(state: Any) -> Any:
        drafts = sum(isinstance(one, AIMessage) for one in state["messages"]) + 1
        return {"messages": [AIMessage(f"{state['item']}: draft {drafts}.")]}

    worker: Builder = StateGraph(WorkerState, output_schema=WorkerOutput)
    worker.add_node("write", write)
    worker.add_node("hand_in", lambda state: {"done": [state["messages"][-1].text]})
    worker.add_edge(START, "write")
    worker.add_edge("hand_in", END)
    gate_on(bench, worker, CRITERION, **{"accept": "hand_in", **options})
    builder: Builder = StateGraph(FanState)
    builder.add_node("start", lambda _: {})
    builder.add_node("worker", worker.compile())
    builder.add_edge(START, "start")
    builder.add_conditional_edges(
        "start",
        lambda state: [
            Send("worker", {"item": item, **asked(f"Write on {item}.")}) for item in state["items"]
        ],
        ["worker"],
    )
    return bench.compile(builder)


async def test_workers_under_send_go_round_loops_of_their_own(bench: Bench) -> None:
    bench.server.rules = [
        judges("two: draft 1.", False),
        judges("three: draft 1.", False),
        judges("three: draft 2.", False),
        *always(True),
    ]
    given = await bench.invoke(fan(bench), {"items": ITEMS})
    assert given["done"] == ["one: draft 1.", "two: draft 2.", "three: draft 3."]
    assert len(judgings(bench.server)) == 6


async def test_workers_questions_are_answered_by_their_ids_in_any_order(bench: Bench) -> None:
    graph = fan(bench, review="always", max_revisions=1)
    given = await bench.invoke(graph, {"items": ITEMS})
    open_ = {one.id: _item(one) for one in given["__interrupt__"]}
    assert sorted(open_.values()) == sorted(ITEMS)
    replies = {key: COLD if item == "two" else {"value": True} for key, item in open_.items()}
    last = next(key for key, item in open_.items() if item == "three")
    given = await bench.resume(graph, {last: replies.pop(last)})
    assert {_item(one) for one in given["__interrupt__"]} == {"one", "two"}
    given = await bench.resume(graph, replies)
    [again] = given["__interrupt__"]
    assert _item(again) == "two"
    given = await bench.resume(graph, {again.id: {"value": True}})
    assert given["done"] == ["one: draft 1.", "two: draft 2.", "three: draft 1."]
    assert len(judgings(bench.server)) == 4
    assert len(await bench.episodes()) == 4


def _item(interrupt: Any) -> str:
    shown = interrupt.value["action_requests"][0]["description"].partition("### The judge")[0]
    return next(item for item in ITEMS if f"{item}: draft" in shown)


def straight(bench: Bench, **options: Any) -> Graph:
    """Items sent straight to the gate."""
    builder: Builder = StateGraph(FanState)
    builder.add_node("start", lambda _: {})
    builder.add_edge(START, "start")
    given = {"example": lambda state: state["item"], **options}
    gate_on(bench, builder, CRITERION, after=None, revise=None, **given)
    builder.add_conditional_edges("start", _to_gate, ["quality_gate"])
    return bench.compile(builder)


def _to_gate(state: Any) -> list[Send]:
    return [
        Send("quality_gate", {"item": {"inputs": "Q", "outputs": item}}) for item in state["items"]
    ]


async def test_items_sent_straight_to_a_gate_are_gathered(bench: Bench) -> None:
    bench.server.rules = [judges("two\n</outputs>", False), *always(True)]
    given = await bench.invoke(straight(bench), {"items": ITEMS})
    statuses = [one["status"] for one in given["quality_gate"]]
    assert statuses == ["accepted", "exhausted", "accepted"]


async def test_items_sent_straight_to_a_gate_go_their_own_ways(bench: Bench) -> None:
    publish = Writer()
    builder: Builder = StateGraph(FanState)
    builder.add_node("start", lambda _: {})
    builder.add_node("publish", lambda state: publish(state) and {})
    builder.add_node("boss", lambda _: {"done": ["boss"]})
    builder.add_edge(START, "start")
    options: dict[str, Any] = {
        "example": lambda state: state["item"],
        "accept": "publish",
        "escalate": "boss",
    }
    gate_on(bench, builder, CRITERION, after=None, revise=None, **options)
    builder.add_conditional_edges("start", _to_gate, ["quality_gate"])
    bench.server.rules = always(False)
    given = await bench.invoke(bench.compile(builder), {"items": ITEMS})
    assert [one["status"] for one in given["quality_gate"]] == ["escalated"] * 3
    assert (publish.seen, given["done"]) == ([], ["boss"])


@IN_MEMORY
async def test_items_sent_straight_to_a_gate_with_a_critique_key(bench: Bench) -> None:
    bench.server.rules = [judges("two\n</outputs>", False), *always(True)]
    given = await bench.invoke(straight(bench, critique_key="critique"), {"items": ITEMS})
    assert len(given["quality_gate"]) == 3
    assert REASON in given["quality_gate"][1]["critique"]


async def test_questions_about_items_sent_straight_are_answered_by_id(bench: Bench) -> None:
    graph = straight(bench, review="always")
    given = await bench.invoke(graph, {"items": ITEMS})
    shown = {
        one.id: one.value["action_requests"][0]["description"] for one in given["__interrupt__"]
    }
    assert len(shown) == 3
    replies = {key: {"value": "two" not in text} for key, text in shown.items()}
    given = await bench.resume(graph, replies)
    statuses = [one["status"] for one in given["quality_gate"]]
    assert statuses == ["accepted", "exhausted", "accepted"]
    assert [one["decided_by"] for one in given["quality_gate"]] == ["expert"] * 3
    assert len(judgings(bench.server)) == 3


@pytest.mark.parametrize("bench", ["memory-async", "sqlite-async"], indirect=True)
async def test_threads_of_one_graph_run_at_once(bench: Bench) -> None:
    import asyncio

    graph = chain(bench, Writer("a", "b", "c"))
    given = await asyncio.gather(
        *(graph.ainvoke(asked(), thread(str(number))) for number in range(3))
    )
    assert [one["short"]["status"] for one in given] == ["accepted"] * 3


async def test_one_bad_reply_among_many_leaves_all_questions_open(bench: Bench) -> None:
    graph = straight(bench, review="always")
    given = await bench.invoke(graph, {"items": ITEMS})
    ids = [one.id for one in given["__interrupt__"]]
    replies: list[Any] = [{"value": True}, {"value": "perhaps"}, {"value": True}]
    with pytest.raises(ValueError, match="not on the scale"):
        await bench.invoke(graph, Command(resume=dict(zip(ids, replies, strict=True))))
    state = await bench.state(graph)
    left = {one.id for one in state.interrupts}
    assert ids[1] in left
    good = {key: {"value": True} for key in left}
    given = await bench.resume(graph, good)
    assert [one["status"] for one in given["quality_gate"]] == ["accepted"] * 3
    assert len(judgings(bench.server)) == 3
