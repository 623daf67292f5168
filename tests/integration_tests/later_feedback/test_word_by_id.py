"""An expert's word on an earlier judgment: from anywhere, in any shape, and what it costs."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from langgraph.store.sqlite import SqliteStore

from memalign_graph import JudgeMemory, create_feedback_graph, create_judge_graph
from tests.conftest import (
    CASE,
    COLD,
    CRITERION,
    EVERY_WAY,
    OTHER,
    Bench,
    distillings,
    judgings,
    thread,
)
from tests.integration_tests.later_feedback.support import (
    DAY,
    feedback_graph,
    judge,
    judgments_in_store,
    kept,
    tell,
)

pytestmark = EVERY_WAY


def edit(**args: Any) -> dict[str, Any]:
    action = {"name": "review_judgment", "args": args}
    return {"decisions": [{"type": "edit", "edited_action": action}]}


async def test_word_is_learned_from_on_another_thread(bench: Bench) -> None:
    judgment = await judge(bench)
    given = await tell(bench, judgment["id"], {**COLD, "author": "ann"})
    assert given["judgment"] == judgment
    assert given["feedback"]["rationale"] == COLD["rationale"]
    [learned] = given["learned"]["guidelines"]
    [guideline] = await bench.guidelines()
    assert learned["guideline_id"] == guideline.id
    [episode] = await bench.episodes()
    assert given["learned"]["episode_ids"] == [episode.id]
    assert (episode.author, episode.value, episode.status) == ("ann", False, "distilled")
    assert episode.example.model_dump(exclude={"reference_outputs"}) == CASE
    assert episode.judgment is not None
    assert episode.judgment.to_json() == judgment
    assert episode.thread_ids == ["judged", "told"]
    assert len(judgings(bench.server)) == len(distillings(bench.server)) == 1
    again = await judge(bench, OTHER)
    assert again["guideline_ids"] == [guideline.id]


async def test_judgments_wait_in_memory_until_their_time_is_over(bench: Bench) -> None:
    assert await kept(bench) == []
    first = await judge(bench, keep_judgments=2 * DAY)
    second = await judge(bench, OTHER)
    waiting = await kept(bench)
    assert [one.judgment.id for one in waiting] == [second["id"], first["id"]]
    assert waiting[1].judgment.to_json() == first
    assert waiting[1].example.outputs == CASE["outputs"]
    assert waiting[0].kept_until < waiting[1].kept_until
    await tell(bench, first["id"], COLD)
    assert {one.judgment.id for one in await kept(bench)} == {first["id"], second["id"]}
    memory = bench.memory()
    if bench.awaits:
        left = await memory.ajudgments(waiting=True)
    else:
        left = memory.judgments(waiting=True)
    assert [one.judgment.id for one in left] == [second["id"]]


async def test_word_is_distilled_by_the_model_for_that(bench: Bench) -> None:
    judgment = await judge(bench)
    other = bench.server.chat_model(model="distiller")
    await tell(bench, judgment["id"], COLD, distill_model=other)
    assert [chat.body["model"] for chat in distillings(bench.server)] == ["distiller"]


async def test_nothing_is_kept_unless_told(bench: Bench) -> None:
    judgment = await judge(bench, keep_judgments=None)
    assert await judgments_in_store(bench) == []
    with pytest.raises(ValueError, match="without `keep_judgments`"):
        await tell(bench, judgment["id"], COLD)


async def test_judgment_of_a_review_graph_is_kept_too(bench: Bench) -> None:
    graph = bench.review_graph(keep_judgments=DAY, review="never")
    judgment = (await bench.invoke(graph, CASE))["judgment"]
    given = await tell(bench, judgment["id"], "Too cold.")
    assert given["learned"]["guidelines"]


async def test_judgment_that_was_reviewed_takes_another_word_later(bench: Bench) -> None:
    graph = bench.review_graph(keep_judgments=DAY)
    given = await bench.review(graph, {**COLD, "author": "ann"})
    await tell(bench, given["judgment"]["id"], {"value": True, "author": "bob"})
    episodes = await bench.episodes()
    assert {one.author: one.value for one in episodes} == {"ann": False, "bob": True}


@pytest.mark.parametrize(
    ("reply", "value", "words"),
    [
        ({"value": False, "rationale": " Cold. ", "author": "ann"}, False, "Cold."),
        ({"value": "no"}, False, None),
        ({"rationale": "Cold."}, None, "Cold."),
        ("Cold.", None, "Cold."),
        (edit(value=False), False, None),
        (edit(value=False, rationale="Cold."), False, "Cold."),
        ({"decisions": [{"type": "reject", "message": "Cold."}]}, None, "Cold."),
        ({"decisions": [{"type": "respond", "message": "Cold."}]}, None, "Cold."),
        ([{"type": "response", "args": "Cold."}], None, "Cold."),
        ([{"type": "edit", "args": {"action": "x", "args": {"value": False}}}], False, None),
        ({"type": "reject", "message": "Cold."}, None, "Cold."),
    ],
    ids=str,
)
async def test_every_shape_of_a_reply_is_taken(
    bench: Bench, reply: Any, value: Any, words: str | None
) -> None:
    judgment = await judge(bench)
    given = await tell(bench, judgment["id"], reply)
    assert (given["feedback"]["value"], given["feedback"]["rationale"]) == (value, words)
    [episode] = await bench.episodes()
    assert (episode.value, episode.rationale) == (value, words)
    assert len(distillings(bench.server)) == 1


@pytest.mark.parametrize(
    "reply",
    [
        {"value": True},
        {"decisions": [{"type": "approve"}]},
        [{"type": "accept", "args": None}],
        edit(value=True),
    ],
    ids=str,
)
async def test_agreement_costs_no_call_of_a_chat_model(bench: Bench, reply: Any) -> None:
    judgment = await judge(bench)
    given = await tell(bench, judgment["id"], reply)
    assert given["learned"]["guidelines"] == []
    [episode] = await bench.episodes()
    assert (episode.value, episode.status) == (True, "distilled")
    assert len(bench.server.chats) == 1


@pytest.mark.parametrize("reply", [{"type": "ignore"}, [{"type": "ignore", "args": None}]])
async def test_ignoring_stores_nothing(bench: Bench, reply: Any) -> None:
    judgment = await judge(bench)
    given = await tell(bench, judgment["id"], reply)
    assert (given["feedback"], given["learned"]) == (None, None)
    assert await bench.episodes() == []
    assert len(await kept(bench)) == 1


async def test_example_is_not_embedded_again(bench: Bench) -> None:
    first = await judge(bench)
    assert bench.server.embeddings == []  # there is nothing to find yet
    await tell(bench, first["id"], COLD)
    assert [one.texts for one in bench.server.embeddings] != []
    del bench.server.embeddings[:]
    second = await judge(bench, OTHER)
    assert len(bench.server.embeddings) == 1
    await tell(bench, second["id"], COLD, on="told later")
    assert len(bench.server.embeddings) == 1


async def test_other_embeddings_embed_for_themselves(bench: Bench) -> None:
    await bench.remember({**CASE, **COLD})
    judgment = await judge(bench, OTHER)
    del bench.server.embeddings[:]
    embedder = bench.server.embedder(model="text-embedding-3-large", dimensions=32)
    await tell(bench, judgment["id"], COLD, embeddings=embedder)
    assert {one.model for one in bench.server.embeddings} == {"text-embedding-3-large"}
    memory = bench.memory(embeddings=embedder)
    found = await memory.arecall(OTHER, 1) if bench.awaits else memory.recall(OTHER, 1)
    assert [one.example.inputs for one in found] == [OTHER["inputs"]]


async def test_same_word_twice_teaches_nothing_new(bench: Bench) -> None:
    judgment = await judge(bench)
    first = await tell(bench, judgment["id"], {**COLD, "author": "ann"})
    second = await tell(bench, judgment["id"], {**COLD, "author": "ann"})
    assert second["learned"]["guidelines"] == []
    assert second["learned"]["memory_version"] == first["learned"]["memory_version"]
    assert len(await bench.episodes()) == len(await bench.guidelines()) == 1
    assert len(distillings(bench.server)) == 1


async def test_second_thought_takes_the_place_of_the_first(bench: Bench) -> None:
    judgment = await judge(bench)
    await tell(bench, judgment["id"], {**COLD, "author": "ann"})
    word = {"value": False, "rationale": "It blames the customer.", "author": "ann"}
    await tell(bench, judgment["id"], word)
    [episode] = await bench.episodes()
    assert episode.rationale == "It blames the customer."
    [guideline] = await bench.guidelines()
    assert "blames" in guideline.text


async def test_two_experts_are_two_episodes(bench: Bench) -> None:
    judgment = await judge(bench)
    await tell(bench, judgment["id"], {**COLD, "author": "ann"}, on="ann's")
    await tell(bench, judgment["id"], {"value": True, "author": "bob"}, on="bob's")
    episodes = await bench.episodes()
    assert {one.author for one in episodes} == {"ann", "bob"}
    assert {one.example_id for one in episodes} == {judgment["example_id"]}
    assert len(distillings(bench.server)) == 1


async def test_words_without_an_author_are_told_apart_by_their_ids(bench: Bench) -> None:
    judgment = await judge(bench)
    for key in ("f1", "f2"):
        await tell(bench, judgment["id"], {**COLD, "id": key})
    assert sorted(str(one.feedback_id) for one in await bench.episodes()) == ["f1", "f2"]


async def test_namespace_of_the_run_is_where_the_judgment_is_looked_for(bench: Bench) -> None:
    context = {"namespace": ["team-a"]}
    judgment = await judge(bench, context=context)
    with pytest.raises(ValueError, match="another namespace"):
        await tell(bench, judgment["id"], COLD)
    await tell(bench, judgment["id"], COLD, context=context)
    assert await bench.episodes() == []
    assert len(await bench.episodes(namespace=("team-a",))) == 1


async def test_words_on_two_judgments_on_one_thread_are_kept_apart(bench: Bench) -> None:
    first, second = await judge(bench), await judge(bench, OTHER)
    graph = feedback_graph(bench)
    given = {"judgment_id": first["id"], "reply": COLD}
    await bench.invoke(graph, given, "one")
    given = {"judgment_id": second["id"], "reply": {"value": True}}
    result = await bench.invoke(graph, given, "one")
    assert result["learned"]["guidelines"] == []
    assert {one.example.inputs: one.value for one in await bench.episodes()} == {
        CASE["inputs"]: False,
        OTHER["inputs"]: True,
    }


async def test_word_on_another_judgment_is_not_taken_for_one_that_was_forgotten(
    bench: Bench,
) -> None:
    """A word refused on one judgment must not be stored on the next by being left out there."""
    judgment = await judge(bench)
    graph = feedback_graph(bench)
    with pytest.raises(ValueError, match="judgment_id"):
        await bench.invoke(graph, {"judgment_id": "unknown", "reply": COLD}, "one")
    with pytest.raises(ValueError, match="reply"):
        await bench.invoke(graph, {"judgment_id": judgment["id"]}, "one")
    assert await bench.episodes() == []


async def test_word_comes_from_another_process(bench: Bench, tmp_path: Path) -> None:
    """With other connections and other graph objects, as after a restart."""
    path = str(tmp_path / "memory.db")
    options: Any = {"model": bench.server.chat_model(), "embeddings": bench.server.embedder()}
    with SqliteStore.from_conn_string(path) as store:
        store.setup()
        builder = create_judge_graph(CRITERION, keep_judgments=DAY, **options)
        judgment = builder.compile(store=store).invoke(CASE)["judgment"]
    with SqliteStore.from_conn_string(path) as store:
        graph = create_feedback_graph(CRITERION, **options).compile(store=store)
        given = {"judgment_id": judgment["id"], "reply": COLD}
        assert graph.invoke(given, thread(None))["learned"]["guidelines"]
    with SqliteStore.from_conn_string(path) as store:
        memory = JudgeMemory(store, CRITERION, embeddings=options["embeddings"])
        assert len(memory.episodes()) == len(memory.guidelines()) == 1
        assert [one.judgment.id for one in memory.judgments()] == [judgment["id"]]


async def test_distilling_that_fails_leaves_the_word_for_the_next(bench: Bench) -> None:
    from tests.integration_tests.gates.support import DOWN

    judgment = await judge(bench)
    bench.server.script(*[DOWN] * 3)
    with pytest.raises(Exception, match="It broke"):
        await tell(bench, judgment["id"], COLD)
    assert [one.status for one in await bench.episodes()] == ["pending"]
    await tell(bench, judgment["id"], COLD, on="again")
    assert [one.status for one in await bench.episodes()] == ["distilled"]
    assert len(await bench.guidelines()) == 1


async def test_words_of_several_experts_at_once_are_all_kept(bench: Bench) -> None:
    judgment = await judge(bench)
    graph = feedback_graph(bench)
    words = [{**COLD, "author": f"expert-{number}"} for number in range(6)]

    async def say(word: dict[str, Any]) -> Any:
        given = {"judgment_id": judgment["id"], "reply": word}
        if bench.awaits:
            return await graph.ainvoke(given, thread(word["author"]))
        return await asyncio.to_thread(graph.invoke, given, thread(word["author"]))

    await asyncio.gather(*map(say, words))
    episodes = await bench.episodes()
    assert {one.author for one in episodes} == {one["author"] for one in words}
    assert {one.status for one in episodes} == {"distilled"}
    sources = {key for one in await bench.guidelines() for key in one.episode_ids}
    assert sources <= {one.id for one in episodes}


async def test_word_given_under_the_name_of_what_is_returned_is_told(bench: Bench) -> None:
    judgment = await judge(bench)
    given = {"judgment_id": judgment["id"], "feedback": COLD}
    with pytest.raises(ValueError, match=r"^reply: "):
        await bench.invoke(feedback_graph(bench), given)
    assert await bench.episodes() == []
