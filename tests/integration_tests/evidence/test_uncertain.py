"""`review="uncertain"`: whom it asks and why, its budget and its log, and what it reports."""

import asyncio
import json
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any, Literal

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.store.base import PutOp

from memalign_graph import (
    Example,
    Feedback,
    InvalidInputError,
    Uncertain,
    create_review_graph,
)
from memalign_graph.local import open_store, open_store_async
from memalign_graph.memory import judgments
from memalign_graph.memory.judgments import KEEP_REVIEWS, ReviewLogEntry, log_review
from memalign_graph.memory.reports import report_of
from memalign_graph.scales import Boolean, Numeric
from memalign_graph.types import Episode
from tests.builders import make_judgment
from tests.conftest import CASE, CRITERION, EVERY_WAY, Bench, Graph, distillings, judgings, thread
from tests.integration_tests.evidence.judging_support import asks_for_value
from tests.integration_tests.gates.support import Writer, gated
from tests.loopback import Rule, error, with_logprobs

SPENT = (False, ["unsure", "no_budget"])
ASKED = (True, ["unsure"])


class Clock(datetime):
    """A clock that stands still, and can be put forward."""

    at = datetime(2025, 1, 31, 12, tzinfo=UTC)

    @classmethod
    def now(cls, tz: Any = None) -> Any:
        return cls.at.astimezone(tz)

    @classmethod
    def forward(cls, **by: float) -> None:
        cls.at += timedelta(**by)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> type[Clock]:
    monkeypatch.setattr(Clock, "at", Clock.at)
    monkeypatch.setattr(judgments, "datetime", Clock)
    return Clock


def case(number: int) -> dict[str, Any]:
    """One of many cases that are alike."""
    return {"inputs": f"My order {number} never came.", "outputs": "Check the tracking page."}


def sure(share: float) -> list[Rule]:
    """A judge that says yes, and holds it likely by so much."""
    reply = with_logprobs("A", [("A", {"A": share, "B": 1 - share})])
    return [Rule(asks_for_value, reply=reply)]


def uncertain_graph(bench: Bench, **options: Any) -> Graph:
    """A graph that asks where it is not sure; nothing is drawn by chance unless told."""
    asking = {name: options.pop(name) for name in Uncertain.model_fields if name in options}
    review = Uncertain(**{"sample_share": 0, **asking})
    return bench.review_graph(**{"review": review, "confidence": True, **options})


def valued(number: int, *, value: bool = True, held: float = 0.95) -> Feedback:
    """An expert's value on a case of which the judge had said yes, as sure as it was."""
    example = Example.model_validate(case(number))
    fields = {"model": "gpt-4.1-mini", "probabilities": {"true": held, "false": 1 - held}}
    judgment = make_judgment(example.id, criterion=CRITERION.name, **fields)
    return Feedback(example=example, value=value, judgment=judgment)


async def teach(bench: Bench, count: int = 90, *, doubtful: int = 20) -> None:
    """Fill memory: sure verdicts that the experts confirm, and doubtful ones of which half fail."""
    await bench.remember(
        *(valued(number, held=0.9 + number / 1000).to_json() for number in range(count)),
        *(
            valued(1000 + number, value=number % 2 == 0, held=0.55).to_json()
            for number in range(doubtful)
        ),
    )


async def judge(
    bench: Bench, graph: Any, number: int, share: float, reply: Any = None, **options: Any
) -> tuple[bool, list[str]]:
    """Judge a case, and answer if told; whether an expert was asked, and why."""
    bench.server.rules = sure(share)
    result = await bench.invoke(graph, case(number), str(number), **options)
    review = result["judgment"]["review"]
    assert review["asks"] == ("__interrupt__" in result)
    if reply is not None:
        await bench.resume(graph, reply, str(number))
    return review["asks"], review["reasons"]


async def ask(bench: Bench, graph: Any, count: int, first: int = 5000) -> list[Any]:
    """Judge so many doubtful cases."""
    return [await judge(bench, graph, number, 0.6) for number in range(first, first + count)]


def description(result: dict[str, Any]) -> str:
    [interrupt] = result["__interrupt__"]
    return str(interrupt.value["action_requests"][0]["description"])


async def report(bench: Bench, **options: Any) -> Any:
    return await bench.call(bench.memory(), "review_report", **options)


async def forget(bench: Bench, **options: Any) -> None:
    await bench.call(bench.memory(), "forget", **options)


