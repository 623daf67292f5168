"""An expert asked by a gate: whose word decides, what is learned, and what it costs."""

from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import AIMessage
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.store.sqlite import SqliteStore
from langgraph.types import Command

from memalign_graph import Judgment, Numeric
from tests.conftest import (
    COLD,
    CRITERION,
    EVERY_WAY,
    Bench,
    distillings,
    judgings,
    thread,
)
from tests.integration_tests.gates.support import (
    IN_MEMORY,
    QUESTION,
    REASON,
    Writer,
    always,
    asked,
    gate_on,
    gated,
    outputs,
    verdict,
    writing,
)

pytestmark = EVERY_WAY

SCORE = CRITERION.model_copy(update={"scale": Numeric(minimum=1, maximum=5, integer=True)})


def pending(given: dict[str, Any]) -> Any:
    [interrupt] = given["__interrupt__"]
    return interrupt.value["action_requests"][0]


async def test_expert_who_corrects_a_bad_verdict_lets_the_answer_pass(bench: Bench) -> None:
    bench.server.rules = always(False)
    graph = gated(bench, Writer("Sorry!"), review="always")
    given = await bench.invoke(graph, asked())
    assert pending(given)["args"] == {"value": False, "rationale": REASON}
    assert "status" not in given.get("quality_gate", {})
    given = await bench.resume(graph, {"value": True, "rationale": "It is warm.", "author": "ann"})
    gate = given["quality_gate"]
    assert (gate["status"], gate["value"], gate["decided_by"]) == ("accepted", True, "expert")
    assert gate["judgment"]["value"] is False
    assert gate["feedback"]["author"] == "ann"
    [episode] = await bench.episodes()
    assert gate["learned"]["episode_ids"] == [episode.id]
    assert episode.example.inputs == QUESTION
    assert episode.example.outputs == "Sorry!"
    assert len(judgings(bench.server)) == len(distillings(bench.server)) == 1


async def test_expert_who_objects_sends_a_good_verdict_back_and_memory_learns(
    bench: Bench,
) -> None:
    writer = Writer("Wait.", "Sorry!")
    graph = gated(bench, writer, review="always")
    await bench.invoke(graph, asked())
    given = await bench.resume(graph, COLD)
    assert outputs(bench.server) == ["Wait.", "Sorry!"]
    assert COLD["rationale"] in writer.seen[1]["messages"][-1].text
    assert "An expert says" in writer.seen[1]["messages"][-1].text
    [guideline] = await bench.guidelines()
    assert guideline.text in judgings(bench.server)[-1].text
    assert guideline.text in pending(given)["description"]
    given = await bench.resume(graph, {"decisions": [{"type": "approve"}]})
    gate = given["quality_gate"]
    assert (gate["status"], gate["revisions"], gate["decided_by"]) == ("accepted", 1, "expert")
    assert len(judgings(bench.server)) == len(writer.seen) == 2


@pytest.mark.parametrize(
    "reply", ["Too cold.", {"decisions": [{"type": "reject", "message": "Too cold."}]}]
)
async def test_words_without_a_value_send_a_good_verdict_back(bench: Bench, reply: Any) -> None:
    writer = Writer()
    graph = gated(bench, writer, review="always")
    await bench.invoke(graph, asked())
    given = await bench.resume(graph, reply)
    assert "Too cold." in writer.seen[1]["messages"][-1].text
    given = await bench.resume(graph, {"type": "ignore"})
    assert given["quality_gate"]["status"] == "accepted"


@IN_MEMORY
async def test_words_without_a_value_are_not_told_as_a_value_that_passes(bench: Bench) -> None:
    writer = Writer()
    graph = gated(bench, writer, review="always")
    await bench.invoke(graph, asked())
    await bench.resume(graph, "Too cold.")
    assert "true" not in writer.seen[1]["messages"][-1].text


