"""The embedded model's OpenAI-compatible server on 127.0.0.1: one per process.

llama.cpp runs in a child process. In this one it would hold Python's global lock while it loads (3
to 7 s), wait forever when it is stopped during a request, and crash the caller with itself. The
child ends with its parent, even if that is killed.
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
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from memalign_graph.errors import require_extra
from memalign_graph.local.weights import MODEL, LocalModelError, find_weights

MAX_INPUT_TOKENS = 8192
MAX_OUTPUT_TOKENS = 1024
"""The longest answer to the longest prompt."""

_STOP_S = 5.0
_logger = logging.getLogger(__name__)


class Endpoint(NamedTuple):
    """The server's address, and its key, which no other process of this machine has."""

    base_url: str
    api_key: str


class _Server(NamedTuple):
    process: subprocess.Popen[str]
    endpoint: Endpoint


_lock = threading.Lock()
_running: _Server | None = None


def start_server(path: str | Path | None = None) -> Endpoint:
    """Start the server if it is not running.

    Args:
        path: The weights, as in `find_weights`.

    Returns:
        The server's address and key.

    Raises:
        LocalModelError: If the weights or the server cannot be used.
    """
    global _running  # noqa: PLW0603 - one server per process
    with _lock:
        if _running is not None:
            status = _running.process.poll()
            if status is None:
                return _running.endpoint
            _logger.warning("The embedded model's server ended (%s). Restarting it.", status)
            _close(_running.process)
        _running = None
        with require_extra("local", "the embedded chat model"):
            if find_spec("xllamacpp") is None:
                raise ModuleNotFoundError(name="xllamacpp")
        _running = _launch(find_weights(path))
        return _running.endpoint


def stop_server() -> None:
    """Stop the server, if it runs: running requests fail, and the next call starts it again."""
    global _running  # noqa: PLW0603 - see start_server
    with _lock:
        if _running is not None:
            _close(_running.process)
        _running = None


def _launch(weights: Path) -> _Server:
    is_linux = sys.platform == "linux"
    settings = {
        "path": str(weights),
        "name": MODEL,
        "key": secrets.token_hex(16),
        "window": MAX_INPUT_TOKENS + MAX_OUTPUT_TOKENS,
        "threads": len(os.sched_getaffinity(0)) if is_linux else os.cpu_count() or 1,
    }
    # With -P this folder's modules do not hide others of the same name.
    command = [sys.executable, "-P", str(Path(__file__).with_name("serve.py"))]
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as log:
        process = subprocess.Popen(  # noqa: S603 - our own script, by this Python
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True
        )
        answer = _handshake(process, settings)
        if "address" in answer:
            return _Server(process, Endpoint(f"{answer['address']}/v1", str(settings["key"])))
        _close(process)
        reason = answer.get("error") or f"it ended with status {process.returncode}"
        log.seek(0)
        errors = [line.strip() for line in log if " E " in line or "Error" in line]
        quoted = f" [{errors[0]}]" if errors else ""
        raise LocalModelError(
            f"The embedded model's server did not start: {reason}{quoted} (weights: {weights})"
        )


def _handshake(process: Any, settings: dict[str, Any]) -> dict[str, Any]:
    """Send the settings and return the answer; empty if the process ended without one."""
    try:
        process.stdin.write(json.dumps(settings) + "\n")
        process.stdin.flush()
        answer: dict[str, Any] = json.loads(process.stdout.readline() or "{}")
    except OSError:
        return {}
    return answer


def _close(process: Any) -> None:
    process.terminate()
    try:
        process.wait(_STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    process.stdin.close()
    process.stdout.close()


atexit.register(stop_server)
