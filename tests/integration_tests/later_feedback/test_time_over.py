"""Judgments whose time is over: not found, not listed, and swept from the store."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from langgraph.store.base import PutOp
from langgraph.store.sqlite import SqliteStore

from memalign_graph import create_judge_graph
from memalign_graph.memory import judgments
from tests.conftest import CASE, CRITERION, OTHER, Bench
from tests.integration_tests.later_feedback.support import (
    DAY,
    age,
    everything,
    judge,
    judgments_in_store,
    kept,
    tell,
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


async def test_judgment_goes_when_its_time_is_over(bench: Bench, clock: Any) -> None:
    judgment = await judge(bench)
    clock.ahead = DAY - timedelta(minutes=1)
    assert len(await kept(bench)) == 1
    clock.ahead = DAY + timedelta(minutes=1)
    assert await kept(bench) == []
    with pytest.raises(ValueError, match="its time is over"):
        await tell(bench, judgment["id"], "Too cold.")
    assert await bench.episodes() == []


async def test_what_is_past_its_time_is_swept_as_more_is_kept(bench: Bench, clock: Any) -> None:
    old = await judge(bench)
    long = await judge(bench, {**CASE, "inputs": "Kept for long."}, keep_judgments=9 * DAY)
    assert await judgments_in_store(bench) == sorted([old["id"], long["id"]])
    clock.ahead = 2 * DAY
    fresh = await judge(bench, OTHER)
    assert await judgments_in_store(bench) == sorted([fresh["id"], long["id"]])


async def test_sweeping_is_not_done_at_each_judgment(bench: Bench) -> None:
    first = await judge(bench)
    await age(bench, first["id"], 2 * DAY)
    second = await judge(bench, OTHER)
    assert await judgments_in_store(bench) == sorted([first["id"], second["id"]])
    assert [one.judgment.id for one in await kept(bench)] == [second["id"]]


async def test_sweeping_leaves_what_lies_beside_and_below(bench: Bench, clock: Any) -> None:
    named = CRITERION.model_copy(update={"name": "judgments"})
    inner = {"namespace": ["memalign", CRITERION.name]}
    below = await judge(bench, context=inner, criterion=named, keep_judgments=9 * DAY)
    await tell(bench, below["id"], "Too cold.", context=inner, criterion=named)
    other = await judge(bench, context={"namespace": ["team-a"]})
    await judge(bench)
    clock.ahead = 2 * DAY
    fresh = await judge(bench, OTHER)
    assert await judgments_in_store(bench) == [fresh["id"]]
    root = ("memalign", CRITERION.name, "judgments")
    assert await judgments_in_store(bench, *root) == [below["id"]]
    assert await judgments_in_store(bench, "team-a", CRITERION.name) == [other["id"]]
    memory = {"criterion": named, "namespace": ("memalign", CRITERION.name)}
    assert len(await bench.episodes(**memory)) == len(await bench.guidelines(**memory)) == 1
    assert [one.judgment.id for one in await kept(bench)] == [fresh["id"]]
    assert [one.judgment.id for one in await kept(bench, **memory)] == [below["id"]]


def test_a_store_that_removes_what_is_over_is_told_when(server: LoopbackServer) -> None:
    with SqliteStore.from_conn_string(":memory:") as store:
        store.setup()
        graph = create_judge_graph(
            CRITERION,
            model=server.chat_model(),
            embeddings=server.embedder(),
            keep_judgments=timedelta(minutes=5),
        )
        judgment = graph.compile(store=store).invoke(CASE)["judgment"]
        kept = "SELECT key, ttl_minutes FROM store WHERE prefix LIKE '%judgments'"
        [(key, minutes)] = store.conn.execute(kept).fetchall()
        assert (key, round(minutes)) == (judgment["id"], 5)
        store.conn.execute("UPDATE store SET expires_at = DATETIME('now', '-1 minutes')")
        assert store.sweep_ttl() > 0
        assert store.conn.execute(kept).fetchall() == []


async def test_very_long_time_is_taken(bench: Bench) -> None:
    judgment = await judge(bench, keep_judgments=timedelta.max)
    [one] = await kept(bench)
    assert one.kept_until.year == 9999
    assert one.judgment.id == judgment["id"]
    assert (await tell(bench, judgment["id"], "Too cold."))["learned"]["guidelines"]


async def test_very_short_time_is_over_at_once(bench: Bench) -> None:
    judgment = await judge(bench, keep_judgments=timedelta(microseconds=1))
    with pytest.raises(ValueError, match="its time is over"):
        await tell(bench, judgment["id"], "Too cold.")


async def test_judging_again_keeps_another_judgment(bench: Bench) -> None:
    first, second = await judge(bench), await judge(bench)
    assert first["id"] != second["id"]
    assert first["example_id"] == second["example_id"]
    assert {one.judgment.id for one in await kept(bench)} == {first["id"], second["id"]}


async def test_reviewing_does_not_judge_or_keep_again(bench: Bench) -> None:
    graph = bench.review_graph(keep_judgments=DAY)
    given = await bench.review(graph, "Too cold.")
    assert [one.judgment.id for one in await kept(bench)] == [given["judgment"]["id"]]


async def put_what_a_later_version_keeps(bench: Bench, key: str, until: datetime) -> None:
    place = ("memalign", CRITERION.name, "judgments")
    item = {"judgment": {"id": key}, "kept_until": until.isoformat(), "of_later_versions": 1}
    put = [PutOp(place, key, item, index=False)]
    await bench.store.abatch(put) if bench.awaits else bench.store.batch(put)


async def test_what_a_later_version_keeps_does_not_keep_the_judge_from_judging(
    bench: Bench,
) -> None:
    """Nor is it removed before its time: two versions may share a store for a while."""
    now = datetime.now(UTC)
    await put_what_a_later_version_keeps(bench, "waiting", now + DAY)
    await put_what_a_later_version_keeps(bench, "over", now - DAY)
    judgment = await judge(bench)
    assert judgment["value"] is True
    assert await judgments_in_store(bench) == sorted([judgment["id"], "waiting"])


async def test_what_a_later_version_keeps_does_not_hinder_a_purge(bench: Bench) -> None:
    await bench.remember({**CASE, "value": False, "author": "ann"})
    await put_what_a_later_version_keeps(bench, "waiting", datetime.now(UTC) + DAY)
    memory = bench.memory()
    options: Any = {"author": "ann", "purge": True, "checkpointer": bench.saver}
    done = await memory.aforget(**options) if bench.awaits else memory.forget(**options)
    assert len(done.episode_ids) == 1
    assert await bench.episodes() == []


async def test_kept_judgments_are_no_part_of_the_memory(bench: Bench) -> None:
    await bench.remember({**CASE, "value": False, "author": "ann"})
    memory = bench.memory()

    async def state() -> tuple[str, str, int]:
        if bench.awaits:
            history = await memory.ahistory()
            return await memory.aversion(), await memory.aexport_jsonl(), len(history)
        return memory.version(), memory.export_jsonl(), len(memory.history())

    before = await state()
    judgment = await judge(bench, OTHER)
    assert await state() == before
    assert judgment["memory_version"] == before[0]
    assert judgment["id"] not in before[1]


async def test_criterion_and_namespace_named_like_what_is_kept(bench: Bench) -> None:
    named = CRITERION.model_copy(update={"name": "judgments"})
    for context in (None, {"namespace": ["judgments"]}, {"namespace": ["a", "judgments"]}):
        judgment = await judge(bench, criterion=named, context=context)
        given = await tell(bench, judgment["id"], "Too cold.", criterion=named, context=context)
        assert given["learned"]["guidelines"]
        place = tuple(context["namespace"]) if context else ("memalign",)
        found = await kept(bench, criterion=named, namespace=place)
        assert [one.judgment.id for one in found] == [judgment["id"]]
        assert len(await bench.episodes(criterion=named, namespace=place)) == 1


async def test_graph_without_a_checkpointer_keeps_judgments(bench: Bench) -> None:
    options: Any = {"model": bench.server.chat_model(), "embeddings": bench.server.embedder()}
    builder = create_judge_graph(CRITERION, keep_judgments=DAY, **options)
    judgment = (await bench.invoke(builder.compile(store=bench.store), CASE, None))["judgment"]
    assert judgment["thread_id"] is None
    assert len(await kept(bench)) == 1
    assert judgment["id"] in {one.key for one in await everything(bench)}
