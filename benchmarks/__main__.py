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
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.plan import (
    PEER_VENV,
    QUICK,
    SCALE,
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
GROUPS = tuple(dict.fromkeys(row.group for row in ROWS))


def as_markdown(groups: Sequence[str], sizes: dict[str, int], *sides: Results) -> str:
    """Return the rows of some groups: ours, the peer, and the peer with a warm cache."""
    for results in sides:
        _derive(results, sizes)
    titles = {name: f"{value:,}" for name, value in sizes.items()}
    rows = [
        [row.title.format(**titles), *(row.show(results) for results in sides)]
        for row in ROWS
        if row.group in groups
    ]
    return markdown_table(["", "ours", "peer", "peer, cache warm"], rows)


def _derive(results: Results, sizes: dict[str, int]) -> None:
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
    for key in ("concurrent", "concurrent_async"):
        for measured in results.get(key, []):
            bound = sizes["concurrent"] / sizes["at_once"] * latency
            measured["share"] = bound / measured["wall_s"]


def run_sides(options: argparse.Namespace, sizes: dict[str, int], server: str) -> list[Results]:
    """Measure ours, the peer, and the peer with a warm cache, one after the other."""
    peer = None if options.no_peer else peer_python(options.peer_venv)

    def run(side: str, what: str, *, attempt: int = 0, cache: bool = False) -> Results:
        """Run one part in its own process; returns nothing for a side that is left out."""
        python = peer if side == "peer" else sys.executable
        # A cache only changes rows in which something is done again.
        groups = [it for it in options.rows if not cache or it in ("change", "reopen")]
        if python is None or not groups:
            return {}
        folder = options.results.absolute() / "work" / f"{side}{'-cached' if cache else ''}"
        folder.mkdir(parents=True, exist_ok=True)
        job: dict[str, Any] = {"what": what, "server": server, "folder": str(folder)}
        job |= {"groups": groups, "attempt": attempt, "cache": cache, **sizes}
        print(f"{folder.name}: {what} ...", end="", flush=True)
        start, file = time.perf_counter(), folder / f"{what}.json"
        run_side(python, side, [json.dumps(job), str(file)], server, folder)
        print(f" {time.perf_counter() - start:.0f} s", flush=True)
        results: Results = json.loads(file.read_text())
        return results

    measured = []
    for side, cache in (("ours", False), ("peer", False), ("peer", True)):
        results = run(side, "session", cache=cache)
        for attempt in range(sizes["repeats"] if "reopen" in options.rows else 0):
            reopened = run(side, "reopen", attempt=attempt, cache=cache)
            results["reopen"] = results.get("reopen", []) + reopened.get("reopen", [])
        measured.append(results)
    return measured


def main() -> None:
    """Measure both sides, and write a table and all measurements."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=main.__doc__)
    add, here = parser.add_argument, Path(__file__).parent
    parts = f"one memory and many workers: {','.join(SCALE)}, or all"
    add("--scale", nargs="?", const=",".join(SCALE), help=parts)
    add("--quick", action="store_true", help="small sizes, which only show that it runs")
    add("--no-peer", action="store_true", help="measure this package alone")
    add("--rows", type=_groups, default=GROUPS, help=f"groups of rows: {','.join(GROUPS)}")
    add("--peer-venv", type=Path, default=PEER_VENV, help="created if it is missing")
    add("--results", type=Path, default=here / "results", help="the folder to write to")
    options = parser.parse_args()
    work = options.results / "work"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    sizes = SIZES | (QUICK if options.quick else {})
    load = os.getloadavg()[0]
    if options.scale:
        from benchmarks import scale

        with serving() as server:
            amount = scale.QUICK if options.quick else scale.Sizes()
            for table in scale.run(amount, options.scale.split(","), work, server):
                print(f"{table}\n", flush=True)
        return
    with serving() as server:
        sides = run_sides(options, sizes, server)
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
