"""What a run measures, at which sizes, how, and in which processes: the same for both sides.

Only the standard library, since the peer's runs import this from another environment.
"""

import hashlib
import json
import os
import subprocess
import sys
import time
import urllib.request
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.data import records

ROOT = Path(__file__).resolve().parent.parent
PEER_VENV = ROOT / ".venv-peer"
"""The peer's environment, made where it is not there."""

_REQUIREMENTS = Path(__file__).with_name("peer-requirements.txt")

MODEL = "gpt-4o-mini"  # both sides know that its window has 128,000 tokens
EMBEDDINGS = "text-embedding-3-small"
DIMENSIONS = 512  # the peer's default

SIZES = {
    "small": 50,  # records of the small alignment: one batch of the peer
    "large": 1_000,  # of the large one, and of the memory that the other rows work on
    "judgments": 30,  # whose overhead is measured, after two that are not
    "concurrent": 200,
    "at_once": 64,  # how many of them are under way at a time
    "criteria": 9,  # of the panel
    "repeats": 3,  # how often whatever is timed once is timed
}
_FEW = {"large": 120, "judgments": 5, "concurrent": 24, "at_once": 8, "repeats": 1}
QUICK = {"small": 10, **_FEW}
"""Sizes that show only that everything runs."""

SCALE = ("stores", "workers")
"""What `--scale` measures of one memory and many workers."""

Measured = dict[str, Any]
"""What one stretch of work took (`wall_s`), and the server's counters for it."""

Results = dict[str, list[Measured]]
"""One side's measurements by what was measured."""

Job = Namespace
"""One run of one side: `what`, `server`, `folder`, `groups` of rows, `attempt`, `cache`, sizes."""


class Remote:
    """The model server as the runs see it: reset, slowed down and read out."""

    def __init__(self, base_url: str) -> None:
        self.base_url = base_url
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    @contextmanager
    def without_latency(self) -> Iterator[None]:
        """Let the server answer at once for as long as the block lasts."""
        self._call("latency", {"chat": 0.0, "token": 0.0, "embedding": 0.0})
        yield
        self._call("latency", {})

    def measure(self, work: Callable[[], object]) -> Measured:
        """Measure some work: its time, and what it asked the server for."""
        self._call("reset", {})
        began = time.perf_counter()
        work()
        wall_s = time.perf_counter() - began
        return {**self._call("counters", {}), "wall_s": wall_s}

    def _call(self, name: str, body: dict[str, Any]) -> Any:
        url = f"{self.base_url.removesuffix('/v1')}/bench/{name}"
        with self._opener.open(url, data=json.dumps(body).encode(), timeout=30) as response:
            return json.loads(response.read())


def session(side: Any, job: Job) -> Results:
    """Measure what one process does with `Ours` or `Peer`, from aligning to forgetting."""
    remote, results, wanted = Remote(job.server), Results(), set(job.groups)

    def align(key: str, given: list[Any], repeats: int) -> None:
        results[key] = []
        for _ in range(repeats):
            side.begin()
            results[key].append(remote.measure(partial(side.align, given)))

    large = side.prepare(records(job.large))
    if "align" in wanted:
        align("align_small", side.prepare(records(job.small, seed=3)), job.repeats)
        with remote.without_latency():
            align("align_zero", large, job.repeats)
    align("align_large", large, job.repeats if "align" in wanted else 1)
    cases = [record.case for record in records(job.concurrent + 50, seed=2)]
    if wanted & {"judge", "concurrency"}:
        work = [partial(side.judge, case) for case in cases[: job.judgments + 2]]
        results["judge"] = list(map(remote.measure, work))[2:]  # the first two only warm up
    if "concurrency" in wanted:
        judge_all = partial(side.judge_all, cases[: job.concurrent], job.at_once)
        results["concurrent"] = [remote.measure(judge_all) for _ in range(job.repeats)]
    if "change" in wanted:
        fresh = side.prepare(records(job.repeats, seed=4))
        results["one_more"] = [remote.measure(partial(side.align, [one])) for one in fresh]
        gone = large[:: max(1, len(large) // job.repeats)][: job.repeats]
        results["remove_one"] = [remote.measure(partial(side.remove, one)) for one in gone]
    side.keep()
    return results


def do_job(**parts: Callable[[Job], Results]) -> None:
    """Do the job that the command line tells, and write down what was measured."""
    job, results = Job(**json.loads(sys.argv[1])), Path(sys.argv[2])
    os.chdir(job.folder)
    results.write_text(json.dumps(parts[job.what](job)), encoding="utf-8")


@contextmanager
def serving(*options: str) -> Iterator[str]:
    """Run the model server for as long as the block lasts; yields its base URL."""
    command = [sys.executable, "-m", "benchmarks.server", *options]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            url = process.stdout.readline().strip() if process.stdout else ""
            if not url:
                raise RuntimeError("The model server did not start.")
            yield url
        finally:
            process.terminate()


def peer_python(folder: Path) -> str:
    """Return the interpreter of the peer's environment, which is made where it is not there."""
    # Not resolved: an environment's interpreter is often a link to another.
    python, mark = str(folder.absolute() / "bin" / "python"), folder / ".requirements"
    wanted = hashlib.sha256(_REQUIREMENTS.read_bytes()).hexdigest()
    if not (mark.exists() and mark.read_text() == wanted):
        subprocess.check_call([sys.executable, "-m", "venv", "--clear", str(folder)])
        subprocess.check_call([python, "-m", "pip", "install", "--quiet", "-r", str(_REQUIREMENTS)])
        mark.write_text(wanted)
    return python


def run_side(python: str, side: str, arguments: Sequence[str], server: str, folder: Path) -> None:
    """Run a side's program, with models on this machine, and nothing that reaches further."""
    variables = {
        **os.environ,
        **dict.fromkeys(("OPENAI_API_BASE", "OPENAI_BASE_URL"), server),
        **dict.fromkeys(("NO_PROXY", "no_proxy"), "127.0.0.1"),
        "OPENAI_API_KEY": "none",
        "LANGSMITH_TRACING": "false",
        "TQDM_DISABLE": "1",
        "MLFLOW_TRACKING_URI": f"sqlite:///{folder / 'mlflow.db'}",
        # Without the first two, the peer reaches for the internet; where there is none, fetching
        # the catalogue alone costs the first judgment of a process six seconds of retries.
        "MLFLOW_MODEL_CATALOG_URI": "",
        "MLFLOW_DISABLE_TELEMETRY": "true",
        # Its queue drops traces when a thousand are logged in a row.
        "MLFLOW_ENABLE_ASYNC_TRACE_LOGGING": "false",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "DSPY_CACHEDIR": str(folder / "dspy"),
    }
    command = [python, "-m", f"benchmarks.{side}", *arguments]
    log = folder / "log.txt"
    with log.open("a") as output:
        code = subprocess.call(command, cwd=ROOT, env=variables, stdout=output, stderr=output)
    if code != 0:
        tail = "\n".join(log.read_text().splitlines()[-15:])
        raise RuntimeError(f"{side}: the run failed; the end of {log}:\n{tail}")
