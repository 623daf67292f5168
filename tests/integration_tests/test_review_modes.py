"""When the expert is asked, and the places the review graph can stand in."""

import operator
from dataclasses import dataclass
from typing import Annotated, Any

import pytest
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command
from typing_extensions import TypedDict

from memalign_graph import (
    Criterion,
    JudgeNodes,
    Judgment,
    MemAlignWarning,
    create_review_graph,
)
from memalign_graph.state import ReviewState
from tests.conftest import (
    CASE,
    COLD,
    CRITERION,
    EVERY_WAY,
    OTHER,
    Bench,
    Graph,
    distillings,
    judgings,
)
from tests.loopback import Rule


async def test_callable_decides_on_the_judgment_once(bench: Bench) -> None:
    seen: list[Judgment] = []

    def asks(judgment: Judgment) -> bool:
        seen.append(judgment)
        return judgment.value is False

    graph = bench.review_graph(review=asks)
    assert "__interrupt__" not in await bench.invoke(graph, CASE, "a")
    bench.server.rules = [Rule(lambda _: True, value=False)]
    given = await bench.review(graph, {"type": "approve"}, OTHER, "b")
    assert [one.value for one in seen] == [True, False]
    assert seen[1].id == given["judgment"]["id"]


async def test_second_run_on_a_thread_shows_nothing_of_the_first(bench: Bench) -> None:
    graph = bench.review_graph()
    first = await bench.review(graph, COLD)
    second = await bench.invoke(graph, OTHER)
    assert second["judgment"]["id"] != first["judgment"]["id"]
    assert (second["feedback"], second["learned"]) == (None, None)
    ignored = await bench.resume(graph, {"type": "ignore"})
    assert (ignored["feedback"], ignored["learned"]) == (None, None)
    assert len(await bench.episodes()) == 1


async def test_without_a_checkpointer_it_warns(bench: Bench) -> None:
    graph = bench.review_graph()
    graph.checkpointer = None
    with pytest.warns(MemAlignWarning, match="without a checkpointer"):
        given = await bench.invoke(graph, CASE, "t")
    assert given["judgment"]["value"] is True
    assert given["judgment"]["thread_id"] is None


@EVERY_WAY
async def test_streams_name_each_node_and_bring_the_models_words(bench: Bench) -> None:
    graph = bench.review_graph()
    modes: Any = {"stream_mode": ["updates", "messages"]}

    async def parts(given: Any) -> tuple[list[str], str, set[str]]:
        streamed = await bench.stream(graph, given, **modes)
        nodes = [next(iter(part)) for mode, part in streamed if mode == "updates"]
        messages = [part for mode, part in streamed if mode == "messages"]
        text = "".join(str(message.content) for message, _ in messages)
        return nodes, text, {data["langgraph_node"] for _, data in messages}

    nodes, text, of = await parts(CASE)
    assert nodes == ["retrieve_episodes", "assemble_guidelines", "judge", "__interrupt__"]
    assert of == {"judge"}
    assert "nothing to say against it" in text
    nodes, text, of = await parts(Command(resume=COLD))
    assert nodes == ["collect_feedback", "distill_feedback", "commit_memory"]
    assert of == {"distill_feedback"}
    assert str(COLD["rationale"]) in text


class Parent(TypedDict, total=False):
    inputs: Any
    outputs: Any
    judgment: dict[str, Any]
    feedback: dict[str, Any] | None
    learned: dict[str, Any] | None
    steps: Annotated[list[str], operator.add]


@dataclass
class ParentContext:
    user: str
    memalign: Any = None


def step(name: str) -> Any:
    return lambda _: {"steps": [name]}


def parent_graph(bench: Bench) -> Graph:
    models: Any = {"model": bench.server.chat_model(), "embeddings": bench.server.embedder()}
    builder = StateGraph(Parent, context_schema=ParentContext)
    builder.add_node("answer", step("answer"))
    builder.add_node("review", create_review_graph(CRITERION, **models).compile())
    builder.add_node("done", step("done"))
    builder.add_edge(START, "answer")
    builder.add_edge("answer", "review")
    builder.add_edge("review", "done")
    builder.add_edge("done", END)
    return bench.compile(builder)


@EVERY_WAY
async def test_subgraph_under_a_parent_with_its_own_context(bench: Bench) -> None:
    graph = parent_graph(bench)
    own = ParentContext(user="ann", memalign={"namespace": ["team"]})
    contexts = (("memalign", None), ("memalign", ParentContext(user="ann")), ("team", own))
    for number, (namespace, context) in enumerate(contexts):
        on, case = f"t{number}", {**CASE, "outputs": f"Answer {number}."}
        asked = await bench.invoke(graph, case, on, context=context)
        assert len(asked["__interrupt__"]) == 1
        given = await bench.resume(graph, COLD, on)
        assert given["steps"] == ["answer", "done"]
        assert given["feedback"]["value"] is False
        assert len(given["learned"]["guidelines"]) == 1
        assert on in [one.thread_ids[0] for one in await bench.episodes(namespace=(namespace,))]
    assert len(judgings(bench.server)) == len(distillings(bench.server)) == 3


async def test_nodes_after_a_question_that_the_expert_skipped_do_nothing(bench: Bench) -> None:
    models: Any = {"model": bench.server.chat_model(), "embeddings": bench.server.embedder()}
    nodes = JudgeNodes(CRITERION, **models)
    builder: Any = StateGraph(ReviewState)
    names = ["retrieve_episodes", "assemble_guidelines", "judge", "collect_feedback"]
    names += ["distill_feedback", "commit_memory"]
    for before, name in zip([START, *names], names, strict=False):
        builder.add_node(name, getattr(nodes, name))
        builder.add_edge(before, name)
    done = await bench.review(bench.compile(builder), {"type": "ignore"})
    assert (done["feedback"], done["learned"]) == (None, None)
    assert await bench.episodes() == []


class Two(Parent, total=False):
    tone: Any
    length: Any


@EVERY_WAY
async def test_two_reviews_called_inside_nodes_are_answered_by_id(bench: Bench) -> None:
    builder = StateGraph(Two)
    for name in ("tone", "length"):
        builder.add_node(f"review_{name}", call_of(bench, name))
        builder.add_edge(START, f"review_{name}")
    graph = bench.compile(builder)
    asked = await bench.invoke(graph, CASE)
    replies: dict[str, Any] = {
        interrupt.id: f"On {interrupt.value['action_requests'][0]['description'].split()[1]}."
        for interrupt in asked["__interrupt__"]
    }
    assert sorted(replies.values()) == ["On length.", "On tone."]
    assert "neither a value" in await bench.refuse(graph, {key: {} for key in replies})
    given = await bench.resume(graph, replies)
    for name in ("tone", "length"):
        assert given[name]["feedback"]["rationale"] == f"On {name}."
        assert len(await bench.guidelines(criterion=criterion_of(name))) == 1
    assert len(judgings(bench.server)) == 2


def criterion_of(name: str) -> Criterion:
    return Criterion(name=name, instructions=f"Is the {name} right?")


def call_of(bench: Bench, key: str) -> Any:
    """A node that calls a graph, the one way or the other."""
    models: Any = {"model": bench.server.chat_model(), "embeddings": bench.server.embedder()}
    inner: Graph = create_review_graph(criterion_of(key), **models).compile()

    def call(state: Any) -> Any:
        return {key: inner.invoke({name: state[name] for name in CASE})}

    async def acall(state: Any) -> Any:
        return {key: await inner.ainvoke({name: state[name] for name in CASE})}

    return acall if bench.awaits else call
