"""Kept judgments: expiry, deletion, and purges."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from langgraph.store.memory import InMemoryStore
from langgraph.store.sqlite import SqliteStore

from memalign_graph import Example, Uncertain, create_judge_graph
from memalign_graph.memory import judgments
from memalign_graph.memory import purge as purge_module
from memalign_graph.memory.purge import Forgotten, Selection
from tests.builders import keep_reviewed
from tests.conftest import CASE, CRITERION, EVERY_WAY, OTHER, POSTGRES_WAYS, Bench, thread
from tests.integration_tests.later_feedback.support import (
    DAY,
    ROOT,
    age,
    give_feedback,
    judge,
    judgments_in_store,
)
from tests.loopback import ChatRequest, LoopbackServer, Rule
from tests.unit_tests.memory.purging import MARK, everything_in, left_in
from tests.unit_tests.memory.stores import commits, interleave


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


async def test_kept_judgment_says_why_an_expert_is_asked(bench: Bench) -> None:
    options: Any = {"confidence": True, "keep_judgments": DAY}
    graph = bench.review_graph(review=Uncertain(sample_share=0, per_day=1), **options)
    for case in (CASE, OTHER):
        await bench.invoke(graph, case, case["inputs"])
    asked, unasked = (kept.judgment.review for kept in bench.memory().judgments())
    assert asked is not None
    assert asked.asks
    assert unasked is None


async def test_only_expired_judgments_are_deleted(bench: Bench, clock: Any) -> None:
    named = CRITERION.model_copy(update={"name": "judgments"})
    inner = {"namespace": list(ROOT)}
    below = await judge(bench, context=inner, criterion=named, keep_judgments=9 * DAY)
    await give_feedback(bench, below["id"], "Too cold.", context=inner, criterion=named)
    other = await judge(bench, context={"namespace": ["team-a"]})
    old = await judge(bench)
    long = await judge(bench, {**CASE, "inputs": "Kept for long."}, keep_judgments=9 * DAY)
    clock.ahead = DAY - timedelta(hours=6)
    assert len(bench.memory().judgments()) == 2
    age(bench, old["id"])
    assert judgments_in_store(bench) == sorted([old["id"], long["id"]])
    assert [waiting.judgment.id for waiting in bench.memory().judgments()] == [long["id"]]
    clock.ahead = 2 * DAY
    fresh = await judge(bench, OTHER)
    assert judgments_in_store(bench) == sorted([fresh["id"], long["id"]])
    assert judgments_in_store(bench, *ROOT, "judgments") == [below["id"]]
    assert judgments_in_store(bench, "team-a", CRITERION.name) == [other["id"]]
    memory: Any = {"criterion": named, "namespace": ROOT}
    assert len(await bench.episodes(**memory)) == len(await bench.guidelines(**memory)) == 1
    assert [waiting.judgment.id for waiting in bench.memory(**memory).judgments()] == [below["id"]]


def test_store_with_ttl_support_gets_the_time_to_live(server: LoopbackServer) -> None:
    """Also by a graph without a checkpointer."""
    with SqliteStore.from_conn_string(":memory:") as store:
        store.setup()
        graph = create_judge_graph(
            CRITERION,
            model=server.chat_model(),
            embeddings=server.embedder(),
            keep_judgments=timedelta(minutes=4, seconds=1),
        )
        judgment = graph.compile(store=store).invoke(CASE)["judgment"]
        assert judgment["thread_id"] is None
        query = "SELECT key, ttl_minutes FROM store WHERE prefix LIKE '%judgments'"
        [(key, minutes)] = store.conn.execute(query).fetchall()
        assert (key, round(minutes)) == (judgment["id"], 5)


@EVERY_WAY("memory-sync", POSTGRES_WAYS[0])
async def test_very_long_and_very_short_retention_times(bench: Bench) -> None:
    short = await judge(bench, keep_judgments=timedelta(microseconds=1))
    assert bench.memory().judgments() == []
    with pytest.raises(ValueError, match="It has expired"):
        await give_feedback(bench, short["id"], "Too cold.")
    judgment = await judge(bench, keep_judgments=timedelta.max)
    [waiting] = bench.memory().judgments()
    assert waiting.kept_until.year == 9999
    assert waiting.judgment.id == judgment["id"]
    assert (await give_feedback(bench, judgment["id"], "Too cold."))["learned"]["guidelines"]


async def test_kept_judgments_of_later_versions_stay(bench: Bench) -> None:
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


def test_removal_reads_bounded_numbers(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judgments, "_SWEEP_ITEMS", 5)
    access = bench.memory().access
    ids = [
        keep_reviewed(access, Example(inputs=f"q{n}", outputs="a"), days=1).id for n in range(12)
    ]
    for expired in ids[6:]:  # a page of others comes first
        age(bench, expired)
    sizes: list[int] = []
    batch = InMemoryStore.batch

    def counted(store: InMemoryStore, ops: Any) -> Any:
        results = batch(store, ops)
        sizes.extend(len(result) for result in results if isinstance(result, list))
        return results

    monkeypatch.setattr(InMemoryStore, "batch", counted)
    for number in range(6):
        access.view.swept_at = judgments.utc_now() - DAY
        keep_reviewed(access, Example(inputs=f"r{number}", outputs="a"), days=1)
    assert max(sizes) <= 5
    remaining = judgments_in_store(bench)
    assert len(remaining) == 6 + 6
    assert {*ids[:6]} <= {*remaining}


SECRET = {"inputs": "Where is zqxin, my order?", "outputs": "Look for it, zqxout."}
WORD = {"value": False, "rationale": "One must not say zqxwhy here.", "author": "ann"}
APART = {"inputs": "May I pay by card?", "outputs": "Yes, by any."}


def purge(bench: Bench, **options: Any) -> Forgotten:
    memory = bench.memory()
    ids = None if options else [episode.id for episode in memory.episodes()]
    return memory.forget(ids, purge=True, checkpointer=bench.saver, **options)


async def judge_and_give_feedback(
    bench: Bench, case: Any = SECRET, word: Any = WORD
) -> dict[str, Any]:
    judgment = await judge(bench, case)
    await give_feedback(bench, judgment["id"], word)
    return judgment


@pytest.fixture
def quoting(bench: Bench) -> None:
    """A judge that quotes its prompt."""
    bench.server.rules = [
        Rule(lambda chat: MARK in chat.text, value=True, rationale="As with zqxquote before.")
    ]


@pytest.mark.usefixtures("quoting")
async def test_purged_case_leaves_no_trace_in_the_store(bench: Bench) -> None:
    apart = await judge(bench, APART, on="apart")
    # As a gate does: the first draft is sent back, the second is reviewed.
    await judge(bench, {**SECRET, "outputs": "Draft 1."}, on="draft")
    await judge(bench, SECRET, on="again")
    judgment = await judge_and_give_feedback(bench)
    age(bench, (await judge(bench, SECRET, on="expired"))["id"])
    # With the case and its guideline in the prompt.
    similar = await judge(bench, OTHER, on="similar")
    [episode] = await bench.episodes()
    assert similar["episode_ids"] == [episode.id]
    assert "zqxquote" in similar["rationale"]
    assert len(left_in(everything_in(bench.store))) >= 5
    done = purge(bench)
    assert done.episode_ids == [episode.id]
    assert done.purged is not None
    assert sorted(done.purged.thread_ids) == ["again", "expired", "judged", "similar", "told"]
    assert judgments_in_store(bench) == [apart["id"]]
    with pytest.raises(ValueError, match="no judgment"):
        await give_feedback(bench, judgment["id"], WORD)
    assert left_in(everything_in(bench.store)) == []


@pytest.mark.usefixtures("quoting")
async def test_judgment_that_used_only_the_purged_guideline_is_removed(bench: Bench) -> None:
    await judge_and_give_feedback(bench)
    by_guideline = await judge(bench, OTHER, use_episodes=False)
    by_neither = await judge(bench, APART, use_episodes=False, use_guidelines=False)
    assert by_guideline["episode_ids"] == []
    assert by_guideline["guideline_ids"]
    bench.memory().remove_guideline(by_guideline["guideline_ids"][0])
    purge(bench)
    assert judgments_in_store(bench) == [by_neither["id"]]
    assert left_in(everything_in(bench.store)) == []


async def test_purge_affects_only_its_memory_and_author(bench: Bench) -> None:
    elsewhere = await judge(bench, SECRET, context={"namespace": ["team-a"]})
    named = CRITERION.model_copy(update={"name": "judgments"})
    inner = {"namespace": ["memalign", CRITERION.name]}
    below = await judge(bench, SECRET, context=inner, criterion=named)
    bob = {"value": False, "rationale": "Ask kindly.", "author": "bob"}
    others = await judge_and_give_feedback(bench, OTHER, bob)
    # Of the same inputs, which bob's feedback keeps.
    draft = await judge(bench, {**SECRET, "outputs": "Draft."})
    other = {**SECRET, "outputs": "Look."}
    same = await judge_and_give_feedback(bench, other, {"value": True, "author": "bob"})
    judgment = await judge(bench, SECRET, use_episodes=False, use_guidelines=False)
    await give_feedback(bench, judgment["id"], WORD)
    assert len(purge(bench, author="ann").episode_ids) == 1
    assert judgments_in_store(bench) == sorted([others["id"], draft["id"], same["id"]])
    assert [episode.author for episode in await bench.episodes()] == ["bob"] * 2
    assert len(await bench.guidelines()) == 1
    assert judgments_in_store(bench, "team-a", CRITERION.name) == [elsewhere["id"]]
    root = ("memalign", CRITERION.name, "judgments")
    assert judgments_in_store(bench, *root) == [below["id"]]


@pytest.mark.parametrize("options", [{}, {"use_guidelines": False}, {"use_episodes": False}])
async def test_judgment_in_flight_leaves_no_trace(bench: Bench, options: dict[str, Any]) -> None:
    await judge_and_give_feedback(bench)

    def purge_and_answer(request: ChatRequest) -> dict[str, Any]:
        purge(bench)
        return {"rationale": "As with zqxquote before.", "value": True}

    bench.server.responder = purge_and_answer
    judgment = await judge(bench, OTHER, on="during", **options)
    assert judgment["warnings"][-1].startswith("Not stored for later feedback: ")
    assert await bench.episodes() == []
    assert judgments_in_store(bench) == left_in(everything_in(bench.store)) == []


@pytest.mark.usefixtures("quoting")
async def test_judgment_kept_while_a_purge_runs_is_removed(bench: Bench) -> None:
    await judge_and_give_feedback(bench)
    graph, access = bench.judge_graph(keep_judgments=DAY), bench.memory().access
    interleave(
        lambda io: purge_module.purge(io, access, Selection(author="ann"), bench.saver),
        commits,
        lambda: graph.invoke(OTHER, thread("during")),
    )
    assert judgments_in_store(bench) == left_in(everything_in(bench.store)) == []
