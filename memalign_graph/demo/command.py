"""The main job on cases of its own, as a command."""

import argparse
import sqlite3
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from memalign_graph.demo.cases import CASE_FILES, CaseFile
from memalign_graph.demo.loop import run_loop, scripted_expert
from memalign_graph.demo.report import render
from memalign_graph.demo.terminal import terminal_expert
from memalign_graph.errors import MemAlignError
from memalign_graph.local import open_local_checkpointer, open_local_store
from memalign_graph.memory.judge_memory import JudgeMemory
from memalign_graph.models import models_from_environment

_SQLITE = b"SQLite format 3\0"
_DEFAULT_MEMORY = Path(".memalign") / "demo.sqlite"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demo."""
    options = _parse(arguments)
    model, embeddings = models_from_environment()
    started = time.monotonic()

    def say(line: str) -> None:
        print(f"[{time.monotonic() - started:5.0f} s] {line}", flush=True)

    try:
        if options.fresh:
            _start_over(options.memory)
        say(f"chat model {model}, embeddings {embeddings}, memory in {options.memory}")
        with (
            open_local_store(options.memory) as store,
            open_local_checkpointer(options.memory) as checkpointer,
        ):
            for name in options.cases or CASE_FILES:
                cases = CaseFile.load(name)
                known = len(JudgeMemory(store, cases.criterion, embeddings=embeddings).guidelines())
                print(f"\n== {cases.title}: {cases.criterion.instructions}\n   {cases.source}\n")
                say(
                    f"the memory holds {known} guideline(s) from an earlier run: starting aligned"
                    if known
                    else "the memory is empty: the judge knows the criterion alone"
                )
                expert = (
                    terminal_expert(cases.criterion) if options.interactive else scripted_expert
                )
                outcome = run_loop(
                    cases,
                    model=model,
                    embeddings=embeddings,
                    store=store,
                    checkpointer=checkpointer,
                    expert=expert,
                    say=say,
                )
                print(f"\n{render(cases, outcome)}\n")
    except (MemAlignError, ImportError, OSError, EOFError, sqlite3.DatabaseError) as error:
        reason = str(error) or "there is nobody at the terminal to answer"
        print(f"\nThe demo stopped: {reason}", file=sys.stderr)
        return 1
    say("done. Run it again to start with what was learned, or with --fresh to start over.")
    return 0


def _start_over(memory: Path) -> None:
    """Remove the memory of earlier runs, and no other file."""
    if not memory.exists():
        return
    with memory.open("rb") as file:
        if not memory.stat().st_size == 0 and file.read(len(_SQLITE)) != _SQLITE:
            raise OSError(f"--memory: {memory} is no SQLite file, so it is left as it is.")
    for suffix in ("", "-wal", "-shm", "-journal", ".lock"):
        memory.with_name(memory.name + suffix).unlink(missing_ok=True)


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m memalign_graph.demo",
        description="Judge cases, hear an expert, learn, and judge again.",
    )
    parser.add_argument(
        "--interactive", action="store_true", help="answer the reviews yourself, at the terminal"
    )
    parser.add_argument("--cases", action="append", choices=CASE_FILES, help="run these cases only")
    parser.add_argument(
        "--memory", type=Path, default=_DEFAULT_MEMORY, help="the SQLite file of the memory"
    )
    parser.add_argument("--fresh", action="store_true", help="forget earlier runs")
    return parser.parse_args(arguments)