async def log(bench: Bench) -> list[dict[str, Any]]:
    place = ("memalign", CRITERION.name, "reviews")
    items = await bench.call(bench.store, "search", place, limit=10_000)
    return [item.value for item in items]


@EVERY_WAY
async def test_an_uncertain_case_is_asked_and_logged(bench: Bench, clock: type[Clock]) -> None:
    empty = await report(bench)
    assert (empty.judgments, empty.coverage, empty.since, empty.days) == (0, None, None, [])
    assert (empty.sample.agreement, empty.sample.low, empty.sample.high) == (None, 0, 1)
    await teach(bench)
    graph = uncertain_graph(bench, per_day=3)
    outcomes = [await judge(bench, graph, number, 0.97) for number in (5000, 5001)]
    assert outcomes == [(False, []), (False, [])]
    assert await judge(bench, graph, 5002, 0.5, {"value": True}) == ASKED
    words = {"value": False, "rationale": "Too cold."}
    assert await judge(bench, graph, 5003, 0.5, words) == ASKED
    clock.forward(hours=11, minutes=59)
    assert await judge(bench, graph, 5004, 0.5, {"type": "ignore"}) == ASKED
    assert await judge(bench, graph, 5005, 0.5) == SPENT
    assert await judge(bench, graph, 5006, 0.97) == (False, [])
    clock.forward(minutes=1)
    assert await judge(bench, graph, 6000, 0.5, "Words alone.") == ASKED
    whole = await report(bench)
    assert (whole.since, whole.until) == (date(2025, 1, 31), date(2025, 2, 1))
    assert (whole.judgments, whole.coverage) == (8, pytest.approx(4 / 8))
    assert whole.reasons == {"unsure": 5, "no_budget": 1}
    asked = whole.asked
    assert (asked.asked, asked.answered, asked.agreeing, asked.agreement) == (4, 2, 1, 0.5)
    bounds = pytest.approx(0.095, abs=1e-3), pytest.approx(0.905, abs=1e-3)
    assert (asked.low, asked.high) == bounds
    first, second = whole.days
    assert (first.day, first.judgments, first.coverage) == (whole.since, 7, pytest.approx(4 / 7))
    assert (second.asked.asked, second.asked.answered) == (1, 0)
    assert (await report(bench, since=date(2025, 2, 1))).days == [second]
    assert (await report(bench, until=date(2025, 1, 31))).days == [first]
    assert (await report(bench, since=date(2025, 2, 2))).judgments == 0
    with pytest.raises(InvalidInputError, match="since: expected a date"):
        await report(bench, since="2025-01-31")
    with pytest.raises(InvalidInputError, match="until: 2025-01-31 is before"):
        await report(bench, since=date(2025, 2, 1), until=date(2025, 1, 31))
    logged = await log(bench)
    assert len(logged) == 8
    assert "order" not in json.dumps(logged)  # no texts
    # What is forgotten is no answer any more.
    await forget(bench, episode_ids=[episode.id for episode in await bench.episodes()])
    after = (await report(bench)).asked
    assert (after.asked, after.answered) == (4, 0)
    assert await log(bench) == logged


async def test_what_an_expert_is_told(bench: Bench) -> None:
    graph = uncertain_graph(bench)
    bench.server.rules = sure(0.999)
    result = await bench.invoke(graph, case(1), "few")
    assert result["judgment"]["review"]["reasons"] == ["too_little_feedback", "no_similar_episode"]
    assert "too little feedback" in description(result)
    await teach(bench, 28, doubtful=0)
    assert await judge(bench, graph, 7, 0.999) == (True, ["too_little_feedback"])
    await teach(bench)
    bench.server.rules = sure(0.6)
    result = await bench.invoke(graph, case(5001), "doubt")
    shown, judgment = description(result), result["judgment"]
    assert judgment["confidence"] < judgment["review"]["threshold"]
    assert judgment["review"]["threshold"] > 0.8
    assert "You are asked because the judge is not confident enough." in shown
    assert f"Confidence: {judgment['confidence']:.0%} (calibrated on 110 cases)." in shown
    bench.server.rules = sure(0.97)
    strange = {"inputs": "Wie spät ist es auf dem Mond?", "outputs": "Keine Ahnung, ehrlich."}
    result = await bench.invoke(graph, strange, "strange")
    assert result["judgment"]["review"]["reasons"][0] == "no_similar_episode"
    assert "the memory holds no similar case" in description(result)
    result = await bench.invoke(uncertain_graph(bench, sample_share=1), case(5002), "drawn")
    assert result["judgment"]["review"]["reasons"] == ["sample"]
    assert "drawn at random" in description(result)


