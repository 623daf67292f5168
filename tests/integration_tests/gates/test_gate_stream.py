"""What of a gate can be seen: events, updates, pictures of the graph, and its state."""

import json
from typing import Any

from langgraph.graph import END
from langgraph.types import Command

from memalign_graph import Example, Judgment
from tests.conftest import CRITERION, Bench, Graph, thread
from tests.integration_tests.gates.support import (
    DOWN,
    IN_MEMORY,
    QUESTION,
    REASON,
    Writer,
    always,
    asked,
    gate_on,
    gated,
    verdict,
    writing,
)


async def snapshot(bench: Bench, graph: Graph) -> Any:
    if bench.awaits:
        return await graph.aget_state(thread("t"), subgraphs=True)
    return graph.get_state(thread("t"), subgraphs=True)


async def test_events_tell_what_becomes_of_every_draft(bench: Bench) -> None:
    bench.server.script(verdict(False), verdict(True))
    events = await bench.stream(
        gated(bench, Writer(), name="tone", max_revisions=3), asked(), stream_mode="custom"
    )
    assert json.loads(json.dumps(events)) == events
    assert [one["status"] for one in events] == ["judging", "revise", "judging", "accepted"]
    assert [one["revisions"] for one in events] == [0, 1, 1, 1]
    for one in events:
        assert (one["type"], one["gate"]) == ("quality_gate", "tone")
        assert (one["criterion"], one["max_revisions"]) == (CRITERION.name, 3)
    assert REASON in events[1]["critique"]
    assert (events[3]["value"], events[3]["decided_by"], events[3]["error"]) == (
        True,
        "judge",
        None,
    )


async def test_events_come_out_of_a_subgraph_too(bench: Bench) -> None:
    worker = gate_on(bench, writing(Writer()), CRITERION).compile()
    builder = writing(worker)
    parts = await bench.stream(
        bench.compile(builder), asked(), stream_mode="custom", subgraphs=True
    )
    assert [one["status"] for _, one in parts] == ["judging", "accepted"]


async def test_updates_show_the_verdict_and_the_critique(bench: Bench) -> None:
    bench.server.script(verdict(False), verdict(True))
    streamed = await bench.stream(gated(bench, Writer()), asked(), stream_mode="updates")
    parts = [part for part in streamed if "quality_gate.before_turn" not in part]
    assert len(streamed) == len(parts) + 1
    assert [next(iter(part)) for part in parts] == ["write", "quality_gate"] * 2
    first, second = parts[1]["quality_gate"], parts[3]["quality_gate"]
    assert first["quality_gate"]["status"] == "revise"
    assert REASON in first["messages"][0].text
    assert second["quality_gate"]["status"] == "accepted"
    assert "messages" not in second


async def test_judges_words_are_not_streamed_as_the_applications(bench: Bench) -> None:
    model = bench.server.chat_model()

    async def awrite(state: Any) -> dict[str, Any]:
        return {"messages": [await model.ainvoke(state["messages"])]}

    def write(state: Any) -> dict[str, Any]:
        return {"messages": [model.invoke(state["messages"])]}

    bench.server.script("Wait for it.", verdict(False), "Sorry!", verdict(True))
    graph = gated(bench, awrite if bench.awaits else write)
    parts = await bench.stream(graph, asked(), stream_mode="messages")
    words = "".join(chunk.text for chunk, about in parts if about["langgraph_node"] == "write")
    assert words == "Wait for it.Sorry!"
    others = [chunk.text for chunk, about in parts if about["langgraph_node"] != "write"]
    assert not any("value" in text for text in others)


async def test_pending_question_is_seen_in_the_inner_task(bench: Bench) -> None:
    graph = gated(bench, Writer(), review="always")
    await bench.invoke(graph, asked())
    state = await snapshot(bench, graph)
    [task] = state.tasks
    assert (task.name, state.next) == ("quality_gate", ("quality_gate",))
    inner = task.state
    assert inner.next == ("collect_feedback",)
    assert [one.name for one in inner.tasks] == ["collect_feedback"]
    assert Judgment.model_validate(inner.values["judgment"]).value is True
    assert inner.tasks[0].interrupts[0].id == task.interrupts[0].id == state.interrupts[0].id


