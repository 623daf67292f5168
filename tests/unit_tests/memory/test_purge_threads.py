"""Purging: the threads that carried the feedback go from the checkpointer, and no others."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, TypedDict

import pytest
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph

from memalign_graph import Criterion
from memalign_graph.io import AWAITING, BLOCKING, run
from memalign_graph.memory.learning import learn
from tests.conftest import WAYS, Bench, _open, thread
from tests.loopback import ChatRequest, LoopbackServer
from tests.unit_tests.memory.purging import (
    MARK,
    everything_in,
    holding,
    keep_deleted,
    left_in,
    texts_in_checkpoints,
)
from tests.unit_tests.memory.support import op

CASE = {"inputs": "My order zqxin-7 never came.", "outputs": "Then zqxout is to blame."}
SIMILAR = {"inputs": "My order never came at all.", "outputs": "Then nobody is to blame."}
CLEAN = {"inputs": "The cup arrived broken.", "outputs": "Send us a photo."}
REPLY = {"value": False, "rationale": "Too cold, says zqxwhy.", "author": "zqxann"}
RULE = {"operations": [{"text": "Never be as cold as zqxwhy.", "action": "add"}]}


@pytest.fixture
async def graphs(
    request: pytest.FixtureRequest, server: LoopbackServer, tmp_path: Path
) -> AsyncIterator[Bench]:
    way = getattr(request, "param", WAYS[0])
    async with AsyncExitStack() as stack:
        store, saver = await _open(way, tmp_path, stack)
        if way.startswith("sqlite"):
            await keep_deleted(store, saver)
        yield Bench(server, store, saver, awaits=way.endswith("async"))


async def purge(graphs: Bench, *, saver: Any = None, **selection: Any) -> Any:
    memory = graphs.memory()
    options = {"purge": True, "checkpointer": saver or graphs.saver, **selection}
    return await memory.aforget(**options) if graphs.awaits else memory.forget(**options)


async def threads_of(graphs: Bench) -> set[str]:
    found = [one async for one in graphs.saver.alist(None)] if graphs.awaits else None
    tuples = found if found is not None else list(graphs.saver.list(None))
    return {one.config["configurable"]["thread_id"] for one in tuples}


async def checkpoints(graphs: Bench) -> str:
    if graphs.awaits:
        return repr([one async for one in graphs.saver.alist(None)]).casefold()
    return texts_in_checkpoints(graphs.saver).casefold()


def judged_without(request: ChatRequest) -> Any:
    """The judge's own words hold nothing planted."""
    return {"rationale": "Nothing against it.", "value": True}


async def run_all(graphs: Bench) -> set[str]:
    """Leave traces on many threads; returns those that carry some."""
    server = graphs.server
    server.responder = judged_without
    review, judge = graphs.review_graph(), graphs.judge_graph()
    await graphs.invoke(judge, CLEAN, "clean")
    await graphs.invoke(review, CLEAN, "clean and open")
    await graphs.invoke(judge, CASE, "judged before")
    await graphs.invoke(review, CASE, "reviewed")
    server.script(RULE)
    learned = (await graphs.resume(review, REPLY, "reviewed"))["learned"]
    assert learned["guidelines"][0]["text"] == RULE["operations"][0]["text"]
    found = await graphs.invoke(judge, SIMILAR, "recalled it")
    assert found["judgment"]["episode_ids"] == learned["episode_ids"]
    await graphs.invoke(review, SIMILAR, "recalled it and waits")
    guided = await graphs.invoke(graphs.judge_graph(k=0), SIMILAR, "guided by it")
    assert guided["judgment"]["guideline_ids"]
    return {"judged before", "reviewed", "recalled it", "recalled it and waits", "guided by it"}


async def test_every_thread_that_carried_it_goes_and_the_others_stay(
    graphs: Bench, tmp_path: Path
) -> None:
    carrying = await run_all(graphs)
    assert await threads_of(graphs) == carrying | {"clean", "clean and open"}
    forgotten = await purge(graphs, author="zqxann")
    assert set(forgotten.purged.thread_ids) == carrying
    assert forgotten.purged.warnings == []
    assert await threads_of(graphs) == {"clean", "clean and open"}
    assert MARK not in await checkpoints(graphs)
    assert holding(tmp_path) == []
    if not graphs.awaits:
        assert left_in(everything_in(graphs.store)) == []

    review = graphs.review_graph()
    assert (await graphs.state(review, "clean")).values["judgment"]["value"] is True
    assert (await graphs.state(review, "clean and open")).interrupts
    graphs.server.script({"operations": [{"text": "Say sorry first.", "action": "add"}]})
    done = await graphs.resume(review, "Say sorry first.", "clean and open")
    assert [one["text"] for one in done["learned"]["guidelines"]] == ["Say sorry first."]


@pytest.mark.parametrize("graphs", ["memory-async", "sqlite-async"], indirect=True)
async def test_called_from_another_thread_it_reaches_an_async_file(
    graphs: Bench, tmp_path: Path
) -> None:
    carrying = await run_all(graphs)
    memory = graphs.memory()
    forgotten = await asyncio.to_thread(
        lambda: memory.forget(author="zqxann", purge=True, checkpointer=graphs.saver)
    )
    assert forgotten.purged is not None
    assert set(forgotten.purged.thread_ids) == carrying
    assert forgotten.purged.warnings == []
    assert holding(tmp_path) == []


