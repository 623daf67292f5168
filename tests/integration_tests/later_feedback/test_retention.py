"""Expired judgments are not found, not listed and deleted."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from langgraph.store.memory import InMemoryStore
from langgraph.store.sqlite import SqliteStore

from memalign_graph import create_judge_graph
from memalign_graph.memory import judgments
from tests.conftest import CASE, CRITERION, EVERY_WAY, OTHER, POSTGRES_WAYS, Bench
from tests.integration_tests.later_feedback.support import (
    DAY,
    ROOT,
    age,
    give_feedback,
    judge,
    judgments_in_store,
    waiting_judgments,
)
from tests.loopback import LoopbackServer


class Clock(datetime):
    """A clock that can be put forward."""

    ahead = timedelta(0)

    @classmethod
    def now(cls, tz: Any = None) -> Any:
        return datetime.now(tz) + cls.ahead


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(Clock, "ahead", timedelta(0))
    monkeypatch.setattr(judgments, "datetime", Clock)
    return Clock


async def test_expired_judgments_are_deleted_and_other_namespaces_are_kept(
    bench: Bench, clock: Any
) -> None:
    named = CRITERION.model_copy(update={"name": "judgments"})
    inner = {"namespace": list(ROOT)}
    below = await judge(bench, context=inner, criterion=named, keep_judgments=9 * DAY)
    await give_feedback(bench, below["id"], "Too cold.", context=inner, criterion=named)
    other = await judge(bench, context={"namespace": ["team-a"]})
    old = await judge(bench)
    long = await judge(bench, {**CASE, "inputs": "Kept for long."}, keep_judgments=9 * DAY)
    clock.ahead = DAY - timedelta(hours=6)
    assert len(waiting_judgments(bench)) == 2
    age(bench, old["id"])
    assert judgments_in_store(bench) == sorted([old["id"], long["id"]])
    assert [waiting.judgment.id for waiting in waiting_judgments(bench)] == [long["id"]]
    clock.ahead = 2 * DAY
    fresh = await judge(bench, OTHER)
    assert judgments_in_store(bench) == sorted([fresh["id"], long["id"]])
    assert judgments_in_store(bench, *ROOT, "judgments") == [below["id"]]
    assert judgments_in_store(bench, "team-a", CRITERION.name) == [other["id"]]
    memory = {"criterion": named, "namespace": ROOT}
    assert len(await bench.episodes(**memory)) == len(await bench.guidelines(**memory)) == 1
    assert [waiting.judgment.id for waiting in waiting_judgments(bench, **memory)] == [below["id"]]


def test_store_with_ttl_support_gets_the_time_to_live(server: LoopbackServer) -> None:
    """Also by a graph without a checkpointer."""
    with SqliteStore.from_conn_string(":memory:") as store:
        store.setup()
        graph = create_judge_graph(
            CRITERION,
            model=server.chat_model(),
            embeddings=server.embedder(),
            keep_judgments=timedelta(minutes=5),
        )
        judgment = graph.compile(store=store).invoke(CASE)["judgment"]
        assert judgment["thread_id"] is None
        query = "SELECT key, ttl_minutes FROM store WHERE prefix LIKE '%judgments'"
        [(key, minutes)] = store.conn.execute(query).fetchall()
        assert (key, round(minutes)) == (judgment["id"], 5)


@EVERY_WAY("memory-sync", POSTGRES_WAYS[0])
async def test_very_long_and_very_short_retention_times(bench: Bench) -> None:
    short = await judge(bench, keep_judgments=timedelta(microseconds=1))
    assert waiting_judgments(bench) == []
    with pytest.raises(ValueError, match="It has expired"):
        await give_feedback(bench, short["id"], "Too cold.")
    judgment = await judge(bench, keep_judgments=timedelta.max)
    [waiting] = waiting_judgments(bench)
    assert waiting.kept_until.year == 9999
    assert waiting.judgment.id == judgment["id"]
    assert (await give_feedback(bench, judgment["id"], "Too cold."))["learned"]["guidelines"]


async def test_kept_judgments_are_outside_the_memory_and_those_of_later_versions_stay(
    bench: Bench,
) -> None:
    """Two releases may share a store, so unknown formats are not deleted before they expire."""
    await bench.remember({**CASE, "value": False, "author": "ann"})
    memory = bench.memory()
    before = memory.version(), memory.export_jsonl(), len(memory.history())
    for key, until in (("waiting", datetime.now(UTC) + DAY), ("over", datetime.now(UTC) - DAY)):
        item = {"judgment": {"id": key}, "kept_until": until.isoformat(), "of_later_versions": 1}
        bench.store.put((*ROOT, "judgments"), key, item, index=False)
    judgment = await judge(bench, OTHER)
    assert judgments_in_store(bench) == sorted([judgment["id"], "waiting"])
    assert (memory.version(), memory.export_jsonl(), len(memory.history())) == before
    assert judgment["memory_version"] == before[0]
    done = memory.forget(author="ann", purge=True, checkpointer=bench.saver)
    assert len(done.episode_ids) == 1


async def test_removing_old_judgments_reads_a_bounded_number_at_a_time(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(judgments, "_SWEEP_ITEMS", 5)
    options: Any = {"keep_judgments": timedelta(days=1), "decide": "verdict"}
    graph = bench.judge_graph(**options)
    memory = bench.memory()
    namespace = memory.access.layout.of("judgments")
    for number in range(12):
        await bench.invoke(graph, {"inputs": f"q{number}", "outputs": "a"}, f"t{number}")
    items = bench.store.search(namespace, limit=100)
    for item in items[:9]:
        value = {**item.value, "kept_until": "2020-01-01T00:00:00Z"}
        bench.store.put(namespace, item.key, value, index=False)
    collected: list[int] = []
    batch = InMemoryStore.batch

    def counted(self: InMemoryStore, ops: Any) -> Any:
        results = batch(self, ops)
        collected.extend(
            len(result) for result in results if isinstance(result, list) and len(result) > 1
        )
        return results

    monkeypatch.setattr(InMemoryStore, "batch", counted)
    for number in range(6):
        memory.access.view.swept_at = judgments.utc_now() - timedelta(days=1)
        await bench.invoke(graph, {"inputs": f"r{number}", "outputs": "a"}, f"r{number}")
    assert max(collected) <= 5
    remaining = bench.store.search(namespace, limit=100)
    assert not {item.key for item in items[:9]} & {item.key for item in remaining}
    assert {item.key for item in items[9:]} <= {item.key for item in remaining}