async def test_resume_judges_and_logs_nothing_again(bench: Bench, clock: type[Clock]) -> None:
    await teach(bench)
    graph = uncertain_graph(bench, sample_share=0.5, per_day=1)
    bench.server.rules = sure(0.6)
    parts = await bench.stream(graph, case(5000), stream_mode="updates")
    assert [next(iter(part)) for part in parts[2:]] == ["judge", "decide_review", "__interrupt__"]
    judgment, logged = parts[2]["judge"]["judgment"], await log(bench)
    assert len(logged) == 1
    # As after a crash between the log and the checkpoint.
    past = [state async for state in graph.aget_state_history(thread("t"))]
    before = next(state.config for state in past if state.next == ("decide_review",))
    again = graph.invoke(None, before)
    assert "__interrupt__" in again
    assert again["judgment"]["id"] == judgment["id"]
    result = await bench.resume(graph, {"value": False, "rationale": "Say sorry first."})
    assert result["judgment"] == again["judgment"] == result["feedback"]["judgment"]
    assert await log(bench) == logged
    assert (len(judgings(bench.server)), len(distillings(bench.server))) == (1, 1)


DOWN = [Rule(lambda chat: "logprobs" in chat.body, reply=error(400, "no logprobs here"))]
REFUSES = [
    Rule(asks_for_value, reply=with_logprobs("B", [("B", {"A": 0.03, "B": 0.97})])),
    Rule(lambda _: True, value=False),
]
OUTCOMES: dict[str, tuple[dict[str, Any], Any, list[str]]] = {
    "no log-probabilities": ({}, [], ["unsure"]),
    "failing call": ({}, DOWN, ["unsure"]),
    "no past answers to a verdict": ({"confidence": True}, REFUSES, ["too_little_feedback"]),
    "no cases shown": ({"k": 0}, sure(0.97), []),
    "no episodes shown": ({"use_episodes": False}, sure(0.97), []),
    "failing embedding": (
        {"embeddings": None, "on_embedding_error": "guidelines"},
        sure(0.97),
        ["no_similar_episode"],
    ),
    "evidence alone": ({"confidence": False, "decide": "evidence"}, [], []),
    "by default": ({"confidence": False, "decide": "auto"}, [], []),
}


@pytest.mark.parametrize(("options", "rules", "reasons"), OUTCOMES.values(), ids=OUTCOMES)
async def test_whom_it_asks_about(
    bench: Bench, options: dict[str, Any], rules: Any, reasons: list[str]
) -> None:
    await teach(bench, 110)
    bench.server.rules = rules
    if "embeddings" in options:
        options = {**options, "embeddings": bench.server.embedder(max_retries=0)}
        bench.server.script_embeddings(error(500, "down", retry_after=0))
    defaults = {"decide": "verdict", **options}
    graph = uncertain_graph(bench, model=bench.server.chat_model(max_retries=0), **defaults)
    judgment = (await bench.invoke(graph, case(5000)))["judgment"]
    assert judgment["review"]["reasons"] == reasons
    assert (judgment["confidence"] is None) == (not options)
    assert (judgment["evidence"] is None) == ("decide" not in options)


async def test_context_and_callable_go_before_it(bench: Bench) -> None:
    graph = uncertain_graph(bench)
    bench.server.rules = sure(0.9)
    for mode in ("always", "never"):
        result = await bench.invoke(graph, case(1), mode, context={"review": mode})
        assert ("__interrupt__" in result) == (mode == "always")
        assert result["judgment"]["review"] is None
    by_code = uncertain_graph(bench, review=lambda judgment: judgment.confidence < 0.5)
    assert "__interrupt__" not in await bench.invoke(by_code, case(1))
    assert await log(bench) == []
    await teach(bench)
    graph = uncertain_graph(bench, review="always")
    # By default one in twenty is drawn by chance.
    on = await judge(bench, graph, 5000, 0.97, context={"review": "uncertain"})
    assert on[1] in ([], ["sample"])
    assert len(await log(bench)) == 1
    bench.server.chats.clear()
    plain = bench.review_graph(decide="verdict")
    with pytest.raises(InvalidInputError, match=r"review: .*confidence=True, decide="):
        await bench.invoke(plain, CASE, "plain", context={"review": "uncertain"})
    assert bench.server.chats == []


