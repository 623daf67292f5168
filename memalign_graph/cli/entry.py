"""From the command line to the exit status: every error becomes one sentence here."""

import logging
import os
import signal
import sqlite3
import sys
import threading
import traceback
import warnings
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from types import FrameType
from typing import Any

from memalign_graph.cli.exits import MODEL_ERRORS, ExitStatus
from memalign_graph.cli.output import Output
from memalign_graph.cli.parser import POSITIONAL, build_parser
from memalign_graph.errors import MemAlignError, MemAlignWarning

_PACKAGE = "memalign_graph"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given[:1] == ["demo"]:
        return _guarded(lambda _: _demo(given[1:]), Output())
    try:
        parsed = build_parser().parse_args(given)
    except SystemExit as ended:
        # After --help or --version, or a sentence of argparse's own.
        return _flushed(int(ended.code or 0))
    output = Output(as_json=parsed.json, quiet=parsed.quiet)
    return _guarded(lambda output: _command(parsed)(parsed, output), output, parsed)


def _demo(arguments: Sequence[str]) -> int:
    """Run the demo, which has a parser of its own."""
    from memalign_graph.demo.__main__ import main as run_demo

    try:
        return run_demo(arguments)
    except SystemExit as ended:
        return int(ended.code or 0)


def _command(parsed: Namespace) -> Callable[[Namespace, Output], int]:
    module, _, name = parsed.run.partition(":")
    command: Callable[[Namespace, Output], int] = getattr(import_module(module), name)
    return command


def _guarded(run: Callable[[Output], int], output: Output, parsed: Namespace | None = None) -> int:
    """Run a command, and put whatever ends it before its time into words."""
    try:
        with _sigterm_like_ctrl_c(), _warnings_as_messages(output):
            status = run(output)
        sys.stdout.flush()
    except BrokenPipeError:
        return _let_go()
    except KeyboardInterrupt as stopped:
        output.error("stopped; what was committed before stays.")
        by_sigterm = isinstance(stopped, _Terminated)
        return ExitStatus.TERMINATED if by_sigterm else ExitStatus.INTERRUPTED
    except Exception as error:  # noqa: BLE001 - the traceback is shown, and the status tells
        message, status = _explained(error)
        if message is None:
            traceback.print_exc()
            output.error("this is a fault of the program: please report it.")
        else:
            output.error(_by_option(message, parsed))
    return status


class _Terminated(KeyboardInterrupt):
    """What SIGTERM ends a command with."""


@contextmanager
def _sigterm_like_ctrl_c() -> Iterator[None]:
    """Let SIGTERM end a command in the same order as Ctrl-C, which asyncio knows how to do."""
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield  # The process is another program's.
        return
    terminated = threading.Event()

    def stop(_: int, frame: FrameType | None) -> None:
        terminated.set()
        ctrl_c = signal.getsignal(signal.SIGINT)
        (ctrl_c if callable(ctrl_c) else signal.default_int_handler)(signal.SIGINT, frame)

    signal.signal(signal.SIGTERM, stop)
    try:
        yield
    except KeyboardInterrupt as stopped:
        if terminated.is_set():
            raise _Terminated from stopped
        raise
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _by_option(message: str, parsed: Namespace | None) -> str:
    """Name the option where a message begins with what Python calls it: `k: ...` is `--k: ...`."""
    name, colon, rest = message.partition(":")
    given = getattr(parsed, name, None) if name.isidentifier() else None
    if not colon or name in POSITIONAL or given is None or isinstance(given, bool):
        return message
    return f"--{name.replace('_', '-')}:{rest}"


def _explained(error: Exception) -> tuple[str | None, int]:
    """Say what went wrong; None is a fault of this program."""
    text = " ".join(str(error).split())
    match error:
        case MemAlignError():
            blames_model = isinstance(error, MODEL_ERRORS)
            return text, ExitStatus.MODEL_FAILED if blames_model else ExitStatus.UNUSABLE
        case ImportError() if "memalign-graph[" in text:
            return text, ExitStatus.UNUSABLE
        case sqlite3.Error():
            return f"--memory: the file can't be used: {text}.{_advice(text)}", ExitStatus.UNUSABLE
        case OSError():
            return f"{text}.", ExitStatus.UNUSABLE
    return None, ExitStatus.FAULT


def _advice(text: str) -> str:
    if "locked" in text:
        return " Another process has held it for long: try again."
    if "readonly" in text or "unable to open" in text:
        return " SQLite writes beside it, too: its folder has to be there, and writable."
    return ""


def _let_go() -> int:
    """Leave stdout to nobody, so that Python does not complain of it when it ends."""
    try:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
    except (OSError, ValueError):
        pass  # It is no file, as in a test, and needs no care.
    return ExitStatus.NO_READER


def _flushed(status: int) -> int:
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        return _let_go()
    return status


@contextmanager
def _warnings_as_messages(output: Output) -> Iterator[None]:
    """Show the package's warnings and log as messages, without the places in its code."""
    shows = warnings.showwarning

    def show(message: Any, category: type[Warning], *args: Any, **kwargs: Any) -> None:
        if issubclass(category, MemAlignWarning):
            output.warn(str(message))
        else:
            shows(message, category, *args, **kwargs)

    logger = logging.getLogger(_PACKAGE)
    handler = _Messages(output)
    propagates = logger.propagate
    logger.addHandler(handler)
    logger.propagate = False
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("always", MemAlignWarning)
            warnings.showwarning = show
            yield
    finally:
        logger.removeHandler(handler)
        logger.propagate = propagates


class _Messages(logging.Handler):
    """Turns log records into messages."""

    def __init__(self, output: Output) -> None:
        super().__init__(logging.WARNING)
        self._output = output

    def emit(self, record: logging.LogRecord) -> None:
        """Show one record."""
        self._output.warn(record.getMessage())
