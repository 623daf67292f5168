"""What others do to the memory during an alignment, and an alignment that is cancelled."""

import asyncio
from contextlib import suppress
from typing import Any

import pytest

from memalign_graph import JudgeMemory
from tests.conftest import CRITERION, Bench
from tests.integration_tests.alignment_support import (
    COMPARE,
    DISTIL,
    Model,
    align,
    alignment,
    asked,
    by_text,
    each_its_words,
    record,
    records,
    relations_by_topic,
    said,
    sources,
    version,
)
from tests.loopback import ChatRequest

GIVEN = [said(1, "On #a say sorry."), said(2, "On #b thank them."), said(3, "On #c be brief.")]

SHARED = pytest.mark.parametrize("bench", ["memory-sync", "memory-async"], indirect=True)
"""The store is also used by the server's threads, as by another process."""


def meanwhile(bench: Bench, action: Any, at: str = COMPARE) -> Model:
    """A model during whose answer something else is done to the memory, once."""
    done: list[Any] = []

    def act(chat: ChatRequest) -> None:
        if not done:
            done.append(True)
            action(JudgeMemory(bench.store, CRITERION, embeddings=bench.server.embedder()))

    def distil(chat: ChatRequest) -> Any:
        if at == DISTIL:
            act(chat)
        return each_its_words(chat)

    def compare(chat: ChatRequest) -> Any:
        if at == COMPARE:
            act(chat)
        return relations_by_topic(chat)

    return Model(distil=distil, compare=compare)


def episode_id(memory: JudgeMemory, number: int) -> str:
    return next(
        one.id for one in memory.episodes() if f"Question {number}:" in str(one.example.inputs)
    )


@SHARED
async def test_feedback_edited_meanwhile_is_not_learned_in_its_old_words(bench: Bench) -> None:
    edited = said(1, "On #d never say sorry.", given_at=record(50)["given_at"])
    bench.server.responder = meanwhile(bench, lambda memory: memory.remember([edited]))
    report = await align(bench, GIVEN, alignment(bench, batch_size=1))
    assert sources(await bench.guidelines()) == {"On #b thank them.": 1, "On #c be brief.": 1}
    assert set(by_text(report["guidelines"]["added"])) == set(sources(await bench.guidelines()))
    found = {one.rationale: one.status for one in await bench.episodes()}
    assert found["On #d never say sorry."] == "pending"
    report = await align(bench, [])
    assert by_text(report["guidelines"]["added"]) == {"On #d never say sorry.": 1}


@SHARED
async def test_feedback_forgotten_meanwhile_is_not_learned(bench: Bench) -> None:
    bench.server.responder = meanwhile(bench, lambda memory: memory.forget(episode_id(memory, 1)))
    report = await align(bench, GIVEN, alignment(bench, batch_size=1))
    assert len(await bench.episodes()) == 2
    assert sources(await bench.guidelines()) == {"On #b thank them.": 1, "On #c be brief.": 1}
    assert set(by_text(report["guidelines"]["added"])) == set(sources(await bench.guidelines()))


@SHARED
@pytest.mark.parametrize("at", [DISTIL, COMPARE])
async def test_feedback_purged_meanwhile_is_nowhere(bench: Bench, at: str) -> None:
    planted = said(1, "On #a never say xyzzy-4711.")
    bench.server.responder = meanwhile(
        bench, lambda memory: memory.forget(episode_id(memory, 1), purge=True), at
    )
    graph = alignment(bench, batch_size=1)
    await align(bench, [planted, *GIVEN[1:]], graph)
    assert "xyzzy" not in str(await bench.guidelines())
    items = bench.store.search((), limit=10_000)
    assert items
    assert not [item for item in items if "xyzzy" in str(item.value)]


@SHARED
async def test_feedback_given_meanwhile_waits_for_the_next_run(bench: Bench) -> None:
    more = said(9, "On #e be quick.")
    bench.server.responder = meanwhile(bench, lambda memory: memory.remember([more]))
    report = await align(bench, GIVEN, alignment(bench, batch_size=1))
    assert len(report["guidelines"]["added"]) == 3
    assert (await align(bench, []))["guidelines"]["added"][0]["text"] == "On #e be quick."


@SHARED
async def test_guideline_written_by_hand_meanwhile_is_kept(bench: Bench) -> None:
    bench.server.responder = meanwhile(
        bench, lambda memory: memory.add_guideline("On #a say sorry")
    )
    await align(bench, GIVEN, alignment(bench, batch_size=1))
    by_hand = next(one for one in await bench.guidelines() if one.origin == "expert")
    assert (by_hand.text, by_hand.episode_ids) == ("On #a say sorry", [])
    assert len(await bench.guidelines()) == 3


@SHARED
async def test_guideline_removed_by_hand_meanwhile_rests_on_new_feedback_alone(
    bench: Bench,
) -> None:
    bench.server.responder = Model(distil=each_its_words)
    await align(bench, [said(7, "On #c keep it short."), said(8, "On #z name it.")])
    short, name = await bench.guidelines()

    def remove(memory: JudgeMemory) -> None:
        memory.remove_guideline(short.id)
        memory.remove_guideline(name.id)

    bench.server.responder = meanwhile(bench, remove)
    await align(bench, GIVEN, alignment(bench, batch_size=1))
    found = await bench.guidelines()
    assert len(found) == 3
    assert name.id not in [one.id for one in found]
    assert not {key for one in found for key in one.episode_ids} & {
        *short.episode_ids,
        *name.episode_ids,
    }


@SHARED
async def test_another_alignment_meanwhile(bench: Bench) -> None:
    """The other one learns all of it first: there is nothing left to learn, nor to report."""
    inner: list[Any] = []

    def other(_: JudgeMemory) -> None:
        graph: Any = alignment(bench)
        found = graph.invoke({"feedback": GIVEN}, {"configurable": {"thread_id": "inner"}})
        inner.append(found["report"])

    bench.server.responder = meanwhile(bench, other)
    report = await align(bench, GIVEN, alignment(bench, batch_size=1))
    assert len(inner[0]["guidelines"]["added"]) == 3
    assert len(await bench.guidelines()) == 3
    assert {len(one.episode_ids) for one in await bench.guidelines()} == {1}
    assert report["memory_version_after"] == await version(bench)


@pytest.mark.parametrize("bench", ["memory-async", "sqlite-async"], indirect=True)
async def test_cancelled_at_any_moment_it_goes_on(bench: Bench) -> None:
    """A client hangs up: the memory is whole, and the same call brings the work to its end."""
    bench.server.responder = Model()
    graph = alignment(bench, batch_size=5)
    given = records(40, topics=4)
    for wait in (0.005, 0.02, 0.04, 0.06, 0.08, 0.11, 0.15):
        with suppress(TimeoutError):
            await asyncio.wait_for(align(bench, given, graph, f"t{wait}"), wait)
        statuses = {one.status for one in await bench.episodes()}
        assert statuses in ({"pending"}, {"distilled"}, set())
        learned = [key for one in await bench.guidelines() for key in one.episode_ids]
        assert len(learned) == (40 if statuses == {"distilled"} else 0)
    report = await align(bench, given, graph, "last")
    assert report["feedback"]["new"] + report["feedback"]["unchanged"] == 40
    assert sources(await bench.guidelines()) == {record(n)["rationale"]: 10 for n in range(4)}
    assert len(asked(bench, DISTIL)) >= 8
