"""Gates inside other graphs: under checkpointers, stores and contexts that are the parent's."""

from dataclasses import dataclass
from dataclasses import field as data_field
from typing import Any

import pytest
from langgraph.graph import END, START, MessagesState, StateGraph
from pydantic import BaseModel
from typing_extensions import TypedDict

from memalign_graph import Criterion, JudgeMemory, MemAlignContext, MemAlignWarning
from tests.conftest import CASE, COLD, CRITERION, Bench, Graph, judgings
from tests.integration_tests.gates.support import (
    IN_MEMORY,
    LENGTH,
    REASON,
    Builder,
    Writer,
    always,
    asked,
    gate_on,
    gated,
    judges,
    verdict,
    writing,
)

TEAM = ("team-a",)


def inside(bench: Bench, writer: Any, criterion: Criterion = CRITERION, **options: Any) -> Graph:
    """A gated graph without a store or checkpointer of its own."""
    return gate_on(bench, writing(writer), criterion, **options).compile()


def around(worker: Graph) -> Builder:
    """A parent with a gated graph for a node."""
    builder: Builder = StateGraph(MessagesState)
    builder.add_node("worker", worker)
    builder.add_edge(START, "worker")
    return builder


async def test_gated_graph_as_a_node_of_a_parent(bench: Bench) -> None:
    writer = Writer()
    graph = bench.compile(around(inside(bench, writer)))
    bench.server.script(verdict(False), verdict(True))
    given = await bench.invoke(graph, asked())
    assert len(writer.seen) == 2
    assert [one.text for one in given["messages"]][-1] == "Draft 2."
    assert REASON in given["messages"][2].text


async def test_question_bubbles_up_to_the_parent_and_is_answered_there(bench: Bench) -> None:
    writer = Writer()
    graph = bench.compile(around(inside(bench, writer, review="always", max_revisions=1)))
    given = await bench.invoke(graph, asked())
    assert len(given["__interrupt__"]) == 1
    assert (await bench.state(graph)).next == ("worker",)
    assert "is empty" in await bench.refuse(graph, " ")
    assert "__interrupt__" in await bench.resume(graph, COLD)
    given = await bench.resume(graph, {"value": True})
    assert "__interrupt__" not in given
    assert (await bench.state(graph)).next == ()
    assert given["messages"][-1].text == "Draft 2."
    assert len(judgings(bench.server)) == len(writer.seen) == 2
    assert len(await bench.episodes()) == 2


async def test_gates_of_one_name_in_a_parent_and_its_subgraph_count_apart(bench: Bench) -> None:
    writer = Writer()
    builder = around(inside(bench, writer, max_revisions=1))
    gate_on(bench, builder, LENGTH, after="worker", revise="worker", max_revisions=1)
    graph = bench.compile(builder).with_config(recursion_limit=12)
    bench.server.rules = [judges(LENGTH.instructions, False), *always(True)]
    given = await bench.invoke(graph, asked())
    assert given["quality_gate"]["status"] == "exhausted"
    assert given["quality_gate"]["judgment"]["criterion"] == LENGTH.name
    assert given["quality_gate"]["revisions"] == 1
    assert len(writer.seen) == 2


async def test_two_levels_down(bench: Bench) -> None:
    middle = around(inside(bench, Writer(), review="always")).compile()
    graph = bench.compile(around(middle))
    await bench.invoke(graph, asked())
    await bench.resume(graph, COLD)
    given = await bench.resume(graph, {"value": True})
    assert given["messages"][-1].text == "Draft 2."
    assert len(judgings(bench.server)) == 2


async def test_gated_graph_called_by_a_nodes_own_function(bench: Bench) -> None:
    worker = inside(bench, Writer(), review="always")

    async def acall(state: Any) -> Any:
        return {"messages": (await worker.ainvoke(state))["messages"]}

    def call(state: Any) -> Any:
        return {"messages": worker.invoke(state)["messages"]}

    builder: Builder = StateGraph(MessagesState)
    builder.add_node("worker", acall if bench.awaits else call)
    builder.add_edge(START, "worker")
    graph = bench.compile(builder)
    await bench.invoke(graph, asked())
    given = await bench.resume(graph, {"value": True})
    assert given["messages"][-1].text == "Draft 1."
    assert len(judgings(bench.server)) == 1


@dataclass
class DataclassContext:
    tenant: str = "x"
    memalign: dict[str, Any] = data_field(default_factory=dict)


class PydanticContext(BaseModel):
    tenant: str = "x"
    memalign: MemAlignContext = MemAlignContext()


class DictContext(TypedDict, total=False):
    tenant: str
    memalign: dict[str, Any]


CONTEXTS = pytest.mark.parametrize("schema", [DataclassContext, PydanticContext, DictContext, None])


def settings(schema: Any, **memalign: Any) -> Any:
    """A parent's context, as its callers give it."""
    if schema is DataclassContext:
        return DataclassContext(memalign=memalign)
    if schema is PydanticContext:
        return PydanticContext(memalign=MemAlignContext(**memalign))
    return {"tenant": "x", "memalign": memalign}


