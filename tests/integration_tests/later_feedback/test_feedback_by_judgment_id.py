"""Feedback on an earlier judgment by its id: formats and errors."""

from typing import Any

import pytest

from memalign_graph import Boolean, Example, InvalidInputError, Numeric
from memalign_graph.io import ASYNC
from memalign_graph.memory.feedback import remember
from memalign_graph.types import parse_feedback
from tests.builders import keep_reviewed, make_judgment
from tests.conftest import (
    CASE,
    COLD,
    CRITERION,
    EVERY_WAY,
    OTHER,
    Bench,
    distillings,
    judgings,
)
from tests.integration_tests.later_feedback.support import (
    DAY,
    age,
    feedback_graph,
    give_feedback,
    judge,
    judgments_in_store,
)
from tests.unit_tests.memory.purging import everything_in

BY_ANN = {**COLD, "author": "ann"}


@EVERY_WAY
async def test_feedback_is_learned_on_another_thread(bench: Bench) -> None:
    judgment = await judge(bench)
    result = await give_feedback(bench, judgment["id"], BY_ANN)
    assert result["judgment"] == judgment
    assert result["feedback"]["rationale"] == COLD["rationale"]
    [learned] = result["learned"]["guidelines"]
    [guideline] = await bench.guidelines()
    assert learned["guideline_id"] == guideline.id
    [episode] = await bench.episodes()
    assert result["learned"]["episode_ids"] == [episode.id]
    assert (episode.author, episode.value, episode.status) == ("ann", False, "distilled")
    assert episode.example.model_dump(exclude={"reference_outputs"}) == CASE
    assert episode.judgment is not None
    assert episode.judgment.to_json() == judgment
    assert episode.thread_ids == ["judged", "told"]
    assert len(judgings(bench.server)) == len(distillings(bench.server)) == 1
    again = await judge(bench, OTHER)
    assert again["guideline_ids"] == [guideline.id]
    memory = bench.memory()
    waiting = await memory.ajudgments() if bench.awaits else memory.judgments()
    assert [judgment.judgment.id for judgment in waiting] == [judgment["id"], again["id"]]


async def test_judgments_are_kept_until_expiry_and_only_on_request(bench: Bench) -> None:
    unkept = await judge(bench, keep_judgments=None)
    assert judgments_in_store(bench) == []
    with pytest.raises(ValueError, match="without `keep_judgments`"):
        await give_feedback(bench, unkept["id"], COLD)
    first = await judge(bench, keep_judgments=2 * DAY)
    second = await judge(bench, OTHER)
    newer, older = bench.memory().judgments()
    assert (newer.judgment.id, older.judgment.to_json()) == (second["id"], first)
    assert older.example.outputs == CASE["outputs"]
    assert newer.kept_until < older.kept_until
    ignored = await give_feedback(bench, first["id"], {"type": "ignore"})
    assert (ignored["feedback"], ignored["learned"]) == (None, None)
    assert await bench.episodes() == []
    await give_feedback(bench, first["id"], COLD)
    judgments = bench.memory().judgments(waiting=True)
    assert [waiting.judgment.id for waiting in judgments] == [second["id"]]


async def test_reviewed_judgment_is_kept_once_and_accepts_later_feedback(bench: Bench) -> None:
    graph = bench.review_graph(keep_judgments=DAY)
    result = await bench.review(graph, BY_ANN)
    assert [kept.judgment.id for kept in bench.memory().judgments()] == [result["judgment"]["id"]]
    other = bench.server.chat_model(model="distiller")
    feedback = {"value": True, "rationale": "Fine.", "author": "bob"}
    await give_feedback(bench, result["judgment"]["id"], feedback, distill_model=other)
    episodes = await bench.episodes()
    assert {episode.author: episode.value for episode in episodes} == {"ann": False, "bob": True}
    assert [chat.model for chat in distillings(bench.server)] == ["gpt-4.1-mini", "distiller"]


async def test_example_is_embedded_again_only_by_other_embeddings(bench: Bench) -> None:
    await bench.remember({**CASE, **COLD})
    judgment = await judge(bench, OTHER)
    del bench.server.embeddings[:]
    await give_feedback(bench, judgment["id"], BY_ANN)
    assert bench.server.embeddings == []
    embedder = bench.server.embedder(model="text-embedding-3-large", dimensions=32)
    feedback = {**COLD, "author": "bob"}
    await give_feedback(bench, judgment["id"], feedback, on="later", embeddings=embedder)
    models = {request.model for request in bench.server.embeddings}
    assert models == {"text-embedding-3-large"}
    recalled = bench.memory(embeddings=embedder).recall(OTHER, 1)
    assert [similar.example.inputs for similar in recalled] == [OTHER["inputs"]]


def content(bench: Bench) -> tuple[Any, ...]:
    """The store's content and the number of model calls."""
    stored = sorted(
        (item.namespace, item.key, str(item.value)) for item in everything_in(bench.store)
    )
    return stored, len(bench.server.chats), len(bench.server.embeddings)


