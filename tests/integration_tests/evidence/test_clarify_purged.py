"""Purging reaches what the question back leaves: in the thread that waits, and in memory."""

from pathlib import Path
from typing import Any

import pytest
from langgraph.store.memory import InMemoryStore

from tests.conftest import CASE, OTHER, Bench
from tests.integration_tests.evidence.clarify_support import (
    answers,
    clarifying_graph,
    until_asked,
)
from tests.unit_tests.memory.purging import MARK, everything_in, holding, keep_deleted, left_in

ASKS = {
    "look_for": "",
    "checkable": False,
    "question": "What is zqxask of it?",
    "example": "Would zqxsay be so, too?",
}
SAID = {"value": False, "rationale": "So zqxwhy.", "author": "zqxann"}
EARLIER = {"value": False, "rationale": "It was zqxold then, and must not be.", "author": "zqxann"}
PLAIN = {"operations": [{"text": "Say sorry first.", "action": "add"}]}
QUOTING = {"operations": [{"text": "Never be zqxask, nor zqxyes.", "action": "add"}]}


async def purge(bench: Bench, **selection: Any) -> Any:
    memory = bench.memory()
    options = {"purge": True, "checkpointer": bench.saver, **selection}
    return await memory.aforget(**options) if bench.awaits else memory.forget(**options)


async def checkpoints(bench: Bench) -> str:
    if bench.awaits:
        return repr([one async for one in bench.saver.alist(None)])
    return repr(list(bench.saver.list(None)))


@pytest.fixture
async def planted(bench: Bench) -> Bench:
    if not isinstance(bench.store, InMemoryStore):
        await keep_deleted(bench.store, bench.saver)
    return bench


async def wait_at_question(bench: Bench, case: Any, said: Any, on: str, **options: Any) -> None:
    graph = clarifying_graph(bench, **options)
    bench.server.rules = answers(ASKS)
    await bench.invoke(graph, case, on)
    given = await bench.resume(graph, said, on)
    assert "zqxask" in given["__interrupt__"][0].value["action_requests"][0]["description"]


async def test_thread_that_waits_for_the_answer_goes_with_the_episode(
    planted: Bench, tmp_path: Path
) -> None:
    """Though all else on it is another expert's, too, whose word on the case stays."""
    alone = {"use_episodes": False}
    await planted.remember({**CASE, "rationale": "His own words.", "author": "bob"})
    await planted.remember({**CASE, **EARLIER})
    await wait_at_question(planted, CASE, SAID, "of ann", **alone)
    other = clarifying_graph(planted, **alone)
    await until_asked(planted, other, {"rationale": "Meh."}, OTHER, "other")
    assert MARK in await checkpoints(planted)

    forgotten = await purge(planted, author="zqxann")
    assert forgotten.purged.thread_ids == ["of ann"]
    assert forgotten.purged.warnings == []
    assert MARK not in await checkpoints(planted)
    assert holding(tmp_path) == []
    assert [one.author for one in await planted.episodes()] == ["bob"]
    done = await planted.resume(other, "Say more.", "other")
    assert done["feedback"]["rationale"].startswith("Meh.\n(Asked back:")


async def test_words_the_question_and_the_answer_go_from_everywhere(
    planted: Bench, tmp_path: Path
) -> None:
    await wait_at_question(planted, CASE, SAID, "of ann")
    planted.server.script(QUOTING)
    graph = clarifying_graph(planted)
    done = await planted.resume(graph, "Yes, zqxyes it is.", "of ann")
    assert "zqxyes" in done["feedback"]["rationale"]
    assert [one.text for one in await planted.guidelines()] == ["Never be zqxask, nor zqxyes."]

    forgotten = await purge(planted, author="zqxann")
    assert forgotten.purged.thread_ids == ["of ann"]
    assert await planted.guidelines() == []
    assert MARK not in await checkpoints(planted)
    assert holding(tmp_path) == []
    if not planted.awaits:
        assert left_in(everything_in(planted.store)) == []


async def test_thread_that_recalled_the_answer_goes_too(planted: Bench) -> None:
    await wait_at_question(planted, CASE, SAID, "of ann")
    planted.server.script(PLAIN)
    await planted.resume(clarifying_graph(planted), "Yes, zqxyes it is.", "of ann")
    await planted.invoke(planted.judge_graph(), OTHER, "recalled it")
    assert "zqxyes" in await checkpoints(planted)
    [episode] = await planted.episodes()
    forgotten = await purge(planted, episode_ids=[episode.id])
    assert set(forgotten.purged.thread_ids) == {"of ann", "recalled it"}
    assert MARK not in await checkpoints(planted)
