"""Ours and the peer side by side: `python -m benchmarks`."""

import argparse
import json
import os
import platform
import shutil
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.plan import (
    PEER_VENV,
    QUICK,
    SCALE,
    SIZES,
    Results,
    peer_python,
    run_side,
    serving,
)


class Row(NamedTuple):
    """A quantity that both sides are measured by."""

    group: str
    title: str  # sizes are filled in
    source: str  # which measurements it is read off
    key: str = "wall_s"  # and which of their numbers
    unit: str = "s"
    digits: int = 2
    best: Callable[[list[float]], float] = min

    def show(self, results: Results) -> str:
        """Write the median of one side's measurements, and the best of them in brackets."""
        values = [float(measured[self.key]) for measured in results.get(self.source, [])]
        if not values:
            return ""
        numbers = (statistics.median(values), self.best(values))
        median, best = (f"{number:,.{self.digits}f}" for number in numbers)
        return f"{median}{f' ({best})' if best != median else ''} {self.unit}".rstrip()


_TEXTS, _TOKENS = ("texts_embedded", "", 0), ("prompt_tokens", "", 0)
_AT_ONCE = "{concurrent} judgments, {at_once} at once, share of the latency bound"
ROWS = (
    Row("align", "align {small}", "align_small"),
    Row("align", "align {large}", "align_large"),
    Row("align", "align {large}, server without latency", "align_zero"),
    Row("align", "align {large}, prompt tokens", "align_large", *_TOKENS),
    Row("change", "one more on {large}, texts embedded", "one_more", *_TEXTS),
    Row("change", "one more on {large}", "one_more"),
    Row("change", "remove one of {large}, texts embedded", "remove_one", *_TEXTS),
    Row("change", "remove one of {large}", "remove_one", digits=3),
    Row("reopen", "reopen {large} and judge, texts embedded", "reopen", *_TEXTS),
    Row("reopen", "reopen {large} and judge", "reopen"),
    Row("judge", "overhead of a judgment, {large} episodes", "judge", "overhead", "ms", 1),
    Row("judge", "prompt tokens of a judgment", "judge", *_TOKENS),
    Row("judge", "share of it in common", "judge", "prefix", "", 2, max),
    Row("concurrency", _AT_ONCE, "concurrent", "share", "", 2, max),
    Row("concurrency", "the same by `abatch`", "concurrent_async", "share", "", 2, max),
    Row("cpu", "processor time of a judgment, {at_once} at once", "cpu", "judged", "ms", 1),
    Row("cpu", "bare calls of both models, as many and as long", "cpu", "bare", "ms", 1),
    Row("cpu", "a judgment without the models' clients", "cpu", "without_clients", "ms", 1),
    Row("cpu", "of it LangGraph, an empty graph", "cpu", "langgraph", "ms", 1),
    Row("cpu", "of it LangChain, a bare call", "cpu", "langchain", "ms", 1),
    Row("cpu", "of it ours", "cpu", "own", "ms", 1),
    Row("panel", "one example, one criterion", "panel_one"),
    Row("panel", "one example, {criteria} criteria", "panel"),
)
GROUPS = tuple(dict.fromkeys(row.group for row in ROWS))
"""The groups of rows."""


def as_markdown(groups: Sequence[str], sizes: dict[str, int], *sides: Results) -> str:
    """Write what was asked for and measured of ours, the peer, and the peer with a warm cache."""
    for results in sides:
        _work_out(results, sizes)
    lines = ["| | ours | peer | peer, cache warm |", "|---|---:|---:|---:|"]
    filled = {name: f"{value:,}" for name, value in sizes.items()}
    for row in ROWS:
        if row.group in groups:
            cells = [row.title.format(**filled), *map(row.show, sides)]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _work_out(results: Results, sizes: dict[str, int]) -> None:
    """Add what is worked out from several measurements; see the README."""
    judged = results.get("judge", [])
    for one in judged:
        one["overhead"] = 1_000 * (one["wall_s"] - one["held_s"])
    if not judged:
        return
    prompts = [prompt for one in judged for prompt in one["prompts"]]
    # What the first and the last in order have in common, all between them have, too.
    pairs = zip(min(prompts), max(prompts), strict=False)
    common = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
    for one in judged:
        one["prefix"] = common / statistics.mean(map(len, prompts))
    latency = statistics.median(one["held_s"] for one in judged)
    for one in (*results.get("concurrent", []), *results.get("concurrent_async", [])):
        one["share"] = sizes["concurrent"] / sizes["at_once"] * latency / one["wall_s"]


