"""Ours and the peer side by side: `python -m benchmarks`."""

import argparse
import json
import os
import platform
import shutil
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.plan import (
    PEER_VENV,
    QUICK,
    SIZES,
    Results,
    markdown_table,
    peer_python,
    run_side,
    serving,
)


class Row(NamedTuple):
    """A row of the table."""

    group: str
    title: str  # a format of the sizes
    source: str  # the measurements
    key: str = "wall_s"  # the number in them
    unit: str = "s"
    digits: int = 2
    best: Callable[[list[float]], float] = min

    def show(self, results: Results) -> str:
        """Return the median of one side's measurements, with the best in brackets."""
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
GROUPS = ",".join(dict.fromkeys(row.group for row in ROWS))


def add_derived(results: Results, sizes: dict[str, int]) -> None:
    """Add the numbers that come from several measurements; see the README."""
    judged = results.get("judge", [])
    if not judged:
        return
    prompts = [prompt for measured in judged for prompt in measured["prompts"]]
    # What the first and the last in order share, all between them share, too.
    prefix = len(os.path.commonprefix([min(prompts), max(prompts)]))  # noqa: RUF071 - of texts
    for measured in judged:
        measured["overhead"] = 1_000 * (measured["wall_s"] - measured["held_s"])
        measured["prefix"] = prefix / statistics.mean(map(len, prompts))
    latency = statistics.median(measured["held_s"] for measured in judged)
    for measured in [*results.get("concurrent", []), *results.get("concurrent_async", [])]:
        measured["share"] = sizes["concurrent"] / sizes["at_once"] * latency / measured["wall_s"]


def run_sides(options: argparse.Namespace, sizes: dict[str, int], server: str) -> list[Results]:
    """Measure ours, the peer, and the peer with a warm cache, one after the other."""
    peer = None if options.no_peer else peer_python(options.peer_venv)
    measured: list[Results] = []
    for side, cache in (("ours", False), ("peer", False), ("peer", True)):
        python = peer if side == "peer" else sys.executable
        # A cache only changes rows in which something is done again.
        groups = [it for it in options.rows.split(",") if not cache or it in ("change", "reopen")]
        measured.append({})
        if python is None or not groups:
            continue
        folder = options.results.absolute() / "work" / f"{side}{'-cached' if cache else ''}"
        folder.mkdir(parents=True)
        job: dict[str, Any] = {"server": server, "folder": str(folder), "groups": groups, **sizes}
        attempts = range(sizes["repeats"] if "reopen" in groups else 0)
        for what, attempt in [("session", 0), *(("reopen", attempt) for attempt in attempts)]:
            job |= {"what": what, "attempt": attempt, "cache": cache}
            print(f"{folder.name}: {what} ...", end="", flush=True)
            start, file = time.perf_counter(), folder / f"{what}.json"
            run_side(python, side, [json.dumps(job), str(file)], server, folder)
            print(f" {time.perf_counter() - start:.0f} s", flush=True)
            for row, values in json.loads(file.read_text()).items():
                measured[-1].setdefault(row, []).extend(values)
    for results in measured:
        add_derived(results, sizes)
    return measured


def main() -> None:
    """Measure both sides, and write a table and all measurements."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=main.__doc__)
    add, here = parser.add_argument, Path(__file__).parent
    add("--scale", nargs="?", const="stores,workers", help="one memory and many workers: parts")
    add("--quick", action="store_true", help="small sizes, which only show that it runs")
    add("--no-peer", action="store_true", help="measure this package alone")
    add("--rows", default=GROUPS, help="groups of rows; by default all")
    add("--peer-venv", type=Path, default=PEER_VENV, help="created if it is missing")
    add("--results", type=Path, default=here / "results", help="the folder to write to")
    options = parser.parse_args()
    if unknown := {*options.rows.split(",")} - {*GROUPS.split(",")}:
        parser.error(f"--rows: {', '.join(unknown)}: there is {GROUPS}")
    work = options.results / "work"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    with serving() as server:
        if options.scale:
            from benchmarks import scale

            amount = scale.QUICK if options.quick else scale.Sizes()
            for table in scale.run(amount, options.scale.split(","), work, server):
                print(f"{table}\n", flush=True)
            return
        sizes = SIZES | (QUICK if options.quick else {})
        sides = run_sides(options, sizes, server)
    titles = {name: f"{value:,}" for name, value in sizes.items()}
    rows = [
        [row.title.format(**titles), *map(row.show, sides)]
        for row in ROWS
        if row.group in options.rows.split(",")
    ]
    text = (
        f"`{' '.join(['python -m benchmarks', *sys.argv[1:]])}` on {os.cpu_count()} cores, "
        f"{platform.system()}, Python {platform.python_version()}, load average "
        f"{os.getloadavg()[0]:.1f}. The median of {sizes['repeats']}, of judgments one by one "
        f"{sizes['judgments']}, with the best in brackets.\n\n"
        f"{markdown_table(['', 'ours', 'peer', 'peer, cache warm'], rows)}\n"
    )
    file = options.results / ("quick.md" if options.quick else "results.md")
    file.write_text(text, encoding="utf-8")
    file.with_suffix(".json").write_text(json.dumps(sides), encoding="utf-8")
    shutil.rmtree(work)
    print(text)


if __name__ == "__main__":
    main()