@IN_MEMORY
async def test_judges_reason_is_not_put_into_the_experts_mouth(bench: Bench) -> None:
    writer = Writer()
    bench.server.rules = always(True, "It is warm and kind.")
    graph = gated(bench, writer, review="always")
    await bench.invoke(graph, asked())
    await bench.resume(graph, {"value": False})
    critique = writer.seen[1]["messages"][-1].text
    assert "false" in critique
    assert "warm and kind" not in critique


@pytest.mark.parametrize("value", [True, False])
async def test_ignoring_leaves_the_judges_verdict(bench: Bench, value: Any) -> None:
    bench.server.rules = always(value)
    graph = gated(bench, Writer(), review="always", revise=None)
    await bench.invoke(graph, asked())
    gate = (await bench.resume(graph, {"type": "ignore"}))["quality_gate"]
    assert gate["status"] == ("accepted" if value else "exhausted")
    assert (gate["decided_by"], gate["feedback"], gate["learned"]) == ("judge", None, None)
    assert await bench.episodes() == []


async def test_experts_value_is_held_against_the_rule(bench: Bench) -> None:
    bench.server.rules = always(5)
    graph = gated(bench, Writer(), SCORE, passes=4, review="always", revise=None)
    for number, (value, status) in enumerate({4: "accepted", 3: "exhausted"}.items()):
        await bench.invoke(graph, asked(), str(number))
        gate = (await bench.resume(graph, {"value": value}, str(number)))["quality_gate"]
        assert (gate["value"], gate["status"]) == (value, status)


async def test_expert_is_asked_only_when_revisions_have_run_out(bench: Bench) -> None:
    writer = Writer()
    bench.server.rules = always(False)
    graph = gated(bench, writer, review="exhausted", max_revisions=2)
    given = await bench.invoke(graph, asked())
    assert (len(writer.seen), len(judgings(bench.server))) == (3, 3)
    assert pending(given)["args"]["value"] is False
    gate = (await bench.resume(graph, {"value": True}))["quality_gate"]
    assert (gate["status"], gate["revisions"], gate["decided_by"]) == ("accepted", 2, "expert")
    assert len(judgings(bench.server)) == 3
    assert [one.example.outputs for one in await bench.episodes()] == ["Draft 3."]


async def test_expert_is_not_asked_of_what_passes_at_last(bench: Bench) -> None:
    bench.server.script(verdict(False), verdict(True))
    graph = gated(bench, Writer(), review="exhausted", max_revisions=1)
    given = await bench.invoke(graph, asked())
    assert "__interrupt__" not in given
    assert given["quality_gate"]["status"] == "accepted"


async def test_expert_who_agrees_at_last_leaves_it_exhausted(bench: Bench) -> None:
    bench.server.rules = always(False)
    graph = gated(bench, Writer(), review="exhausted", max_revisions=0)
    await bench.invoke(graph, asked())
    given = await bench.resume(graph, {"decisions": [{"type": "approve"}]})
    assert given["quality_gate"]["status"] == "exhausted"
    assert given["quality_gate"]["decided_by"] == "expert"
    assert distillings(bench.server) == []


async def test_function_says_when_to_ask(bench: Bench) -> None:
    seen: list[Judgment] = []

    def review(judgment: Judgment) -> bool:
        seen.append(judgment)
        return len(seen) == 2

    graph = gated(bench, Writer(), review=review, revise=None)
    assert "__interrupt__" not in await bench.invoke(graph, asked(), "a")
    assert "__interrupt__" in await bench.invoke(graph, asked(), "b")
    assert [one.criterion for one in seen] == [CRITERION.name] * 2