def with_context(bench: Bench, schema: Any, writer: Any, **options: Any) -> Graph:
    builder = writing(writer, context_schema=schema)
    return bench.compile(gate_on(bench, builder, CRITERION, **options))


@IN_MEMORY
@CONTEXTS
async def test_namespace_and_k_of_a_parents_context_reach_the_judge(
    bench: Bench, schema: Any
) -> None:
    await bench.remember({**CASE, **COLD}, namespace=TEAM)
    graph = with_context(bench, schema, Writer())
    for context, shown in (
        (settings(schema, namespace=list(TEAM)), True),
        (settings(schema, namespace=list(TEAM), k=0), False),
        (settings(schema), False),
    ):
        bench.server.chats.clear()
        given = await bench.invoke(graph, asked(), context=context)
        assert (COLD["rationale"] in judgings(bench.server)[0].text) is shown
        assert bool(given["quality_gate"]["judgment"]["episode_ids"]) is shown


@IN_MEMORY
@CONTEXTS
async def test_model_of_a_parents_context_judges(
    bench: Bench, schema: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in bench.server.environment.items():
        monkeypatch.setenv(name, value)
    bench.server.keep_alive = False
    try:
        graph = with_context(bench, schema, Writer())
        context = settings(schema, model="openai:gpt-4.1-nano")
        given = await bench.invoke(graph, asked(), context=context)
    finally:
        bench.server.keep_alive = True
    assert given["quality_gate"]["judgment"]["model"] == "gpt-4.1-nano"
    assert judgings(bench.server)[0].model == "gpt-4.1-nano"


@CONTEXTS
async def test_review_of_a_parents_context_decides(bench: Bench, schema: Any) -> None:
    graph = with_context(bench, schema, Writer(), review="always")
    given = await bench.invoke(graph, asked(), "a", context=settings(schema, review="never"))
    assert given["quality_gate"]["status"] == "accepted"
    given = await bench.invoke(graph, asked(), "b", context=settings(schema, review="always"))
    assert "__interrupt__" in given


@IN_MEMORY
@CONTEXTS
async def test_settings_hold_while_a_gate_asks_nobody_until_revisions_run_out(
    bench: Bench, schema: Any
) -> None:
    memory = JudgeMemory(bench.store, CRITERION, namespace=TEAM, embeddings=bench.server.embedder())
    guideline = memory.add_guideline("Begins with a word of regret.")
    bench.server.rules = always(False)
    graph = with_context(bench, schema, Writer(), review="exhausted", max_revisions=1)
    given = await bench.invoke(graph, asked(), context=settings(schema, namespace=list(TEAM)))
    assert "__interrupt__" in given
    assert len(judgings(bench.server)) == 2
    for chat in judgings(bench.server):
        assert guideline.text in chat.text


async def test_context_reaches_a_gate_two_levels_down(bench: Bench) -> None:
    await bench.remember({**CASE, **COLD}, namespace=TEAM)
    graph = bench.compile(around(around(inside(bench, Writer())).compile()))
    await bench.invoke(graph, asked(), context={"memalign": {"namespace": list(TEAM)}})
    assert COLD["rationale"] in judgings(bench.server)[0].text


async def test_asking_without_a_checkpointer_is_warned_of(bench: Bench) -> None:
    graph = gated(bench, Writer(), review="always")
    graph.checkpointer = None
    with pytest.warns(MemAlignWarning, match="without a checkpointer"):
        given = await bench.invoke(graph, asked(), None)
    assert "status" not in given.get("quality_gate", {})


async def test_gate_at_the_end_of_a_parent_without_a_checkpointer(bench: Bench) -> None:
    graph = gated(bench, Writer())
    graph.checkpointer = None
    bench.server.script(verdict(False), verdict(True))
    given = await bench.invoke(graph, asked(), None)
    assert (given["quality_gate"]["status"], given["quality_gate"]["revisions"]) == ("accepted", 1)
    assert given["quality_gate"]["judgment"]["thread_id"] is None


async def test_one_built_graph_serves_many_threads_at_once(bench: Bench) -> None:
    class Named(Writer):
        def __call__(self, state: Any) -> dict[str, Any]:
            from langchain_core.messages import AIMessage

            words = state["messages"][0].text.split()
            revised = len(state["messages"]) > 1
            return {"messages": [AIMessage(f"To {words[-1]} {'again' if revised else 'first'}.")]}

    bench.server.rules = [judges("To odd first.", False), *always(True)]
    graph = gated(bench, Named())
    given = [await bench.invoke(graph, asked(f"I am {who}"), who) for who in ("odd", "even", "odd")]
    assert [one["messages"][-1].text for one in given[:2]] == ["To odd again.", "To even first."]
    assert [one["quality_gate"]["revisions"] for one in given[:2]] == [1, 0]


def test_builder_is_given_back(bench: Bench) -> None:
    builder = writing(Writer())
    assert gate_on(bench, builder, CRITERION, revise=END) is builder
