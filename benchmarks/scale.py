"""One memory and many workers: `python -m benchmarks --scale`.

Each part runs in processes of its own, on stores that hold the same records.
"""

import asyncio
import multiprocessing
import os
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, nullcontext
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from langchain_core.embeddings import Embeddings
from langchain_openai import ChatOpenAI
from langgraph.store.base import BaseStore
from langgraph.store.memory import InMemoryStore

from benchmarks import data, plan
from benchmarks.ours import CRITERION
from memalign_graph import JudgeMemory, create_alignment_graph, create_judge_graph
from memalign_graph.local.stores import open_store, open_store_async
from tests import postgres

_DIMENSIONS = 512
_AT_ONCE = 5_000  # how many episodes are remembered in one go
_GUIDELINES = 20
_JOBS = 10  # that a worker has under way, as an Agent Server's has


class Sizes(NamedTuple):
    """How much each part does."""

    episodes: tuple[int, ...] = (1_000, 10_000, 100_000)
    judgments: int = 30
    workers: int = 8
    per_second: int = 50
    seconds: float = 30.0


QUICK = Sizes((200,), 3, 2, 5, 4.0)
"""Sizes that show only that everything runs."""


class Drawn(Embeddings):
    """Directions drawn from a hash of the text, around one of a thousand centres."""

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        """Embed without a call."""
        return [self.embed_query(text) for text in texts]

    def embed_query(self, text: str) -> list[float]:
        """Embed one text."""
        seed = int.from_bytes(blake2b(text.encode(), digest_size=8).digest())
        centre, own = (
            np.random.default_rng(of).standard_normal(_DIMENSIONS) for of in (seed % 1_000, seed)
        )
        drawn: list[float] = (centre + own).tolist()
        return drawn


_OPTIONS: Any = {"embeddings": Drawn()}


class Timed(NamedTuple):
    """A judgment: when it began and ended, and the version it was made with."""

    began: float
    ended: float
    version: str


def memory_in(store: BaseStore, number: int = 0) -> JudgeMemory:
    """Return one of a store's memories."""
    return JudgeMemory(store, _criterion(number), **_OPTIONS)


def _criterion(number: int) -> Any:
    return CRITERION.model_copy(update={"name": f"{CRITERION.name}_{number}"})


def _feedback(record: data.Record, author: str = "ann") -> dict[str, Any]:
    said = {"value": record.value, "rationale": record.rationale, "author": author}
    return record.case | said


def fill(store: BaseStore, count: int, number: int = 0) -> JudgeMemory:
    """Fill a memory."""
    memory, records = memory_in(store, number), data.records(count, seed=number + 1)
    for first in range(0, count, _AT_ONCE):
        memory.remember([_feedback(record) for record in records[first : first + _AT_ONCE]])
    for at in range(_GUIDELINES):
        memory.add_guideline(data.guideline_text(at))
    return memory


def judge_graph(store: BaseStore, number: int = 0) -> Any:
    """Return the graph that judges by one of a store's memories."""
    model = ChatOpenAI(model=plan.MODEL, max_retries=0)
    return create_judge_graph(_criterion(number), model=model, **_OPTIONS).compile(store=store)


def filling(place: str, count: int) -> None:
    """Fill a memory in a process of its own."""
    with open_store(place) as store:
        fill(store, count)


def judging(place: str | None, count: int, judgments: int, server: str) -> dict[str, float]:
    """Open a memory that another process filled, and judge with it."""
    remote = plan.Remote(server)
    with nullcontext(InMemoryStore()) if place is None else open_store(place) as store:
        if place is None:
            fill(store, count)
        graph, cases = judge_graph(store), [one.case for one in data.records(judgments + 1, seed=2)]
        cpu, first = time.process_time(), remote.measure(partial(graph.invoke, cases[0]))
        cpu = time.process_time() - cpu
        rest = [remote.measure(partial(graph.invoke, case)) for case in cases[1:]]
    overheads = [1_000 * (one["wall_s"] - one["held_s"]) for one in rest]
    opened = {"open": first["wall_s"] - first["held_s"], "open_cpu": cpu}
    return opened | {"overhead": statistics.median(overheads), "best": min(overheads), "mib": mib()}


