"""Agents with a gate in more than one run, thread and process at a time."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from langchain.agents import create_agent
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.store.sqlite import SqliteStore
from langgraph.types import Command

from memalign_graph import QualityGateMiddleware
from tests.conftest import COLD, CRITERION, Bench, judgings, thread
from tests.integration_tests.agents.support import AgentModel, agent, ask, gate, pending
from tests.integration_tests.gates.support import IN_MEMORY, inputs, models, outputs
from tests.loopback import ChatRequest, Reply
from tests.loopback.replies import as_reply


def echo(server: Any) -> None:
    """An agent's model that repeats what it was asked; cold at first where it is to be."""

    def respond(request: ChatRequest) -> Reply:
        if request.schema_name is not None:
            return as_reply(server.judge(request))
        asked = str(request.messages[0]["content"])
        cold = len(request.messages) == 1 and asked.endswith("cold")
        return as_reply(f"{'Cold' if cold else 'Kind'} answer to {asked}.")

    server.responder = respond


@IN_MEMORY
async def test_turns_on_many_threads_at_once_are_judged_each_by_itself(bench: Bench) -> None:
    from tests.loopback import Rule

    def is_cold(chat: ChatRequest) -> bool:
        return "Cold answer" in chat.text.rpartition("<outputs>")[2]

    bench.server.rules = [Rule(is_cold, value=False)]
    echo(bench.server)
    graph = agent(bench, gate(bench))
    questions = [f"{number} {'cold' if number % 2 else 'kind'}" for number in range(12)]
    if bench.awaits:
        runs = [graph.ainvoke(ask(one), thread(one)) for one in questions]
        results = list(await asyncio.gather(*runs))
    else:
        with ThreadPoolExecutor(12) as executor:
            results = list(executor.map(lambda one: graph.invoke(ask(one), thread(one)), questions))
    for question, given in zip(questions, results, strict=True):
        assert given["messages"][-1].text == f"Kind answer to {question}."
        assert given["quality_gate"]["revisions"] == int(question.endswith("cold"))
        assert given["quality_gate"]["judgment"]["thread_id"] == question
    assert sorted(set(inputs(bench.server))) == sorted(questions)
    assert len(outputs(bench.server)) == 18


@IN_MEMORY
async def test_one_gate_serves_two_agents(bench: Bench) -> None:
    AgentModel(bench.server, "One.", "Two.", "Three.")
    made = gate(bench, review="always", max_revisions=0)
    first, second = agent(bench, made), agent(bench, made)
    await bench.invoke(first, ask(), "first")
    await bench.invoke(second, ask("The cup is broken."), "second")
    given = await bench.resume(second, {"value": True}, "second")
    assert given["quality_gate"]["status"] == "accepted"
    given = await bench.resume(first, {"value": False}, "first")
    assert given["quality_gate"]["status"] == "exhausted"
    assert outputs(bench.server) == ["One.", "Two."]


async def test_question_is_answered_in_another_process(bench: Bench, tmp_path: Path) -> None:
    """With another agent and other connections, as after a restart."""
    AgentModel(bench.server, "Wait.", "So sorry!")
    store_file, saver_file = str(tmp_path / "s.db"), str(tmp_path / "t.db")

    def carry_on(given: Any) -> Any:
        with (
            SqliteStore.from_conn_string(store_file) as store,
            SqliteSaver.from_conn_string(saver_file) as saver,
        ):
            store.setup()
            options: Any = {"review": "always", "max_revisions": 1}
            made = QualityGateMiddleware(CRITERION, **models(bench), **options)
            graph: Any = create_agent(
                bench.server.chat_model(), middleware=[made], store=store, checkpointer=saver
            )
            return graph.invoke(given, thread("t"))

    assert pending(carry_on(ask()))["name"] == "review_judgment"
    assert pending(carry_on(Command(resume=COLD)))["args"]["value"] is True
    verdict = carry_on(Command(resume={"value": True}))["quality_gate"]
    assert (verdict["status"], verdict["revisions"]) == ("accepted", 1)
    assert len(judgings(bench.server)) == 2


@IN_MEMORY
async def test_run_goes_on_from_where_it_broke_off(bench: Bench) -> None:
    """The judge is not paid again for a draft that it has seen."""
    AgentModel(bench.server, "Wait.")
    graph = agent(bench, gate(bench, review="always", max_revisions=1))
    await bench.invoke(graph, ask())
    model = AgentModel(bench.server)
    with pytest.raises(Exception, match="IndexError"):  # the model has no more to say
        await bench.resume(graph, COLD)
    bench.server.errors.clear()
    model.then("So sorry!")
    given = await bench.invoke(graph, None)
    assert pending(given)["args"]["value"] is True
    assert outputs(bench.server) == ["Wait.", "So sorry!"]
    assert len(await bench.episodes()) == 1
