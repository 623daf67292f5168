"""What both sides measure: the records, the sizes, the measurements and the processes.

Only the standard library, because the peer's environment imports this, too.
"""

import hashlib
import json
import os
import random
import subprocess
import sys
import time
import urllib.request
from argparse import Namespace
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PEER_VENV = ROOT / ".venv-peer"
"""The peer's environment; created if it is missing."""
_REQUIREMENTS = Path(__file__).with_name("peer-requirements.txt")
MODEL = "gpt-4o-mini"  # both sides know its window of 128,000 tokens
EMBEDDINGS = "text-embedding-3-small"
DIMENSIONS = 512  # the peer's default

SIZES = {
    "small": 50,  # records of the small alignment: one batch of the peer
    "large": 1_000,  # records of the large one, and of the memory of the other rows
    "judgments": 30,  # whose overhead is measured, after two that are not
    "concurrent": 200,
    "at_once": 64,  # how many of them run concurrently
    "criteria": 9,  # of the panel
    "repeats": 3,  # of what is not a single judgment
}
_FEW = {"large": 120, "judgments": 5, "concurrent": 24, "at_once": 8, "repeats": 1}
QUICK = {"small": 10, **_FEW}
"""Sizes that only show that everything runs."""

NAME = "support_reply"
INSTRUCTIONS = "Is the reply one that our support desk would send to this customer?"
_GOODS = ("espresso machine", "rain jacket", "desk lamp", "bread knife", "tent pole", "chess set")
_FAULTS = (
    "stopped working after two days", "arrived with a crack along the side",
    "was delivered to a neighbour", "came in the wrong colour", "was charged twice to my card",
    "has a part missing that the manual shows", "smells of burnt plastic", "leaks at the bottom",
)  # fmt: skip
_DEMANDS = (
    "names the day by which it is settled", "says sorry before it asks for anything",
    "gives the amount in the customer's currency", "offers a person to call",
    "links the form instead of describing it", "does not blame the carrier",
    "repeats the order number", "keeps to five sentences", "says who pays the postage",
)  # fmt: skip
_STEPS = (
    "A new {goods} leaves our warehouse tomorrow and reaches you by Friday.",
    "The amount goes back to the card you paid with within five working days.",
    "Send the {goods} back in its first packing, with the form that you find on our pages.",
    "We need a photo of the {goods} and of the label on the parcel before anything can be done.",
)


Record = dict[str, Any]
"""An expert's feedback on a reply of a shop's support desk: synthetic, seeded, distinct."""


def records(count: int, seed: int = 1) -> list[Record]:
    """Return distinct records; a longer list begins with the shorter one of the same seed."""
    rng = random.Random(seed)  # noqa: S311 - data, not secrets
    return [_record(rng, seed * 1_000_000 + number) for number in range(count)]


def cases(count: int, seed: int) -> list[dict[str, Any]]:
    """Return examples without feedback."""
    made = records(count, seed)
    return [{name: record[name] for name in ("inputs", "outputs")} for record in made]


def _record(rng: random.Random, number: int) -> Record:
    """Make a question of about 185 characters, an answer of 300, and a rationale of 110."""
    goods, demand, value = rng.choice(_GOODS), rng.choice(_DEMANDS), rng.random() < 1 / 2
    faults, steps = rng.sample(_FAULTS, 3), " ".join(rng.sample(_STEPS, 2))
    question = (
        f"Hello, my {goods} from order {number} {faults[0]}, and now it also {faults[1]}. "
        f"I wonder what becomes of that now, since somebody else's {faults[2]}, too."
    )
    return {
        "inputs": {"question": question},
        "outputs": f"Thank you for your message and for the number. {steps.format(goods=goods)} "
        f"If anything is unclear, just answer and ask for the file {number}.",
        "value": value,
        "rationale": f"It takes up that the {goods} {faults[0]}, and it "
        f"{'' if value else 'should be one that '}{demand}.",
        "author": "ann",
    }


def guideline_text(number: int) -> str:
    """Return a guideline of 60 to 130 characters, a different one for each number."""
    fault, demand = (texts[number % len(texts)] for texts in (_FAULTS, _DEMANDS))
    return f"A reply on order {number} that {fault} {demand}, else it is false."


Measured = dict[str, Any]
"""The time of some work (`wall_s`), and the server's counters for it."""

Results = dict[str, list[Measured]]
"""One side's measurements, by row."""

Job = Namespace
"""A run of one side: `what`, `server`, `folder`, `groups` of rows, `attempt`, `cache`, sizes."""


