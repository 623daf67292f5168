"""What tests of later feedback share: judgments kept, and an expert's word on them."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from langgraph.store.base import GetOp, PutOp, SearchOp

from memalign_graph import Criterion, create_feedback_graph
from memalign_graph.memory.judgments import KeptJudgment
from tests.conftest import CASE, CRITERION, Bench, Graph

DAY = timedelta(days=1)
EVERYTHING = 10_000


def feedback_graph(bench: Bench, criterion: Criterion = CRITERION, **options: Any) -> Graph:
    """The graph that takes an expert's later word, with this bench's models."""
    given = {"model": bench.server.chat_model(), "embeddings": bench.server.embedder(), **options}
    return bench.compile(create_feedback_graph(criterion, **given))


async def judge(
    bench: Bench,
    case: Any = CASE,
    *,
    on: str | None = "judged",
    context: Any = None,
    **options: Any,
) -> dict[str, Any]:
    """Judge a case and keep the judgment."""
    options.setdefault("keep_judgments", DAY)
    graph = bench.judge_graph(**options)
    judgment: dict[str, Any] = (await bench.invoke(graph, case, on, context=context))["judgment"]
    return judgment


async def tell(
    bench: Bench,
    judgment_id: Any,
    reply: Any,
    *,
    on: str | None = "told",
    context: Any = None,
    **options: Any,
) -> dict[str, Any]:
    """Give an expert's word on a judgment."""
    graph = feedback_graph(bench, **options)
    given = {"judgment_id": judgment_id, "reply": reply}
    result: dict[str, Any] = await bench.invoke(graph, given, on, context=context)
    return result


async def kept(bench: Bench, **options: Any) -> list[KeptJudgment]:
    """The judgments that await feedback."""
    memory = bench.memory(**options)
    return await memory.ajudgments() if bench.awaits else memory.judgments()


async def everything(bench: Bench, *prefix: str) -> list[Any]:
    """All items of the store."""
    ops = [SearchOp(prefix, limit=EVERYTHING)]
    [found] = await bench.store.abatch(ops) if bench.awaits else bench.store.batch(ops)
    return list(found)  # type: ignore[arg-type]


async def content(bench: Bench) -> list[Any]:
    """All that the store holds, to be compared."""
    found = await everything(bench)
    return sorted((one.namespace, one.key, one.value) for one in found)


async def judgments_in_store(bench: Bench, *root: str) -> list[str]:
    """The keys of the judgments that lie in the store, past their time or not."""
    place = (*(root or ("memalign", CRITERION.name)), "judgments")
    return sorted(one.key for one in await everything(bench) if one.namespace == place)


async def age(bench: Bench, judgment_id: str, by: timedelta, *root: str) -> None:
    """Make a kept judgment older than it is."""
    place = (*(root or ("memalign", CRITERION.name)), "judgments")
    ops = [GetOp(place, judgment_id)]
    [found] = await bench.store.abatch(ops) if bench.awaits else bench.store.batch(ops)
    value: Mapping[str, Any] = found.value  # type: ignore[union-attr]
    until = datetime.fromisoformat(value["kept_until"]) - by
    assert until.tzinfo is UTC or until.utcoffset() == timedelta(0)
    put = [PutOp(place, judgment_id, {**value, "kept_until": until.isoformat()}, index=False)]
    await bench.store.abatch(put) if bench.awaits else bench.store.batch(put)
