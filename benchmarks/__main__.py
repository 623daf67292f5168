"""Ours and the peer side by side: `python -m benchmarks`."""

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks import environments, plot, table
from benchmarks.plan import GROUPS, Job, Sizes
from benchmarks.remote import Measured, Remote
from benchmarks.rows import with_shares

_IMPORTS = {
    "ours": "from memalign_graph import JudgeMemory, create_alignment_graph, create_judge_graph",
    "peer": "from mlflow.genai.judges import make_judge; "
    "from mlflow.genai.judges.optimizers import MemAlignOptimizer",
}

_IMPORT_REPEATS = 5

Results = dict[str, list[Measured]]


class Bench:
    """One run of the benchmark: which rows, at which sizes, against which server."""

    def __init__(self, options: argparse.Namespace, sizes: Sizes, server: Remote) -> None:
        self.groups: tuple[str, ...] = tuple(options.rows)
        self.sizes = sizes
        self.server = server
        self.folder: Path = options.results / "work"
        self.peer_python = None if options.no_peer else environments.ensure_peer(options.peer_venv)

    def run(self) -> tuple[Results, Results, Results]:
        """Measure everything asked for, one side after the other, part by part.

        Returns:
            Our measurements, the peer's, and the peer's with a warm cache.
        """
        ours: Results = {}
        peer: Results = {}
        cached: Results = {}
        if self._wants("align", "judge", "panel", "concurrency", "change", "reopen"):
            ours |= self._job("ours", "session")
            peer |= self._job("peer", "session")
            cached |= self._job("peer", "session", cache=True)
        if self._wants("reopen"):
            for attempt in range(self.sizes.repeats):
                _extend(ours, self._job("ours", "reopen", attempt=attempt))
                _extend(peer, self._job("peer", "reopen", attempt=attempt))
                _extend(cached, self._job("peer", "reopen", attempt=attempt, cache=True))
        if self._wants("scale"):
            ours |= self._job("scale", "scale")
        if self._wants("import"):
            ours["import"] = self._import("ours", Path(sys.executable))
            if self.peer_python:
                peer["import"] = self._import("peer", self.peer_python)
        if self._wants("install"):
            ours["install"] = self._install(
                environments.install_ours(self.folder / "venv"), "a clean environment"
            )
            if self.peer_python:
                peer["install"] = self._install(self.peer_python, "the peer's environment")
        return ours, peer, cached

    def _wants(self, *groups: str) -> bool:
        return any(group in self.groups for group in groups)

    def _job(self, module: str, what: str, *, attempt: int = 0, cache: bool = False) -> Results:
        """Run one part in its own process; nothing comes of a side that is left out."""
        python = self.peer_python if module == "peer" else Path(sys.executable)
        # Only what is done again profits from a cache.
        useful = ("change", "reopen") if cache else GROUPS
        groups = tuple(group for group in useful if group in self.groups)
        if python is None or not groups:
            return {}
        name = f"{module}{'-cached' if cache else ''}"
        job = Job(
            module=module,
            what=what,
            server=self.server.base_url,
            folder=(self.folder / name).absolute(),
            groups=groups,
            sizes=self.sizes,
            attempt=attempt,
            cache=cache,
        )
        path = self.folder / f"{name}-{what}.json"
        with _told(f"{name}: {what}"):
            environments.run_job(python, job, path.absolute())
        results: Results = json.loads(path.read_text())
        return results

    def _import(self, side: str, python: Path) -> list[Measured]:
        with _told(f"{side}: import"):
            times = environments.measure_import(python, _IMPORTS[side], _IMPORT_REPEATS)
        return [{"wall_s": seconds} for seconds in times]

    def _install(self, python: Path, what: str) -> list[Measured]:
        with _told(f"counting {what}"):
            return [dict(environments.measure_install(python))]


def main() -> None:
    """Measure both sides, and write a table, a picture and all measurements."""
    options = _options()
    load_before = os.getloadavg()[0]
    work = options.results / "work"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    sizes = Sizes().quick() if options.quick else Sizes()
    if options.repeats:
        sizes = replace(sizes, repeats=options.repeats)
    with serving() as server:
        ours, peer, cached = Bench(options, sizes, server).run()
    run = table.Run(
        sizes=sizes,
        groups=tuple(options.rows),
        quick=options.quick,
        machine=_machine(load_before),
        command=" ".join(["python -m benchmarks", *sys.argv[1:]]),
        ours=with_shares(ours, sizes),
        peer=with_shares(peer, sizes),
        peer_cached=with_shares(cached, sizes),
    )
    name = "quick" if options.quick else "results"
    text = table.as_markdown(run)
    (options.results / f"{name}.md").write_text(text)
    document = json.dumps(table.as_json(run), indent=1, ensure_ascii=False)
    (options.results / f"{name}.json").write_text(document)
    plot.draw(run, options.results / f"{name}.svg")
    if not options.keep:
        shutil.rmtree(work)
    print(text)
    print(f"Written to {options.results / name}.md, .json and .svg.")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=main.__doc__)
    parser.add_argument("--quick", action="store_true", help="small sizes: only that it runs")
    parser.add_argument("--no-peer", action="store_true", help="measure this package alone")
    parser.add_argument(
        "--rows",
        type=_groups,
        default=GROUPS,
        help=f"some groups of rows, with commas between: {','.join(GROUPS)}",
    )
    parser.add_argument(
        "--skip",
        type=_groups,
        default=(),
        help="groups of rows to leave out; install takes longest",
    )
    parser.add_argument("--repeats", type=int, help="how often each thing is timed")
    parser.add_argument(
        "--peer-venv",
        type=Path,
        default=environments.ROOT / ".venv-peer",
        help="the peer's environment, made where it is not there",
    )
    parser.add_argument(
        "--results",
        type=Path,
        default=Path(__file__).with_name("results"),
        help="the folder to write to",
    )
    parser.add_argument("--keep", action="store_true", help="keep the memories and logs")
    options = parser.parse_args()
    options.rows = [group for group in options.rows if group not in options.skip]
    return options


def _groups(text: str) -> tuple[str, ...]:
    groups = tuple(text.split(","))
    unknown = [group for group in groups if group not in GROUPS]
    if unknown:
        raise argparse.ArgumentTypeError(f"{', '.join(unknown)}: there is {', '.join(GROUPS)}")
    return groups


@contextmanager
def serving() -> Iterator[Remote]:
    """Run the model server for as long as the block lasts."""
    command = [sys.executable, "-m", "benchmarks.server"]
    with subprocess.Popen(
        command, cwd=environments.ROOT, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            url = process.stdout.readline().strip() if process.stdout else ""
            if not url:
                raise RuntimeError("The model server did not start.")
            yield Remote(url)
        finally:
            process.terminate()


@contextmanager
def _told(what: str) -> Iterator[None]:
    print(f"{what} ...", end="", flush=True)
    began = time.perf_counter()
    yield
    print(f" {time.perf_counter() - began:.0f} s", flush=True)


def _extend(results: Results, more: dict[str, Any]) -> None:
    for key, measured in more.items():
        results.setdefault(key, []).extend(measured)


def _machine(load_before: float) -> str:
    return (
        f"{os.cpu_count()} cores, {platform.system()}, Python {platform.python_version()}, load "
        f"average {load_before:.1f} before and {os.getloadavg()[0]:.1f} after"
    )


if __name__ == "__main__":
    main()
