"""A purge leaves no trace of a case in judgments that are kept; forgetting leaves them be."""

import json
from datetime import timedelta
from typing import Any

import pytest

from memalign_graph.memory.operations import Forgotten
from tests.conftest import CRITERION, OTHER, Bench
from tests.integration_tests.later_feedback.support import (
    DAY,
    age,
    everything,
    judge,
    judgments_in_store,
    kept,
    tell,
)
from tests.loopback import ChatRequest, Rule

MARK = "zqx"
SECRET = {"inputs": "Where is zqxin, my order?", "outputs": "Look for it, zqxout."}
WORD = {"value": False, "rationale": "One must not say zqxwhy here.", "author": "ann"}
APART = {"inputs": "May I pay by card?", "outputs": "Yes, by any."}


async def forget(bench: Bench, *ids: str, **options: Any) -> Forgotten:
    memory = bench.memory()
    if bench.awaits:
        return await memory.aforget(list(ids) or None, **options)
    return memory.forget(list(ids) or None, **options)


async def purge(bench: Bench, *ids: str, **options: Any) -> Forgotten:
    return await forget(bench, *ids, purge=True, checkpointer=bench.saver, **options)


async def traces(bench: Bench) -> list[str]:
    """Where a planted word is left in the store."""
    return [
        f"{'/'.join(one.namespace)}/{one.key}"
        for one in await everything(bench)
        if MARK in json.dumps([one.key, one.value]).casefold()
    ]


def quote_the_prompt(bench: Bench) -> None:
    """A judge that quotes what it was shown."""
    bench.server.rules = [
        Rule(lambda chat: MARK in chat.text, value=True, rationale="As with zqxquote before.")
    ]


async def test_no_trace_of_a_purged_case_is_left_in_the_store(bench: Bench) -> None:
    apart = await judge(bench, APART)
    quote_the_prompt(bench)
    judgment = await judge(bench, SECRET)
    await judge(bench, SECRET)  # the same case once more, without feedback
    await tell(bench, judgment["id"], WORD)
    similar = await judge(bench, OTHER)  # with the case and its guideline in the prompt
    [episode] = await bench.episodes()
    assert similar["episode_ids"] == [episode.id]
    assert "zqxquote" in similar["rationale"]
    assert len(await traces(bench)) >= 5
    done = await purge(bench, episode.id)
    assert done.episode_ids == [episode.id]
    assert await traces(bench) == []
    assert await judgments_in_store(bench) == [apart["id"]]
    assert [one.judgment.id for one in await kept(bench)] == [apart["id"]]


async def test_no_trace_is_left_by_drafts_on_the_same_inputs(bench: Bench) -> None:
    """As a gate leaves them: the first draft is judged and sent back, the second one reviewed."""
    await judge(bench, {**SECRET, "outputs": "Draft 1."})
    second = await judge(bench, SECRET)
    await tell(bench, second["id"], WORD)
    [episode] = await bench.episodes()
    await purge(bench, episode.id)
    assert await traces(bench) == []


async def test_no_trace_is_left_by_drafts_on_the_same_short_inputs(bench: Bench) -> None:
    short = {"inputs": "zqxin-7", "outputs": "Look for it in your post box."}
    await judge(bench, {**short, "outputs": "Draft 1."})
    second = await judge(bench, short)
    await tell(bench, second["id"], WORD)
    [episode] = await bench.episodes()
    await purge(bench, episode.id)
    assert await traces(bench) == []


async def test_no_trace_is_left_by_the_same_outputs_on_other_inputs(bench: Bench) -> None:
    await judge(bench, {**SECRET, "inputs": "Another question."})
    second = await judge(bench, SECRET)
    await tell(bench, second["id"], WORD)
    [episode] = await bench.episodes()
    await purge(bench, episode.id)
    assert await traces(bench) == []


async def test_judgment_made_with_its_guideline_alone_goes_too(bench: Bench) -> None:
    quote_the_prompt(bench)
    judgment = await judge(bench, SECRET)
    await tell(bench, judgment["id"], WORD)
    by_guideline = await judge(bench, OTHER, use_episodes=False)
    by_neither = await judge(bench, APART, use_episodes=False, use_guidelines=False)
    assert by_guideline["episode_ids"] == []
    assert by_guideline["guideline_ids"]
    [episode] = await bench.episodes()
    await purge(bench, episode.id)
    assert await judgments_in_store(bench) == [by_neither["id"]]
    assert await traces(bench) == []


async def test_judgment_made_with_a_guideline_that_is_gone_meanwhile_goes_too(
    bench: Bench,
) -> None:
    quote_the_prompt(bench)
    judgment = await judge(bench, SECRET)
    await tell(bench, judgment["id"], WORD)
    await judge(bench, OTHER, use_episodes=False)
    [episode], [guideline] = await bench.episodes(), await bench.guidelines()
    memory = bench.memory()
    if bench.awaits:
        await memory.aremove_guideline(guideline.id)
    else:
        memory.remove_guideline(guideline.id)
    await purge(bench, episode.id)
    assert await traces(bench) == []