class ServerControl:
    """The model server as the runs see it: reset, without latency, or read out."""

    def __init__(self, base_url: str) -> None:
        self.base_url = base_url
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    @contextmanager
    def without_latency(self) -> Iterator[None]:
        self._call("latency", {"chat": 0.0, "token": 0.0, "embedding": 0.0})
        yield
        self._call("latency", {})

    def measure(self, work: Callable[[], object]) -> Measured:
        """Measure the time of some work and its requests."""
        self._call("reset", {})
        start = time.perf_counter()
        work()
        wall_s = time.perf_counter() - start
        return {**self._call("counters", {}), "wall_s": wall_s}

    def _call(self, name: str, body: dict[str, Any]) -> Any:
        url = f"{self.base_url.removesuffix('/v1')}/bench/{name}"
        with self._opener.open(url, data=json.dumps(body).encode(), timeout=30) as response:
            return json.loads(response.read())


def session(side: Any, job: Job) -> Results:
    """Measure what one process does with `Ours` or `Peer`, from aligning to forgetting."""
    server, wanted = ServerControl(job.server), set(job.groups)
    results = defaultdict[str, list[Measured]](list)

    def measure(row: str, work: Callable[[Any], object], items: Sequence[Any]) -> None:
        results[row] += [server.measure(partial(work, item)) for item in items]

    def align(row: str, feedback: list[Any], repeats: int = job.repeats) -> None:
        for _ in range(repeats):
            side.reset()
            measure(row, side.align, [feedback])

    large = side.to_feedback(records(job.large))
    if "align" in wanted:
        align("align_small", side.to_feedback(records(job.small, seed=3)))
        with server.without_latency():
            align("align_zero", large)
    align("align_large", large, job.repeats if "align" in wanted else 1)
    if wanted & {"judge", "concurrency"}:
        measure("judge", side.judge, cases(job.judgments + 2, seed=2))
        del results["judge"][:2]  # the first two warm up
    if "concurrency" in wanted:
        judge_all = partial(side.judge_all, at_once=job.at_once)
        measure("concurrent", judge_all, [cases(job.concurrent, seed=2)] * job.repeats)
    if "change" in wanted:
        added = side.to_feedback(records(job.repeats, seed=4))
        measure("one_more", side.align, [[item] for item in added])
        measure("remove_one", side.remove, large[: job.repeats])
    side.persist()
    return results


def run_job(**parts: Callable[[Job], Results]) -> None:
    """Run the job of the command line, and write its measurements."""
    job, results = Job(**json.loads(sys.argv[1])), Path(sys.argv[2])
    os.chdir(job.folder)
    results.write_text(json.dumps(parts[job.what](job)), encoding="utf-8")


def markdown_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table in Markdown, numbers to the right."""
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


@contextmanager
def serving(*options: str) -> Iterator[str]:
    """Run the model server during the block; yields its base URL."""
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
    """Return the interpreter of the peer's environment; creates it if it is missing."""
    # Not resolved: an environment's interpreter is often a link to another.
    python, mark = str(folder.absolute() / "bin" / "python"), folder / ".requirements"
    wanted = hashlib.sha256(_REQUIREMENTS.read_bytes()).hexdigest()
    if not (mark.exists() and mark.read_text() == wanted):
        subprocess.check_call([sys.executable, "-m", "venv", "--clear", str(folder)])
        subprocess.check_call([python, "-m", "pip", "install", "--quiet", "-r", str(_REQUIREMENTS)])
        mark.write_text(wanted)
    return python


def peer_verdicts(task: dict[str, Any], server: str, folder: Path, venv: Path) -> list[Any]:
    """Let the peer learn and judge rows in its own environment; keeps its verdicts in a file."""
    file, verdicts, text = folder / "peer.json", folder / "peer.jsonl", json.dumps(task)
    known = verdicts.read_text(encoding="utf-8").splitlines() if verdicts.exists() else []
    if len(known) < len(task["test"]) or file.read_text(encoding="utf-8") != text:
        verdicts.unlink(missing_ok=True)
        file.write_text(text, encoding="utf-8")
        run_side(peer_python(venv), "peer", [str(file), str(verdicts)], server, folder)
        known = verdicts.read_text(encoding="utf-8").splitlines()
    return list(map(json.loads, known))


def run_side(python: str, side: str, arguments: Sequence[str], server: str, folder: Path) -> None:
    """Run a side's program with the models of this machine, and without the internet."""
    variables = {
        **os.environ,
        **dict.fromkeys(("OPENAI_API_BASE", "OPENAI_BASE_URL"), server),
        **dict.fromkeys(("NO_PROXY", "no_proxy"), "127.0.0.1"),
        "OPENAI_API_KEY": "none",
        "LANGSMITH_TRACING": "false",
        "TQDM_DISABLE": "1",
        "MLFLOW_TRACKING_URI": f"sqlite:///{folder / 'mlflow.db'}",
        # The peer would otherwise reach for the internet. Without one, fetching the catalogue alone
        # costs the first judgment of a process six seconds of retries.
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
