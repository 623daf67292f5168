"""Ours and the peer side by side: `python -m benchmarks`."""

import argparse
import json
import os
import platform
import shutil
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.plan import QUICK, SIZES, Results
from benchmarks.processes import PEER_VENV, peer_python, run_side, serving
from benchmarks.rows import GROUPS, as_markdown


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
