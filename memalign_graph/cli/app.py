"""The `memalign` program: run a command, turn errors into messages and exit statuses."""

import logging
import os
import signal
import sqlite3
import sys
import traceback
import warnings
from collections.abc import Sequence
from contextlib import suppress
from typing import Annotated

import typer

from memalign_graph.cli import memory
from memalign_graph.cli.commands import align, evaluate, migrate, rate, review
from memalign_graph.cli.judging import judge
from memalign_graph.cli.options import Status, as_command
from memalign_graph.cli.terminal import Terminal, clean
from memalign_graph.demo import demo
from memalign_graph.errors import (
    ChatModelError,
    EmbeddingError,
    MemAlignError,
    ModelAnswerError,
    StoreError,
    without_keys,
    without_urls,
)

_EPILOG = """
A **criterion** is a file in YAML or JSON; the last three sections are optional:

```
name: support_tone
instructions: Is the reply appropriate for the customer?
scale: boolean                # or 1-5, [poor, fair, good], pairwise, {minimum: 0, maximum: 1}
judge: {model: "openai:gpt-6-luna", embeddings: local, k: 3, keep_judgments: 30}   # days
learn: {guard: replay, batch_size: 50, judge_cases: true}
evaluate: {folds: 5, seed: 0, group_by: inputs, learning_curve: true}
```

**Records** are `.jsonl`, `.csv` (UTF-8, names in the first line), `.tsv`, `.json`, or `.xlsx` (with
the extra `evaluation`); `-` is stdin. They have `inputs`, `outputs`, and `value`, `rationale` or
both; `reference_outputs`, `author`, `id` and `given_at` are optional.

The **model** is `--model`, or that of the criterion's file, or `MEMALIGN_MODEL` (with
`MEMALIGN_EMBEDDINGS`), or OpenAI's if `OPENAI_API_KEY` is set, or the embedded one, `local`.

**Exit status**: 0 done; 1 evaluate: a threshold is missed; 2 an argument, a file or the memory
can't be used; 3 a chat model or embeddings failed; 4 done, but not for every record; 70 an internal
error; 130 stopped by Ctrl-C; 141 the reader of the output ended; 143 stopped by SIGTERM. What was
committed before stays.
"""

app = typer.Typer(
    help="An LLM judge that learns from your experts.",
    epilog=_EPILOG,
    rich_markup_mode="markdown",
    add_completion=False,
    no_args_is_help=True,
)
for _command in (align, judge, evaluate, review, rate, migrate, demo):
    app.command()(as_command(_command))
app.add_typer(memory.app, name="memory")


def _show_version(wanted: bool) -> None:  # noqa: FBT001 - typer's callback
    from importlib.metadata import version

    if wanted:
        sys.stdout.write(f"memalign-graph {version('memalign-graph')}\n")
        raise typer.Exit


_VERSION = typer.Option(
    "--version", callback=_show_version, is_eager=True, help="Print the version and exit."
)


@app.callback()
def _top(*, version: Annotated[bool, _VERSION] = False) -> None:
    pass


def run(arguments: Sequence[str]) -> int:
    """Run one command; returns its exit status."""
    terminal, stopped = Terminal(), Status.INTERRUPTED

    def stop(*_: object) -> None:  # as Ctrl-C, which asyncio handles
        nonlocal stopped
        stopped = Status.TERMINATED
        if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # of a script's `memalign ... &`
            raise KeyboardInterrupt
        signal.raise_signal(signal.SIGINT)

    before = signal.signal(signal.SIGTERM, stop)
    handler = logging.Handler(logging.WARNING)
    # A subclass for one method would be longer, so the method is assigned.
    handler.emit = lambda record: terminal.warn(record.getMessage())  # type: ignore[method-assign] # see above
    logging.getLogger("memalign_graph").handlers = [handler]
    for stream in (sys.stdin, sys.stdout, sys.stderr):
        with suppress(AttributeError, ValueError):  # it is no file's, or was read from
            # Escape characters that the encoding does not have.
            stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr] # see above
    try:
        # Typer's own `main()` has other messages and statuses.
        with typer.main.get_command(app).make_context("memalign", [*arguments]) as context:
            status = int(context.command.invoke(context) or 0)
        sys.stdout.flush()
    except typer.Exit as ended:
        return ended.exit_code
    except (BrokenPipeError, SystemExit):  # as rich ends for a closed pipe
        with suppress(OSError, ValueError):  # so that Python does not complain at exit
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return Status.BROKEN_PIPE
    except KeyboardInterrupt:
        # A coroutine that was cancelled before its first step would warn at exit.
        warnings.filterwarnings("ignore", "coroutine .* was never awaited", RuntimeWarning)
        terminal.error("stopped; what was committed before stays.")
        return stopped
    except Exception as error:  # noqa: BLE001 - becomes a message and a status
        message, status = _message_and_status(error)
        if status == Status.INTERNAL_ERROR:
            sys.stderr.write(clean(without_keys(traceback.format_exc())))
        terminal.error(message)
    finally:
        signal.signal(signal.SIGTERM, before)
    return status


def _message_and_status(error: Exception) -> tuple[str, int]:
    from memalign_graph.local import LocalModelError

    text = str(error)
    match error:
        case StoreError():
            text = f"--memory: {text}"
        case typer.TyperException():
            return error.format_message(), Status.USAGE_ERROR
        case ChatModelError() | EmbeddingError() | ModelAnswerError() | LocalModelError():
            return text, Status.MODEL_FAILED
        case sqlite3.Error():
            held = ": another process is using it, try again" if "locked" in text else ""
            text = f"--memory: the file or its folder can't be used: {text}{held}."
        case _ if type(error).__module__.partition(".")[0] in ("psycopg", "psycopg_pool"):
            problem = without_urls(text)
            if type(error).__name__ == "ProgrammingError" and getattr(error, "sqlstate", 0) is None:
                problem = "its URL is not valid: write %, @ and spaces as %25, %40 and %20"
            text = f"--memory: the database can't be used: {problem}."
        case OSError():
            text = ": ".join(str(part) for part in (error.filename, error.strerror or text) if part)
        case _ if not isinstance(error, MemAlignError) and "memalign-graph[" not in text:
            text = "internal error: please report it with the traceback above."
            return text, Status.INTERNAL_ERROR
    return text, Status.USAGE_ERROR
