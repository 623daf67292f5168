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
from contextlib import contextmanager, nullcontext
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


class Sizes(NamedTuple):
    """Sizes of the parts."""

    episodes: tuple[int, ...] = (1_000, 10_000, 100_000)
    judgments: int = 30
    workers: int = 8
    per_second: int = 50
    seconds: float = 30.0


QUICK = Sizes((200,), 3, 2, 5, 4.0)
"""Sizes that only show that everything runs."""


_OPTIONS: Any = {"embeddings": DeterministicFakeEmbedding(size=plan.DIMENSIONS)}


class Timed(NamedTuple):
    """A judgment's times, and the memory's version that it used."""

    start: float
    end: float
    version: str


def fill(store: BaseStore, count: int) -> None:
    memory, records = JudgeMemory(store, CRITERION, **_OPTIONS), plan.records(count)
    for start in range(0, count, _BATCH):
        memory.remember([record.feedback() for record in records[start : start + _BATCH]])
    for number in range(_GUIDELINES):
        memory.add_guideline(plan.guideline_text(number))


def judge_graph(store: BaseStore) -> Any:
    model = ChatOpenAI(model=plan.MODEL, max_retries=0)
    return create_judge_graph(CRITERION, model=model, **_OPTIONS).compile(store=store)


def fill_store(place: str, count: int) -> None:
    with open_store(place) as store:
        fill(store, count)


def open_and_judge(place: str | None, count: int, judgments: int, server: str) -> dict[str, float]:
    """Open a memory that another process filled, or fill one in memory, and judge with it."""
    measure = plan.ServerControl(server).measure
    cases = [record.case for record in plan.records(judgments + 1, seed=2)]
    with nullcontext(InMemoryStore()) if place is None else open_store(place) as store:
        if place is None:
            fill(store, count)
        graph = judge_graph(store)
        cpu, first = time.process_time(), measure(partial(graph.invoke, cases[0]))
        cpu = time.process_time() - cpu
        rest = [measure(partial(graph.invoke, case)) for case in cases[1:]]
    overheads = [1_000 * (judged["wall_s"] - judged["held_s"]) for judged in rest]
    opened = {"open": first["wall_s"] - first["held_s"], "open_cpu": cpu}
    return opened | {"overhead": statistics.median(overheads), "best": min(overheads), "mib": mib()}


def mib() -> float:
    """Return this process's memory; a shared page counts by its share."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024


def worker(place: str, sizes: Sizes, seed: int) -> list[Timed]:
    """Judge at a steady rate for some seconds."""
    return asyncio.run(_worker(place, sizes, seed))


async def _worker(place: str, sizes: Sizes, seed: int) -> list[Timed]:
    count = int(sizes.per_second * sizes.seconds)
    cases = [record.case for record in plan.records(count, seed=seed)]
    async with open_store_async(place) as store:
        graph = judge_graph(store)
        await graph.ainvoke(cases[0])  # warms up
        beginning, limit = time.monotonic(), asyncio.Semaphore(_JOBS)

        async def judge(number: int, case: dict[str, Any]) -> Timed:
            due = beginning + number / sizes.per_second
            await asyncio.sleep(due - time.monotonic())
            async with limit:
                start = time.monotonic()
                judgment = (await graph.ainvoke(case))["judgment"]
                return Timed(start, time.monotonic(), judgment["memory_version"])

        return await asyncio.gather(*(judge(*numbered) for numbered in enumerate(cases)))


def learner(place: str, seconds: float, seed: int) -> list[tuple[float, str]]:
    """Learn from one record after the other; returns the time of each new version."""
    model, learned = ChatOpenAI(model=plan.MODEL, max_retries=0), list[tuple[float, str]]()
    with open_store(place) as store:
        builder = create_alignment_graph(CRITERION, model=model, **_OPTIONS)
        graph: Any = builder.compile(store=store)
        until = time.monotonic() + seconds
        for record in plan.records(int(seconds) * 10, seed=seed):
            if time.monotonic() > until:
                break
            report = graph.invoke({"feedback": [record.feedback(f"expert {seed}")]})["report"]
            learned.append((time.monotonic(), report["memory_version_after"]))
    return learned


def workers_and_learners(place: str, sizes: Sizes) -> dict[str, float]:
    """Let workers judge with one memory while two others learn."""
    with _processes(sizes.workers + 2) as pool:
        learning = [pool.submit(learner, place, sizes.seconds + 5, 90 + n) for n in range(2)]
        working = [pool.submit(worker, place, sizes, 10 + n) for n in range(sizes.workers)]
        judged = [judgment for work in working for judgment in work.result()]
        learned = sorted(when for lesson in learning for when in lesson.result())
    with open_store(place) as store:
        commits = JudgeMemory(store, CRITERION, **_OPTIONS).history()
    order = {commit.version: number for number, commit in enumerate(reversed(commits))}
    stale = 0
    for judgment in judged:
        known = [order[version] for when, version in learned if when < judgment.start]
        stale += order[judgment.version] < max(known, default=0)
    took = sorted(judgment.end - judgment.start for judgment in judged)
    span = max(item.end for item in judged) - min(item.start for item in judged)
    return {
        "rate": len(judged) / span,
        "p50": statistics.median(took),
        "p95": took[int(0.95 * len(took))],
        "stale": stale,
        "judgments": len(judged),
        "lessons": len(learned),
    }


@contextmanager
def _processes(count: int = 1) -> Iterator[ProcessPoolExecutor]:
    with ProcessPoolExecutor(count, multiprocessing.get_context("spawn")) as pool:
        yield pool


def in_subprocess(work: Callable[..., Any], *arguments: Any) -> Any:
    with _processes() as pool:
        return pool.submit(work, *arguments).result()


def run(sizes: Sizes, parts: Sequence[str], folder: Path, server: str) -> Iterator[str]:
    """Run some parts; yields a table for each."""
    own = dict.fromkeys(("OPENAI_BASE_URL", "OPENAI_API_BASE"), server)
    os.environ.update(own, OPENAI_API_KEY="none", LANGSMITH_TRACING="false", NO_PROXY="127.0.0.1")
    with postgres.server() as cluster:
        measured: dict[str, Callable[[], dict[str, dict[str, float]]]] = {
            "stores": lambda: _stores(sizes, folder, cluster, server),
            "workers": lambda: _workers(sizes, cluster),
        }
        for part in parts:
            rows = measured[part]()
            head = [part, *next(iter(rows.values()))]
            cells = [[name, *map(_format, row.values())] for name, row in rows.items()]
            yield plan.markdown_table(head, cells)


def _stores(sizes: Sizes, folder: Path, cluster: str, server: str) -> dict[str, dict[str, float]]:
    rows = {}
    for count in sizes.episodes:
        arguments = count, sizes.judgments, server
        rows[f"{count:,} in memory"] = in_subprocess(open_and_judge, None, *arguments)
        with postgres.database(cluster) as database:
            for kind, place in (("SQLite", str(folder / f"{count}.db")), ("Postgres", database)):
                in_subprocess(fill_store, place, count)
                rows[f"{count:,} in {kind}"] = in_subprocess(open_and_judge, place, *arguments)
    return rows


def _workers(sizes: Sizes, cluster: str) -> dict[str, dict[str, float]]:
    with postgres.database(cluster) as place:
        in_subprocess(fill_store, place, max(sizes.episodes) // 10)
        return {f"{sizes.workers} x {sizes.per_second}/s": workers_and_learners(place, sizes)}


def _format(number: float) -> str:
    return f"{number:,.0f}" if abs(number) >= 100 else f"{number:.3g}"  # noqa: PLR2004 - three digits
