"""The budget of `review="uncertain"`, by the log: over a day's change, two graphs, and restarts."""

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import UTC
from pathlib import Path
from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.store.base import PutOp
from langgraph.store.sqlite import SqliteStore

from memalign_graph import Judgment
from memalign_graph.io import AWAITING, BLOCKING, run
from memalign_graph.memory.judgments import KEEP_REVIEWS, log_review
from memalign_graph.types import ReviewChoice
from tests.conftest import CRITERION, Bench
from tests.integration_tests.evidence.uncertain_support import (
    Clock,
    case,
    log,
    review_of,
    stopped_clock,
    sure,
    teach,
    uncertain_graph,
)
from tests.loopback import LoopbackServer

__all__ = ["stopped_clock"]

SPENT = (False, ["unsure", "no_budget"])
ASKED = (True, ["unsure"])


async def ask(bench: Bench, graph: Any, count: int, first: int = 5000) -> list[Any]:
    """Judge so many doubtful cases; whether the expert was asked about each, and why."""
    bench.server.rules = sure(0.6)
    return [
        review_of(await bench.invoke(graph, case(number), str(number)))
        for number in range(first, first + count)
    ]


async def test_budget_of_a_day_is_spent_and_comes_back_with_the_next(
    bench: Bench, clock: type[Clock]
) -> None:
    await teach(bench)
    graph = uncertain_graph(bench, per_day=2)
    assert await ask(bench, graph, 4) == [ASKED, ASKED, SPENT, SPENT]
    clock.forward(hours=11, minutes=59)
    assert await ask(bench, graph, 1, 6000) == [SPENT]
    clock.forward(minutes=1)
    assert await ask(bench, graph, 3, 7000) == [ASKED, ASKED, SPENT]
    logged = await log(bench)
    assert sorted({one["day"] for one in logged}) == [20250131, 20250201]
    assert [one["asked"] for one in logged if one["day"] == 20250131].count(1) == 2


async def test_spent_budget_does_not_keep_sure_judgments_from_being_sure(
    bench: Bench, clock: type[Clock]
) -> None:
    await teach(bench)
    graph = uncertain_graph(bench, per_day=1)
    await ask(bench, graph, 1)
    bench.server.rules = sure(0.97)
    assert review_of(await bench.invoke(graph, case(6000), "sure")) == (False, [])


async def test_budget_holds_while_there_is_too_little_feedback(
    bench: Bench, clock: type[Clock]
) -> None:
    graph = uncertain_graph(bench, per_day=2, sample_share=0.05)
    asked = await ask(bench, graph, 4)
    assert [asks for asks, _ in asked] == [True, True, False, False]
    assert "no_budget" in asked[2][1]


async def test_memories_apart_have_budgets_apart(bench: Bench, clock: type[Clock]) -> None:
    graph = uncertain_graph(bench, per_day=1)
    bench.server.rules = sure(0.6)
    for team in ("a", "b"):
        context = {"namespace": [team]}
        asked = [
            "__interrupt__" in await bench.invoke(graph, case(n), f"{team}{n}", context=context)
            for n in (1, 2)
        ]
        assert asked == [True, False]


async def test_criterion_and_namespace_named_like_the_log(bench: Bench, clock: type[Clock]) -> None:
    day = CRITERION.model_copy(update={"name": "20250131"})
    inner = {"namespace": ["memalign", CRITERION.name, "reviews"]}
    below = uncertain_graph(bench, criterion=day, per_day=1)
    bench.server.rules = sure(0.6)
    assert "__interrupt__" in await bench.invoke(below, case(1), "below", context=inner)
    graph = uncertain_graph(bench, per_day=1)
    assert [asks for asks, _ in await ask(bench, graph, 2)] == [True, False]
    memory = bench.memory()
    report = await memory.areview_report() if bench.awaits else memory.review_report()
    assert report.judgments == 2
    assert "__interrupt__" not in await bench.invoke(below, case(2), "more", context=inner)


@pytest.fixture
def two(server: LoopbackServer, tmp_path: Path) -> Iterator[list[Bench]]:
    """Two stores on one file, as in two processes."""
    with ExitStack() as stack:
        stores = [
            stack.enter_context(SqliteStore.from_conn_string(str(tmp_path / "store.db")))
            for _ in range(2)
        ]
        stores[0].setup()
        yield [Bench(server, store, InMemorySaver(), awaits=False) for store in stores]


