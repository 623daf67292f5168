"""Base judge, ours and the peer on the same rows: `python -m benchmarks.agreement --data DIR`."""

import argparse
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from benchmarks import environments
from benchmarks.agreement import gateway, table
from benchmarks.agreement.rows import Task
from memalign_graph.evaluation import Report

_DEFAULT_SETS = (
    "saf_10.1_TC",
    "saf_6.2_IPP",
    "saf_8.1_MM",
    "dices_crowd_safety",
    "triviaqa_answer_correctness",
    "hh_harmless_preference",
)

_MODULES = {"ours": "benchmarks.agreement.ours", "peer": "benchmarks.agreement.peer"}


def main() -> None:
    """Judge the test rows with every judge, keeping each verdict, and write the table."""
    options = _options()
    folder: Path = options.results.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        address = ""
        if not options.table_only:
            address = stack.enter_context(gateway.serve(*_server(options), options.port))
        tasks = [
            Task(
                data=str(options.data.absolute()),
                name=name,
                train=options.train,
                test=options.test,
                seed=options.seed,
                k=options.k,
                folder=str(folder),
                server=address,
                model=options.model,
                window=options.window,
                credit=options.credit,
            )
            for name in options.sets
        ]
        for task in [] if options.table_only else tasks:
            task.keep()
            for side in options.sides:
                _run(side, task, options.peer_venv)
    for path in sorted(folder.glob("*/report.json")):
        report = Report.model_validate_json(path.read_text(encoding="utf-8"))
        report.save(path.with_suffix(".html"))
        report.save(path.with_suffix(".md"))
    command = f"python -m benchmarks.agreement {' '.join(_told(sys.argv[1:]))}"
    # What earlier runs did of other criteria, perhaps with other numbers of rows, is in it, too.
    every = [Task.kept(path, options.data) for path in sorted(folder.glob("*/task.json"))]
    print(table.write(every, command, folder.with_suffix(".md")))
    print(f"Written to {folder.with_suffix('.md')}; the verdicts lie in {folder}.")


def _told(arguments: Sequence[str]) -> Sequence[str]:
    """Leave out what differs from machine to machine: folders and addresses."""
    told, skip = [], False
    for one in arguments:
        if skip or one == "--table-only":
            skip = False
        elif one in ("--data", "--results", "--peer-venv", "--base-url", "--credit"):
            told += ["--data", "DIR"] if one == "--data" else []
            skip = True
        else:
            told.append(one)
    return told


def _server(options: argparse.Namespace) -> tuple[str, str]:
    if options.base_url:
        return options.base_url, "none"
    from memalign_graph.local import start_server

    endpoint = start_server()
    return endpoint.base_url, endpoint.api_key


def _run(side: str, task: Task, peer_venv: Path) -> None:
    python = environments.ensure_peer(peer_venv) if side == "peer" else Path(sys.executable)
    folder = Path(task.folder) / task.name
    folder.mkdir(exist_ok=True)
    began = time.perf_counter()
    with (folder / f"{side}.log").open("a") as log:
        code = subprocess.call(
            [str(python), "-m", _MODULES[side], task.to_text()],
            cwd=environments.ROOT,
            env={**environments.peer_environment(task.server, folder), "TQDM_DISABLE": "1"},
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    told = "" if code == 0 else f", failed: see {folder / side}.log"
    print(f"{task.name}: {side} {time.perf_counter() - began:.0f} s{told}", flush=True)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.agreement", description=main.__doc__
    )
    add = parser.add_argument
    add("--data", type=Path, required=True, help="the folder of labelled rows, a file a criterion")
    add("--sets", type=_words, default=_DEFAULT_SETS, help="criteria, with commas between")
    add("--sides", type=_words, default=("ours", "peer"), help="ours (base included), peer")
    add("--train", type=int, default=50, help="how many training rows are learned from")
    add("--test", type=int, default=50, help="how many test rows are judged")
    add("--seed", type=int, default=1, help="chooses the rows")
    add("--k", type=int, default=5, help="how many similar cases a judge is shown")
    add("--base-url", help="an OpenAI-compatible server; the embedded model unless given")
    add("--port", type=int, default=18765, help="where both sides are served")
    add("--model", default="qwen2.5-coder-1.5b-instruct", help="the chat model's name there")
    add("--window", type=int, default=8192, help="its context window, in tokens")
    add("--credit", type=int, default=0, help="training rows to leave each guideline out on")
    add("--peer-venv", type=Path, default=environments.ROOT / ".venv-peer")
    add("--results", type=Path, default=Path(__file__).parents[1] / "results" / "agreement")
    add("--table-only", action="store_true", help="score what is there")
    return parser.parse_args()


def _words(text: str) -> Sequence[str]:
    return tuple(text.split(","))


if __name__ == "__main__":
    main()
