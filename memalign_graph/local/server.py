"""The embedded model's server: one a process, on 127.0.0.1, OpenAI-compatible.

llama.cpp runs in a process of its own, because inside ours it would hold Python's global lock while
it loads (3 to 7 s in which no thread and no event loop moves), wait for ever when stopped during a
request, and take us along if it crashes. It ends with us, even when we are killed.
"""

import atexit
import json
import logging
import os
import secrets
import subprocess
import sys
import tempfile
import threading
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any

from memalign_graph.errors import needs_extra
from memalign_graph.local.errors import LocalModelError
from memalign_graph.local.sources import WEIGHTS
from memalign_graph.local.weights import find_weights

MAX_INPUT_TOKENS = 8192
"""The longest prompt, in tokens."""

MAX_OUTPUT_TOKENS = 1024
"""The longest answer that fits beside the longest prompt, in tokens."""

_logger = logging.getLogger(__name__)

_START_S = 300.0
"""How long loading the weights may take; 3 to 8 s are usual."""

_STOP_S = 5.0
"""How long the server's process may take to end before it is killed."""

_CACHE_MIB = 512
"""Memory for the state of prompts that may come again: about 19,000 tokens."""

_HTTP_THREADS = 32
"""How many requests may wait in the server at once; others wait for a connection."""


@dataclass(frozen=True)
class Endpoint:
    """Where the running server is spoken to."""

    base_url: str
    """The address for OpenAI clients, such as `http://127.0.0.1:43119/v1`."""

    api_key: str
    """The key it asks for, so that nobody else on this machine can use it."""


@dataclass(frozen=True)
class _Running:
    process: subprocess.Popen[str]
    endpoint: Endpoint


_lock = threading.Lock()
_running: _Running | None = None


def start_server(path: str | Path | None = None) -> Endpoint:
    """Start the server if it is not running, fetching the weights first if they are nowhere.

    Safe to call from many threads; all get the same server.

    Args:
        path: The weights, if you have them; see `find_weights`. Ignored if it is running already.

    Returns:
        Where to speak to it.

    Raises:
        LocalModelError: If there are no weights, or the server does not start.
        ImportError: If the extra `local` is not installed.
    """
    global _running  # noqa: PLW0603 - one server a process is what this module is for
    with _lock:
        if _running is not None and _running.process.poll() is None:
            return _running.endpoint
        if _running is not None:
            status = _running.process.returncode
            _logger.warning("The embedded model's server ended (%s); starting anew.", status)
            _close(_running.process)
        _running = None
        with needs_extra("local", "the embedded chat model"):
            if find_spec("xllamacpp") is None:
                raise ModuleNotFoundError(name="xllamacpp")
        _running = _launch(find_weights(path))
        return _running.endpoint


def stop_server() -> None:
    """Stop the server if it is running; requests at work fail. The next call starts it anew."""
    global _running  # noqa: PLW0603 - see start_server
    with _lock:
        if _running is not None:
            _close(_running.process)
        _running = None


def usable_cores() -> int:
    """Count the cores this process may use."""
    if sys.platform == "linux":
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _launch(weights: Path) -> _Running:
    settings: dict[str, Any] = {
        "path": str(weights),
        "name": WEIGHTS.name,
        "key": secrets.token_hex(16),
        "window": MAX_INPUT_TOKENS + MAX_OUTPUT_TOKENS,
        "threads": usable_cores(),
        "http_threads": _HTTP_THREADS,
        "cache_mib": _CACHE_MIB,
    }
    script = Path(__file__).with_name("serve.py")
    # -P: or this folder's modules would hide others of the same name.
    command = [sys.executable, "-P", str(script)]
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as log:
        try:
            process = subprocess.Popen(  # noqa: S603 - our own script, by this Python
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True
            )
        except OSError as error:
            raise LocalModelError(f"{sys.executable} could not be run: {error}.") from error
        answer = _greet(process, settings)
        if "address" in answer:
            endpoint = Endpoint(base_url=f"{answer['address']}/v1", api_key=settings["key"])
            return _Running(process=process, endpoint=endpoint)
        _close(process)
        reason = answer.get("error") or f"it ended with status {process.returncode}"
        raise LocalModelError(
            f"The embedded model's server did not start: {reason} {_tail(log)}(weights: {weights})"
        )


def _greet(process: subprocess.Popen[str], settings: dict[str, Any]) -> dict[str, Any]:
    """Send the settings and wait for the answer; empty if the process ended without one."""
    stdin, stdout = _pipes(process)
    timer = threading.Timer(_START_S, process.kill)
    timer.daemon = True
    timer.start()
    try:
        stdin.write(json.dumps(settings) + "\n")
        stdin.flush()
        answer: dict[str, Any] = json.loads(stdout.readline() or "{}")
    except OSError:
        return {}
    else:
        return answer
    finally:
        timer.cancel()


def _close(process: subprocess.Popen[str]) -> None:
    process.terminate()
    try:
        process.wait(_STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    for pipe in _pipes(process):
        pipe.close()


def _pipes(process: subprocess.Popen[str]) -> tuple[IO[str], IO[str]]:
    if process.stdin is None or process.stdout is None:
        raise LocalModelError("The embedded model's server has no pipes.")
    return process.stdin, process.stdout


def _tail(log: IO[str]) -> str:
    """Quote the first line of the log that names an error: what follows comes from it."""
    log.seek(0)
    lines = [line.strip() for line in log if " E " in line or "Error" in line]
    return f"[{lines[0]}] " if lines else ""


atexit.register(stop_server)
