"""The CPU of a judgment in our process, client included: `python -m benchmarks.profile`.

The model server answers at once, in a process of its own. CPU time grows where other work shares
the cores, too: "the loop" is what one took in between that always does the same.
"""

import argparse
import asyncio
import cProfile
import os
import pstats
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks import data, environments, plan
from benchmarks.__main__ import serving

_BLOCKS = 5


def measure(graph: Any, cases: list[Any], top: int) -> None:
    """Print the CPU of a judgment in four ways, and what those by `ainvoke` spend it on."""
    at_once = {"max_concurrency": plan.Sizes().at_once}

    async def one_by_one(chosen: list[Any]) -> None:
        for case in chosen:
            await graph.ainvoke(case)

    ways: dict[str, Callable[[list[Any]], Any]] = {
        "invoke": lambda chosen: [graph.invoke(case) for case in chosen],
        "batch": lambda chosen: graph.batch(chosen, at_once),
        "ainvoke": lambda chosen: loop.run(one_by_one(chosen)),
        "abatch": lambda chosen: loop.run(graph.abatch(chosen, at_once)),
    }
    size = len(cases) // _BLOCKS
    taken = defaultdict(list)
    with asyncio.Runner() as loop:
        for way in ways.values():
            way(cases[:2])  # warms up
        for start in range(0, size * _BLOCKS, size):
            for name, way in ways.items():
                began = time.process_time()
                way(cases[start : start + size])
                taken[name].append((time.process_time() - began) / size)
                began = time.process_time()
                _ = [str(number) for number in range(100_000)]
                taken["the loop"].append(time.process_time() - began)
        for name, times in taken.items():
            print(f"{name:10}{1_000 * statistics.median(times):6.1f} ms")
        profile = cProfile.Profile()
        profile.runcall(ways["ainvoke"], cases)
    pstats.Stats(profile).sort_stats("tottime").print_stats(top)


def main() -> None:
    """Profile judgments against a memory as large as the benchmark's."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.profile", description=main.__doc__)
    parser.add_argument("--judgments", type=int, default=200, help="in each of four ways")
    parser.add_argument("--episodes", type=int, default=1_000, help="in memory")
    parser.add_argument("--top", type=int, default=30, help="functions shown")
    options = parser.parse_args()
    with serving() as remote, tempfile.TemporaryDirectory() as folder:
        os.environ |= environments.peer_environment(remote.base_url, Path(folder))
        from benchmarks.ours import Ours, case, feedback
        from memalign_graph.local import open_local_store

        job = plan.Job("ours", "session", remote.base_url, Path(folder), (), plan.Sizes())
        with remote.without_latency(), open_local_store(Path(folder) / "memory.db") as store:
            ours, records = Ours(job), data.records(options.episodes)
            ours.alignment_graph(store).invoke({"feedback": feedback(records)})
            cases = [case(record) for record in data.records(options.judgments, seed=2)]
            measure(ours.judge_graph(store), cases, options.top)


if __name__ == "__main__":
    main()
