"""One memory and many workers: `python -m benchmarks --scale`.

Each part runs in its own processes, on stores with the same records.
"""

import asyncio
import multiprocessing
import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from langchain_core.embeddings import DeterministicFakeEmbedding
from langchain_openai import ChatOpenAI
from langgraph.store.base import BaseStore
from langgraph.store.memory import InMemoryStore

from benchmarks import plan
from benchmarks.ours import CRITERION
from memalign_graph import JudgeMemory, create_alignment_graph, create_judge_graph
from memalign_graph.local.stores import open_store, open_store_async
from tests import postgres

_BATCH = 5_000  # episodes that are remembered in one call
_GUIDELINES = 20
_JOBS = 10  # concurrent judgments of a worker, as on an Agent Server
_EMBEDDINGS = DeterministicFakeEmbedding(size=plan.DIMENSIONS)


class Sizes(NamedTuple):
    """Sizes of the parts."""

    episodes: tuple[int, ...] = (1_000, 10_000, 100_000)
    judgments: int = 30
    workers: int = 8
    per_second: int = 50
    seconds: float = 30.0


QUICK = Sizes((200,), 3, 2, 5, 4.0)
"""Sizes that only show that everything runs."""

Numbers = dict[str, float]
"""A row of a table."""


def compiled(create: Callable[..., Any], store: BaseStore) -> Any:
    model = ChatOpenAI(model=plan.MODEL, max_retries=0)
    return create(CRITERION, model=model, embeddings=_EMBEDDINGS).compile(store=store)


def fill(store: BaseStore, count: int) -> None:
    memory, records = JudgeMemory(store, CRITERION, embeddings=_EMBEDDINGS), plan.records(count)
    for start in range(0, count, _BATCH):
        memory.remember(records[start : start + _BATCH])
    for number in range(_GUIDELINES):
        memory.add_guideline(plan.guideline_text(number))


def fill_store(place: str, count: int) -> None:
    with open_store(place) as store:
        fill(store, count)