async def test_what_was_forgotten_earlier_takes_its_threads_along(graphs: Bench) -> None:
    carrying = await run_all(graphs)
    memory = graphs.memory()
    if graphs.awaits:
        await memory.aforget(author="zqxann")
    else:
        memory.forget(author="zqxann")
    assert MARK in await checkpoints(graphs)
    forgotten = await purge(graphs, author="zqxann")
    assert set(forgotten.purged.thread_ids) == carrying
    assert MARK not in await checkpoints(graphs)


async def test_another_experts_open_review_of_the_same_case_goes_on(graphs: Bench) -> None:
    graphs.server.responder = judged_without
    await graphs.remember({**CASE, "rationale": "His own words.", "author": "bob"})
    review = graphs.review_graph()
    await graphs.invoke(review, CASE, "of carol")
    await graphs.remember({**CASE, **REPLY})
    forgotten = await purge(graphs, author="zqxann")
    assert forgotten.purged.thread_ids == []
    assert (await graphs.state(review, "of carol")).interrupts
    assert len(await graphs.episodes()) == 1


class Parent(TypedDict, total=False):
    question: str
    messages: list[str]


def small_graph(saver: BaseCheckpointSaver[Any]) -> Any:
    builder = StateGraph(Parent)
    builder.add_node("keep", lambda state: state)
    builder.add_edge(START, "keep")
    return builder.compile(checkpointer=saver)


async def test_threads_of_others_who_asked_or_answered_the_same_stay(graphs: Bench) -> None:
    saver = InMemorySaver()
    for user in ("carol", "dave"):
        small_graph(saver).invoke({"question": CASE["inputs"]}, thread(user))
    [episode] = await graphs.remember({**CASE, **REPLY})
    small_graph(saver).invoke({"question": f"What of {episode.id}?"}, thread("it"))
    forgotten = await purge(graphs, author="zqxann", saver=saver)
    assert forgotten.purged.thread_ids == ["it"]


async def test_a_thread_guided_by_a_lesson_that_read_it_goes(graphs: Bench) -> None:
    graphs.server.responder = judged_without
    [one, other] = await graphs.remember({**CASE, **REPLY}, {**SIMILAR, "rationale": "Else."})
    memory, read = graphs.memory(), {each.id: each.word for each in (one, other)}
    io = AWAITING if graphs.awaits else BLOCKING
    lesson = learn(io, memory.access, [op("add", other, text="Mind zqxwhy.")], read)
    await lesson if graphs.awaits else run(lesson)
    await graphs.invoke(graphs.judge_graph(use_episodes=False), CLEAN, "guided")
    forgotten = await purge(graphs, author="zqxann")
    assert forgotten.purged.thread_ids == ["guided"]


async def test_a_thread_is_not_deleted_for_its_name_alone(graphs: Bench) -> None:
    saver = InMemorySaver()
    small_graph(saver).invoke({"question": "Something else altogether."}, thread("1"))
    await graphs.remember({**CASE, **REPLY, "thread_id": "1"})
    forgotten = await purge(graphs, author="zqxann", saver=saver)
    assert forgotten.purged.thread_ids == []
    assert len(list(saver.list(None))) > 0


async def test_without_a_checkpointer_the_report_names_the_threads(graphs: Bench) -> None:
    await graphs.remember({**CASE, **REPLY, "thread_id": "t7"})
    memory = graphs.memory()
    options: dict[str, Any] = {"author": "zqxann", "purge": True}
    forgotten = await memory.aforget(**options) if graphs.awaits else memory.forget(**options)
    assert forgotten.purged is not None
    [warning] = forgotten.purged.warnings
    assert warning.startswith("Checkpoints were not looked at (known: t7): give the `checkpoint")


class Unlisted(InMemorySaver):
    """A checkpointer that does not list its threads."""

    def list(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError

    def alist(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError


async def test_a_checkpointer_that_does_not_list_loses_the_known_threads_and_says_so(
    graphs: Bench,
) -> None:
    saver = Unlisted()
    small_graph(saver).invoke({"question": CASE["inputs"]}, thread("known"))
    small_graph(saver).invoke({"question": CASE["inputs"]}, thread("unknown"))
    await graphs.remember({**CASE, **REPLY, "thread_id": "known"})
    forgotten = await purge(graphs, author="zqxann", saver=saver)
    assert forgotten.purged.thread_ids == ["known"]
    assert [one for one in forgotten.purged.warnings if "does not list its threads" in one]
    assert "known" not in saver.storage
    assert "unknown" in saver.storage


async def test_the_threads_of_another_memory_stay(graphs: Bench) -> None:
    graphs.server.responder = judged_without
    other = Criterion(name="brevity", instructions="Is it short?")
    review = graphs.review_graph(other)
    await graphs.invoke(review, SIMILAR, "of another")
    await run_all(graphs)
    await purge(graphs, author="zqxann")
    assert (await graphs.state(review, "of another")).interrupts
