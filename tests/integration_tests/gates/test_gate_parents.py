"""Gates inside other graphs: under checkpointers, stores and contexts that are the parent's."""

from dataclasses import dataclass
from dataclasses import field as data_field
from typing import Any

import pytest
from langgraph.graph import END, MessagesState
from pydantic import BaseModel
from typing_extensions import TypedDict

from memalign_graph import InvalidInputError, MemAlignContext, create_quality_gate_node
from tests.conftest import CASE, COLD, CRITERION, Bench, Graph, judgings
from tests.integration_tests.gates.support import (
    LENGTH,
    QUESTION,
    REASON,
    Writer,
    always,
    asked,
    gate_on,
    inputs,
    judges,
    models,
    wired,
    writing,
)

TEAM = ("team-a",)


def inside(bench: Bench, writer: Any, **options: Any) -> Graph:
    """A gated graph without a store or checkpointer of its own."""
    return gate_on(bench, writing(writer), **options).compile()


async def test_question_bubbles_up_through_parents_with_their_context_and_events(
    bench: Bench,
) -> None:
    writer = Writer()
    middle = writing(inside(bench, writer, review="always", max_revisions=1)).compile()
    graph = bench.compile(writing(middle))
    await bench.remember({**CASE, **COLD}, namespace=TEAM)
    parts = await bench.stream(
        graph,
        asked(),
        stream_mode="custom",
        subgraphs=True,
        context={"memalign": {"namespace": list(TEAM)}},
    )
    assert [event["status"] for _, event in parts] == ["judging", "asking"]
    assert COLD["rationale"] in judgings(bench.server)[0].text
    state = await bench.state(graph)
    assert (state.next, len(state.interrupts)) == (("write",), 1)
    assert "is empty" in await bench.refuse(graph, " ")
    assert "__interrupt__" in await bench.resume(graph, {"value": False, "rationale": REASON})
    given = await bench.resume(graph, {"value": True})
    assert REASON in given["messages"][2].text
    assert given["messages"][-1].text == "Draft 2."
    assert len(judgings(bench.server)) == len(writer.seen) == 2
    assert len(await bench.episodes(namespace=TEAM)) == 3


async def test_gates_of_one_name_in_a_parent_and_its_subgraph_count_apart(bench: Bench) -> None:
    writer = Writer()
    builder = writing(inside(bench, writer, max_revisions=1))
    gate_on(bench, builder, LENGTH, max_revisions=1)
    graph = bench.compile(builder).with_config(recursion_limit=12)
    bench.server.rules = [judges(LENGTH.instructions, False), *always(True)]
    given = await bench.invoke(graph, asked())
    assert given["quality_gate"]["judgment"]["criterion"] == LENGTH.name
    assert (given["quality_gate"]["status"], given["quality_gate"]["revisions"]) == ("exhausted", 1)
    assert len(writer.seen) == 2


class State(MessagesState):
    quality_gate: dict[str, Any]


@pytest.mark.parametrize("by_hand", [True, False])
async def test_gate_of_a_subgraph_begins_each_turn_of_its_parent_anew(
    bench: Bench, *, by_hand: bool
) -> None:
    """Its verdicts stay in the subgraph, and its critiques are in the parent's messages."""
    writer = Writer()
    options: dict[str, Any] = {"max_revisions": 1, "sees": "answer"}
    if by_hand:
        worker = wired(bench, writer, State, **options)
        worker.store = worker.checkpointer = None
    else:
        worker = inside(bench, writer, **options)
    graph = bench.compile(writing(worker))
    bench.server.rules = always(False)
    for question in (QUESTION, "The cup is broken.", "The cup is broken."):
        await bench.invoke(graph, asked(question))
    assert len(writer.seen) == len(judgings(bench.server)) == 6
    assert inputs(bench.server)[::2] == [QUESTION, "The cup is broken.", "The cup is broken."]


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


def settings(schema: Any, **memalign: Any) -> Any:
    """A parent's context, as its callers give it."""
    if schema is DataclassContext:
        return DataclassContext(memalign=memalign)
    if schema is PydanticContext:
        return PydanticContext(memalign=MemAlignContext(**memalign))
    return memalign if schema is MemAlignContext else {"tenant": "x", "memalign": memalign}


@pytest.mark.parametrize(
    "schema", [DataclassContext, PydanticContext, DictContext, MemAlignContext, None]
)
async def test_settings_of_a_parents_context_reach_the_judge(
    bench: Bench, schema: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in bench.server.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(bench.server, "keep_alive", False)
    await bench.remember({**CASE, **COLD}, namespace=TEAM)
    rule = await bench.add_guideline("Begins with a word of regret.", namespace=TEAM)
    builder = writing(Writer(), context_schema=schema)
    options: dict[str, Any] = {"review": "exhausted", "max_revisions": 1}
    graph = bench.compile(gate_on(bench, builder, **options))
    bench.server.rules = always(False)
    runs: list[tuple[dict[str, Any], bool, bool]] = [
        ({"namespace": list(TEAM), "model": "openai:gpt-4.1-nano"}, True, True),
        ({"namespace": list(TEAM), "k": 0, "review": "never"}, False, True),
        ({}, False, False),
    ]
    for number, (given, shown, ruled) in enumerate(runs):
        bench.server.chats.clear()
        result = await bench.invoke(graph, asked(), str(number), context=settings(schema, **given))
        assert ("__interrupt__" in result) is ("review" not in given)
        # The settings hold also while nobody is asked until revisions have run out.
        assert len(judgings(bench.server)) == 2
        for chat in judgings(bench.server):
            assert (COLD["rationale"] in chat.text) is shown
            assert (rule.text in chat.text) is ruled
            assert chat.model == ("gpt-4.1-nano" if "model" in given else "gpt-4.1-mini")


async def test_graph_that_would_go_wrong_says_so_when_it_runs(bench: Bench) -> None:
    """The node by hand could not count, and the writer would go round for ever."""
    nowhere: Any = writing(Writer())
    nowhere.edges.clear()
    graph = bench.compile(gate_on(bench, nowhere))
    with pytest.raises(InvalidInputError, match="builder: nothing leads from START"):
        await bench.invoke(graph, asked())
    assert bench.server.chats == []
    writer = Writer()
    builder = writing(writer)
    node: Any = create_quality_gate_node(CRITERION, **models(bench), max_revisions=1)
    builder.add_node("quality_gate", node)
    builder.add_edge("write", "quality_gate")
    builder.add_conditional_edges(
        "quality_gate",
        lambda state: "write" if state["messages"][-1].type == "human" else END,
        ["write", END],
    )
    bench.server.rules = always(False)
    with pytest.raises(InvalidInputError, match="name: the graph state has no key 'quality_gate'"):
        await bench.invoke(bench.compile(builder), asked(), "u")
    assert len(writer.seen) == 2
