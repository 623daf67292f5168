"""What does not fit is left out and said; what a run's context changes."""

from typing import Any

import pytest

from memalign_graph import InvalidInputError, MemAlignContext
from memalign_graph.prompts.fences import estimate_tokens
from tests.conftest import CASE, COLD, OTHER, Bench
from tests.loopback import ChatRequest

SMALL = {"max_input_tokens": 4000}


def shown_examples(chat: ChatRequest) -> int:
    return sum(one["role"] == "assistant" for one in chat.messages)


def tokens(chat: ChatRequest) -> int:
    return sum(estimate_tokens(str(one["content"])) for one in chat.messages)


async def test_examples_that_do_not_fit_are_left_out_and_said(bench: Bench) -> None:
    feedback = [{"inputs": f"{n} " * 1_500, "outputs": n, "value": False} for n in "abcde"]
    await bench.remember(*feedback)
    model = bench.server.chat_model(profile=SMALL)
    given = await bench.invoke(bench.judge_graph(model=model), CASE)
    [chat] = bench.server.chats
    assert 0 < shown_examples(chat) < 5
    assert len(given["judgment"]["episode_ids"]) == shown_examples(chat)
    assert f"{5 - shown_examples(chat)} of 5 similar examples" in given["judgment"]["warnings"][0]
    assert tokens(chat) <= 4000


async def test_relevant_guidelines_are_chosen_when_they_outgrow_their_room(bench: Bench) -> None:
    graph = bench.review_graph(review="always")
    topics = ("parcels that are lost", "cups that are broken", "bills that are wrong")
    for topic in topics:
        case = {"inputs": f"About {topic}", "outputs": f"We know {topic}."}
        await bench.review(graph, {"rationale": f"Say sorry for {topic}."}, case, topic)
    by_topic = {one.text.partition("sorry for ")[2]: one.id for one in await bench.guidelines()}
    narrow = bench.judge_graph(max_guideline_tokens=25)
    case = {"inputs": "About cups that are broken", "outputs": "We see cups that are broken."}
    judgment = (await bench.invoke(narrow, case, "u"))["judgment"]
    assert judgment["guideline_ids"] == [by_topic["cups that are broken."]]
    [warning] = judgment["warnings"]
    assert warning.startswith("2 of 3 guidelines did not fit")
    assert "bills that are wrong" not in bench.server.chats[-1].messages[0]["content"]


async def test_ablations_leave_their_part_of_memory_out(bench: Bench) -> None:
    await bench.review(bench.review_graph(), COLD)
    ablations: list[tuple[dict[str, Any], tuple[int, int]]] = [
        ({}, (1, 1)),
        ({"use_guidelines": False}, (0, 1)),
        ({"use_episodes": False}, (1, 0)),
    ]
    for options, counts in ablations:
        judgment = (await bench.invoke(bench.judge_graph(**options), OTHER, "u"))["judgment"]
        assert (len(judgment["guideline_ids"]), len(judgment["episode_ids"])) == counts
        assert shown_examples(bench.server.chats[-1]) == counts[1]


async def test_k_comes_from_the_context(bench: Bench) -> None:
    await bench.remember(*({**CASE, "outputs": f"Number {n}.", "value": True} for n in range(4)))
    graph = bench.judge_graph(k=3)
    for context, shown in ((None, 3), ({"k": 1}, 1), (MemAlignContext(k=0), 0), ({}, 3)):
        given = await bench.invoke(graph, CASE, context=context)
        assert len(given["judgment"]["episode_ids"]) == shown
    asked = len(bench.server.embeddings)
    given = await bench.invoke(bench.judge_graph(use_episodes=False), CASE, context={"k": 5})
    assert given["judgment"]["episode_ids"] == []
    assert len(bench.server.embeddings) == asked


async def test_namespace_from_the_context_keeps_memories_apart(bench: Bench) -> None:
    graph = bench.review_graph()
    context = {"namespace": ["team", "a"]}
    await bench.invoke(graph, CASE, context=context)
    await bench.resume(graph, COLD)  # the context is gone here
    assert await bench.episodes() == []
    assert len(await bench.episodes(namespace=("team", "a"))) == 1
    assert len(await bench.guidelines(namespace=("team", "a"))) == 1
    elsewhere = await bench.invoke(graph, OTHER, "u", context={"namespace": ["team", "b"]})
    there = await bench.invoke(graph, OTHER, "v", context=context)
    assert elsewhere["judgment"]["guideline_ids"] == []
    assert len(there["judgment"]["guideline_ids"]) == 1


@pytest.mark.parametrize("context", [{"k": 101}, {"namespace": ["a.b"]}, {"review": "maybe"}])
async def test_bad_context_is_refused_before_any_call(bench: Bench, context: Any) -> None:
    [field] = context
    with pytest.raises(ValueError, match=field):
        await bench.invoke(bench.review_graph(), CASE, context=context)
    assert bench.server.chats == []


async def test_missing_store_is_one_sentence(bench: Bench) -> None:
    graph = bench.judge_graph()
    graph.store = None
    with pytest.raises(InvalidInputError, match="compile it with"):
        await bench.invoke(graph, CASE)
