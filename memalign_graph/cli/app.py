"""From the arguments to the exit status: every error becomes one sentence here."""

import logging
import os
import signal
import sqlite3
import sys
import threading
import traceback
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.metadata import version
from typing import Annotated, Any

import typer

from memalign_graph.cli import memory
from memalign_graph.cli.align import align
from memalign_graph.cli.evaluate import evaluate
from memalign_graph.cli.judge import judge
from memalign_graph.cli.options import Status, grouped
from memalign_graph.cli.review import review
from memalign_graph.cli.terminal import Terminal
from memalign_graph.errors import MemAlignError, MemAlignWarning

_EPILOG = """
A **criterion** is a file in YAML or JSON; `judge` and `learn` may be left out:

```
name: support_tone
instructions: Is the reply appropriate for the customer?
scale: boolean                # or 1-5, [poor, fair, good], pairwise, {minimum: 0, maximum: 1}
judge: {model: "openai:gpt-4.1-mini", embeddings: local, k: 3, keep_judgments: 30}   # days
learn: {guard: replay, batch_size: 50, judge_cases: true}
```

**Records** are `.jsonl`, `.csv` (UTF-8, names in the first line), `.tsv` or `.json`; `-` is stdin.
They have `inputs`, `outputs`, and `value`, `rationale` or both; and `reference_outputs`, `author`,
`id`, `given_at` where you have them.

Where no **model** is named it is `MEMALIGN_MODEL` (and `MEMALIGN_EMBEDDINGS`), else OpenAI's if
`OPENAI_API_KEY` is set, else the embedded one, `local`.

**Exit status**: 0 done; 1 evaluate: a threshold is missed, demo: it stopped; 2 an argument, a file
or the memory can't be used; 3 a chat model or embeddings failed; 4 done, but not for every record;
70 a fault of this program; 130 stopped by Ctrl-C; 141 whatever read the output went away; 143
stopped by SIGTERM. What was committed before stays.
"""

app = typer.Typer(
    help="An LLM judge that learns from your experts.",
    epilog=_EPILOG,
    rich_markup_mode="markdown",
    add_completion=False,
)
for _command in (align, judge, evaluate, review):
    app.command()(grouped(_command))
app.add_typer(memory.app, name="memory")


@app.command(
    add_help_option=False,
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
)
def demo(context: typer.Context) -> int:
    """Judge, ask, learn and judge again, on cases of its own."""
    from memalign_graph.demo.command import main

    return main(context.args)


def _show_version(wanted: bool) -> None:  # noqa: FBT001 - typer's callback
    if wanted:
        sys.stdout.write(f"memalign-graph {version('memalign-graph')}\n")
        raise typer.Exit


@app.callback()
def _top(
    *,
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Which it is.")
    ] = False,
) -> None:
    pass


def run(arguments: Sequence[str]) -> int:
    """Run one command, and put whatever ends it before its time into words."""
    terminal, stopped_by = Terminal(), list[int]()
    for stream in (sys.stdout, sys.stderr):
        with suppress(AttributeError):  # what the encoding has no place for is spelt out
            stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr] # if a file's
    try:
        with _sigterm_like_ctrl_c(stopped_by), _warnings_as_messages(terminal):
            status = _run(arguments)
        sys.stdout.flush()
    except BrokenPipeError:
        with suppress(OSError, ValueError):  # so that Python does not complain when it ends
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return Status.NO_READER
    except KeyboardInterrupt:
        terminal.error("stopped; what was committed before stays.")
        return Status.TERMINATED if stopped_by else Status.INTERRUPTED
    except Exception as error:  # noqa: BLE001 - the traceback is shown, and the status tells
        message, status = _explained(error)
        if status == Status.FAULT:
            traceback.print_exc()
        terminal.error(message)
    return status


def _run(arguments: Sequence[str]) -> int:
    try:
        # Not by `main()`, which has words and statuses of its own for what ends a command.
        with typer.main.get_command(app).make_context("memalign", list(arguments)) as context:
            return int(context.command.invoke(context) or 0)
    except typer.Exit as ended:
        return ended.exit_code
    except SystemExit as ended:  # the demo's parser; or rich, for a closed pipe
        if isinstance(ended.__context__, BrokenPipeError):
            raise ended.__context__ from None
        return int(ended.code or 0)


def _explained(error: Exception) -> tuple[str, int]:
    """Say what went wrong, and how the command ended."""
    text = " ".join(str(error).split())
    match error:
        case typer.TyperException():
            return error.format_message(), Status.UNUSABLE
        case MemAlignError():
            return text, Status.of(error)
        case ImportError() if "memalign-graph[" in text:
            return text, Status.UNUSABLE
        case sqlite3.Error():
            held = ": another process has held it for long: try again" if "locked" in text else ""
            return f"--memory: the file, or its folder, can't be used: {text}{held}.", 2
        case OSError():
            return f"{text}.", Status.UNUSABLE
    return "this is a fault of the program: please report it.", Status.FAULT


@contextmanager
def _sigterm_like_ctrl_c(stopped_by: list[int]) -> Iterator[None]:
    """Let SIGTERM end a command in the same order as Ctrl-C, which asyncio knows how to do."""

    def stop(number: int, _: Any) -> None:
        stopped_by.append(number)
        signal.raise_signal(signal.SIGINT)

    is_ours = threading.current_thread() is threading.main_thread()
    before = signal.signal(signal.SIGTERM, stop) if is_ours else None
    try:
        yield
    finally:
        if is_ours:
            signal.signal(signal.SIGTERM, before)


@contextmanager
def _warnings_as_messages(terminal: Terminal) -> Iterator[None]:
    """Show warnings and the package's log as messages, once, without the places in the code."""
    shown = set[str]()

    def show(text: str) -> None:
        if text not in shown:
            shown.add(text)
            terminal.warn(text)

    logger, handler = logging.getLogger("memalign_graph"), logging.Handler(logging.WARNING)
    handler.emit = lambda record: show(record.getMessage())  # type: ignore[method-assign]
    logger.addHandler(handler)
    propagates, logger.propagate = logger.propagate, False
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("always", MemAlignWarning)
            warnings.showwarning = lambda message, *_, **__: show(str(message))
            yield
    finally:
        logger.removeHandler(handler)
        logger.propagate = propagates
