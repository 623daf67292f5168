"""Helpers for tests of later feedback on kept judgments."""

from datetime import datetime, timedelta
from typing import Any

from memalign_graph import Criterion, create_feedback_graph
from tests.conftest import CASE, CRITERION, Bench, Graph
from tests.unit_tests.memory.purging import everything_in

DAY = timedelta(days=1)
ROOT = ("memalign", CRITERION.name)


def feedback_graph(bench: Bench, criterion: Criterion = CRITERION, **options: Any) -> Graph:
    """The feedback graph with the bench's models."""
    arguments = bench.models(**options)
    return bench.compile(create_feedback_graph(criterion, **arguments))


async def judge(
    bench: Bench, case: Any = CASE, *, on: str = "judged", context: Any = None, **options: Any
) -> dict[str, Any]:
    """Judge a case and keep the judgment."""
    graph = bench.judge_graph(**{"keep_judgments": DAY, **options})
    judgment: dict[str, Any] = (await bench.invoke(graph, case, on, context=context))["judgment"]
    return judgment


async def give_feedback(
    bench: Bench,
    judgment_id: Any,
    reply: Any,
    *,
    on: str = "told",
    context: Any = None,
    **options: Any,
) -> dict[str, Any]:
    """Give feedback on a kept judgment."""
    graph_input = {"judgment_id": judgment_id, "reply": reply}
    graph = feedback_graph(bench, **options)
    result: dict[str, Any] = await bench.invoke(graph, graph_input, on, context=context)
    return result


def judgments_in_store(bench: Bench, *root: str) -> list[str]:
    """The keys of all stored judgments, including expired ones."""
    place = (*(root or ROOT), "judgments")
    return sorted(item.key for item in everything_in(bench.store) if item.namespace == place)


def age(bench: Bench, judgment_id: str) -> None:
    """Make a kept judgment two days older than it is."""
    place = (*ROOT, "judgments")
    item = bench.store.get(place, judgment_id)
    assert item is not None
    until = datetime.fromisoformat(item.value["kept_until"]) - 2 * DAY
    bench.store.put(place, judgment_id, {**item.value, "kept_until": until.isoformat()}, False)
