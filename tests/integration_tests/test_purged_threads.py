"""Purging deletes the threads that contain the feedback, and leaves no text in the process."""

import asyncio
import gc
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from pathlib import Path
from typing import Any

from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph
from langgraph.types import interrupt

from memalign_graph import Criterion
from memalign_graph.io import SYNC, run_sync
from memalign_graph.memory.learning import commit_lesson
from tests.conftest import EVERY_WAY, Bench
from tests.loopback import ChatRequest
from tests.unit_tests.memory.purging import (
    MARK,
    Parent,
    ask,
    everything_in,
    holding,
    keep_deleted,
    left_in,
    threads_in,
    untold,
)
from tests.unit_tests.memory.support import op

CASE = {"inputs": "My order zqxin-7 never came.", "outputs": "Then zqxout is to blame."}
SIMILAR = {"inputs": "My order never came at all.", "outputs": "Then nobody is to blame."}
CLEAN = {"inputs": "The cup arrived broken.", "outputs": "Send us a photo."}
REPLY = {"value": False, "rationale": "Too cold, says zqxwhy.", "author": "zqxann"}
RULE = {"operations": [{"text": "Never be as cold as zqxwhy.", "action": "add"}]}


async def purge(bench: Bench, *, saver: Any = None) -> Any:
    forget = bench.memory().aforget if bench.awaits else bench.memory().forget
    done: Any = forget(author="zqxann", purge=True, checkpointer=saver or bench.saver)
    return await done if bench.awaits else done


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
    ask(bench.saver, "named only", "Something else altogether.")
    [episode] = await bench.remember({**CASE, **REPLY, "thread_id": "named only"})
    before = threads_in(bench.saver)
    ask(bench.saver, "it", f"What of {episode.id}?")
    forgotten = await purge(bench)
    assert forgotten.purged.thread_ids == ["it"]
    assert threads_in(bench.saver) == before
    assert (await bench.state(review, "same case, another expert")).interrupts
    assert len(await bench.episodes()) == 1


async def test_thread_with_the_feedback_only_in_a_pending_write_is_deleted(bench: Bench) -> None:
    [episode] = await bench.remember({**CASE, **REPLY})
    builder = StateGraph(Parent)
    builder.add_node("keep", lambda _: {"question": f"What of {episode.id}?"})
    builder.add_node("wait", lambda _: interrupt("Go on?"))
    builder.add_edge(START, "keep")
    builder.add_edge(START, "wait")
    waiting: Any = builder.compile(checkpointer=bench.saver)
    waiting.invoke({"question": "Something else."}, {"configurable": {"thread_id": "waits"}})
    ask(bench.saver, "other", "Something else.")
    forgotten = await purge(bench)
    assert forgotten.purged.thread_ids == ["waits"]
    assert threads_in(bench.saver) == {"other"}


async def test_thread_that_used_a_lesson_from_the_feedback_is_deleted(bench: Bench) -> None:
    bench.server.responder = judged_without
    [episode, other] = await bench.remember({**CASE, **REPLY}, {**SIMILAR, "rationale": "Else."})
    read = {value.id: value.word for value in (episode, other)}
    lesson = [op("add", other, text="Mind zqxwhy.")]
    run_sync(commit_lesson(SYNC, bench.memory().access, lesson, read))
    await bench.invoke(bench.judge_graph(use_episodes=False), CLEAN, "guided")
    forgotten = await purge(bench)
    assert forgotten.purged.thread_ids == ["guided"]


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
    assert forgotten.purged.thread_ids == ["known"]
    assert any("cannot list its threads" in warning for warning in forgotten.purged.warnings)
    assert {*saver.storage} == {"unknown"}


CANARIES = {"ann": "zqxann", "bob": "zqxbob", "cid": "zqxcid"}


async def test_purge_redacts_quoted_comments_and_loses_nothing_else(bench: Bench) -> None:
    """Each judgment quotes the cases of its prompt."""

    def quoting(chat: Any) -> Any:
        if chat.schema_name == "judgment":
            quoted = [canary for canary in CANARIES.values() if canary in chat.text]
            return {"rationale": f"As said: {' '.join(quoted)}", "value": True}
        return bench.server.judge(chat)

    bench.server.responder = quoting
    graph = bench.review_graph(decide="verdict")
    for number, (author, canary) in enumerate(CANARIES.items()):
        case = {"inputs": f"Question {number}?", "outputs": "Yes."}
        reply = {"value": False, "rationale": f"Too cold: {canary}.", "author": author}
        await bench.review(graph, reply, case, f"t{number}")
    options: Any = {"k": 0, "decide": "verdict", "use_guidelines": False}
    open_judge = bench.judge_graph(keep_judgments=timedelta(days=1), **options)
    case = {"inputs": "Something else?", "outputs": "Yes."}
    apart = await bench.invoke(open_judge, case, "apart")
    for author, canary in CANARIES.items():
        authors = [episode.author for episode in await bench.episodes() if episode.author != author]
        bench.memory().forget(author=author, purge=True, checkpointer=bench.saver)
        stored = str([item.dict() for item in bench.store.search((), limit=10_000)])
        assert canary not in stored
        assert [episode.author for episode in await bench.episodes()] == authors
        assert all(other in stored for name, other in CANARIES.items() if name in authors)
    stored = str([item.dict() for item in bench.store.search((), limit=10_000)])
    assert apart["judgment"]["id"] in stored


def cached_texts() -> set[str]:
    """All texts in the keys of this package's `lru_cache`s."""
    parts: list[Any] = [
        part
        for part in gc.get_objects()
        if type(part) is type(lru_cache(str)) and part.__module__.startswith("memalign_graph.")
    ]
    texts: set[str] = set()
    while parts:
        for part in gc.get_referents(parts.pop()):
            if isinstance(part, str):
                texts.add(part)
            elif isinstance(part, dict | list | tuple):
                parts.append(part)
    return texts


async def test_purged_guideline_is_in_no_cache_of_the_process(bench: Bench) -> None:
    reply = {"value": False, "rationale": "Too cold: zqxcache.", "author": "ann"}
    graph = bench.review_graph()
    await bench.review(graph, reply, {"inputs": "One?", "outputs": "Yes."}, "t1")
    assert any("zqxcache" in guideline.text for guideline in await bench.guidelines())
    await bench.review(graph, {"value": True}, {"inputs": "Two?", "outputs": "Yes."}, "t2")
    bench.memory().forget(author="ann", purge=True, checkpointer=bench.saver)
    assert not [text for text in cached_texts() if "zqxcache" in text]
