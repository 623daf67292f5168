"""How often an answer is sent back in one turn, however many runs that takes."""

from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.errors import GraphRecursionError
from langgraph.types import interrupt

from tests.conftest import CRITERION, Bench, judgings
from tests.integration_tests.gates.support import (
    IN_MEMORY,
    LENGTH,
    QUESTION,
    Writer,
    always,
    asked,
    gate_on,
    gated,
    judges,
    texts,
    verdict,
    writing,
)

AGAIN = "The cup is broken."


class Failing(Writer):
    """A writer whose model is down once."""

    def __init__(self, *drafts: str, at: int) -> None:
        super().__init__(*drafts)
        self.at = at

    def __call__(self, state: Any) -> dict[str, Any]:
        update = super().__call__(state)
        if len(self.seen) == self.at:
            raise ConnectionError("The writer's model is down.")
        return update


async def test_revisions_are_counted_anew_in_the_next_turn(bench: Bench) -> None:
    writer = Writer()
    graph = gated(bench, writer, max_revisions=1)
    bench.server.script(verdict(False), verdict(False))
    first = await bench.invoke(graph, asked())
    assert (first["quality_gate"]["status"], len(writer.seen)) == ("exhausted", 2)
    bench.server.script(verdict(False), verdict(True))
    second = await bench.invoke(graph, asked(AGAIN))
    assert second["quality_gate"]["status"] == "accepted"
    assert (second["quality_gate"]["revisions"], len(writer.seen)) == (1, 4)


@pytest.mark.parametrize("question", [AGAIN, QUESTION], ids=["another", "the-same"])
async def test_turn_after_a_writer_that_failed_has_all_its_revisions(
    bench: Bench, question: str
) -> None:
    graph = gated(bench, Failing(at=2), max_revisions=1)
    bench.server.script(verdict(False))
    with pytest.raises(ConnectionError):
        await bench.invoke(graph, asked())
    bench.server.script(verdict(False), verdict(True))
    given = await bench.invoke(graph, asked(question))
    assert (given["quality_gate"]["status"], given["quality_gate"]["revisions"]) == ("accepted", 1)


@IN_MEMORY
async def test_turn_after_an_empty_draft_and_a_writer_that_failed_has_all_its_revisions(
    bench: Bench,
) -> None:
    graph = gated(bench, Failing("Wait.", "", at=3), max_revisions=2)
    bench.server.rules = always(False)
    with pytest.raises(ConnectionError):
        await bench.invoke(graph, asked())
    given = await bench.invoke(graph, asked(AGAIN))
    assert len(judgings(bench.server)) == 1 + 3
    assert given["quality_gate"]["revisions"] == 2


@IN_MEMORY
async def test_turn_that_begins_with_an_empty_draft_has_all_its_revisions(bench: Bench) -> None:
    writer = Failing("Wait.", "", "", at=2)
    graph = gated(bench, writer, max_revisions=1)
    bench.server.rules = always(False)
    with pytest.raises(ConnectionError):
        await bench.invoke(graph, asked())
    given = await bench.invoke(graph, asked(AGAIN))
    assert (given["quality_gate"]["revisions"], len(writer.seen)) == (1, 4)


@IN_MEMORY
async def test_turn_after_a_run_that_went_on_too_long_has_all_its_revisions(bench: Bench) -> None:
    writer = Writer()
    graph = gated(bench, writer, max_revisions=3)
    bench.server.rules = always(False)
    with pytest.raises(GraphRecursionError):
        await bench.invoke(graph.with_config(recursion_limit=4), asked())
    before = len(writer.seen)
    given = await bench.invoke(graph, asked(AGAIN))
    assert (given["quality_gate"]["revisions"], len(writer.seen) - before) == (3, 4)


@IN_MEMORY
async def test_gate_left_in_the_middle_by_another_has_all_its_revisions_next_time(
    bench: Bench,
) -> None:
    writer = Writer()
    builder = writing(writer)
    gate_on(bench, builder, revise=None, name="tone", accept="short")
    gate_on(bench, builder, LENGTH, after=None, name="short", max_revisions=1)
    graph = bench.compile(builder)
    bench.server.rules = [judges(LENGTH.instructions, False), *always(True)]
    bench.server.script(verdict(True), verdict(False), verdict(False))
    first = await bench.invoke(graph, asked())
    assert (first["tone"]["status"], first["short"]["status"]) == ("exhausted", "revise")
    second = await bench.invoke(graph, asked(AGAIN))
    assert second["short"]["revisions"] == 1
    assert len(writer.seen) == 4


async def test_writer_that_failed_and_goes_on_has_the_revisions_that_are_left(bench: Bench) -> None:
    graph = gated(bench, Failing(at=2), max_revisions=1)
    bench.server.rules = always(False)
    with pytest.raises(ConnectionError):
        await bench.invoke(graph, asked())
    given = await bench.invoke(graph, None)
    assert given["quality_gate"]["status"] == "exhausted"
    assert len(judgings(bench.server)) == 2


def conversation(state: Any) -> dict[str, Any]:
    """What was said so far, which grows from draft to draft."""
    *said, answer = texts(state["messages"])
    return {"inputs": {"said": said}, "outputs": answer}


@pytest.mark.parametrize("example", [None, conversation], ids=["exchange", "conversation"])
async def test_revisions_run_out_over_many_replies_of_an_expert(bench: Bench, example: Any) -> None:
    writer = Writer()
    graph = gated(bench, writer, review="always", max_revisions=2, example=example)
    await bench.invoke(graph, asked())
    for _ in range(3):
        given = await bench.resume(graph, {"value": False})
    assert "__interrupt__" not in given
    assert given["quality_gate"]["status"] == "exhausted"
    assert (given["quality_gate"]["revisions"], len(writer.seen)) == (2, 3)


async def test_revisions_run_out_also_where_the_writer_asks_its_user(bench: Bench) -> None:
    def write(state: Any) -> dict[str, Any]:
        if len(state["messages"]) == 1:
            return {"messages": [AIMessage("Which order?")]}
        told = interrupt("Which order?")
        return {"messages": [HumanMessage(told), AIMessage(f"Order {told} is on its way.")]}

    bench.server.rules = always(False)
    graph = gated(bench, write, max_revisions=2)
    await bench.invoke(graph, asked())
    for number in ("12", "13"):
        given = await bench.resume(graph, number)
    assert "__interrupt__" not in given
    assert given["quality_gate"]["status"] == "exhausted"
    assert len(judgings(bench.server)) == 3


@IN_MEMORY
async def test_question_that_was_never_answered_does_not_count(bench: Bench) -> None:
    """An expert is asked about the last revision, and the user asks something else instead."""
    graph = gated(bench, Writer(), review="always", max_revisions=1)
    await bench.invoke(graph, asked())
    await bench.resume(graph, {"value": False})
    await bench.invoke(graph, asked(AGAIN))
    given = await bench.resume(graph, {"value": False})
    assert given["quality_gate"]["status"] == "revise"
    given = await bench.resume(graph, {"value": False})
    assert (given["quality_gate"]["status"], given["quality_gate"]["revisions"]) == ("exhausted", 1)


@IN_MEMORY
async def test_gate_of_a_subgraph_counts_in_each_turn_of_its_parent(bench: Bench) -> None:
    writer = Writer()
    worker = gate_on(bench, writing(writer), CRITERION, max_revisions=1).compile()
    graph = bench.compile(writing(worker))
    bench.server.rules = always(False)
    for question in (QUESTION, AGAIN, AGAIN):
        await bench.invoke(graph, asked(question))
    assert len(writer.seen) == len(judgings(bench.server)) == 6
