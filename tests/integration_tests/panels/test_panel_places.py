"""Where a panel can stand: under a parent, many at a time, in a stream, in a picture."""

import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

import pytest
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, Send
from typing_extensions import TypedDict

from memalign_graph import InvalidInputError, create_panel_graph
from tests.conftest import CASE, OTHER, Bench, Graph, judgings
from tests.integration_tests.panels.support import (
    COLD,
    NINE,
    THREE,
    TONE,
    fails,
    form_of,
    judged_names,
    models,
    panel,
    reviewed,
)
from tests.loopback import Together

NAMES = [one.name for one in THREE]
THIRD = {"inputs": "Where is my refund?", "outputs": "It is on its way."}


class Parent(TypedDict, total=False):
    inputs: Any
    outputs: Any
    cases: list[dict[str, Any]]
    judgments: dict[str, Any]
    errors: dict[str, Any]
    feedback: dict[str, Any] | None
    learned: dict[str, Any]
    aggregate: dict[str, Any] | None
    results: Annotated[list[Any], operator.add]
    steps: Annotated[list[str], operator.add]


@dataclass
class ParentContext:
    user: str
    memalign: Any = None


def step(name: str) -> Callable[[Any], dict[str, Any]]:
    return lambda _: {"steps": [name]}


def parent(bench: Bench, **options: Any) -> Graph:
    """A graph with a panel for a node."""
    builder: Any = StateGraph(Parent, context_schema=ParentContext)
    builder.add_node("answer", step("answer"))
    builder.add_node("panel", create_panel_graph(THREE, **models(bench), **options).compile())
    builder.add_node("done", step("done"))
    builder.add_edge(START, "answer")
    builder.add_edge("answer", "panel")
    builder.add_edge("panel", "done")
    builder.add_edge("done", END)
    return bench.compile(builder)


def fan_out(bench: Bench, **options: Any) -> Graph:
    """A graph that sends each of its cases to a panel."""
    inner = create_panel_graph(THREE, **models(bench), review="always", **options).compile()

    def grade(state: Any) -> Any:
        return {"results": [inner.invoke(state)]}

    async def agrade(state: Any) -> Any:
        return {"results": [await inner.ainvoke(state)]}

    builder: Any = StateGraph(Parent)
    builder.add_node("grade", agrade if bench.awaits else grade)
    builder.add_node("done", step("done"))
    builder.add_conditional_edges(
        START, lambda state: [Send("grade", one) for one in state["cases"]], ["grade"]
    )
    builder.add_edge("grade", "done")
    return bench.compile(builder)


def ids_by_outputs(asked: Any, cases: list[dict[str, Any]]) -> dict[str, str]:
    """The question on each case; they come in any order."""
    return {
        case["outputs"]: one.id
        for case in cases
        for one in asked["__interrupt__"]
        if case["outputs"] in one.value["action_requests"][0]["description"]
    }


@pytest.mark.parametrize(
    ("context", "namespace"),
    [
        (None, "memalign"),
        (ParentContext(user="ann"), "memalign"),
        (ParentContext(user="ann", memalign={"namespace": ["team"]}), "team"),
    ],
    ids=["none", "foreign", "own-part"],
)
async def test_subgraph_under_a_parent_with_its_own_context(
    bench: Bench, context: Any, namespace: str
) -> None:
    graph = parent(bench, review="always")
    asked = await bench.invoke(graph, CASE, context=context)
    assert set(form_of(asked)["args"]) >= set(NAMES)
    assert "says nothing" in await bench.refuse(graph, {"author": "ann"})
    given = await bench.resume(graph, {"tone": COLD})
    assert given["steps"] == ["answer", "done"]
    assert given["learned"].keys() == given["feedback"].keys() == {"tone"}
    [episode] = await bench.episodes(criterion=TONE, namespace=(namespace,))
    assert episode.thread_ids == ["t"]
    assert judged_names(bench.server, NAMES) == sorted(NAMES)


async def test_parents_context_can_have_the_panel_ask(bench: Bench) -> None:
    context = ParentContext(user="ann", memalign={"review": "always"})
    assert "__interrupt__" in await bench.invoke(parent(bench), CASE, context=context)
    assert "__interrupt__" not in await bench.invoke(parent(bench), CASE, "u")


async def test_parents_bad_settings_are_one_sentence(bench: Bench) -> None:
    for settings, sentence in (
        ({"k": -1}, "context: k: "),
        ({"review": "uncertain"}, "review: 'uncertain' is not known: give 'always', 'never'"),
    ):
        context = ParentContext(user="ann", memalign=settings)
        with pytest.raises(InvalidInputError, match=sentence):
            await bench.invoke(parent(bench), CASE, context=context)
    assert bench.server.chats == []


async def test_second_run_of_a_parent_shows_nothing_of_the_first(bench: Bench) -> None:
    graph = parent(bench, review="always")
    await bench.review(graph, {"tone": COLD})
    bench.server.rules = [fails("facts")]
    given = await bench.review(graph, {"length": False}, OTHER)
    assert given["learned"].keys() == {"length"}
    assert given["errors"].keys() == {"facts"}
    assert given["judgments"].keys() == {"tone", "length"}


