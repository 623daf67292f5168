"""Ours and the peer side by side: `python -m benchmarks`."""

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.plan import QUICK, SIZES, Results
from benchmarks.processes import (
    ROOT,
    environment,
    install_ours,
    measure_import,
    measure_install,
    peer_python,
    serving,
)
from benchmarks.rows import GROUPS, as_markdown


class Bench:
    """One run of the benchmark: which rows, at which sizes, against which server."""

    def __init__(self, options: argparse.Namespace, sizes: dict[str, int], server: str) -> None:
        self.groups, self.sizes, self.server = options.rows, sizes, server
        self.folder: Path = options.results.absolute() / "work"
        self.peer = None if options.no_peer else peer_python(options.peer_venv)

    def run(self) -> tuple[Results, Results, Results]:
        """Measure ours, the peer, and the peer with a warm cache, one after the other."""
        ours, peer, cached = Results(), Results(), Results()
        if set(self.groups) & {"align", "judge", "panel", "concurrency", "change", "reopen"}:
            ours |= self._job("ours", "session")
            peer |= self._job("peer", "session")
            cached |= self._job("peer", "session", cache=True)
        if "reopen" in self.groups:
            for attempt in range(self.sizes["repeats"]):
                for side, results in (("ours", ours), ("peer", peer), ("peer", cached)):
                    found = self._job(side, "reopen", attempt=attempt, cache=results is cached)
                    results["reopen"] = results.get("reopen", []) + found.get("reopen", [])
        if "scale" in self.groups:
            ours |= self._job("ours", "scale")
        if "import" in self.groups:
            ours["import"] = measure_import(Path(sys.executable), "memalign_graph")
            if self.peer:
                peer["import"] = measure_import(self.peer, "mlflow.genai.judges.optimizers")
        if "install" in self.groups:
            ours["install"] = [measure_install(install_ours(self.folder / "venv"))]
            if self.peer:
                peer["install"] = [measure_install(self.peer)]
        return ours, peer, cached

    def _job(self, side: str, what: str, *, attempt: int = 0, cache: bool = False) -> Results:
        """Run one part in its own process; nothing comes of a side that is left out."""
        python = self.peer if side == "peer" else Path(sys.executable)
        # Only what is done again profits from a cache.
        groups = [it for it in self.groups if not cache or it in ("change", "reopen")]
        if python is None or not groups:
            return {}
        folder = self.folder / f"{side}{'-cached' if cache else ''}"
        folder.mkdir(parents=True, exist_ok=True)
        job: dict[str, Any] = {
            "what": what,
            "server": self.server,
            "folder": str(folder),
            "groups": groups,
        }
        job |= {"attempt": attempt, "cache": cache, **self.sizes}
        results, log = folder / f"{what}.json", folder / "log.txt"
        print(f"{folder.name}: {what} ...", end="", flush=True)
        began = time.perf_counter()
        command = [str(python), "-m", f"benchmarks.{side}", json.dumps(job), str(results)]
        variables = environment(self.server, folder)
        with log.open("a") as output:
            code = subprocess.call(
                command, cwd=ROOT, env=variables, stdout=output, stderr=subprocess.STDOUT
            )
        if code != 0:
            tail = "\n".join(log.read_text().splitlines()[-15:])
            raise RuntimeError(f"{side}, {what}: the run failed; the end of {log}:\n{tail}")
        print(f" {time.perf_counter() - began:.0f} s", flush=True)
        measured: Results = json.loads(results.read_text())
        return measured


def main() -> None:
    """Measure both sides, and write a table and all measurements."""
    options = _options()
    shutil.rmtree(options.results / "work", ignore_errors=True)
    (options.results / "work").mkdir(parents=True)
    sizes = SIZES | (QUICK | {"repeats": 1} if options.quick else {})
    sizes["repeats"] = options.repeats or sizes["repeats"]
    load = os.getloadavg()[0]
    with serving() as server:
        results = Bench(options, sizes, server).run()
    machine = (
        f"{os.cpu_count()} cores, {platform.system()}, Python {platform.python_version()}, load "
        f"average {load:.1f} before and {os.getloadavg()[0]:.1f} after"
    )
    title = "Quick run: the sizes are too small to say anything" if options.quick else "Benchmark"
    made_by = f"`{' '.join(['python -m benchmarks', *sys.argv[1:]])}` on {machine}."
    text = f"# {title}\n\n{made_by}\n\n{as_markdown(options.rows, sizes, *results)}\n"
    file = options.results / ("quick.md" if options.quick else "results.md")
    file.write_text(text, encoding="utf-8")
    sides = dict(zip(("ours", "peer", "peer, cache warm"), results, strict=True))
    for measured in (one for side in sides.values() for some in side.values() for one in some):
        measured.pop("prompts", None)
    file.with_suffix(".json").write_text(json.dumps(sides, indent=1), encoding="utf-8")
    shutil.rmtree(options.results / "work")
    print(text)
    print(f"Written to {file} and {file.with_suffix('.json').name}.")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=main.__doc__)
    add, here = parser.add_argument, Path(__file__).parent
    add("--quick", action="store_true", help="small sizes: only that it runs")
    add("--no-peer", action="store_true", help="measure this package alone")
    add("--rows", type=_groups, default=GROUPS, help=f"some groups of rows: {','.join(GROUPS)}")
    add("--skip", type=_groups, default=(), help="groups to leave out; install takes longest")
    add("--repeats", type=int, help="how often each thing is timed")
    add("--peer-venv", type=Path, default=ROOT / ".venv-peer", help="made where it is not there")
    add("--results", type=Path, default=here / "results", help="the folder to write to")
    options = parser.parse_args()
    options.rows = [group for group in options.rows if group not in options.skip]
    return options


def _groups(text: str) -> tuple[str, ...]:
    groups = tuple(text.split(","))
    if unknown := set(groups) - set(GROUPS):
        raise argparse.ArgumentTypeError(f"{', '.join(unknown)}: there is {', '.join(GROUPS)}")
    return groups


if __name__ == "__main__":
    main()
