"""An expert asked by an agent's gate: what it costs, whose word decides, and what is learned."""

from typing import Any

import pytest

from memalign_graph import MemAlignContext, MemAlignWarning, create_feedback_graph
from tests.conftest import COLD, CRITERION, Bench, distillings, judgings
from tests.integration_tests.agents.support import (
    AgentModel,
    agent,
    ask,
    fails,
    gate,
    pending,
    said,
)
from tests.integration_tests.gates.support import QUESTION, inputs, models, outputs

APPROVE = {"decisions": [{"type": "approve"}]}


async def test_verdict_is_not_computed_again_when_the_expert_answers(bench: Bench) -> None:
    model = AgentModel(bench.server, "Wait.", "Draft 2.", "Draft 3.")
    graph = agent(bench, gate(bench, review="always", max_revisions=2))
    given = await bench.invoke(graph, ask())
    for number, reply in enumerate((COLD, "Still cold.", {"value": False}), start=1):
        assert len(judgings(bench.server)) == len(model.requests) == number
        assert "was never" not in pending(given)["description"]
        await bench.refuse(graph, 7)
        assert len(judgings(bench.server)) == len(model.requests) == number
        given = await bench.resume(graph, reply)
    verdict = given["quality_gate"]
    assert (verdict["status"], verdict["decided_by"]) == ("exhausted", "expert")
    assert outputs(bench.server) == ["Wait.", "Draft 2.", "Draft 3."]
    assert inputs(bench.server) == [QUESTION] * 3
    assert (len(judgings(bench.server)), len(model.requests)) == (3, 3)


async def test_memory_learns_and_the_next_turns_judge_has_the_guideline(bench: Bench) -> None:
    model = AgentModel(bench.server, "Wait.")
    graph = agent(bench, gate(bench, review="always", max_revisions=0))
    await bench.invoke(graph, ask())
    given = await bench.resume(graph, COLD)
    assert given["quality_gate"]["status"] == "exhausted"
    assert given["quality_gate"]["learned"]["guidelines"]
    [guideline] = await bench.guidelines()
    assert guideline.text not in judgings(bench.server)[0].text
    model.then("So sorry!")
    given = await bench.invoke(graph, ask("The cup is broken."))
    assert guideline.text in judgings(bench.server)[1].text
    assert "Wait." in judgings(bench.server)[1].text  # the case that was taught
    assert guideline.text in pending(given)["description"]
    given = await bench.resume(graph, APPROVE)
    verdict = given["quality_gate"]
    assert verdict["judgment"]["guideline_ids"] == [guideline.id]
    assert verdict["status"] == "accepted"
    assert len(distillings(bench.server)) == 1


async def test_expert_is_asked_when_revisions_have_run_out(bench: Bench) -> None:
    model = AgentModel(bench.server, "Draft 1.", "Draft 2.")
    bench.server.rules = fails("Draft")
    graph = agent(bench, gate(bench, review="exhausted", max_revisions=1, fallback="Later."))
    given = await bench.invoke(graph, ask())
    assert "Draft 2." in pending(given)["description"]
    assert (len(model.requests), len(judgings(bench.server))) == (2, 2)
    given = await bench.resume(graph, {"value": True, "author": "ann"})
    verdict = given["quality_gate"]
    assert (verdict["status"], verdict["let_through"]) == ("accepted", True)
    assert verdict["feedback"]["author"] == "ann"
    assert said(given)[-1] == ("ai", "Draft 2.")
    assert (len(model.requests), len(judgings(bench.server))) == (2, 2)


async def test_verdict_of_the_turn_before_is_gone_while_an_expert_is_asked(bench: Bench) -> None:
    model = AgentModel(bench.server, "So sorry!")
    bench.server.rules = fails("Wait.")
    graph = agent(bench, gate(bench, review="exhausted", max_revisions=0))
    assert (await bench.invoke(graph, ask()))["quality_gate"]["status"] == "accepted"
    model.then("Wait.")
    given = await bench.invoke(graph, ask("The cup is broken."))
    assert given["__interrupt__"]
    assert not given.get("quality_gate")
    assert not (await bench.state(graph)).values["quality_gate"]


async def test_question_that_a_new_turn_passes_by_is_not_the_new_turns(bench: Bench) -> None:
    model = AgentModel(bench.server, "Wait.", "A new cup comes.")
    graph = agent(bench, gate(bench, review="always", max_revisions=1))
    await bench.invoke(graph, ask())
    given = await bench.invoke(graph, ask("The cup is broken."))
    assert "The cup is broken." in pending(given)["description"]
    given = await bench.resume(graph, {"value": True})
    assert given["quality_gate"]["status"] == "accepted"
    [episode] = await bench.episodes()
    assert (episode.example.inputs, episode.example.outputs) == (
        "The cup is broken.",
        "A new cup comes.",
    )
    assert model.left == 0