async def test_nine_are_judged_at_once_under_a_parent_too(bench: Bench) -> None:
    builder: Any = StateGraph(Parent)
    builder.add_node("panel", create_panel_graph(NINE, **models(bench)).compile())
    builder.add_edge(START, "panel")
    bench.server.responder = Together(len(NINE), bench.server.judge, "judgment")
    given = await bench.invoke(bench.compile(builder), CASE)
    assert len(given["judgments"]) == len(NINE)


async def test_panels_side_by_side_are_answered_by_id(bench: Bench) -> None:
    graph = fan_out(bench)
    cases = [CASE, OTHER, THIRD]
    asked = await bench.invoke(graph, {"cases": cases})
    waiting = asked["__interrupt__"]
    assert len({one.id for one in waiting}) == len(cases)
    by_case = ids_by_outputs(asked, cases)
    assert len(by_case) == len(cases)
    first = await bench.resume(graph, {by_case[OTHER["outputs"]]: {"tone": "Of the cup."}})
    assert {one.id for one in first["__interrupt__"]} == set(by_case.values()) - {
        by_case[OTHER["outputs"]]
    }
    replies = {
        by_case[CASE["outputs"]]: {"facts": "Of the order."},
        by_case[THIRD["outputs"]]: {"type": "ignore"},
    }
    given = await bench.resume(graph, replies)
    assert given["steps"] == ["done"]
    said = [
        {name: one["rationale"] for name, one in (result["feedback"] or {}).items()}
        for result in given["results"]
    ]
    assert said == [{"facts": "Of the order."}, {"tone": "Of the cup."}, {}]
    assert len(judgings(bench.server)) == len(cases) * len(THREE)
    [episode] = await bench.episodes(criterion=TONE)
    assert episode.example.outputs == OTHER["outputs"]


async def test_panels_that_learn_on_one_criterion_at_once_lose_nothing(bench: Bench) -> None:
    graph = fan_out(bench)
    cases = [CASE, OTHER, THIRD]
    asked = await bench.invoke(graph, {"cases": cases})
    ids = ids_by_outputs(asked, cases)
    replies = {key: {"tone": f"Words on: {outputs}"} for outputs, key in ids.items()}
    given = await bench.resume(graph, replies)
    assert [one["errors"] for one in given["results"]] == [{}, {}, {}]
    episodes = await bench.episodes(criterion=TONE)
    assert {one.rationale for one in episodes} == {f"Words on: {outputs}" for outputs in ids}
    assert {one.status for one in episodes} == {"distilled"}
    assert len(await bench.guidelines(criterion=TONE)) >= 1


async def test_wrong_reply_to_one_panel_leaves_all_open(bench: Bench) -> None:
    graph = fan_out(bench)
    asked = await bench.invoke(graph, {"cases": [CASE, OTHER]})
    ids = ids_by_outputs(asked, [CASE, OTHER])
    first, second = ids.values()
    await bench.refuse(graph, {first: "words"})
    assert {one.id for one in (await bench.state(graph)).interrupts} == {first, second}
    given = await bench.resume(graph, {first: {"tone": COLD}, second: {"facts": COLD}})
    assert [sorted(one["learned"]) for one in given["results"]] == [["tone"], ["facts"]]


async def test_streamed_events_name_each_criterion_as_it_is_judged(bench: Bench) -> None:
    bench.server.rules = [fails("facts")]
    events = await bench.stream(panel(bench), CASE, stream_mode="custom")
    assert sorted(events, key=lambda one: str(one["criterion"])) == [
        {"type": "panel_judgment", "criterion": "length", "value": True},
        {"type": "panel_judgment", "criterion": "tone", "value": True},
    ]


async def test_streamed_updates_name_each_node(bench: Bench) -> None:
    graph = reviewed(bench)
    asked = await bench.stream(graph, CASE, stream_mode="updates")
    names = [next(iter(one)) for one in asked]
    assert names == ["retrieve_episodes", "judge_criteria", "__interrupt__"]
    assert asked[1]["judge_criteria"]["judgments"].keys() == set(NAMES)
    reply: Any = Command(resume={"tone": COLD, "facts": True})
    resumed = await bench.stream(graph, reply, stream_mode="updates")
    assert [next(iter(one)) for one in resumed] == ["collect_feedback", "learn_criteria"]
    assert resumed[1]["learn_criteria"]["learned"].keys() == {"tone", "facts"}


async def test_streamed_messages_are_those_of_the_model(bench: Bench) -> None:
    parts = await bench.stream(panel(bench), CASE, stream_mode="messages")
    assert {data["langgraph_node"] for _, data in parts} == {"judge_criteria"}


async def test_picture_shows_the_way(bench: Bench) -> None:
    picture = reviewed(bench).get_graph().draw_mermaid()
    for line in (
        "__start__ --> retrieve_episodes;",
        "retrieve_episodes --> judge_criteria;",
        "judge_criteria -.-> collect_feedback;",
        "judge_criteria -.-> __end__;",
        "collect_feedback -.-> learn_criteria;",
        "collect_feedback -.-> __end__;",
        "learn_criteria --> __end__;",
    ):
        assert line in picture
