"""The example is embedded once for all memories, if any of them needs it."""

from collections.abc import Sequence
from typing import Any

import pytest
from langgraph.store.sqlite import SqliteStore

from memalign_graph import Criterion, EmbeddingError, InvalidInputError, JudgeMemory
from tests.conftest import CASE, OTHER, Bench
from tests.integration_tests.panels.support import (
    COLD,
    DOWN,
    FACTS,
    NINE,
    THREE,
    TONE,
    approved,
    judged_names,
    panel,
    reviewed,
    teach,
)


def texts(bench: Bench) -> list[str]:
    """All texts that were embedded."""
    return [text for request in bench.server.embeddings for text in request.texts]


async def test_empty_memories_embed_nothing(bench: Bench) -> None:
    given = await bench.invoke(panel(bench, NINE), CASE)
    assert texts(bench) == []
    assert {one["warnings"] == [] for one in given["judgments"].values()} == {True}


@pytest.mark.parametrize("filled", [[TONE], [FACTS], THREE], ids=["first", "second", "all"])
async def test_filled_memories_embed_once_whatever_their_number(
    bench: Bench, filled: Sequence[Criterion]
) -> None:
    for one in filled:
        await teach(bench, one, OTHER)
    given = await bench.invoke(panel(bench), CASE)
    assert len(texts(bench)) == 1
    shown = {name for name, one in given["judgments"].items() if one["episode_ids"]}
    assert shown == {one.name for one in filled}


async def test_example_that_one_memory_holds_is_not_embedded_for_the_others(bench: Bench) -> None:
    await teach(bench, FACTS, CASE)
    await teach(bench, TONE, OTHER)
    await bench.invoke(panel(bench), CASE)
    assert texts(bench) == []


async def test_k_of_zero_embeds_nothing(bench: Bench) -> None:
    await teach(bench, TONE, OTHER)
    await bench.invoke(panel(bench), CASE, context={"k": 0})
    assert texts(bench) == []
    await bench.invoke(panel(bench), CASE, context={"k": 1})
    assert len(texts(bench)) == 1


async def test_feedback_embeds_nothing_again_where_all_memories_are_filled(bench: Bench) -> None:
    for one in THREE:
        await teach(bench, one, OTHER)
    graph = reviewed(bench)
    await bench.review(graph, {"tone": False, "facts": COLD, "length": True})
    assert len(texts(bench)) == 1
    assert [len(await bench.episodes(criterion=one)) for one in THREE] == [2, 2, 2]


async def test_feedback_on_an_empty_memory_takes_the_vector_the_panel_has(bench: Bench) -> None:
    await teach(bench, TONE, OTHER)
    graph = reviewed(bench)
    await bench.invoke(graph, CASE)
    assert len(texts(bench)) == 1
    await bench.resume(graph, {"facts": COLD, "length": False})
    assert len(texts(bench)) == 1


@pytest.mark.parametrize("reply", [approved(), dict.fromkeys(("tone", "facts", "length"), COLD)])
async def test_feedback_on_empty_memories_embeds_the_one_example_once(
    bench: Bench, reply: Any
) -> None:
    await bench.review(reviewed(bench), reply)
    assert len(texts(bench)) == 1


async def test_next_panel_on_the_same_example_embeds_nothing(bench: Bench) -> None:
    graph = reviewed(bench)
    await bench.review(graph, {"tone": COLD})
    bench.server.embeddings.clear()
    await bench.invoke(graph, CASE, "u")
    assert texts(bench) == []


@pytest.mark.parametrize("bench", ["sqlite-sync"], indirect=True)
async def test_example_that_another_process_stored_is_not_embedded_again(
    bench: Bench, tmp_path: Any
) -> None:
    await teach(bench, TONE, OTHER)
    graph = panel(bench)
    await bench.invoke(graph, OTHER)  # this process has read the memory
    with SqliteStore.from_conn_string(str(tmp_path / "store.db")) as other:
        memory = JudgeMemory(other, TONE, embeddings=bench.server.embedder())
        memory.remember({**CASE, **COLD})
    bench.server.embeddings.clear()
    given = await bench.invoke(graph, CASE)
    assert len(given["judgments"]["tone"]["episode_ids"]) == 2
    assert texts(bench) == []


async def test_embedding_that_fails_fails_the_run_before_any_judge(bench: Bench) -> None:
    await teach(bench, TONE, OTHER)
    graph = panel(bench)
    bench.server.script_embeddings(DOWN)
    with pytest.raises(EmbeddingError, match="It broke"):
        await bench.invoke(graph, CASE)
    assert bench.server.chats == []
    given = await bench.invoke(graph, None)
    assert len(given["judgments"]) == len(THREE)


async def test_embedding_that_fails_leaves_the_guidelines_and_says_so(bench: Bench) -> None:
    await teach(bench, TONE, OTHER)
    await bench.add_guideline("Say sorry.", criterion=TONE)
    bench.server.script_embeddings(DOWN)
    given = await bench.invoke(panel(bench, on_embedding_error="guidelines"), CASE)
    tone = given["judgments"]["tone"]
    assert "Judged by the guidelines alone" in tone["warnings"][0]
    assert tone["episode_ids"] == []
    assert len(tone["guideline_ids"]) == 1
    assert len(bench.server.embeddings) == 1
    assert judged_names(bench.server, ["tone", "facts", "length"]) == ["facts", "length", "tone"]


async def test_memory_without_vectors_that_can_not_be_embedded_leaves_its_guidelines(
    bench: Bench,
) -> None:
    other = bench.server.embedder(model="text-embedding-3-large")
    await bench.remember({**OTHER, **COLD}, criterion=FACTS, embeddings=other)
    bench.server.embeddings.clear()
    bench.server.script_embeddings(None, DOWN)
    given = await bench.invoke(panel(bench, on_embedding_error="guidelines"), CASE)
    assert len(given["judgments"]) == len(THREE)
    assert "Judged by the guidelines alone" in given["judgments"]["facts"]["warnings"][0]


async def test_feedback_that_can_not_be_embedded_is_not_lost(bench: Bench) -> None:
    graph = reviewed(bench)
    await bench.invoke(graph, CASE)
    bench.server.script_embeddings(DOWN)
    with pytest.raises(EmbeddingError):
        await bench.resume(graph, {"tone": COLD})
    assert (await bench.state(graph)).values["feedback"].keys() == {"tone"}
    given = await bench.invoke(graph, None)
    assert len(given["learned"]["tone"]["guidelines"]) == 1
    assert len(await bench.episodes(criterion=TONE)) == 1


async def test_embeddings_that_are_not_there_show_before_an_expert_is_asked(bench: Bench) -> None:
    graph = reviewed(bench, embeddings="nosuch:model")
    with pytest.raises(InvalidInputError, match="embeddings"):
        await bench.invoke(graph, CASE)
    assert bench.server.chats == []