async def test_words_of_the_expert_reach_the_model_as_a_humans(bench: Bench) -> None:
    model = AgentModel(bench.server, "Wait.", "So sorry!")
    graph = agent(bench, gate(bench, review="always"), system_prompt="Be brief.")
    await bench.invoke(graph, ask())
    await bench.resume(graph, COLD)
    assert [one["role"] for one in model.requests[1].messages] == [
        "system",
        "user",
        "assistant",
        "user",
    ]
    told = str(model.requests[1].messages[-1]["content"])
    assert f"An expert says: {COLD['rationale']}" in told


async def test_namespace_of_the_run_holds_for_drafts_judged_after_the_reply(bench: Bench) -> None:
    AgentModel(bench.server, "Wait.", "So sorry!")
    graph = agent(
        bench, gate(bench, review="always", max_revisions=1), context_schema=MemAlignContext
    )
    context = MemAlignContext(namespace=("team-a",))
    await bench.invoke(graph, ask(), context=context)
    await bench.resume(graph, COLD)
    given = await bench.resume(graph, {"value": True})
    assert given["quality_gate"]["status"] == "accepted"
    assert await bench.episodes() == []
    assert len(await bench.episodes(namespace=("team-a",))) == 2


async def test_context_tells_when_to_ask(bench: Bench) -> None:
    AgentModel(bench.server, "Wait.", "Wait.")
    graph = agent(bench, gate(bench, review="always"), context_schema=MemAlignContext)
    given = await bench.invoke(graph, ask(), context=MemAlignContext(review="never"))
    assert given["quality_gate"]["status"] == "accepted"
    graph = agent(bench, gate(bench), context_schema=MemAlignContext)
    given = await bench.invoke(graph, ask(), "u", context=MemAlignContext(review="always"))
    assert pending(given)["name"] == "review_judgment"


async def test_function_says_when_to_ask(bench: Bench) -> None:
    AgentModel(bench.server, "Wait.", "So sorry!")
    graph = agent(bench, gate(bench, review=lambda one: not one.value, max_revisions=1))
    bench.server.rules = fails("Wait.")
    assert pending(await bench.invoke(graph, ask()))["args"]["value"] is False
    given = await bench.resume(graph, APPROVE)
    assert "__interrupt__" not in given
    assert given["quality_gate"]["decided_by"] == "judge"


async def test_expert_who_is_asked_without_a_checkpointer_is_warned_of(bench: Bench) -> None:
    AgentModel(bench.server, "Wait.")
    graph = agent(bench, gate(bench, review="always"), checkpointer=None)
    with pytest.warns(MemAlignWarning, match="without a checkpointer"):
        given = await bench.invoke(graph, ask(), None)
    assert pending(given)["name"] == "review_judgment"


async def test_expert_can_answer_later_to_what_a_gate_judged(bench: Bench) -> None:
    from datetime import timedelta

    AgentModel(bench.server, "Wait.")
    graph = agent(bench, gate(bench, keep_judgments=timedelta(days=1)))
    verdict = (await bench.invoke(graph, ask()))["quality_gate"]
    later = bench.compile(create_feedback_graph(CRITERION, **models(bench)))
    word = {"judgment_id": verdict["judgment"]["id"], "reply": COLD}
    given = await bench.invoke(later, word, "later")
    assert given["learned"]["guidelines"]
    [episode] = await bench.episodes()
    assert (episode.example.inputs, episode.example.outputs) == (QUESTION, "Wait.")
    assert episode.thread_ids == ["t", "later"]


async def test_purge_deletes_the_agents_thread_that_carried_the_case(bench: Bench) -> None:
    AgentModel(bench.server, "All is well.", "Wait, zqxout said.")
    graph = agent(bench, gate(bench, review="always", max_revisions=0))
    await bench.invoke(graph, ask("Another question of mine."), "other")
    await bench.resume(graph, {"type": "ignore"}, "other")
    await bench.invoke(graph, ask("Where is zqxin of mine?"), "carries")
    await bench.resume(graph, {"value": False, "rationale": "zqxwhy is cold."}, "carries")
    [episode] = await bench.episodes()
    memory = bench.memory()
    options: dict[str, Any] = {"purge": True, "checkpointer": bench.saver}
    if bench.awaits:
        done = await memory.aforget([episode.id], **options)
    else:
        done = memory.forget([episode.id], **options)
    assert done.purged
    assert done.purged.thread_ids == ["carries"]
    assert (await bench.state(graph, "carries")).values == {}
    assert (await bench.state(graph, "other")).values["quality_gate"]["status"] == "accepted"
