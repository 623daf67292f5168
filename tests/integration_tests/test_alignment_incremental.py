"""What is known already costs nothing; what is new costs no more than itself."""

from typing import Any

import pytest

from memalign_graph import ChatModelError, create_alignment_graph
from tests.conftest import CASE, COLD, Bench
from tests.integration_tests.alignment_support import (
    BOTH_WAYS,
    COMPARE,
    DISTIL,
    Model,
    align,
    alignment,
    asked,
    commits,
    each_its_words,
    embedded,
    feedback_in,
    record,
    records,
    said,
    sources,
    version,
)
from tests.loopback import error


async def test_unchanged_feedback_costs_nothing(bench: Bench) -> None:
    bench.server.responder = Model()
    given = records(30, topics=4)
    first = await align(bench, given, alignment(bench, batch_size=10))
    before = await commits(bench), await bench.guidelines(), await bench.episodes()
    bench.server.chats.clear()
    bench.server.embeddings.clear()
    for on in ("t", "u"):
        report = await align(bench, given[::-1], alignment(bench, batch_size=10), on)
        assert report["feedback"] == {"new": 0, "changed": 0, "unchanged": 30, "rejected": 0}
        assert report["guidelines"] == {"added": [], "revised": [], "retired": []}
        assert (report["conflicts"], report["batches"]) == ([], 0)
        assert {**report["cost"], "seconds": 0} == {
            "chat_calls": 0,
            "input_tokens": 0,
            "output_tokens": 0,
            "embedding_calls": 0,
            "texts_embedded": 0,
            "seconds": 0,
        }
        assert report["memory_version_before"] == report["memory_version_after"]
        assert report["memory_version_after"] == first["memory_version_after"]
    assert (bench.server.chats, bench.server.embeddings) == ([], [])
    assert (await commits(bench), await bench.guidelines(), await bench.episodes()) == before


async def test_unchanged_feedback_with_conflicts_settles_nothing_anew(bench: Bench) -> None:
    """On the same thread, too, where the first run's proposals are still in the state."""
    bench.server.responder = Model(distil=each_its_words)
    given = [said(1, "On #a always name it."), said(2, "On #a never name it.")]
    graph = alignment(bench, batch_size=1)
    await align(bench, given, graph)
    [winner] = await bench.guidelines()
    memory = bench.memory()
    if bench.awaits:
        await memory.aremove_guideline(winner.id)
    else:
        memory.remove_guideline(winner.id)
    before = await version(bench)
    report = await align(bench, given, graph)
    assert report["memory_version_after"] == before == await version(bench)
    assert report["conflicts"] == []
    assert await bench.guidelines() == []


@pytest.mark.parametrize("bench", ["memory-sync", "sqlite-async"], indirect=True)
async def test_one_more_on_a_memory_of_a_thousand(bench: Bench) -> None:
    bench.server.responder = Model()
    given = records(1000, topics=20)
    first = await align(bench, given)
    assert (len(asked(bench, DISTIL)), len(asked(bench, COMPARE))) == (20, 1)
    assert len(embedded(bench)) == 1000
    assert len(bench.server.embeddings) == 4
    assert len(first["guidelines"]["added"]) == 20
    bench.server.chats.clear()
    bench.server.embeddings.clear()
    new = record(2000, topic=3)
    report = await align(bench, [*given, new], on="u")
    assert report["feedback"] == {"new": 1, "changed": 0, "unchanged": 1000, "rejected": 0}
    [chat] = bench.server.chats
    assert feedback_in(chat) == {"F1": new["rationale"]}
    assert embedded(bench) == [f"{new['inputs']}\n\n{new['outputs']}"]
    assert (report["cost"]["chat_calls"], report["cost"]["texts_embedded"]) == (1, 1)
    assert len(report["guidelines"]["added"]) == 1
    # By a process that has not seen the memory yet, it is no more.
    bench.server.chats.clear()
    bench.server.embeddings.clear()
    other: Any = create_alignment_graph(
        bench.memory().access.criterion,
        model=bench.server.chat_model(),
        embeddings=bench.server.embedder(),
    ).compile(store=bench.store)
    last = {"feedback": [record(2001, topic=4)]}
    found = await other.ainvoke(last) if bench.awaits else other.invoke(last)
    assert found["report"]["feedback"]["new"] == 1
    assert (len(bench.server.chats), len(embedded(bench))) == (1, 1)


