"""What `review="uncertain"` reports, and what a purge leaves of it."""

import json
from datetime import UTC, date, datetime
from typing import Any

import pytest

from memalign_graph import InvalidInputError
from memalign_graph.evidence.trust import interval
from memalign_graph.memory.judgments import ReviewItem
from memalign_graph.memory.review_report import ReviewReport, report_of
from memalign_graph.scales import Boolean, Numeric
from memalign_graph.types import Episode
from tests.conftest import Bench
from tests.integration_tests.evidence.uncertain_support import (
    Clock,
    case,
    judged_feedback,
    log,
    report,
    review_of,
    stopped_clock,
    sure,
    teach,
    uncertain_graph,
)

__all__ = ["stopped_clock"]


async def judge(
    bench: Bench, graph: Any, number: int, share: float, reply: Any = None
) -> dict[str, Any]:
    """Judge a case, and answer where the expert is asked."""
    bench.server.rules = sure(share)
    given: dict[str, Any] = await bench.invoke(graph, case(number), str(number))
    if reply is not None:
        assert review_of(given)[0]
        await bench.resume(graph, reply, str(number))
    return given


async def test_report_of_nothing(bench: Bench) -> None:
    empty = await report(bench)
    assert (empty.judgments, empty.coverage, empty.reasons, empty.days) == (0, None, {}, [])
    assert (empty.since, empty.until) == (None, None)
    assert (empty.sample.agreement, empty.sample.low, empty.sample.high) == (None, 0, 1)


async def test_report_counts_what_was_asked_why_and_what_came_of_it(
    bench: Bench, clock: type[Clock]
) -> None:
    await teach(bench)
    graph = uncertain_graph(bench, per_day=3)
    await judge(bench, graph, 5000, 0.97)
    await judge(bench, graph, 5001, 0.97)
    await judge(bench, graph, 5002, 0.5, {"value": True})
    await judge(bench, graph, 5003, 0.5, {"value": False, "rationale": "Too cold."})
    clock.forward(days=1)
    await judge(bench, graph, 6000, 0.5, {"type": "ignore"})
    await judge(bench, graph, 6001, 0.5, "Words alone.")
    await judge(bench, graph, 6002, 0.5)
    await judge(bench, graph, 6003, 0.5)
    whole = await report(bench)
    assert (whole.since, whole.until) == (date(2025, 1, 31), date(2025, 2, 1))
    assert (whole.judgments, whole.coverage) == (8, pytest.approx(3 / 8))
    assert whole.reasons == {"unsure": 6, "no_budget": 1}
    asked = whole.asked
    assert (asked.asked, asked.answered, asked.agreeing, asked.agreement) == (5, 2, 1, 0.5)
    assert (asked.low, asked.high) == interval(1, 2)
    first, second = whole.days
    assert (first.day, first.judgments, first.coverage) == (date(2025, 1, 31), 4, 0.5)
    assert (second.day, second.judgments, second.coverage) == (date(2025, 2, 1), 4, 0.25)
    assert (second.asked.asked, second.asked.answered) == (3, 0)
    only = await report(bench, since=date(2025, 2, 1))
    assert (only.judgments, [one.day for one in only.days]) == (4, [date(2025, 2, 1)])
    assert (await report(bench, until=date(2025, 1, 31))).days == [first]
    assert (await report(bench, since=date(2025, 2, 2))).judgments == 0
    assert ReviewReport.model_validate_json(whole.model_dump_json()) == whole


async def test_sample_is_what_was_asked_by_chance_alone(bench: Bench, clock: type[Clock]) -> None:
    await teach(bench)
    graph = uncertain_graph(bench, sample_share=1)
    await judge(bench, graph, 5000, 0.97, {"value": True})
    await judge(bench, graph, 5001, 0.97, {"value": False})
    await judge(bench, graph, 5002, 0.5, {"value": False})
    whole = await report(bench)
    assert whole.reasons == {"unsure": 1, "sample": 3}
    sample = whole.sample
    assert (sample.asked, sample.answered, sample.agreeing, sample.agreement) == (2, 2, 1, 0.5)
    assert (sample.low, sample.high) == interval(1, 2)
    assert (whole.asked.asked, whole.asked.agreeing) == (3, 1)


def logged(number: int, *reasons: Any, asked: int = 1, **given: Any) -> ReviewItem:
    fields: dict[str, Any] = {
        "judgment_id": f"j{number}",
        "example_id": f"e{number}",
        "at": datetime(2025, 1, 31, tzinfo=UTC),
        "day": 20250131,
        "asked": asked,
        "reasons": list(reasons),
        "confidence": 0.5,
        "threshold": 0.9,
    }
    return ReviewItem.model_validate({**fields, **given})