def mib() -> float:
    """Return how much memory of its own this process has: shared pages count by their share."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024


def worker(place: str, sizes: Sizes, seed: int) -> list[Timed]:
    """Judge at a steady rate, for some seconds."""
    return asyncio.run(_worker(place, sizes, seed))


async def _worker(place: str, sizes: Sizes, seed: int) -> list[Timed]:
    cases = [one.case for one in data.records(int(sizes.per_second * sizes.seconds), seed=seed)]
    async with open_store_async(place) as store:
        graph = judge_graph(store)
        await graph.ainvoke(cases[0])  # warms up
        start = time.monotonic()

        limit = asyncio.Semaphore(_JOBS)

        async def judge(number: int, case: dict[str, Any]) -> Timed:
            due = start + number / sizes.per_second
            await asyncio.sleep(due - time.monotonic())
            async with limit:
                began = time.monotonic()
                judgment = (await graph.ainvoke(case))["judgment"]
                return Timed(began, time.monotonic(), judgment["memory_version"])

        return await asyncio.gather(*(judge(*numbered) for numbered in enumerate(cases)))


def learner(place: str, seconds: float, seed: int) -> list[tuple[float, str]]:
    """Learn from one more record again and again; returns when what version was there."""
    model, learned = ChatOpenAI(model=plan.MODEL, max_retries=0), list[tuple[float, str]]()
    with open_store(place) as store:
        graph: Any = create_alignment_graph(_criterion(0), model=model, **_OPTIONS).compile(
            store=store
        )
        until = time.monotonic() + seconds
        for record in data.records(int(seconds) * 10, seed=seed):
            if time.monotonic() > until:
                break
            report = graph.invoke({"feedback": [_feedback(record, f"expert {seed}")]})["report"]
            learned.append((time.monotonic(), report["memory_version_after"]))
    return learned


def crowd(place: str, sizes: Sizes) -> dict[str, float]:
    """Have workers judge on one memory while two others learn."""
    with _processes(sizes.workers + 2) as pool:
        learning = [pool.submit(learner, place, sizes.seconds + 5, 90 + at) for at in range(2)]
        working = [pool.submit(worker, place, sizes, 10 + at) for at in range(sizes.workers)]
        judged = [one for work in working for one in work.result()]
        learned = sorted(when for lesson in learning for when in lesson.result())
    with open_store(place) as store:
        commits = memory_in(store).history()
    order = {commit.version: at for at, commit in enumerate(reversed(commits))}
    stale = 0
    for one in judged:
        known = [order[version] for when, version in learned if when < one.began]
        stale += order[one.version] < max(known, default=0)
    took = sorted(one.ended - one.began for one in judged)
    span = max(one.ended for one in judged) - min(one.began for one in judged)
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


def apart(work: Callable[..., Any], *arguments: Any) -> Any:
    """Do some work in a process of its own."""
    with _processes() as pool:
        return pool.submit(work, *arguments).result()


def run(sizes: Sizes, parts: Sequence[str], folder: Path, server: str) -> Iterator[str]:
    """Do some parts; yields a table each."""
    own = dict.fromkeys(("OPENAI_BASE_URL", "OPENAI_API_BASE"), server)
    os.environ.update(own, OPENAI_API_KEY="none", LANGSMITH_TRACING="false", NO_PROXY="127.0.0.1")
    with postgres.server() as cluster:
        measured: dict[str, Callable[[], dict[str, Any]]] = {
            "stores": lambda: _stores(sizes, folder, cluster, server),
            "workers": lambda: _crowded(sizes, cluster),
        }
        for part in parts:
            yield _table(part, measured[part]())


def _stores(sizes: Sizes, folder: Path, cluster: str, server: str) -> dict[str, dict[str, float]]:
    rows = {}
    for count in sizes.episodes:
        told = count, sizes.judgments, server
        rows[f"{count:,} in memory"] = apart(judging, None, *told)
        with postgres.database(cluster) as database:
            for kind, place in (("SQLite", str(folder / f"{count}.db")), ("Postgres", database)):
                apart(filling, place, count)
                rows[f"{count:,} in {kind}"] = apart(judging, place, *told)
    return rows


def _crowded(sizes: Sizes, cluster: str) -> dict[str, Any]:
    with postgres.database(cluster) as place:
        apart(filling, place, max(sizes.episodes) // 10)
        return {f"{sizes.workers} x {sizes.per_second}/s": crowd(place, sizes)}


def _table(title: str, rows: Mapping[str, Mapping[str, Any]]) -> str:
    names = list(next(iter(rows.values())))
    lines = [f"| {' | '.join([title, *names])} |", f"|---|{'---:|' * len(names)}"]
    for name, row in rows.items():
        cells = [one if isinstance(one, str) else _shown(one) for one in row.values()]
        lines.append(f"| {' | '.join([name, *cells])} |")
    return "\n".join(lines)


def _shown(number: float) -> str:
    return f"{number:,.0f}" if abs(number) >= 100 else f"{number:.3g}"  # noqa: PLR2004 - three digits