async def test_trust_is_reported_and_forgetting_leaves_no_trace(bench: Bench) -> None:
    await teach(bench)
    memory = bench.memory()
    bench.server.rules = sure(0.97)
    result = await bench.invoke(uncertain_graph(bench, target_agreement=0.8), case(5000))
    trust = memory.trust(target_agreement=0.8)
    assert trust.threshold == result["judgment"]["review"]["threshold"]
    assert trust.bound is not None
    assert trust.bound >= 0.8
    before = memory.trust()
    stored = memory.remember([valued(2000 + n, value=False, held=0.98) for n in range(4)])
    assert memory.trust() != before
    memory.forget([episode.id for episode in stored])
    assert memory.trust() == before
    with pytest.raises(InvalidInputError, match="decide: 'votes'"):
        memory.trust(decide="votes")  # type: ignore[arg-type] # a wrong one
    with pytest.raises(InvalidInputError, match="target_agreement: 2"):
        memory.trust(target_agreement=2)


async def test_budgets_are_apart_whatever_the_names(bench: Bench, clock: type[Clock]) -> None:
    graph = uncertain_graph(bench, per_day=1)
    inner = ["memalign", CRITERION.name, "reviews"]
    day = CRITERION.model_copy(update={"name": "20250131"})
    below = uncertain_graph(bench, criterion=day, per_day=1)
    for team, one in ((["a"], graph), (["b"], graph), (inner, below)):
        context = {"namespace": team}
        results = [await bench.invoke(one, case(n), f"{team}{n}", context=context) for n in (1, 2)]
        asked = ["__interrupt__" in result for result in results]
        assert asked == [True, False]
    assert (await report(bench)).judgments == 0
    # Two graphs of one memory share theirs.
    await teach(bench)
    graphs = [uncertain_graph(bench, per_day=3) for _ in "12"]
    outcomes = [await judge(bench, graphs[n % 2], 5000 + n, 0.6) for n in range(6)]
    assert outcomes == [ASKED] * 3 + [SPENT] * 3


async def test_old_days_are_swept_now_and_then(bench: Bench, clock: type[Clock]) -> None:
    graph = uncertain_graph(bench)
    await ask(bench, graph, 2)
    clock.forward(days=KEEP_REVIEWS.days)
    await ask(bench, graph, 1, 6000)
    assert len(await log(bench)) == 3
    clock.forward(days=1)
    await ask(bench, graph, 1, 7000)
    assert sorted({entry["day"] for entry in await log(bench)}) == [20250501, 20250502]
    old = ("memalign", CRITERION.name, "reviews", "20200101")
    bench.store.batch([PutOp(old, "x", {"day": 20200101, "of_another": 1}, index=False)])
    for minutes, first in ((59, 8000), (1, 9000)):
        clock.forward(minutes=minutes)
        await ask(bench, graph, 1, first)
        days = {entry["day"] for entry in await log(bench)}
        assert (20200101 in days) == (minutes == 59)


@EVERY_WAY
async def test_purge_covers_the_log_of_reviews(bench: Bench, clock: type[Clock]) -> None:
    graph = uncertain_graph(bench)
    bench.server.rules = sure(0.9)
    shared = [await bench.invoke(graph, case(1), on) for on in ("a", "b")]
    for on, author in (("a", "ann"), ("b", "bob")):
        await bench.resume(graph, {"value": True, "author": author}, on)
    clock.forward(days=3)
    await judge(bench, graph, 2, 0.9, {"value": True, "author": "ann"})
    gone = await bench.invoke(graph, case(2), "again")
    await judge(bench, graph, 3, 0.9, {"value": True, "author": "bob"})
    assert len(await log(bench)) == 5
    await forget(bench, author="ann", purge=True, checkpointer=bench.saver)
    left = await log(bench)
    assert len(left) == 2
    assert shared[1]["judgment"]["id"] in {entry["judgment_id"] for entry in left}
    assert gone["judgment"]["example_id"] not in json.dumps(left)
    assert (await report(bench)).judgments == 2