def answered(number: int, value: Any, *, of: Any = True, author: str | None = None) -> Episode:
    feedback = judged_feedback(number)
    assert feedback.judgment is not None
    judgment = feedback.judgment.model_copy(update={"id": f"j{number}", "value": of})
    changed = {"value": value, "judgment": judgment, "author": author}
    return Episode.from_feedback(feedback.model_copy(update=changed))


def test_sample_counts_what_was_drawn_after_the_budget_was_spent() -> None:
    items = [
        logged(1, "sample"),
        logged(2, "unsure", "sample"),
        logged(3, "unsure", "sample", "no_budget", asked=0),
        logged(4, "sample", "no_budget", asked=0),
        logged(5, "unsure", "no_budget", asked=0),
    ]
    made = report_of(items, [answered(number, number != 3) for number in range(1, 6)], Boolean())
    assert (made.sample.asked, made.sample.answered, made.sample.agreeing) == (1, 1, 1)
    assert (made.asked.asked, made.asked.answered, made.asked.agreeing) == (2, 2, 2)
    assert made.coverage == pytest.approx(3 / 5)


def test_several_experts_on_one_judgment_count_as_their_majority() -> None:
    said = [
        answered(1, value, author=author)
        for author, value in (("ann", False), ("bob", True), ("cat", True))
    ]
    made = report_of([logged(1, "unsure")], said, Boolean())
    assert (made.asked.answered, made.asked.agreeing) == (1, 1)


def test_values_that_are_not_on_the_scale_any_more_are_no_answers() -> None:
    scale = Numeric(minimum=0, maximum=10)
    said = [answered(1, 4.5, of=4), answered(2, 7, of=4), answered(3, 5, of=50), answered(4, 99)]
    items = [logged(number, "unsure") for number in range(1, 5)]
    made = report_of(items, said, scale)
    assert (made.asked.asked, made.asked.answered, made.asked.agreeing) == (4, 2, 1)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"since": "2025-01-31"}, "since: '2025-01-31' is no day"),
        ({"until": datetime(2025, 1, 31, tzinfo=UTC)}, "until: .* is no day"),
        ({"since": date(2025, 2, 1), "until": date(2025, 1, 31)}, "until: 2025-01-31 is before"),
    ],
)
async def test_wrong_days_are_one_sentence(
    bench: Bench, options: dict[str, Any], said: str
) -> None:
    with pytest.raises(InvalidInputError, match=said):
        await report(bench, **options)


async def test_forgotten_answer_is_no_answer_any_more(bench: Bench, clock: type[Clock]) -> None:
    graph = uncertain_graph(bench)
    given = await judge(bench, graph, 1, 0.9, {"value": True})
    assert (await report(bench)).asked.answered == 1
    memory, ids = bench.memory(), [one.id for one in await bench.episodes()]
    await memory.aforget(ids) if bench.awaits else memory.forget(ids)
    after = await report(bench)
    assert (after.asked.asked, after.asked.answered) == (1, 0)
    assert [one["judgment_id"] for one in await log(bench)] == [given["judgment"]["id"]]


async def test_purge_takes_the_log_of_its_example_along(bench: Bench, clock: type[Clock]) -> None:
    graph = uncertain_graph(bench)
    gone = await judge(bench, graph, 1, 0.9, {"value": True, "author": "ann"})
    clock.forward(days=3)
    again = {"thread": "again"}
    bench.server.rules = sure(0.9)
    twice = await bench.invoke(graph, case(1), again["thread"])
    kept = await judge(bench, graph, 2, 0.9, {"value": True, "author": "bob"})
    assert gone["judgment"]["example_id"] == twice["judgment"]["example_id"]
    assert len(await log(bench)) == 3
    memory = bench.memory()
    options: Any = {"author": "ann", "purge": True, "checkpointer": bench.saver}
    await memory.aforget(**options) if bench.awaits else memory.forget(**options)
    left = await log(bench)
    assert [one["judgment_id"] for one in left] == [kept["judgment"]["id"]]
    assert gone["judgment"]["example_id"] not in json.dumps(left)
    assert (await report(bench)).judgments == 1


async def test_purge_of_one_expert_leaves_the_log_of_the_other(
    bench: Bench, clock: type[Clock]
) -> None:
    graph = uncertain_graph(bench)
    bench.server.rules = sure(0.9)
    given = [await bench.invoke(graph, case(1), on) for on in ("a", "b")]
    for on, author in (("a", "ann"), ("b", "bob")):
        await bench.resume(graph, {"value": True, "author": author}, on)
    memory = bench.memory()
    options: Any = {"author": "ann", "purge": True, "checkpointer": bench.saver}
    await memory.aforget(**options) if bench.awaits else memory.forget(**options)
    left = [one["judgment_id"] for one in await log(bench)]
    assert left == [given[1]["judgment"]["id"]]
