"""What the review graph learns from replies: once, whatever is repeated."""

from typing import Any

import pytest

from memalign_graph import ModelAnswerError
from tests.conftest import (
    CASE,
    COLD,
    OTHER,
    Bench,
    distillings,
    judgings,
    operations,
)

SORRY = "A reply that says no word of regret is not appropriate."
SORRY_FIRST = "A reply that does not say sorry first is not appropriate."
REASON = "A reply gives a reason for a delay."


async def contents(bench: Bench) -> tuple[Any, Any]:
    return await bench.episodes(), await bench.guidelines()


async def test_learning_is_reported_and_stored(bench: Bench) -> None:
    graph = bench.review_graph()
    asked = await bench.invoke(graph, CASE)
    assert set(asked) == {"judgment", "feedback", "learned", "__interrupt__"}
    assert (asked["feedback"], asked["learned"]) == (None, None)
    bench.server.script(operations({"action": "add", "text": SORRY}))
    given = await bench.resume(graph, COLD)
    assert set(given) == {"judgment", "feedback", "learned"}
    [episode], [guideline] = await contents(bench)
    assert given["learned"]["episode_ids"] == [episode.id]
    assert given["learned"]["guidelines"] == [
        {
            "action": "add",
            "guideline_id": guideline.id,
            "text": SORRY,
            "episode_ids": [episode.id],
        }
    ]
    assert (guideline.text, guideline.episode_ids) == (SORRY, [episode.id])
    assert (episode.status, episode.thread_ids) == ("distilled", ["t"])
    assert episode.judgment is not None
    assert episode.judgment.id == given["judgment"]["id"] == asked["judgment"]["id"]
    assert [chat.schema_name for chat in bench.server.chats] == ["judgment", "guideline_operations"]


async def test_approving_makes_no_model_call(bench: Bench) -> None:
    await bench.remember({**OTHER, "value": True})
    graph = bench.review_graph()
    await bench.invoke(graph, CASE)
    calls = len(bench.server.chats), len(bench.server.embeddings)
    given = await bench.resume(graph, {"type": "approve"})
    assert (len(bench.server.chats), len(bench.server.embeddings)) == calls
    assert given["learned"]["guidelines"] == []
    [episode] = [one for one in await bench.episodes() if one.example.inputs == CASE["inputs"]]
    assert (episode.status, episode.value) == ("distilled", True)


async def test_feedback_on_an_embedded_case_embeds_nothing_again(bench: Bench) -> None:
    await bench.remember({**OTHER, "value": True})
    graph = bench.review_graph()
    await bench.invoke(graph, CASE)
    calls = len(bench.server.embeddings)
    await bench.resume(graph, COLD)
    assert len(bench.server.embeddings) == calls
    await bench.invoke(graph, CASE, "u")
    assert len(bench.server.embeddings) == calls


@pytest.mark.parametrize("node", ["distill_feedback", "commit_memory"])
async def test_running_a_finished_node_again_changes_nothing(bench: Bench, node: str) -> None:
    graph = bench.review_graph()
    first = await bench.review(graph, COLD)
    before = await contents(bench)
    chats = len(bench.server.chats)
    config: Any = {"configurable": {"thread_id": "t"}}
    again = await bench.invoke(graph, None)
    assert again["learned"]["episode_ids"] == first["learned"]["episode_ids"]
    past = [state for state in graph.get_state_history(config) if state.next == (node,)]
    again = graph.invoke(None, past[0].config)
    assert await contents(bench) == before
    assert len(bench.server.chats) == chats
    assert again["learned"]["episode_ids"] == first["learned"]["episode_ids"]
    assert again["learned"]["memory_version"] == first["learned"]["memory_version"]


async def test_same_word_is_the_same_episode_and_a_changed_one_replaces_it(bench: Bench) -> None:
    graph = bench.review_graph()
    await bench.review(graph, COLD, on="a")
    given = await bench.review(graph, COLD, on="b")
    [episode] = await bench.episodes()
    assert episode.thread_ids == ["a", "b"]
    assert given["learned"]["episode_ids"] == [episode.id]
    assert len(distillings(bench.server)) == 1
    [old] = await bench.guidelines()
    await bench.review(graph, {"value": False, "rationale": "Too short."}, on="c")
    [episode], [new] = await contents(bench)
    assert episode.rationale == "Too short."
    assert new.id != old.id
    assert "Too short." in new.text


async def test_two_experts_are_two_episodes_of_one_example(bench: Bench) -> None:
    graph = bench.review_graph()
    await bench.review(graph, {**COLD, "author": "ann"}, on="a")
    await bench.review(graph, {"value": True, "rationale": "Fine.", "author": "bob"}, on="b")
    ann, bob = await bench.episodes()
    assert ann.example_id == bob.example_id
    assert {ann.author, bob.author} == {"ann", "bob"}
    await bench.invoke(graph, OTHER, "c")
    shown = [one["role"] for one in judgings(bench.server)[-1].messages]
    assert shown == ["system", "user", "assistant", "user"]


async def test_guidelines_are_revised_and_retired_by_handle(bench: Bench) -> None:
    graph = bench.review_graph()
    bench.server.script({"rationale": "Fine.", "value": True})
    bench.server.script(
        operations({"action": "add", "text": SORRY}, {"action": "add", "text": REASON})
    )
    await bench.review(graph, COLD, on="a")
    [first] = await bench.episodes()
    sorry, reason = await bench.guidelines()
    bench.server.script({"rationale": "Fine.", "value": True})
    bench.server.script(
        operations(
            {"action": "revise", "guideline": "g1", "text": SORRY_FIRST},
            {"action": "retire", "guideline": "G2"},
        )
    )
    given = await bench.review(graph, {"rationale": "Say sorry first."}, OTHER, "b")
    [second] = [one for one in await bench.episodes() if one.id != first.id]
    [left] = await bench.guidelines()
    assert (left.id, left.text) == (sorry.id, SORRY_FIRST)
    assert left.episode_ids == [first.id, second.id]
    assert [(one["action"], one["guideline_id"]) for one in given["learned"]["guidelines"]] == [
        ("revise", sorry.id),
        ("retire", reason.id),
    ]


async def test_wrong_handle_is_asked_for_again_and_an_experts_own_guideline_has_none(
    bench: Bench,
) -> None:
    await bench.add_guideline(SORRY)
    graph = bench.review_graph()
    await bench.invoke(graph, CASE)
    retire = operations({"action": "retire", "guideline": "G1"})
    bench.server.script(retire, retire)
    with pytest.raises(ModelAnswerError, match="'G1' is no guideline that can be changed"):
        await bench.resume(graph, COLD)
    bench.server.script(retire, operations())
    given = await bench.resume(graph, COLD)
    *_, first, second = distillings(bench.server)
    assert SORRY in first.text
    assert second.messages[:2] == first.messages
    assert "'G1' is no guideline" in second.messages[3]["content"]
    [episode], [guideline] = await contents(bench)
    assert (guideline.text, episode.status) == (SORRY, "distilled")
    assert given["learned"]["guidelines"] == []