def logged(number: int, *reasons: Any, asked: Literal[0, 1] = 1) -> ReviewLogEntry:
    fields: dict[str, Any] = {"at": Clock.at, "day": 20250131, "confidence": 0.5, "threshold": 0.9}
    fields |= {"example_id": "e", "asked": asked, "reasons": list(reasons)}
    return ReviewLogEntry(judgment_id=f"j{number}", **fields)


def answered(number: int, value: Any, *, of: Any = True, author: str | None = None) -> Episode:
    judgment: Any = valued(number).judgment
    judgment = judgment.model_copy(update={"id": f"j{number}", "value": of})
    changed = {"value": value, "judgment": judgment, "author": author}
    return Episode.from_feedback(valued(number).model_copy(update=changed))


def test_what_counts_as_drawn_asked_and_answered() -> None:
    items = [
        logged(1, "sample"),
        logged(2, "unsure", "sample"),
        logged(3, "unsure", "sample", "no_budget", asked=0),
        logged(4, "sample", "no_budget", asked=0),
    ]
    made = report_of(items, [answered(number, number != 3) for number in range(1, 5)], Boolean())
    assert (made.sample.asked, made.sample.answered, made.sample.agreeing) == (1, 1, 1)
    assert (made.asked.asked, made.asked.answered, made.asked.agreeing) == (2, 2, 2)
    assert made.coverage == pytest.approx(2 / 4)
    # Of several experts on one judgment the majority; off the scale is no answer.
    votes = [answered(1, value, author=who) for who, value in (("a", False), ("b", True))]
    made = report_of([logged(1, "unsure")], [*votes, answered(1, value=True)], Boolean())
    assert (made.asked.answered, made.asked.agreeing) == (1, 1)
    episodes = [
        answered(1, 4.5, of=4),
        answered(2, 7, of=4),
        answered(3, 5, of=50),
        answered(4, 99),
    ]
    items = [logged(number, "unsure") for number in range(1, 5)]
    made = report_of(items, episodes, Numeric(minimum=0, maximum=10))
    assert (made.asked.asked, made.asked.answered, made.asked.agreeing) == (4, 2, 1)


async def test_gate_asks_where_its_judge_is_not_sure_within_its_budget(bench: Bench) -> None:
    await teach(bench)
    inputs = case(5000)["inputs"]
    graph = gated(
        bench,
        Writer(case(1)["outputs"], "Sorry."),
        confidence=True,
        decide="evidence",
        review=Uncertain(sample_share=0, per_day=1),
        example=lambda state: {"inputs": inputs, "outputs": state["messages"][-1].text},
    )
    bench.server.rules = sure(0.6)
    result = await bench.invoke(graph, {"messages": []}, "doubt")
    assert "not confident enough" in description(result)
    reply = {"value": False, "rationale": "Say sorry."}
    verdict = (await bench.resume(graph, reply, "doubt"))["quality_gate"]
    assert (verdict["status"], verdict["revisions"]) == ("accepted", 1)
    assert "no_budget" in verdict["judgment"]["review"]["reasons"]
    assert len(await log(bench)) == 2


@pytest.mark.parametrize("way", ["threads", "one event loop"])
async def test_budget_holds_for_judgments_made_at_the_same_time(
    bench: Bench, tmp_path: Path, way: str
) -> None:
    options: Any = {**bench.models(), "confidence": True, "review": Uncertain(per_day=2)}
    builder = create_review_graph(CRITERION, **options)
    cases, threads = [case(number) for number in range(12)], [thread(str(n)) for n in range(12)]
    place, saver = tmp_path / "memory.db", InMemorySaver()
    if way == "threads":
        with open_store(place) as store:
            results = builder.compile(store=store, checkpointer=saver).batch(cases, threads)
    else:
        async with open_store_async(place) as store:
            graph = builder.compile(store=store, checkpointer=saver)
            results = await graph.abatch(cases, threads)
    assert sum("__interrupt__" in result for result in results) == 2


async def test_budget_counts_an_entry_that_is_written_late(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits_s = [0.03]

    async def log_late(*entry: Any) -> None:
        await asyncio.sleep(waits_s.pop() if waits_s else 0)
        await log_review(*entry)

    monkeypatch.setattr("memalign_graph.nodes.review.log_review", log_late)
    bench.server.rules = sure(0.6)
    graph = uncertain_graph(bench, per_day=1)
    results = await graph.abatch([case(1), case(2)], [thread("1"), thread("2")])
    assert sum("__interrupt__" in result for result in results) == 1
