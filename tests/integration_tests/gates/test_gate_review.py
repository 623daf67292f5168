"""An expert asked by a gate: whose word decides, and what it is told on."""

from datetime import timedelta
from typing import Any

import pytest
from langchain_core.messages import HumanMessage

from memalign_graph import MemAlignWarning, Numeric, create_feedback_graph
from tests.conftest import CRITERION, Bench, judgings
from tests.integration_tests.gates.support import (
    Writer,
    always,
    asked,
    gated,
    models,
)

SCORE = CRITERION.model_copy(update={"scale": Numeric(minimum=1, maximum=5, integer=True)})


@pytest.mark.parametrize(
    "reply", ["Too cold.", {"decisions": [{"type": "reject", "message": "Too cold."}]}]
)
async def test_words_without_a_value_send_a_good_verdict_back(bench: Bench, reply: Any) -> None:
    writer = Writer()
    graph = gated(bench, writer, review="always")
    await bench.invoke(graph, asked())
    await bench.resume(graph, reply)
    critique = writer.seen[1]["messages"][-1]
    assert type(critique) is HumanMessage
    assert "Too cold." in critique.text
    assert "true" not in critique.text


async def test_ignoring_leaves_the_judges_verdict(bench: Bench) -> None:
    for value, status in ((True, "accepted"), (False, "exhausted")):
        bench.server.rules = always(value)
        graph = gated(bench, Writer(), review="always", revise=None)
        await bench.invoke(graph, asked(), status)
        gate = (await bench.resume(graph, {"type": "ignore"}, status))["quality_gate"]
        assert gate["status"] == status
        assert (gate["decided_by"], gate["feedback"], gate["learned"]) == ("judge", None, None)
    assert await bench.episodes() == []


async def test_experts_value_is_held_against_the_rule(bench: Bench) -> None:
    bench.server.rules = always(5)
    graph = gated(bench, Writer(), SCORE, passes=4, review="always", revise=None)
    for value, status in ((4, "accepted"), (3, "exhausted")):
        await bench.invoke(graph, asked(), status)
        gate = (await bench.resume(graph, {"value": value}, status))["quality_gate"]
        assert (gate["value"], gate["status"], gate["judgment"]["value"]) == (value, status, 5)


async def test_judgment_in_the_verdict_can_be_spoken_of_later(bench: Bench) -> None:
    given = await bench.invoke(gated(bench, Writer(), keep_judgments=timedelta(days=1)), asked())
    later = bench.compile(create_feedback_graph(CRITERION, **models(bench)))
    reply = {"value": False, "rationale": "Too cold."}
    word = {"judgment_id": given["quality_gate"]["judgment"]["id"], "reply": reply}
    learned = await bench.invoke(later, word, "later")
    [episode] = await bench.episodes()
    assert learned["learned"]["episode_ids"] == [episode.id]
    assert (episode.example.outputs, episode.thread_ids) == ("Draft 1.", ["t", "later"])


async def test_without_a_checkpointer_asking_is_warned_of_and_revising_works(bench: Bench) -> None:
    graph = gated(bench, Writer(), review="always")
    graph.checkpointer = None
    with pytest.warns(MemAlignWarning, match="without a checkpointer"):
        given = await bench.invoke(graph, asked(), None)
    assert not given.get("quality_gate")
    graph = gated(bench, Writer())
    graph.checkpointer = None
    bench.server.script({"value": False, "rationale": "No."})
    gate = (await bench.invoke(graph, asked(), None))["quality_gate"]
    assert (gate["status"], gate["revisions"]) == ("accepted", 1)
    assert gate["judgment"]["thread_id"] is None
    assert len(judgings(bench.server)) == 3