async def test_invalid_reply_leaves_the_question_open(bench: Bench) -> None:
    writer = Writer()
    graph = gated(bench, writer, review="always")
    await bench.invoke(graph, asked())
    for reply, problem in (({"value": "perhaps"}, "not on the scale"), (" ", "is empty")):
        assert problem in await bench.refuse(graph, reply)
        state = await bench.state(graph)
        assert state.next == ("quality_gate",)
        assert len(state.interrupts) == 1
    assert await bench.episodes() == []
    given = await bench.resume(graph, {"value": True})
    assert given["quality_gate"]["status"] == "accepted"
    assert len(judgings(bench.server)) == len(writer.seen) == 1


async def test_one_call_of_the_judge_for_each_draft_whatever_the_expert_takes(
    bench: Bench,
) -> None:
    graph = gated(bench, Writer(), review="always", max_revisions=2)
    await bench.invoke(graph, asked())
    for reply in (COLD, "Still cold.", {"value": False}):
        await bench.refuse(graph, 7)
        given = await bench.resume(graph, reply)
    assert given["quality_gate"]["status"] == "exhausted"
    assert outputs(bench.server) == ["Draft 1.", "Draft 2.", "Draft 3."]
    assert len(await bench.episodes()) == 3


async def test_question_a_new_turn_passes_by_is_not_the_new_turns(bench: Bench) -> None:
    graph = gated(bench, Writer(), review="always", max_revisions=1)
    await bench.invoke(graph, asked())
    given = await bench.invoke(graph, asked("The cup is broken."))
    assert "The cup is broken." in pending(given)["description"]
    given = await bench.resume(graph, {"value": True})
    assert given["quality_gate"]["status"] == "accepted"
    [episode] = await bench.episodes()
    assert episode.example.inputs == "The cup is broken."


async def test_question_is_answered_in_another_process(bench: Bench, tmp_path: Path) -> None:
    """With another graph object and other connections, as after a restart."""
    store_file, saver_file = str(tmp_path / "s.db"), str(tmp_path / "t.db")

    def carry_on(given: Any) -> Any:
        with (
            SqliteStore.from_conn_string(store_file) as store,
            SqliteSaver.from_conn_string(saver_file) as saver,
        ):
            store.setup()
            builder = writing(lambda _: {"messages": [AIMessage("Wait.")]})
            options: dict[str, Any] = {"review": "always", "max_revisions": 1}
            gate_on(bench, builder, CRITERION, **options)
            graph = builder.compile(store=store, checkpointer=saver)
            return graph.invoke(given, thread("t"))

    assert "__interrupt__" in carry_on(asked())
    assert "__interrupt__" in carry_on(Command(resume=COLD))
    gate = carry_on(Command(resume={"value": True}))["quality_gate"]
    assert (gate["status"], gate["revisions"]) == ("accepted", 1)
    assert len(judgings(bench.server)) == 2


async def test_namespace_of_the_run_holds_for_drafts_judged_after_the_reply(
    bench: Bench,
) -> None:
    graph = gated(bench, Writer(), review="always", max_revisions=1)
    context = {"memalign": {"namespace": ["team-a"]}}
    await bench.invoke(graph, asked(), context=context)
    await bench.resume(graph, COLD)
    await bench.resume(graph, {"value": True})
    assert await bench.episodes() == []
    assert len(await bench.episodes(namespace=("team-a",))) == 2


async def test_context_of_one_turn_is_not_that_of_the_next(bench: Bench) -> None:
    """Also where the gate comes first in its graph, and no node before it begins a turn."""
    builder = writing(Writer())
    gate_on(bench, builder, CRITERION, after=None, revise=None, review="always")
    builder.add_edge("__start__", "quality_gate")
    graph = bench.compile(builder)
    given = {"messages": [("human", QUESTION), ("ai", "Wait.")]}
    await bench.invoke(graph, given, context={"memalign": {"namespace": ["team-a"]}})
    await bench.resume(graph, COLD, context={"memalign": {"namespace": ["team-a"]}})
    await bench.invoke(graph, given)
    await bench.resume(graph, COLD)
    assert len(await bench.episodes()) == len(await bench.episodes(namespace=("team-a",))) == 1
