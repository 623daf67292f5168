"""Ours and the peer side by side: `python -m benchmarks`."""

import argparse
import itertools
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
    SIZES,
    Measured,
    Results,
    peer_python,
    run_side,
    serving,
)


class Row(NamedTuple):
    """A quantity that both sides are measured by."""

    group: str
    title: str  # sizes are filled in
    unit: str
    source: str  # which measurements it is read off
    read: Callable[[Measured], float]
    digits: int = 2
    higher: bool = False  # whether higher is better

    def show(self, results: Results) -> str:
        """Write the median of one side's measurements, and the best of them in brackets."""
        values = [self.read(one) for one in results.get(self.source, [])]
        if not values:
            return ""
        numbers = (statistics.median(values), (max if self.higher else min)(values))
        median, best = (f"{number:,.{self.digits}f}" for number in numbers)
        return f"{median}{f' ({best})' if best != median else ''} {self.unit}".rstrip()


def _wall_s(measured: Measured) -> float:
    return float(measured["wall_s"])


def _overhead_ms(measured: Measured) -> float:
    """Return what a judgment took besides the server's time: its requests follow one another."""
    return 1_000 * (float(measured["wall_s"]) - float(measured["held_s"]))


def _counted(name: str) -> Callable[[Measured], float]:
    return lambda measured: float(measured[name])


_TEXTS, _PROMPT = _counted("texts_embedded"), _counted("prompt_tokens")
_AT_ONCE = "{concurrent} judgments, {at_once} at once, share of the latency bound"
ROWS = (
    Row("align", "align {small}", "s", "align_small", _wall_s),
    Row("align", "align {large}", "s", "align_large", _wall_s),
    Row("align", "align {large}, server without latency", "s", "align_zero", _wall_s),
    Row("align", "align {large}, prompt tokens", "", "align_large", _PROMPT, 0),
    Row("change", "one more on {large}, texts embedded", "", "one_more", _TEXTS, 0),
    Row("change", "one more on {large}", "s", "one_more", _wall_s),
    Row("change", "remove one of {large}, texts embedded", "", "remove_one", _TEXTS, 0),
    Row("change", "remove one of {large}", "s", "remove_one", _wall_s, 3),
    Row("reopen", "reopen {large} and judge, texts embedded", "", "reopen", _TEXTS, 0),
    Row("reopen", "reopen {large} and judge", "s", "reopen", _wall_s),
    Row("judge", "overhead of a judgment, {large} episodes", "ms", "judge", _overhead_ms, 1),
    Row("judge", "prompt tokens of a judgment", "", "judge", _PROMPT, 0),
    Row("judge", "share of it in common", "", "judge", _counted("prefix"), 2, True),
    Row("concurrency", _AT_ONCE, "", "concurrent", _counted("share"), 2, True),
    Row("panel", "one example, one criterion", "s", "panel_one", _wall_s),
    Row("panel", "one example, {criteria} criteria", "s", "panel", _wall_s),
    Row("scale", "overhead of a judgment, {scale} episodes", "ms", "scale", _overhead_ms, 1),
    Row("scale", "reopen {scale} and judge", "s", "scale_open", _wall_s, 1),
)
GROUPS = tuple(dict.fromkeys(row.group for row in ROWS))
"""The groups of rows."""


def as_markdown(groups: Sequence[str], sizes: dict[str, int], *sides: Results) -> str:
    """Write what was asked for and measured of ours, the peer, and the peer with a warm cache."""
    for results in sides:
        _add_shares(results, sizes)
    lines = ["| | ours | peer | peer, cache warm |", "|---|---:|---:|---:|"]
    filled = {name: f"{value:,}" for name, value in sizes.items()}
    for row in ROWS:
        if row.group in groups:
            cells = [row.title.format(**filled), *map(row.show, sides)]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _add_shares(results: Results, sizes: dict[str, int]) -> None:
    """Add what is worked out from several measurements.

    The share of their prompts that judgments have in common at the front; and how close many at
    once come to what latency alone allows: `judgments / at once * latency of one`.
    """
    judged = results.get("judge")
    if not judged:
        return
    prompts = [prompt for one in judged for prompt in one["prompts"]]
    # What the first and the last in order have in common, all between them have, too.
    pairs = zip(min(prompts), max(prompts), strict=False)
    common = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
    for one in judged:
        one["prefix"] = common / statistics.mean(map(len, prompts))
    latency = statistics.median(float(one["held_s"]) for one in judged)
    for one in results.get("concurrent", []):
        one["share"] = sizes["concurrent"] / sizes["at_once"] * latency / float(one["wall_s"])


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
            results = self._job(side, "session", cache=cache) if {*self.groups} - {"scale"} else {}
            for attempt in range(self.sizes["repeats"] if "reopen" in self.groups else 0):
                reopened = self._job(side, "reopen", attempt=attempt, cache=cache)
                results["reopen"] = results.get("reopen", []) + reopened.get("reopen", [])
            if side == "ours" and "scale" in self.groups:
                results |= self._job(side, "scale")
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
