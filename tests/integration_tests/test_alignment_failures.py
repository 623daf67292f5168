"""Failing distillation: errors, and no repeated calls."""

from typing import Any

import pytest

from memalign_graph import ChatModelError, EmbeddingError, ModelAnswerError
from tests.conftest import DOWN, Bench, Graph
from tests.integration_tests.alignment_model import COMPARE, DISTIL, Model, guideline_per_topic
from tests.integration_tests.alignment_support import (
    align,
    alignment,
    asked,
    commits,
    embedded,
    records,
)
from tests.loopback import disconnect, refusal, truncated

FAILURES: dict[str, tuple[Any, type[Exception]]] = {
    "down": (DOWN, ChatModelError),
    "disconnect": (disconnect(), ChatModelError),
    "refused": (refusal(), ModelAnswerError),
    "truncated": (truncated('{"operations": ['), ModelAnswerError),
    "prose": ("Well.", ModelAnswerError),
    "unknown-feedback": (
        {"operations": [{"text": "Name it.", "action": "add", "feedback": ["F99"]}]},
        ModelAnswerError,
    ),
}
GIVEN = records(12, topics=4)


def failing(fault: Any, case: str = "case 5") -> Model:
    """A model that fails on one batch."""
    return Model(distil=lambda chat: fault if case in chat.text else guideline_per_topic(chat))


def patient(bench: Bench, **options: Any) -> Graph:
    return alignment(bench, model=bench.server.chat_model(max_retries=0), batch_size=2, **options)


async def all_is_learned(bench: Bench) -> None:
    assert sum(len(guideline.episode_ids) for guideline in await bench.guidelines()) == 12
    assert [episode.status for episode in await bench.episodes()] == ["distilled"] * 12


@pytest.mark.parametrize("failure", list(FAILURES))
async def test_only_the_failing_case_stays_pending(bench: Bench, failure: str) -> None:
    fault, kind = FAILURES[failure]
    bench.server.responder = failing(fault)
    graph = patient(bench)
    report = await align(bench, GIVEN, graph)
    waiting = [episode for episode in await bench.episodes() if episode.status == "pending"]
    # An unreachable model counts as no case's failure: the whole batch stays pending.
    assert len(waiting) == (2 if kind is ChatModelError else 1)
    assert any("case 5" in (item.rationale or "") for item in waiting)
    learned = sum(len(guideline.episode_ids) for guideline in await bench.guidelines())
    assert learned == 12 - len(waiting)
    assert report["batches"] == (5 if kind is ChatModelError else 6)
    [warning] = report["warnings"]
    assert bench.server.chat_model().model_name in warning
    if kind is ModelAnswerError:
        assert f"Feedback {waiting[0].id} could not be distilled and stays pending" in warning
    paid = len(bench.server.chats)
    bench.server.responder = Model()
    report = await align(bench, GIVEN, graph, "u")
    assert (report["feedback"]["unchanged"], report["warnings"]) == (12, [])
    await all_is_learned(bench)
    # One batch, and its lesson next to the active guidelines.
    assert len(bench.server.chats) - paid <= 2
    assert len(embedded(bench)) == 12


@pytest.mark.parametrize("how", ["continue", "again", "elsewhere"])
async def test_model_that_is_down_fails_the_run_and_loses_nothing(bench: Bench, how: str) -> None:
    bench.server.responder = Model(distil=lambda _: DOWN)
    graph = patient(bench)
    with pytest.raises(ChatModelError):
        await align(bench, GIVEN, graph)
    assert await bench.guidelines() == []
    assert [episode.status for episode in await bench.episodes()] == ["pending"] * 12
    assert await commits(bench) == 1
    bench.server.responder = Model()
    if how == "continue":
        report = (await bench.invoke(graph, None))["report"]
        assert report["feedback"]["new"] == 12
    else:
        report = await align(bench, GIVEN, graph, "t" if how == "again" else "u")
        assert report["feedback"]["unchanged"] == 12
    assert len(report["guidelines"]["added"]) == 4
    await all_is_learned(bench)


async def test_embedding_outage_stores_nothing(bench: Bench) -> None:
    bench.server.responder = Model()
    bench.server.script_embeddings(DOWN)
    graph = alignment(bench, embeddings=bench.server.embedder(max_retries=0))
    with pytest.raises(EmbeddingError, match=r"text-embedding-3-small failed: .*It broke"):
        await align(bench, GIVEN, graph)
    assert (await bench.episodes(), await commits(bench), bench.server.chats) == ([], 0, [])
    report = (await bench.invoke(graph, None))["report"]
    assert len(report["guidelines"]["added"]) == 4


async def test_two_invalid_comparisons_fail_the_run_and_lose_nothing(bench: Bench) -> None:
    bench.server.responder = Model(compare=lambda _: "They are all alike.")
    graph = alignment(bench, batch_size=2)
    with pytest.raises(ModelAnswerError, match="can be used to compare"):
        await align(bench, GIVEN, graph)
    first, again = asked(bench, COMPARE)
    assert again.messages[: len(first.messages)] == first.messages
    assert "can't be used" in again.messages[-1]["content"]
    assert (await bench.guidelines(), await commits(bench)) == ([], 1)
    bench.server.responder = Model()
    report = (await bench.invoke(graph, None))["report"]
    assert len(report["guidelines"]["added"]) == 4
    assert len(asked(bench, DISTIL)) == 6
    await all_is_learned(bench)