def open_and_judge(place: str | None, count: int, judgments: int, server: str) -> Numbers:
    """Open a memory that another process filled, or fill one in memory, and judge with it."""
    measure, cases = plan.ServerControl(server).measure, plan.cases(judgments + 1, seed=2)
    with nullcontext(InMemoryStore()) if place is None else open_store(place) as store:
        if place is None:
            fill(store, count)
        graph = compiled(create_judge_graph, store)
        cpu, first = time.process_time(), measure(partial(graph.invoke, cases[0]))
        cpu = time.process_time() - cpu
        rest = [measure(partial(graph.invoke, case)) for case in cases[1:]]
    overheads = [1_000 * (judged["wall_s"] - judged["held_s"]) for judged in rest]
    # A shared page counts by its share.
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    mib = next(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024
    opened = {"open": first["wall_s"] - first["held_s"], "open_cpu": cpu}
    return opened | {"overhead": statistics.median(overheads), "best": min(overheads), "mib": mib}


def worker(place: str, sizes: Sizes, seed: int) -> list[tuple[float, float, str]]:
    """Judge at a steady rate; returns each judgment's start, end and version of the memory."""
    cases = plan.cases(int(sizes.per_second * sizes.seconds), seed)

    async def judge_all() -> list[tuple[float, float, str]]:
        async with open_store_async(place) as store:
            graph = compiled(create_judge_graph, store)
            await graph.ainvoke(cases[0])  # warms up
            beginning, limit = time.monotonic(), asyncio.Semaphore(_JOBS)

            async def judge(number: int, case: dict[str, Any]) -> tuple[float, float, str]:
                due = beginning + number / sizes.per_second
                await asyncio.sleep(due - time.monotonic())
                async with limit:
                    start = time.monotonic()
                    judgment = (await graph.ainvoke(case))["judgment"]
                    return start, time.monotonic(), judgment["memory_version"]

            return await asyncio.gather(*(judge(*numbered) for numbered in enumerate(cases)))

    return asyncio.run(judge_all())


def learner(place: str, seconds: float, seed: int) -> list[tuple[float, str]]:
    """Learn from one record after the other; returns the time of each new version."""
    learned, until = list[tuple[float, str]](), time.monotonic() + seconds
    records = iter(plan.records(int(seconds) * 10, seed))
    with open_store(place) as store:
        graph = compiled(create_alignment_graph, store)
        while time.monotonic() < until and (record := next(records, None)):
            feedback = [{**record, "author": f"expert {seed}"}]
            report = graph.invoke({"feedback": feedback})["report"]
            learned.append((time.monotonic(), report["memory_version_after"]))
    return learned


def workers_and_learners(place: str, sizes: Sizes) -> Numbers:
    """Let workers judge with one memory while two others learn."""
    with _processes(sizes.workers + 2) as pool:
        learning = [pool.submit(learner, place, sizes.seconds + 5, 90 + n) for n in range(2)]
        working = [pool.submit(worker, place, sizes, 10 + n) for n in range(sizes.workers)]
        judged = [judgment for work in working for judgment in work.result()]
        learned = [when for lesson in learning for when in lesson.result()]
    with open_store(place) as store:
        commits = JudgeMemory(store, CRITERION, embeddings=_EMBEDDINGS).history()
    order = {commit.version: number for number, commit in enumerate(reversed(commits))}
    stale = 0
    for start, _, version in judged:
        known = [order[newer] for when, newer in learned if when < start]
        stale += order[version] < max(known, default=0)
    took = sorted(end - start for start, end, _ in judged)
    span = max(end for _, end, _ in judged) - min(start for start, _, _ in judged)
    times = {"p50": statistics.median(took), "p95": took[int(0.95 * len(took))]}
    counts = {"stale": stale, "judgments": len(judged), "lessons": len(learned)}
    return {"rate": len(judged) / span, **times, **counts}


def _processes(count: int = 1) -> ProcessPoolExecutor:
    return ProcessPoolExecutor(count, multiprocessing.get_context("spawn"))


def in_subprocess(work: Callable[..., Any], *arguments: Any) -> Any:
    with _processes() as pool:
        return pool.submit(work, *arguments).result()


def run(sizes: Sizes, parts: Sequence[str], folder: Path, server: str) -> Iterator[str]:
    """Run some parts; yields a table for each."""
    own = dict.fromkeys(("OPENAI_BASE_URL", "OPENAI_API_BASE"), server)
    os.environ.update(own, OPENAI_API_KEY="none", LANGSMITH_TRACING="false", NO_PROXY="127.0.0.1")
    with postgres.server() as cluster:
        for part in parts:
            rows = dict(_PARTS[part](sizes, folder, cluster, server))
            cells = [[name, *map(_format, row.values())] for name, row in rows.items()]
            yield plan.markdown_table([part, *next(iter(rows.values()))], cells)


def _stores(sizes: Sizes, folder: Path, cluster: str, server: str) -> Iterator[tuple[str, Numbers]]:
    for count in sizes.episodes:
        arguments = count, sizes.judgments, server
        yield f"{count:,} in memory", in_subprocess(open_and_judge, None, *arguments)
        with postgres.database(cluster) as database:
            for kind, place in (("SQLite", str(folder / f"{count}.db")), ("Postgres", database)):
                in_subprocess(fill_store, place, count)
                yield f"{count:,} in {kind}", in_subprocess(open_and_judge, place, *arguments)


def _workers(sizes: Sizes, _: Path, cluster: str, __: str) -> Iterator[tuple[str, Numbers]]:
    with postgres.database(cluster) as place:
        in_subprocess(fill_store, place, max(sizes.episodes) // 10)
        yield f"{sizes.workers} x {sizes.per_second}/s", workers_and_learners(place, sizes)


_PARTS: dict[str, Callable[..., Iterator[tuple[str, Numbers]]]] = {
    "stores": _stores,
    "workers": _workers,
}


def _format(number: float) -> str:
    return f"{number:,.0f}" if abs(number) >= 100 else f"{number:.3g}"  # noqa: PLR2004 - three digits
