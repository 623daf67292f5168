"""Purging deletes the threads that contain the feedback, and leaves no text in the process."""

import asyncio
import gc
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph
from langgraph.types import interrupt

from memalign_graph import Criterion
from tests.builders import make_judgment
from tests.conftest import EVERY_WAY, Bench, operations
from tests.integration_tests.alignment_support import align, alignment
from tests.loopback import ChatRequest
from tests.unit_tests.memory.purging import (
    MARK,
    Parent,
    ask,
    everything_in,
    holding,
    keep_deleted,
    left_in,
    small_graph,
    threads_in,
    untold,
)

CASE = {"inputs": "My order zqxin-7 never came.", "outputs": "Then zqxout is to blame."}
SIMILAR = {"inputs": "My order never came at all.", "outputs": "Then nobody is to blame."}
CLEAN = {"inputs": "The cup arrived broken.", "outputs": "Send us a photo."}
REPLY = {"value": False, "rationale": "Too cold, says zqxwhy.", "author": "zqxann"}
RULE = {"operations": [{"text": "Never be as cold as zqxwhy.", "action": "add"}]}


async def purge(bench: Bench, *, saver: Any = None) -> Any:
    options: Any = {"author": "zqxann", "purge": True, "checkpointer": saver or bench.saver}
    return await bench.call(bench.memory(), "forget", **options)


def judged_without(_: ChatRequest) -> Any:
    """The judge's answer contains no planted word."""
    return {"rationale": "Nothing against it.", "value": True}


async def run_all(bench: Bench) -> set[str]:
    """Leave traces on many threads; returns the ids of those with traces."""
    server = bench.server
    server.responder = judged_without
    review, judge = bench.review_graph(), bench.judge_graph()
    await bench.invoke(judge, CLEAN, "clean")
    await bench.invoke(review, CLEAN, "clean and open")
    await bench.invoke(judge, CASE, "judged before")
    await bench.invoke(review, CASE, "reviewed")
    server.script(RULE)
    learned = (await bench.resume(review, REPLY, "reviewed"))["learned"]
    assert learned["guidelines"][0]["text"] == RULE["operations"][0]["text"]
    result = await bench.invoke(judge, SIMILAR, "recalled it")
    assert result["judgment"]["episode_ids"] == learned["episode_ids"]
    await bench.invoke(review, SIMILAR, "recalled it and waits")
    guided = await bench.invoke(bench.judge_graph(k=0), SIMILAR, "guided by it")
    assert guided["judgment"]["guideline_ids"]
    return {"judged before", "reviewed", "recalled it", "recalled it and waits", "guided by it"}


@EVERY_WAY
async def test_purge_deletes_threads_with_the_feedback(bench: Bench, tmp_path: Path) -> None:
    await keep_deleted(bench.store, bench.saver)
    carrying = await run_all(bench)
    forgotten = await purge(bench)
    assert set(forgotten.purged.thread_ids) == carrying
    assert untold(forgotten.purged.warnings, bench.store) == []
    saver: Any = bench.saver
    saved = saver.alist(None)
    checkpoints = [item async for item in saved] if bench.awaits else [*saver.list(None)]
    names = {checkpoint.config["configurable"]["thread_id"] for checkpoint in checkpoints}
    assert names == {"clean", "clean and open"}
    assert MARK not in repr(checkpoints).casefold()
    assert holding(tmp_path) == []
    if not bench.awaits:
        assert left_in(everything_in(bench.store)) == []

    review = bench.review_graph()
    assert (await bench.state(review, "clean")).values["judgment"]["value"] is True
    assert (await bench.state(review, "clean and open")).interrupts
    bench.server.script({"operations": [{"text": "Say sorry first.", "action": "add"}]})
    done = await bench.resume(review, "Say sorry first.", "clean and open")
    [guideline] = done["learned"]["guidelines"]
    assert guideline["text"] == "Say sorry first."


@EVERY_WAY("sqlite-async")
async def test_purge_in_another_thread_of_an_async_file(bench: Bench, tmp_path: Path) -> None:
    await keep_deleted(bench.store, bench.saver)
    carrying = await run_all(bench)
    memory = bench.memory()
    await memory.aforget(author="zqxann")  # threads of forgotten feedback are purged, too
    forgotten = await asyncio.to_thread(
        lambda: memory.forget(author="zqxann", purge=True, checkpointer=bench.saver)
    )
    assert forgotten.purged is not None
    assert set(forgotten.purged.thread_ids) == carrying
    assert forgotten.purged.warnings == []
    assert holding(tmp_path) == []