async def test_what_was_forgotten_first_can_be_purged_later(bench: Bench) -> None:
    quote_the_prompt(bench)
    judgment = await judge(bench, SECRET)
    await tell(bench, judgment["id"], WORD)
    await judge(bench, OTHER)
    [episode] = await bench.episodes()
    await forget(bench, episode.id)
    assert await bench.episodes() == []
    assert len(await kept(bench)) == 2
    await purge(bench, episode.id)
    assert await traces(bench) == []
    assert await judgments_in_store(bench) == []


async def test_judgment_past_its_time_is_no_place_to_hide(bench: Bench) -> None:
    judgment = await judge(bench, SECRET)
    await tell(bench, judgment["id"], WORD)
    late = await judge(bench, SECRET, keep_judgments=timedelta(hours=1))
    await age(bench, late["id"], DAY)
    [episode] = await bench.episodes()
    await purge(bench, episode.id)
    assert await traces(bench) == []


async def test_purge_by_author_takes_the_judgments_along(bench: Bench) -> None:
    judgment = await judge(bench, SECRET)
    await tell(bench, judgment["id"], WORD)
    await tell(bench, (await judge(bench, APART))["id"], {"value": True, "author": "bob"})
    done = await purge(bench, author="ann")
    assert len(done.episode_ids) == 1
    assert await traces(bench) == []
    assert [one.author for one in await bench.episodes()] == ["bob"]


async def test_purged_judgment_takes_no_more_words(bench: Bench) -> None:
    judgment = await judge(bench, SECRET)
    await tell(bench, judgment["id"], WORD)
    [episode] = await bench.episodes()
    await purge(bench, episode.id)
    with pytest.raises(ValueError, match="no judgment"):
        await tell(bench, judgment["id"], WORD)
    assert await traces(bench) == []


async def test_threads_of_judging_and_of_telling_are_deleted(bench: Bench) -> None:
    await judge(bench, APART, on="apart")
    judgment = await judge(bench, SECRET, on="judged")
    await tell(bench, judgment["id"], WORD, on="told")
    [episode] = await bench.episodes()
    done = await purge(bench, episode.id)
    assert done.purged is not None
    assert sorted(done.purged.thread_ids) == ["judged", "told"]


async def test_purge_stays_within_its_memory(bench: Bench) -> None:
    elsewhere = await judge(bench, SECRET, context={"namespace": ["team-a"]})
    named = CRITERION.model_copy(update={"name": "judgments"})
    inner = {"namespace": ["memalign", CRITERION.name]}
    below = await judge(bench, SECRET, context=inner, criterion=named)
    judgment = await judge(bench, SECRET)
    await tell(bench, judgment["id"], WORD)
    [episode] = await bench.episodes()
    await purge(bench, episode.id)
    assert await judgments_in_store(bench) == []
    assert await judgments_in_store(bench, "team-a", CRITERION.name) == [elsewhere["id"]]
    root = ("memalign", CRITERION.name, "judgments")
    assert await judgments_in_store(bench, *root) == [below["id"]]


async def test_forgetting_leaves_judgments_to_be_spoken_of_again(bench: Bench) -> None:
    judgment = await judge(bench, SECRET)
    await tell(bench, judgment["id"], WORD)
    [episode] = await bench.episodes()
    done = await forget(bench, episode.id)
    assert len(done.guidelines_removed) == 1
    assert [one.judgment.id for one in await kept(bench)] == [judgment["id"]]
    given = await tell(bench, judgment["id"], WORD, on="again")
    assert given["learned"]["guidelines"]
    assert len(await bench.episodes()) == len(await bench.guidelines()) == 1


async def test_purge_takes_nothing_else_along(bench: Bench) -> None:
    first, second = await judge(bench, APART), await judge(bench, OTHER)
    await tell(bench, second["id"], {"value": False, "rationale": "Ask kindly.", "author": "bob"})
    judgment = await judge(bench, SECRET, use_episodes=False)
    await tell(bench, judgment["id"], WORD)
    ann = next(one for one in await bench.episodes() if one.author == "ann")
    await purge(bench, ann.id)
    assert await traces(bench) == []
    assert sorted(await judgments_in_store(bench)) == sorted([first["id"], second["id"]])
    assert len(await bench.guidelines()) == 1


@pytest.mark.parametrize("bench", ["memory-sync"], indirect=True)
async def test_judging_under_way_during_a_purge_keeps_no_trace_of_it(bench: Bench) -> None:
    judgment = await judge(bench, SECRET)
    await tell(bench, judgment["id"], WORD)
    [episode] = await bench.episodes()

    def purge_and_answer(request: ChatRequest) -> dict[str, Any]:
        bench.memory().forget([episode.id], purge=True, checkpointer=bench.saver)
        return {"rationale": "As with zqxquote before.", "value": True}

    bench.server.responder = purge_and_answer
    await judge(bench, OTHER, on="during")
    assert await bench.episodes() == []
    assert await traces(bench) == []
