"""Several gates in one graph: in a chain, side by side, and under `Send`."""

import operator
from collections.abc import Callable
from typing import Annotated, Any

import pytest
from langchain_core.messages import HumanMessage
from langgraph.graph import START, StateGraph
from langgraph.types import Command, Send
from typing_extensions import TypedDict

from memalign_graph import GateVerdict
from tests.conftest import CRITERION, Bench, Graph, judgings
from tests.integration_tests.gates.support import (
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
    writing,
)
from tests.loopback import ChatRequest, Rule

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
        judges("cold long\n</outputs>", False, "It is cold."),
        judges(TONE_ASKED, True),
        judges("warm long\n</outputs>", False, "It is long."),
        judges(LENGTH_ASKED, True),
    ]
    writer = Writer("cold long", "warm long", "warm short")
    given = await bench.invoke(chain(bench, writer, max_revisions=1), asked())
    assert set(given) == {"messages", "tone", "short"}
    for name in ("tone", "short"):
        assert (given[name]["status"], given[name]["gate"]) == ("accepted", name)
    assert given["short"]["revisions"] == 1
    told = [one.text for one in given["messages"] if isinstance(one, HumanMessage)][1:]
    assert ["cold" in told[0], "long" in told[1]] == [True, True]


@pytest.mark.parametrize("bad", ["short", "tone"])
async def test_gates_side_by_side_that_share_a_critique_key(bench: Bench, bad: str) -> None:
    writer = Writer()
    builder = writing(writer, Told)
    for name, criterion in (("tone", CRITERION), ("short", LENGTH)):
        gate_on(bench, builder, criterion, name=name, critique_key="critique")
    first = first_draft(TONE_ASKED if bad == "tone" else LENGTH_ASKED)
    bench.server.rules = [Rule(first, value=False), *always(True)]
    states = await bench.stream(bench.compile(builder), asked(), stream_mode="values")
    told = [state.get("critique") for state in states if len(state["messages"]) == 2]
    assert "did not pass" in told[-1]
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
    given = {"example": lambda state: state["item"], **options}
    gate_on(bench, builder, CRITERION, after=None, revise=None, **given)

    def send(state: Any) -> list[Send]:
        cases = [{"item": {"inputs": "Q", "outputs": item}} for item in state["items"]]
        return [Send("quality_gate", case) for case in cases]

    builder.add_conditional_edges(START, send, ["quality_gate"])
    return bench.compile(builder)


async def test_items_sent_straight_to_a_gate_go_their_own_ways(bench: Bench) -> None:
    bench.server.rules = [judges("two\n</outputs>", False), *always(True)]
    graph = straight(bench, critique_key="critique", escalate="boss")
    given = await bench.invoke(graph, {"items": ITEMS})
    statuses = [verdict["status"] for verdict in given["quality_gate"]]
    assert statuses == ["accepted", "escalated", "accepted"]
    assert REASON in given["quality_gate"][1]["critique"]
    assert given["done"] == ["boss"]


async def test_one_bad_reply_among_many_leaves_its_question_open(bench: Bench) -> None:
    graph = straight(bench, review="always")
    given = await bench.invoke(graph, {"items": ITEMS})
    shown = {
        one.id: one.value["action_requests"][0]["description"] for one in given["__interrupt__"]
    }
    replies: dict[str, Any] = {key: {"value": "two" not in text} for key, text in shown.items()}
    bad = next(key for key, text in shown.items() if "two" in text)
    with pytest.raises(ValueError, match="not on the scale"):
        await bench.invoke(graph, Command(resume={**replies, bad: {"value": "perhaps"}}))
    left = {one.id for one in (await bench.state(graph)).interrupts}
    assert bad in left
    given = await bench.resume(graph, {key: replies[key] for key in left})
    statuses = [verdict["status"] for verdict in given["quality_gate"]]
    assert statuses == ["accepted", "exhausted", "accepted"]
    assert [verdict["decided_by"] for verdict in given["quality_gate"]] == ["expert"] * 3
    assert len(judgings(bench.server)) == 3
