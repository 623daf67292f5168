"""Purging removes traces of a case from kept judgments; forgetting keeps them."""

import json
from typing import Any

import pytest

from memalign_graph.memory.purge import Forgotten
from tests.conftest import CRITERION, OTHER, Bench
from tests.integration_tests.later_feedback.support import (
    age,
    all_items,
    give_feedback,
    judge,
    judgments_in_store,
    waiting_judgments,
)
from tests.loopback import ChatRequest, Rule

MARK = "zqx"
SECRET = {"inputs": "Where is zqxin, my order?", "outputs": "Look for it, zqxout."}
WORD = {"value": False, "rationale": "One must not say zqxwhy here.", "author": "ann"}
APART = {"inputs": "May I pay by card?", "outputs": "Yes, by any."}


def purge(bench: Bench, **options: Any) -> Forgotten:
    """Purge the only episode, or the selected ones."""
    memory = bench.memory()
    ids = None if options else [episode.id for episode in memory.episodes()]
    return memory.forget(ids, purge=True, checkpointer=bench.saver, **options)


def traces(bench: Bench) -> list[str]:
    """The store items that contain a planted word."""
    return [
        f"{'/'.join(item.namespace)}/{item.key}"
        for item in all_items(bench)
        if MARK in json.dumps([item.key, item.value]).casefold()
    ]


async def judge_and_give_feedback(
    bench: Bench, case: Any = SECRET, word: Any = WORD
) -> dict[str, Any]:
    judgment = await judge(bench, case)
    await give_feedback(bench, judgment["id"], word)
    return judgment


@pytest.fixture
def quoting(bench: Bench) -> None:
    """A judge that quotes its prompt."""
    bench.server.rules = [
        Rule(lambda chat: MARK in chat.text, value=True, rationale="As with zqxquote before.")
    ]


@pytest.mark.usefixtures("quoting")
async def test_purged_case_leaves_no_trace_in_the_store(bench: Bench) -> None:
    apart = await judge(bench, APART, on="apart")
    await judge(bench, SECRET, on="again")  # the same case once more, without feedback
    judgment = await judge_and_give_feedback(bench)
    similar = await judge(
        bench, OTHER, on="similar"
    )  # with the case and its guideline in the prompt
    [episode] = await bench.episodes()
    assert similar["episode_ids"] == [episode.id]
    assert "zqxquote" in similar["rationale"]
    assert len(traces(bench)) >= 5
    done = purge(bench)
    assert done.episode_ids == [episode.id]
    assert done.purged is not None
    assert sorted(done.purged.thread_ids) == ["again", "judged", "similar", "told"]
    assert traces(bench) == []
    assert judgments_in_store(bench) == [apart["id"]]
    with pytest.raises(ValueError, match="no judgment"):
        await give_feedback(bench, judgment["id"], WORD)
    assert traces(bench) == []


@pytest.mark.parametrize("inputs", [SECRET["inputs"], "zqxin-7"])
async def test_purge_removes_drafts_and_expired_judgments(bench: Bench, inputs: str) -> None:
    """As a gate does: the first draft is sent back, the second is reviewed."""
    case = {**SECRET, "inputs": inputs}
    await judge(bench, {**case, "outputs": "Draft 1."})
    await judge_and_give_feedback(bench, case)
    age(bench, (await judge(bench, case))["id"])
    purge(bench)
    assert traces(bench) == []


@pytest.mark.usefixtures("quoting")
async def test_judgment_that_used_only_the_purged_guideline_is_removed(bench: Bench) -> None:
    await judge_and_give_feedback(bench)
    by_guideline = await judge(bench, OTHER, use_episodes=False)
    by_neither = await judge(bench, APART, use_episodes=False, use_guidelines=False)
    assert by_guideline["episode_ids"] == []
    assert by_guideline["guideline_ids"]
    bench.memory().remove_guideline(by_guideline["guideline_ids"][0])
    purge(bench)
    assert judgments_in_store(bench) == [by_neither["id"]]
    assert traces(bench) == []


@pytest.mark.usefixtures("quoting")
async def test_forgetting_keeps_judgments_for_new_feedback_or_a_later_purge(
    bench: Bench,
) -> None:
    judgment = await judge_and_give_feedback(bench)
    await judge(bench, OTHER)
    [episode] = await bench.episodes()
    assert len(bench.memory().forget([episode.id]).guidelines_removed) == 1
    assert await bench.episodes() == []
    assert len(waiting_judgments(bench)) == 2
    result = await give_feedback(bench, judgment["id"], WORD, on="again")
    assert result["learned"]["guidelines"]
    assert len(await bench.episodes()) == len(await bench.guidelines()) == 1
    bench.memory().forget([episode.id])
    bench.memory().forget([episode.id], purge=True, checkpointer=bench.saver)
    assert traces(bench) == []
    assert judgments_in_store(bench) == []


async def test_purge_affects_only_its_memory_and_author(bench: Bench) -> None:
    elsewhere = await judge(bench, SECRET, context={"namespace": ["team-a"]})
    named = CRITERION.model_copy(update={"name": "judgments"})
    inner = {"namespace": ["memalign", CRITERION.name]}
    below = await judge(bench, SECRET, context=inner, criterion=named)
    bob = {"value": False, "rationale": "Ask kindly.", "author": "bob"}
    others = await judge_and_give_feedback(bench, OTHER, bob)
    judgment = await judge(bench, SECRET, use_episodes=False, use_guidelines=False)
    await give_feedback(bench, judgment["id"], WORD)
    assert len(purge(bench, author="ann").episode_ids) == 1
    assert judgments_in_store(bench) == [others["id"]]
    assert [episode.author for episode in await bench.episodes()] == ["bob"]
    assert len(await bench.guidelines()) == 1
    assert judgments_in_store(bench, "team-a", CRITERION.name) == [elsewhere["id"]]
    root = ("memalign", CRITERION.name, "judgments")
    assert judgments_in_store(bench, *root) == [below["id"]]


async def test_judgment_in_flight_during_a_purge_stores_no_trace(bench: Bench) -> None:
    await judge_and_give_feedback(bench)

    def purge_and_answer(request: ChatRequest) -> dict[str, Any]:
        purge(bench)
        return {"rationale": "As with zqxquote before.", "value": True}

    bench.server.responder = purge_and_answer
    await judge(bench, OTHER, on="during")
    assert await bench.episodes() == []
    assert traces(bench) == []