async def test_history_has_every_verdict_of_the_thread(bench: Bench) -> None:
    graph = gated(bench, Writer(), max_revisions=1)
    bench.server.rules = always(False)
    await bench.invoke(graph, asked())
    if bench.awaits:
        past = [one async for one in graph.aget_state_history(thread("t"))]
    else:
        past = list(graph.get_state_history(thread("t")))
    told = [one.values.get("quality_gate") or {} for one in reversed(past)]
    statuses = [one.get("status") for one in told]
    assert list(dict.fromkeys(statuses)) == [None, "revise", "exhausted"]


@IN_MEMORY
async def test_verdict_can_be_overruled_from_outside(bench: Bench) -> None:
    writer = Writer()
    builder = writing(writer)
    builder.add_node("publish", lambda _: {})
    options: dict[str, Any] = {"accept": "publish"}
    gate_on(bench, builder, CRITERION, **options)
    graph = builder.compile(
        store=bench.store, checkpointer=bench.saver, interrupt_before=["quality_gate"]
    )
    await bench.invoke(graph, asked())
    gate = {"gate": "quality_gate", "status": "accepted", "passed": True}
    config = await graph.aupdate_state(thread("t"), {"quality_gate": gate}, as_node="quality_gate")
    assert (await graph.aget_state(config)).next == ("publish",)
    await bench.invoke(graph, None)
    assert bench.server.chats == []


def test_picture_shows_the_ways_out(bench: Bench) -> None:
    builder = writing(Writer())
    builder.add_node("boss", Writer())
    builder.add_edge("boss", END)
    gate_on(bench, builder, CRITERION, escalate="boss")
    graph = bench.compile(builder)
    picture = graph.get_graph()
    ways = {(one.data, one.target) for one in picture.edges if one.source == "quality_gate"}
    assert ("revise", "write") in ways
    assert any("accepted" in str(label) for label, target in ways if target == END)
    assert any(target == "boss" for _, target in ways)
    drawn = picture.draw_mermaid()
    for line in ("write --> quality_gate", "quality_gate -. &nbsp;revise&nbsp; .-> write"):
        assert line in drawn
    assert "boss" not in gated(bench, Writer()).get_graph().draw_mermaid()


def test_judge_is_seen_inside_the_gate(bench: Bench) -> None:
    graph = gated(bench, Writer(), review="always")
    assert [name for name, _ in graph.get_subgraphs()] == ["quality_gate"]
    drawn = graph.get_graph(xray=True).draw_mermaid()
    assert "subgraph quality_gate" in drawn
    for node in ("retrieve_episodes", "judge", "collect_feedback", "commit_memory"):
        assert f"quality_gate\\3a{node}({node})" in drawn


async def test_events_say_that_an_expert_is_asked_and_not_that_the_judge_is_at_work(
    bench: Bench,
) -> None:
    graph = gated(bench, Writer(), review="always")
    first = await bench.stream(graph, asked(), stream_mode="custom")
    assert [one["status"] for one in first] == ["judging", "asking"]
    again = await bench.stream(graph, Command(resume={"value": True}), stream_mode="custom")
    assert [one["status"] for one in again] == ["accepted"]


async def test_judges_tokens_are_in_no_message_stream(bench: Bench) -> None:
    parts = await bench.stream(
        gated(bench, Writer()), asked(), stream_mode="messages", subgraphs=True
    )
    nodes = {metadata["langgraph_node"] for _, (_, metadata) in parts}
    assert nodes == {"write"}


async def test_verdict_names_its_example_also_where_the_judge_failed(bench: Bench) -> None:
    bench.server.script(DOWN)
    given = await bench.invoke(gated(bench, Writer()), asked())
    example = Example(inputs=QUESTION, outputs="Draft 1.")
    assert given["quality_gate"]["status"] == "judge_error"
    assert given["quality_gate"]["example_id"] == example.id
