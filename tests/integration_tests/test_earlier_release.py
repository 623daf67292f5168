"""Runs that waited or broke off under release 0.2 go on."""

import base64
import json
import zlib
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import AIMessage

from tests.conftest import CASE, COLD, Bench, Graph, thread
from tests.integration_tests.alignment_support import alignment
from tests.integration_tests.gates.support import gated

RECORDED = json.loads(
    (Path(__file__).parent / "recordings/threads_0.2.json").read_text(encoding="utf-8")
)
"""A memory with a guideline and a case, and the last checkpoints of each thread."""


def restore(bench: Bench, name: str) -> None:
    for item in RECORDED["items"]:
        bench.store.put(tuple(item["namespace"]), item["key"], item["value"])
    packed = zlib.decompress(base64.b64decode(RECORDED["threads"][name]))
    for namespace, checkpoint, metadata, writes in bench.saver.serde.loads_typed(
        ("msgpack", packed)
    ):
        config: Any = {"configurable": {"thread_id": name, "checkpoint_ns": namespace}}
        config = bench.saver.put(config, checkpoint, metadata, checkpoint["channel_versions"])
        for task, written in groupby(writes, key=lambda write: write[0]):
            bench.saver.put_writes(
                config, [(channel, value) for _, channel, value in written], task
            )


def gate(bench: Bench) -> Graph:
    return gated(bench, lambda _: {"messages": [AIMessage("Check it.")]}, review="always")


@pytest.mark.parametrize("reply", [COLD, {"type": "approve"}])
async def test_review_that_waits_takes_the_reply(bench: Bench, reply: dict[str, Any]) -> None:
    restore(bench, "review")
    result = await bench.resume(bench.review_graph(), reply, "review")
    assert result["feedback"]["value"] is (reply is not COLD)
    assert result["learned"]["episode_ids"]


async def test_gate_that_waits_takes_the_reply(bench: Bench) -> None:
    restore(bench, "gate")
    verdict = (await bench.resume(gate(bench), {"type": "approve"}, "gate"))["quality_gate"]
    assert (verdict["status"], verdict["decided_by"]) == ("accepted", "expert")


async def test_run_that_broke_off_judges_and_asks(bench: Bench) -> None:
    restore(bench, "broken")
    graph = bench.review_graph()
    assert "__interrupt__" in await bench.invoke(graph, None, "broken")
    result = await bench.resume(graph, COLD, "broken")
    assert result["feedback"]["example"] == {**CASE, "reference_outputs": None}


async def test_conflict_that_waits_is_settled(bench: Bench) -> None:
    restore(bench, "conflict")
    graph = alignment(bench, conflicts="ask")
    report = (await bench.resume(graph, "newer", "conflict"))["report"]
    [added], [retired] = report["guidelines"]["added"], report["guidelines"]["retired"]
    assert ("never" in added["text"], "always" in retired["text"]) == (True, True)


async def test_alignment_that_broke_off_distills_its_batches(bench: Bench) -> None:
    graph = alignment(bench)
    await bench.invoke(
        graph, {"feedback": [{**CASE, **COLD}]}, interrupt_before=["distill_batches"]
    )
    lesson = graph.get_state(thread("t")).values["judge_lesson"]
    [episode_ids] = lesson["batches"]
    batches = [{"episode_ids": episode_ids}, {"guideline_id": "a guideline that lost a source"}]
    lesson |= {"batches": batches}
    graph.update_state(thread("t"), {"judge_lesson": lesson}, as_node="remember_feedback")
    report = (await bench.invoke(graph, None))["report"]
    [added] = report["guidelines"]["added"]
    assert (added["episode_ids"], report["batches"]) == (episode_ids, 1)


async def test_review_that_broke_off_commits_what_it_distilled(bench: Bench) -> None:
    graph = bench.review_graph()
    await bench.invoke(graph, CASE)
    await bench.resume(graph, COLD, interrupt_before=["commit_memory"])
    lesson = graph.get_state(thread("t")).values["judge_lesson"]
    lesson["distilled"] = lesson.pop("read")
    graph.update_state(thread("t"), {"judge_lesson": lesson}, as_node="distill_feedback")
    learned = (await bench.invoke(graph, None))["learned"]
    [guideline] = await bench.guidelines()
    assert learned["episode_ids"] == guideline.episode_ids
    assert [episode.status for episode in await bench.episodes()] == ["distilled"]
