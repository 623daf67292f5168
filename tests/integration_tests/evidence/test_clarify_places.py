"""The question back wherever a review can stand: in gates, agents, tools, parents, other graphs."""

from pathlib import Path
from typing import Any

import pytest
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import START, StateGraph
from langgraph.store.sqlite import SqliteStore
from langgraph.types import Command
from typing_extensions import TypedDict

from memalign_graph import create_quality_gate_tool, create_review_graph
from tests.conftest import CASE, CRITERION, Bench, judgings, thread
from tests.integration_tests.agents.support import AgentModel, agent, ask, calls, gate
from tests.integration_tests.evidence.clarify_support import (
    ANSWER,
    APPROVE,
    ASKS,
    JOINED,
    VAGUE,
    action,
    answers,
    clarifying_graph,
    questions,
)
from tests.integration_tests.gates.support import Writer, asked, gated, models


async def test_gate_asks_back_and_goes_by_what_the_expert_said(bench: Bench) -> None:
    bench.server.rules = answers(ASKS)
    writer = Writer("Wait.", "Sorry!")
    graph = gated(bench, writer, review="always", clarify=True, max_revisions=1)
    assert action(await bench.invoke(graph, asked()))["name"] == "review_judgment"
    given = await bench.resume(graph, VAGUE)
    assert action(given)["name"] == "clarify_feedback"
    assert "Wait." in action(given)["description"]
    assert "not on the scale" in await bench.refuse(graph, {"value": "perhaps"})
    assert await bench.episodes() == []
    given = await bench.resume(graph, ANSWER)
    told = writer.seen[1]["messages"][-1].text
    assert "Too cold." in told
    assert ANSWER in told
    assert action(given)["name"] == "review_judgment"  # of the second draft
    verdict = (await bench.resume(graph, APPROVE))["quality_gate"]
    assert (verdict["status"], verdict["revisions"]) == ("accepted", 1)
    assert verdict["learned"]["warnings"] == []
    assert {one.rationale for one in await bench.episodes()} == {JOINED, None}
    assert (len(judgings(bench.server)), len(questions(bench.server))) == (2, 1)
    assert len(writer.seen) == 2


async def test_gate_tells_that_nobody_could_be_asked(bench: Bench) -> None:
    graph = gated(bench, Writer(), review="always", clarify=True, revise=None)
    await bench.invoke(graph, asked())
    bench.server.script("Well.", "Well.")
    verdict = (await bench.resume(graph, VAGUE))["quality_gate"]
    assert verdict["status"] == "exhausted"
    [warning] = verdict["learned"]["warnings"]
    assert "not asked back" in warning


async def test_middleware_asks_back(bench: Bench) -> None:
    model = AgentModel(bench.server, "Wait.", "Sorry!")
    graph = agent(bench, gate(bench, review="always", clarify=True, max_revisions=1))
    await bench.invoke(graph, ask())
    bench.server.script(ASKS)
    given = await bench.resume(graph, VAGUE)
    assert action(given)["name"] == "clarify_feedback"
    assert len(model.requests) == 1
    await bench.resume(graph, ANSWER)
    assert ANSWER in str(model.requests[1].messages[-1]["content"])
    verdict = (await bench.resume(graph, APPROVE))["quality_gate"]
    assert verdict["status"] == "accepted"
    assert {one.rationale for one in await bench.episodes()} == {JOINED, None}
    assert (len(judgings(bench.server)), len(questions(bench.server))) == (2, 1)


async def test_tool_asks_back(bench: Bench) -> None:
    tool = create_quality_gate_tool(CRITERION, review="always", clarify=True, **models(bench))
    AgentModel(bench.server, calls("check_quality", inputs="Why?", outputs="So."), "Done.")
    graph = agent(bench, tools=[tool])
    await bench.invoke(graph, ask())
    bench.server.script(ASKS)
    assert action(await bench.resume(graph, VAGUE))["name"] == "clarify_feedback"
    done = await bench.resume(graph, ANSWER)
    assert "__interrupt__" not in done
    assert ANSWER in done["messages"][2].text
    [episode] = await bench.episodes()
    assert episode.rationale == JOINED
    assert (len(judgings(bench.server)), len(questions(bench.server))) == (1, 1)


async def test_review_graph_asks_back_within_another(bench: Bench) -> None:
    options: dict[str, Any] = {
        "model": bench.server.chat_model(),
        "embeddings": bench.server.embedder(),
    }
    inner = create_review_graph(CRITERION, clarify=True, **options).compile()

    class Parent(TypedDict, total=False):
        inputs: str
        outputs: str
        judgment: dict[str, Any]
        feedback: dict[str, Any] | None
        after: str

    builder = StateGraph(Parent)
    builder.add_node("review", inner)
    builder.add_node("after", lambda state: {"after": state["feedback"]["rationale"]})
    builder.add_edge(START, "review")
    builder.add_edge("review", "after")
    graph = bench.compile(builder)
    bench.server.rules = answers(ASKS)
    await bench.invoke(graph, CASE)
    given = await bench.resume(graph, VAGUE)
    assert action(given)["name"] == "clarify_feedback"
    assert "of type int" in await bench.refuse(graph, 7)
    done = await bench.resume(graph, ANSWER)
    assert done["after"] == JOINED
    assert "clarification" not in done
    assert len(judgings(bench.server)) == len(questions(bench.server)) == 1


async def test_question_is_answered_in_another_process(bench: Bench, tmp_path: Path) -> None:
    """With another graph object and other connections, as after a restart."""
    store_file, saver_file = str(tmp_path / "s.db"), str(tmp_path / "t.db")

    def carry_on(given: Any) -> Any:
        with (
            SqliteStore.from_conn_string(store_file) as store,
            SqliteSaver.from_conn_string(saver_file) as saver,
        ):
            store.setup()
            graph = clarifying_graph(bench)
            graph.store, graph.checkpointer = store, saver
            return graph.invoke(given, thread("t"))

    bench.server.rules = answers(ASKS)
    carry_on(CASE)
    assert action(carry_on(Command(resume=VAGUE)))["name"] == "clarify_feedback"
    with pytest.raises(ValueError, match="of type int"):
        carry_on(Command(resume=7))
    assert carry_on(Command(resume=ANSWER))["feedback"]["rationale"] == JOINED
    assert len(judgings(bench.server)) == len(questions(bench.server)) == 1


@pytest.mark.parametrize("durability", ["exit", "sync"])
async def test_it_is_resumed_whenever_checkpoints_are_written(
    bench: Bench, durability: Any
) -> None:
    graph = clarifying_graph(bench)
    bench.server.rules = answers(ASKS)
    await bench.invoke(graph, CASE, durability=durability)
    await bench.resume(graph, VAGUE, durability=durability)
    done = await bench.resume(graph, ANSWER, durability=durability)
    assert done["feedback"]["rationale"] == JOINED
    assert len(judgings(bench.server)) == len(questions(bench.server)) == 1