async def test_threads_of_other_memories_stay(bench: Bench) -> None:
    bench.server.responder = judged_without
    await bench.remember({**CASE, "rationale": "His own words.", "author": "bob"})
    review = bench.review_graph()
    await bench.invoke(review, CASE, "same case, another expert")
    brevity = bench.review_graph(Criterion(name="brevity", instructions="Is it short?"))
    await bench.invoke(brevity, CASE, "same case, another memory")
    for user in ("carol", "dave"):
        ask(bench.saver, user, CASE["inputs"])
    answer = {**CASE, **REPLY, "judgment": (judgment := make_judgment())}
    [episode] = await bench.remember({**answer, "thread_id": "another user's"})
    bench.teach("Say sorry first.", episode)
    ask(bench.saver, "a guideline's text alone", "Say sorry first.")
    ask(bench.saver, "another user's", "Something else altogether.")
    before = threads_in(bench.saver)
    ask(bench.saver, "its episode", f"What of {episode.id}?")
    ask(bench.saver, "its judgment", f"What of {judgment.id}?")
    forgotten = await purge(bench)
    assert {*forgotten.purged.thread_ids} == {"its episode", "its judgment"}
    [warning] = forgotten.purged.warnings
    assert "have none of its ids and were kept: another user's." in warning
    assert threads_in(bench.saver) == before
    assert (await bench.state(review, "same case, another expert")).interrupts
    assert len(await bench.episodes()) == 1


async def test_thread_with_the_feedback_only_in_a_pending_write_or_metadata_is_deleted(
    bench: Bench,
) -> None:
    [episode] = await bench.remember({**CASE, **REPLY})
    builder = StateGraph(Parent)
    builder.add_node("keep", lambda _: {"question": f"What of {episode.id}?"})
    builder.add_node("wait", lambda _: interrupt("Go on?"))
    builder.add_edge(START, "keep")
    builder.add_edge(START, "wait")
    waiting: Any = builder.compile(checkpointer=bench.saver)
    waiting.invoke({"question": "Something else."}, {"configurable": {"thread_id": "waits"}})
    ask(bench.saver, "other", "Something else.")
    noted: Any = {"configurable": {"thread_id": "noted"}, "metadata": {"about": episode.id}}
    small_graph(bench.saver).invoke({"question": "Something else."}, noted)
    forgotten = await purge(bench)
    assert {*forgotten.purged.thread_ids} == {"waits", "noted"}
    assert threads_in(bench.saver) == {"other"}


async def test_thread_of_a_table_with_forgotten_feedback_is_deleted(bench: Bench) -> None:
    table, graph = [{**CASE, **REPLY}], alignment(bench, distill=False)
    await align(bench, table, graph, "first")
    await bench.call(bench.memory(), "forget", author="zqxann")
    report = await align(bench, table, graph, "again")
    assert report["feedback"]["unchanged"] == 0
    assert report["warnings"][0].startswith("1 record(s) do not count")
    assert {*(await purge(bench)).purged.thread_ids} == {"first", "again"}


@pytest.mark.parametrize("is_purged", [True, False])
async def test_alignment_names_its_thread_if_its_feedback_is_purged_meanwhile(
    bench: Bench, *, is_purged: bool
) -> None:
    def forgets(_: ChatRequest) -> Any:
        bench.memory().forget(author="zqxann", purge=is_purged)
        return operations()

    bench.server.responder = forgets
    report = await align(bench, [{**CASE, **REPLY}], alignment(bench))
    says = "Delete this thread from the checkpointer." in " ".join(report["warnings"])
    assert says is is_purged


class Unlisted(InMemorySaver):
    """A checkpointer that does not list its threads."""

    def list(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError


async def test_unreadable_threads_are_reported(bench: Bench) -> None:
    await bench.remember({**CASE, **REPLY, "thread_id": "known"})
    [warning] = bench.memory().forget(author="zqxann", purge=True).purged.warnings  # type: ignore[union-attr]
    assert warning.startswith("Checkpoints were not searched (known threads: known). Give the")
    again = {**REPLY, "given_at": datetime.now(UTC)}
    await bench.remember({**CASE, **again, "thread_id": "known"})
    saver = Unlisted()
    for name in ("known", "unknown"):
        ask(saver, name, CASE["inputs"])
    forgotten = await purge(bench, saver=saver)
    assert forgotten.purged.thread_ids == []
    assert any(
        "cannot list its threads: delete those with this feedback (known threads: known)" in warning
        for warning in forgotten.purged.warnings
    )
    assert {*saver.storage} == {"known", "unknown"}


def cached_texts() -> set[str]:
    """All texts in the keys of this package's `lru_cache`s."""
    caches = [part for part in gc.get_objects() if type(part) is type(lru_cache(str))]
    parts: list[Any] = [part for part in caches if part.__module__.startswith("memalign_graph.")]
    texts: set[str] = set()
    while parts:
        for part in gc.get_referents(parts.pop()):
            if isinstance(part, str):
                texts.add(part)
            elif isinstance(part, dict | list | tuple):
                parts.append(part)
    return texts


async def test_purged_guideline_is_in_no_cache_of_the_process(bench: Bench) -> None:
    reply = {"value": False, "rationale": "Too cold: zqxcache.", "author": "zqxann"}
    graph = bench.review_graph()
    await bench.review(graph, reply, {"inputs": "One?", "outputs": "Yes."}, "t1")
    assert any("zqxcache" in guideline.text for guideline in await bench.guidelines())
    await bench.review(graph, {"value": True}, {"inputs": "Two?", "outputs": "Yes."}, "t2")
    await purge(bench)
    assert not [text for text in cached_texts() if "zqxcache" in text]
