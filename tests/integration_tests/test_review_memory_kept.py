"""What a review must not lose: words and guidelines that stand, and settings that were given."""

from typing import Any

import pytest

from memalign_graph import ChatModelError, Episode
from tests.conftest import CASE, COLD, Bench, Graph, distillings, judgings
from tests.loopback import LoopbackServer, Rule, error

APPROVE = {"type": "approve"}
DOWN = error(500, "It broke.", retry_after=0)
NEWER = {"value": False, "rationale": "Too short: it must say what happens next.", "author": "ann"}
OLDER = {**COLD, "author": "ann"}
WORDS = {"rationale": COLD["rationale"]}


def judge_says(bench: Bench, value: Any) -> None:
    bench.server.rules = [Rule(lambda _: True, value=value)]


def patient_graph(bench: Bench) -> Graph:
    return bench.review_graph(model=bench.server.chat_model(max_retries=0))


async def fail_to_distill(bench: Bench, graph: Graph, reply: Any, on: str) -> Episode:
    """Give a reply that is stored and not distilled."""
    await bench.invoke(graph, CASE, on)
    bench.server.script(DOWN)
    with pytest.raises(ChatModelError):
        await bench.resume(graph, reply, on)
    [episode] = await bench.episodes()
    assert episode.status == "pending"
    return episode


def said(episode: Episode) -> tuple[Any, ...]:
    return episode.value, episode.rationale, episode.status


async def test_approving_a_corrected_case_keeps_words_and_guidelines(bench: Bench) -> None:
    graph = bench.review_graph()
    await bench.review(graph, COLD, on="a")
    guidelines = await bench.guidelines()
    judge_says(bench, False)
    given = await bench.review(graph, APPROVE, on="b")
    [episode] = await bench.episodes()
    assert said(episode) == (False, COLD["rationale"], "distilled")
    assert episode.thread_ids == ["a", "b"]
    assert await bench.guidelines() == guidelines != []
    assert given["learned"]["episode_ids"] == [episode.id]
    assert given["learned"]["guidelines"] == []
    assert len(distillings(bench.server)) == 1
    assert len(judgings(bench.server)) == 2
    before = await bench.episodes()
    for _ in range(2):
        again = await bench.review(graph, APPROVE, on="b")
        assert again["learned"]["memory_version"] == given["learned"]["memory_version"]
    assert (await bench.episodes(), await bench.guidelines()) == (before, guidelines)


@pytest.mark.parametrize(
    ("reply", "value"),
    [(APPROVE, True), ({"value": True}, True), ({"value": False}, False)],
    ids=["approve", "value", "other-value"],
)
async def test_bare_value_fills_in_what_the_words_left_open(
    bench: Bench, reply: Any, value: Any
) -> None:
    graph = bench.review_graph()
    await bench.review(graph, WORDS, on="a")
    [before] = await bench.episodes()
    assert said(before) == (None, COLD["rationale"], "distilled")
    guidelines = await bench.guidelines()
    await bench.review(graph, reply, on="b")
    [episode] = await bench.episodes()
    assert said(episode) == (value, COLD["rationale"], "distilled")
    assert episode.created_at == before.created_at
    assert await bench.guidelines() == guidelines != []
    assert len(distillings(bench.server)) == 1


async def test_approving_the_opposite_takes_the_words_back(bench: Bench) -> None:
    graph = bench.review_graph()
    await bench.review(graph, COLD, on="a")
    await bench.review(graph, APPROVE, on="b")  # the judge still says true
    [episode] = await bench.episodes()
    assert said(episode) == (True, None, "distilled")
    assert await bench.guidelines() == []


async def test_approving_pending_feedback_leaves_it_to_be_distilled(bench: Bench) -> None:
    graph = patient_graph(bench)
    await fail_to_distill(bench, graph, COLD, "a")
    judge_says(bench, False)
    await bench.review(graph, APPROVE, on="b")
    [episode] = await bench.episodes()
    assert said(episode) == (False, COLD["rationale"], "pending")
    given = await bench.invoke(graph, None, "a")
    [guideline] = await bench.guidelines()
    assert [one["guideline_id"] for one in given["learned"]["guidelines"]] == [guideline.id]
    assert [said(one) for one in await bench.episodes()] == [
        (False, COLD["rationale"], "distilled")
    ]


async def test_late_retry_distils_a_newer_word_that_is_still_pending(bench: Bench) -> None:
    graph = patient_graph(bench)
    await fail_to_distill(bench, graph, OLDER, "a")
    newer = await fail_to_distill(bench, graph, NEWER, "b")
    assert newer.rationale == NEWER["rationale"]
    given = await bench.invoke(graph, None, "a")
    [episode] = await bench.episodes()
    assert said(episode) == (False, NEWER["rationale"], "distilled")
    assert given["learned"]["episode_ids"] == [episode.id]
    prompt = distillings(bench.server)[-1].text
    assert str(NEWER["rationale"]) in prompt
    assert str(OLDER["rationale"]) not in prompt
    [guideline] = await bench.guidelines()
    assert str(NEWER["rationale"]) in guideline.text
    # The newer word's own thread, and the older one's once more, find their work done.
    chats = len(bench.server.chats)
    late = await bench.invoke(graph, None, "b")
    await bench.resume(graph, OLDER, "a")
    assert late["learned"]["episode_ids"] == [episode.id]
    assert [said(one) for one in await bench.episodes()] == [said(episode)]
    assert len(bench.server.chats) == chats
    assert await bench.guidelines() == [guideline]


@pytest.mark.parametrize(
    ("options", "distils"),
    [
        ({}, "gpt-other"),
        ({"distill_model": "openai:gpt-distils"}, "gpt-distils"),
        ({"distill_model": "openai:gpt-own"}, "gpt-own"),
    ],
    ids=["own", "distill-model", "distill-model-like-own"],
)
async def test_model_of_the_context_distils_unless_another_was_chosen(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, options: Any, distils: str
) -> None:
    graph = bench.review_graph(model="openai:gpt-own", **options)
    # Nobody closes the connections of a client that a string makes.
    with LoopbackServer(keep_alive=False) as server:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        await bench.invoke(graph, CASE, context={"model": "openai:gpt-other"})
        await bench.resume(graph, COLD)  # the context is gone here
        asked = [(chat.schema_name, chat.model) for chat in server.chats]
    assert asked == [("judgment", "gpt-other"), ("guideline_operations", distils)]