class Bench:
    """One run of the benchmark: which rows, at which sizes, against which server."""

    def __init__(self, options: argparse.Namespace, sizes: dict[str, int], server: str) -> None:
        self.groups, self.sizes, self.server = options.rows, sizes, server
        self.folder: Path = options.results.absolute() / "work"
        self.peer = None if options.no_peer else peer_python(options.peer_venv)

    def run(self) -> list[Results]:
        """Measure ours, the peer, and the peer with a warm cache, one after the other."""
        sides = [("ours", False), ("peer", False), ("peer", True)]
        found = []
        for side, cache in sides:
            results = self._job(side, "session", cache=cache)
            for attempt in range(self.sizes["repeats"] if "reopen" in self.groups else 0):
                reopened = self._job(side, "reopen", attempt=attempt, cache=cache)
                results["reopen"] = results.get("reopen", []) + reopened.get("reopen", [])
            found.append(results)
        return found

    def _job(self, side: str, what: str, *, attempt: int = 0, cache: bool = False) -> Results:
        """Run one part in its own process; nothing comes of a side that is left out."""
        python = self.peer if side == "peer" else sys.executable
        # A cache changes nothing where nothing is done again.
        groups = [it for it in self.groups if not cache or it in ("change", "reopen")]
        if python is None or not groups:
            return {}
        folder = self.folder / f"{side}{'-cached' if cache else ''}"
        folder.mkdir(parents=True, exist_ok=True)
        job: dict[str, Any] = {"what": what, "server": self.server, "folder": str(folder)}
        job |= {"groups": groups, "attempt": attempt, "cache": cache, **self.sizes}
        print(f"{folder.name}: {what} ...", end="", flush=True)
        began, file = time.perf_counter(), folder / f"{what}.json"
        run_side(python, side, [json.dumps(job), str(file)], self.server, folder)
        print(f" {time.perf_counter() - began:.0f} s", flush=True)
        results: Results = json.loads(file.read_text())
        return results


def main() -> None:
    """Measure both sides, and write a table and all measurements."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=main.__doc__)
    add, here = parser.add_argument, Path(__file__).parent
    scaled = f"one memory and many workers: {','.join(SCALE)}, or all"
    add("--scale", nargs="?", const=",".join(SCALE), help=scaled)
    add("--quick", action="store_true", help="small sizes: only that it runs")
    add("--no-peer", action="store_true", help="measure this package alone")
    add("--rows", type=_groups, default=GROUPS, help=f"some groups of rows: {','.join(GROUPS)}")
    add("--repeats", type=int, help="how often each thing is timed")
    add("--peer-venv", type=Path, default=PEER_VENV, help="made where it is not there")
    add("--results", type=Path, default=here / "results", help="the folder to write to")
    options = parser.parse_args()
    work = options.results / "work"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    sizes = SIZES | (QUICK if options.quick else {})
    sizes["repeats"] = options.repeats or sizes["repeats"]
    load = os.getloadavg()[0]
    if options.scale:
        from benchmarks import scale

        with serving() as server:
            amount = scale.QUICK if options.quick else scale.Sizes()
            for table in scale.run(amount, options.scale.split(","), work, server):
                print(f"{table}\n", flush=True)
        return
    with serving() as server:
        sides = Bench(options, sizes, server).run()
    title = "Quick run: the sizes are too small to say anything" if options.quick else "Benchmark"
    text = (
        f"# {title}\n\n`{' '.join(['python -m benchmarks', *sys.argv[1:]])}` on {os.cpu_count()} "
        f"cores, {platform.system()}, Python {platform.python_version()}, load average {load:.1f} "
        f"before and {os.getloadavg()[0]:.1f} after. The median of {sizes['repeats']}, of "
        f"judgments one by one {sizes['judgments']}, with the best in brackets. [What each row "
        f"means](../README.md).\n\n{as_markdown(options.rows, sizes, *sides)}\n"
    )
    file = options.results / ("quick.md" if options.quick else "results.md")
    file.write_text(text, encoding="utf-8")
    file.with_suffix(".json").write_text(json.dumps(sides), encoding="utf-8")
    shutil.rmtree(work)
    print(text)
    print(f"Written to {file} and {file.with_suffix('.json').name}.")


def _groups(text: str) -> tuple[str, ...]:
    groups = tuple(text.split(","))
    if unknown := {*groups} - {*GROUPS}:
        raise argparse.ArgumentTypeError(f"{', '.join(unknown)}: there is {', '.join(GROUPS)}")
    return groups


if __name__ == "__main__":
    main()