async def refuse(bench: Bench, graph_input: Any, context: Any = None, **options: Any) -> str:
    """Give invalid feedback; returns the error after checking that nothing changed."""
    before = content(bench)
    with pytest.raises(InvalidInputError) as caught:
        await bench.invoke(feedback_graph(bench, **options), graph_input, "told", context=context)
    assert content(bench) == before
    assert "\n" not in str(caught.value)
    return str(caught.value)


NO_ID = "expected a judgment's `id`"
IDS: list[tuple[Any, str]] = [
    ("unknown", f"judgment_id: no judgment 'unknown' is kept in memalign/{CRITERION.name}"),
    ("a.b", "no judgment 'a.b' is kept"),
    ("%", "no judgment '%' is kept"),
    ("", NO_ID),
    (None, NO_ID),
    ({"id": "a"}, NO_ID),
]


async def test_invalid_feedback_can_be_corrected(bench: Bench) -> None:
    judgment_id = (await judge(bench))["id"]
    for unknown, why in IDS:
        assert why in await refuse(bench, {"judgment_id": unknown, "reply": COLD})
    wrong: list[Any] = [None, 7, " ", {"value": "perhaps"}, {"verdict": False}, {"decisions": []}]
    for reply in wrong:
        why = await refuse(bench, {"judgment_id": judgment_id, "reply": reply})
        assert why.startswith("reply: ")
    # Nor is it taken from an earlier run on the thread.
    assert (await refuse(bench, {"judgment_id": judgment_id})).startswith("reply: ")
    assert NO_ID in await refuse(bench, {"reply": COLD})
    assert (await give_feedback(bench, judgment_id, COLD))["learned"]["guidelines"]


async def test_judgment_is_looked_up_in_the_runs_memory_until_it_expires(bench: Bench) -> None:
    named = CRITERION.model_copy(update={"name": "judgments"})
    for place in (["team-a"], ["judgments"], ["a", "judgments"]):
        options: Any = {"criterion": named, "context": {"namespace": place}}
        graph_input = {"judgment_id": (await judge(bench, **options))["id"], "reply": COLD}
        assert "another namespace" in await refuse(bench, graph_input, criterion=named)
        assert "memalign/support_tone" in await refuse(bench, graph_input)
        result = await give_feedback(bench, *graph_input.values(), **options)
        assert result["learned"]["guidelines"]
        assert len(await bench.episodes(criterion=named, namespace=tuple(place))) == 1
    graph_input = {"judgment_id": (await judge(bench))["id"], "reply": COLD}
    age(bench, graph_input["judgment_id"])
    assert "It has expired" in await refuse(bench, graph_input)
    assert bench.memory().judgments() == []


async def test_value_of_a_changed_scale_is_reported(bench: Bench) -> None:
    score = CRITERION.model_copy(update={"scale": Numeric(minimum=1, maximum=5, integer=True)})
    judgment = await judge(bench, criterion=score)
    assert judgment["value"] == 5
    boolean = score.model_copy(update={"scale": Boolean()})
    graph_input = {"judgment_id": judgment["id"], "reply": {"type": "approve"}}
    assert "not on the scale" in await refuse(bench, graph_input, criterion=boolean)
    taken = await give_feedback(bench, judgment["id"], {"value": False}, criterion=boolean)
    assert taken["feedback"]["value"] is False


async def test_feedback_after_one_with_the_latest_possible_date_counts(bench: Bench) -> None:
    judgment = await judge(bench)
    early = {**CASE, "value": True, "author": "ann", "given_at": "9999-12-31T23:59:59.999999Z"}
    await bench.remember(early)
    await give_feedback(bench, judgment["id"], BY_ANN)
    [episode] = await bench.episodes()
    assert episode.value is False


async def test_each_answered_judgment_of_a_case_counts(bench: Bench) -> None:
    memory = bench.memory()
    values, example = (True, False, True), Example(**CASE)
    nights = [keep_reviewed(memory.access, example, "unsure", value=value) for value in values]
    replies: list[dict[str, Any]] = [{"value": True}, {"value": True}, {"value": False}]
    for judgment, reply in zip(nights, replies, strict=True):
        parsed = parse_feedback({**CASE, **reply, "author": "ann", "judgment": judgment})
        await remember(ASYNC, memory.access, [parsed], is_table=judgment is nights[1])
    assert memory.judgments(waiting=True) == []
    [episode] = memory.episodes()
    assert (episode.value, episode.judgment) == (False, nights[2])
    assert episode.other_verdicts == {nights[0].id: True, nights[1].id: False}
    embedding_count = memory.review_report().asked
    assert (embedding_count.answered, embedding_count.agreeing) == (3, 1)
    assert len(memory.judgments()) == 3
    memory.forget(author="ann")
    assert len(memory.judgments(waiting=True)) == 3


async def test_stored_format_of_feedback_on_one_judgment_is_unchanged(bench: Bench) -> None:
    memory, judgment = bench.memory(), make_judgment(Example(**CASE).id, criterion=CRITERION.name)
    for _ in range(2):
        memory.remember({**CASE, "value": True, "judgment": judgment})
    [episode] = memory.episodes()
    assert "other_verdicts" not in episode.to_json()
    assert memory.history()[0].episodes.added == len(memory.history()) == 1