async def test_edited_feedback_leaves_no_old_rule(bench: Bench) -> None:
    bench.server.responder = Model(distil=each_its_words)
    graph = alignment(bench)
    await align(bench, [said(1, "On #a name it."), said(2, "On #b name it.")], graph)
    edited = said(1, "On #a leave it out.", given_at=record(9)["given_at"])
    report = await align(bench, [edited, said(2, "On #b name it.")], graph)
    assert report["feedback"] == {"new": 0, "changed": 1, "unchanged": 1, "rejected": 0}
    assert sources(await bench.guidelines()) == {"On #b name it.": 1, "On #a leave it out.": 1}
    assert "On #a name it." not in [one.text for one in await bench.guidelines()]
    [retired] = report["guidelines"]["retired"]
    assert retired["text"] == "On #a name it."
    assert "On #a name it." not in asked(bench, DISTIL)[-1].text
    assert report["cost"]["texts_embedded"] == 0
    assert len(await bench.episodes()) == 2


@BOTH_WAYS
async def test_guideline_that_lost_one_of_its_sources_is_distilled_again(bench: Bench) -> None:
    bench.server.responder = Model()
    graph = alignment(bench)
    await align(bench, [record(n, topic="a") for n in (1, 2, 3)], graph)
    [before] = await bench.guidelines()
    edited = said(1, "On #b thank them.", given_at=record(9)["given_at"])
    report = await align(bench, [edited], graph)
    reworded, new = await bench.guidelines()
    assert reworded.id == before.id
    assert reworded.episode_ids == before.episode_ids[1:]
    assert "case 1" in before.text
    assert "case 1" not in reworded.text
    assert new.text == "On #b thank them."
    assert report["cost"]["chat_calls"] == 2
    [revised] = report["guidelines"]["revised"]
    assert (revised["id"], revised["before"]) == (before.id, before.text)
    assert report["guidelines"]["retired"] == []


@BOTH_WAYS
async def test_forgotten_feedback_is_followed_by_the_next_alignment(bench: Bench) -> None:
    bench.server.responder = Model()
    await align(bench, [record(n, topic="a") for n in (1, 2)])
    [before] = await bench.guidelines()
    memory = bench.memory()
    first = before.episode_ids[0]
    await memory.aforget(first) if bench.awaits else memory.forget(first)
    assert [one.status for one in await bench.guidelines()] == ["pending"]
    report = await align(bench, [])
    [after] = await bench.guidelines()
    assert (after.id, after.episode_ids) == (before.id, before.episode_ids[1:])
    assert "case 1" not in after.text
    assert (report["cost"]["chat_calls"], report["batches"]) == (1, 1)
    assert [one["text"] for one in report["guidelines"]["revised"]] == [after.text]
    chats = len(bench.server.chats)
    await align(bench, [])
    assert len(bench.server.chats) == chats


@BOTH_WAYS
async def test_feedback_that_could_not_be_distilled_is_taken_along(bench: Bench) -> None:
    graph = bench.review_graph(model=bench.server.chat_model(max_retries=0))
    await bench.invoke(graph, CASE)
    bench.server.script(error(500, retry_after=0))
    with pytest.raises(ChatModelError):
        await bench.resume(graph, COLD)
    bench.server.responder = Model(distil=each_its_words)
    report = await align(bench, [said(1, "On #a name it.")], on="u")
    assert report["feedback"]["new"] == 1
    assert sources(await bench.guidelines()) == {COLD["rationale"]: 1, "On #a name it.": 1}
    assert {one.status for one in await bench.episodes()} == {"distilled"}
    assert len(asked(bench, DISTIL)) == 2


@BOTH_WAYS
async def test_remembered_feedback_is_learned_by_an_empty_alignment(bench: Bench) -> None:
    bench.server.responder = Model()
    await bench.remember(*records(5, topics=2))
    report = await align(bench, [])
    assert report["feedback"] == {"new": 0, "changed": 0, "unchanged": 0, "rejected": 0}
    assert len(report["guidelines"]["added"]) == 2
    assert len(embedded(bench)) == 5


@BOTH_WAYS
async def test_another_graph_and_thread_find_the_same_memory(bench: Bench) -> None:
    bench.server.responder = Model()
    await align(bench, records(4, topics=2))
    report = await align(bench, records(6, topics=2), alignment(bench), "elsewhere")
    assert report["feedback"] == {"new": 2, "changed": 0, "unchanged": 4, "rejected": 0}
    assert len(embedded(bench)) == 6