async def test_two_graphs_on_one_file_share_a_budget(two: list[Bench], clock: type[Clock]) -> None:
    await teach(two[0])
    graphs = [uncertain_graph(bench, per_day=3) for bench in two]
    asked = [
        (await ask(bench, graph, 1, 5000 + 10 * turn + at))[0]
        for turn in range(3)
        for at, (bench, graph) in enumerate(zip(two, graphs, strict=True))
    ]
    assert asked == [ASKED] * 3 + [SPENT] * 3
    assert two[0].memory().review_report() == two[1].memory().review_report()


async def test_judgments_at_once_exceed_it_by_those_under_way_at_most(
    bench: Bench, clock: type[Clock]
) -> None:
    if not bench.awaits:
        pytest.skip("one after the other by blocking calls")
    await teach(bench)
    graph = uncertain_graph(bench, per_day=3)
    bench.server.rules = sure(0.6)
    given = await asyncio.gather(
        *(bench.invoke(graph, case(number), str(number)) for number in range(5000, 5008))
    )
    assert 3 <= sum("__interrupt__" in one for one in given) <= 8
    assert len(await log(bench)) == 8
    assert await ask(bench, graph, 2, 6000) == [SPENT, SPENT]


async def test_log_holds_no_texts(bench: Bench, clock: type[Clock]) -> None:
    graph = uncertain_graph(bench)
    bench.server.rules = sure(0.6)
    given = await bench.invoke(graph, case(1))
    [item] = await log(bench)
    assert item == {
        "judgment_id": given["judgment"]["id"],
        "example_id": given["judgment"]["example_id"],
        "at": "2025-01-31T12:00:00Z",
        "day": 20250131,
        "asked": 1,
        "reasons": ["too_little_feedback", "no_similar_episode"],
        "confidence": given["judgment"]["confidence"],
        "threshold": None,
    }


async def test_log_is_no_part_of_the_memory(bench: Bench, clock: type[Clock]) -> None:
    await teach(bench, 3, doubtful=0)
    memory = bench.memory()

    async def state() -> Any:
        if bench.awaits:
            return await memory.aversion(), await memory.aexport_jsonl()
        return memory.version(), memory.export_jsonl()

    before = await state()
    await ask(bench, uncertain_graph(bench), 2)
    assert await state() == before


async def test_old_days_are_swept_as_more_is_logged(bench: Bench, clock: type[Clock]) -> None:
    graph = uncertain_graph(bench)
    await ask(bench, graph, 2)
    clock.forward(days=KEEP_REVIEWS.days)
    await ask(bench, graph, 1, 6000)
    assert len(await log(bench)) == 3
    clock.forward(days=1)
    await ask(bench, graph, 1, 7000)
    assert sorted({one["day"] for one in await log(bench)}) == [20250501, 20250502]


async def test_sweeping_is_not_done_at_each_judgment(bench: Bench, clock: type[Clock]) -> None:
    graph = uncertain_graph(bench)
    await ask(bench, graph, 1)
    old = ("memalign", CRITERION.name, "reviews", "20200101")
    put = [PutOp(old, "x", {"day": 20200101, "of_another_version": 1}, index=False)]
    await bench.store.abatch(put) if bench.awaits else bench.store.batch(put)
    clock.forward(minutes=59)
    await ask(bench, graph, 1, 6000)
    assert len(await log(bench)) == 3
    clock.forward(minutes=1)
    await ask(bench, graph, 1, 7000)
    assert len(await log(bench)) == 3


async def test_judgment_decided_on_again_is_logged_once(bench: Bench, clock: type[Clock]) -> None:
    graph = uncertain_graph(bench)
    bench.server.rules = sure(0.6)
    given = await bench.invoke(graph, case(1))
    judgment = Judgment.model_validate(given["judgment"])
    later = ReviewChoice(asks=False, reasons=["no_budget"], threshold=None)
    io = AWAITING if bench.awaits else BLOCKING
    logging = log_review(io, bench.memory().access, judgment, later, clock.now(UTC))
    await logging if bench.awaits else run(logging)
    assert [(one["judgment_id"], one["asked"]) for one in await log(bench)] == [(judgment.id, 0)]
