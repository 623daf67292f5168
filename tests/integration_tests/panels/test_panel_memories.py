"""A panel's memories are those of its criteria: kept judgments, later words, and purging."""

from datetime import timedelta
from typing import Any

import pytest

from memalign_graph import Criterion, InvalidInputError, create_feedback_graph
from tests.conftest import CASE, OTHER, Bench
from tests.integration_tests.panels.support import (
    COLD,
    FACTS,
    LENGTH,
    THREE,
    TONE,
    learned_texts,
    models,
    panel,
    reviewed,
    teach,
)

DAY = timedelta(days=1)


async def tell(bench: Bench, one: Criterion, judgment_id: str, feedback: Any) -> dict[str, Any]:
    """Give an expert's later word on one of a panel's judgments."""
    graph = bench.compile(create_feedback_graph(one, **models(bench)))
    given = {"judgment_id": judgment_id, "reply": feedback}
    result: dict[str, Any] = await bench.invoke(graph, given, f"later-{one.name}")
    return result


async def kept_ids(bench: Bench, one: Criterion) -> list[str]:
    memory = bench.memory(one)
    kept = await memory.ajudgments() if bench.awaits else memory.judgments()
    return [each.judgment.id for each in kept]


async def test_kept_judgments_take_a_later_word_each(bench: Bench) -> None:
    given = await bench.invoke(panel(bench, keep_judgments=DAY), CASE)
    ids = {name: one["id"] for name, one in given["judgments"].items()}
    for one in THREE:
        assert await kept_ids(bench, one) == [ids[one.name]]
    later = await tell(bench, FACTS, ids["facts"], {**COLD, "author": "ann"})
    assert later["judgment"]["id"] == ids["facts"]
    texts = await learned_texts(bench, THREE)
    assert [len(texts[one.name]) for one in THREE] == [0, 1, 0]
    [episode] = await bench.episodes(criterion=FACTS)
    assert (episode.author, episode.example.outputs) == ("ann", CASE["outputs"])
    assert len(bench.server.embeddings) <= 1


async def test_later_word_on_another_criterions_judgment_is_refused(bench: Bench) -> None:
    given = await bench.invoke(panel(bench, keep_judgments=DAY), CASE)
    with pytest.raises(InvalidInputError, match="judgment_id: no judgment"):
        await tell(bench, TONE, given["judgments"]["facts"]["id"], COLD)
    assert await bench.episodes(criterion=TONE) == []


async def test_later_word_embeds_nothing_where_the_panel_had_a_vector(bench: Bench) -> None:
    await teach(bench, TONE, OTHER)
    given = await bench.invoke(panel(bench, keep_judgments=DAY), CASE)
    assert len(bench.server.embeddings) == 1
    await tell(bench, FACTS, given["judgments"]["facts"]["id"], COLD)
    await tell(bench, TONE, given["judgments"]["tone"]["id"], COLD)
    assert len(bench.server.embeddings) == 1


async def test_without_keeping_nothing_is_kept(bench: Bench) -> None:
    given = await bench.invoke(panel(bench), CASE)
    assert await kept_ids(bench, TONE) == []
    with pytest.raises(InvalidInputError, match="judgment_id"):
        await tell(bench, TONE, given["judgments"]["tone"]["id"], COLD)


async def purge(bench: Bench, one: Criterion) -> Any:
    memory = bench.memory(one)
    given: dict[str, Any] = {"author": "ann", "purge": True, "checkpointer": bench.saver}
    return await memory.aforget(**given) if bench.awaits else memory.forget(**given)


async def threads(bench: Bench) -> set[str]:
    """The threads that the checkpointer holds."""
    if bench.awaits:
        found = [one async for one in bench.saver.alist(None)]
    else:
        found = list(bench.saver.list(None))
    return {one.config["configurable"]["thread_id"] for one in found}


async def test_purging_one_criterions_feedback_leaves_the_others_memories(bench: Bench) -> None:
    graph = reviewed(bench)
    reply = {"tone": COLD, "facts": {"value": False, "rationale": "The number is wrong."}}
    await bench.review(graph, {**reply, "author": "ann"}, on="taught")
    await bench.invoke(graph, OTHER, "shown")
    await bench.invoke(panel(bench, [LENGTH]), {"inputs": "Hi?", "outputs": "Hello."}, "apart")
    forgotten = await purge(bench, TONE)
    assert len(forgotten.episode_ids) == 1
    assert await bench.episodes(criterion=TONE) == []
    assert await bench.guidelines(criterion=TONE) == []
    assert len(await bench.episodes(criterion=FACTS)) == 1
    assert len(await bench.guidelines(criterion=FACTS)) == 1
    # What was taught, and what was shown in a form to another expert.
    assert await threads(bench) == {"apart"}


async def test_purged_words_are_in_no_checkpoint_of_a_panel(bench: Bench) -> None:
    graph = reviewed(bench)
    secret = "The customer, Ms Quillfeather, was never told."
    reply = {"tone": {"value": False, "rationale": secret}, "author": "ann"}
    await bench.review(graph, reply, on="taught")
    await bench.review(graph, {"facts": COLD}, OTHER, "shown")
    await purge(bench, TONE)
    if bench.awaits:
        left = [str(one) async for one in bench.saver.alist(None)]
    else:
        left = [str(one) for one in bench.saver.list(None)]
    assert not any("Quillfeather" in one for one in left)
    given = await bench.invoke(graph, OTHER, "after")
    assert "Quillfeather" not in str(given)
    assert given["judgments"]["tone"]["episode_ids"] == []


async def test_plain_graphs_and_panels_of_other_company_share_a_memory(bench: Bench) -> None:
    await bench.review(reviewed(bench, [TONE, FACTS]), {"tone": COLD})
    given = await bench.invoke(panel(bench, [LENGTH, TONE]), OTHER, "u")
    assert len(given["judgments"]["tone"]["guideline_ids"]) == 1
    assert given["judgments"]["length"]["guideline_ids"] == []
