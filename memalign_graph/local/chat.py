"""The embedded chat model: llama.cpp in a child process, called as an OpenAI-compatible server.

In this process llama.cpp would hold Python's global lock while it loads (3 to 7 s), wait forever
when it is stopped during a request, and crash the caller with itself. There is one server for each
process. It ends with its parent, even if that is killed.
"""

import asyncio
import atexit
import json
import logging
import os
import secrets
import subprocess
import sys
import tempfile
import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import Future
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple, cast

import openai
from langchain_core.outputs import ChatGenerationChunk, ChatResult
from langchain_openai import ChatOpenAI

from memalign_graph.errors import require_extra
from memalign_graph.local.weights import MODEL, LocalModelError, find_weights
from memalign_graph.models import declare_small

MAX_INPUT_TOKENS = 8192
MAX_OUTPUT_TOKENS = 1024
"""The longest answer to the longest prompt."""

_CPU_LIMIT = Path("/sys/fs/cgroup/cpu.max")
_logger = logging.getLogger(__name__)


class Endpoint(NamedTuple):
    """The server's address, and its key, which no other process of this machine has."""

    base_url: str
    api_key: str


_lock = threading.Lock()
_running: tuple[subprocess.Popen[str], Endpoint] | None = None


def start_server() -> Endpoint:
    """Start the server if it is not running.

    Returns:
        The server's address and key.

    Raises:
        LocalModelError: If the weights or the server cannot be used.
    """
    global _running  # noqa: PLW0603 - one server per process
    with _lock:
        if _running is not None:
            process, endpoint = _running
            if (status := process.poll()) is None:
                return endpoint
            _logger.warning("The embedded model's server ended (%s). Restarting it.", status)
            _close(process)
        _running = None
        with require_extra("local", "the embedded chat model"):
            if find_spec("xllamacpp") is None:
                raise ModuleNotFoundError(name="xllamacpp")
        _running = _launch(find_weights())
        return _running[1]


def stop_server() -> None:
    """Stop the server, if it runs: running requests fail, and the next call starts it again."""
    global _running  # noqa: PLW0603 - see start_server
    with _lock:
        if _running is not None:
            _close(_running[0])
        _running = None


@atexit.register
def _kill_server() -> None:
    """Do not wait for a server that starts: the weights may take minutes."""
    if _running is not None:
        _close(_running[0])


def _launch(weights: Path) -> tuple[subprocess.Popen[str], Endpoint]:
    threads = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    with suppress(OSError, ValueError):  # no container, or one without a limit
        quota_us, period_us = map(int, _CPU_LIMIT.read_text().split())
        threads = max(min(threads, quota_us // period_us), 1)
    settings = {
        "path": str(weights),
        "name": MODEL,
        "key": secrets.token_hex(16),
        "window": MAX_INPUT_TOKENS + MAX_OUTPUT_TOKENS,
        "threads": threads,
    }
    # With -P this folder's modules do not hide others of the same name.
    command = [sys.executable, "-P", str(Path(__file__).with_name("serve.py"))]
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as log:
        process: Any = subprocess.Popen(  # noqa: S603 - our own script, by this Python
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True
        )
        answer: dict[str, Any] = {}
        with suppress(OSError):  # if the process ended
            process.stdin.write(json.dumps(settings) + "\n")
            process.stdin.flush()
            answer = json.loads(process.stdout.readline() or "{}")
        if "address" in answer:
            return process, Endpoint(f"{answer['address']}/v1", str(settings["key"]))
        _close(process)
        reason = answer.get("error") or f"it ended with status {process.returncode}"
        log.seek(0)
        errors = [line.strip() for line in log if " E " in line or "Error" in line]
        quoted = f" [{errors[0]}]" if errors else ""
        raise LocalModelError(
            f"The embedded model's server did not start: {reason}{quoted} (weights: {weights})"
        )


def _close(process: "subprocess.Popen[str]") -> None:
    process.kill()  # it has nothing to save
    with process:  # waits, and closes the pipes
        pass


class _LocalChatOpenAI(ChatOpenAI):
    """A `ChatOpenAI` that starts the embedded server at its first call."""

    @classmethod
    def is_lc_serializable(cls) -> bool:
        return False  # another process has another address

    def _generate(self, *args: Any, **kwargs: Any) -> ChatResult:
        self._connect()
        return super()._generate(*args, **kwargs)

    async def _agenerate(self, *args: Any, **kwargs: Any) -> ChatResult:
        await self._aconnect()
        return await super()._agenerate(*args, **kwargs)

    def _stream(self, *args: Any, **kwargs: Any) -> Iterator[ChatGenerationChunk]:
        self._connect()
        yield from super()._stream(*args, **kwargs)

    async def _astream(self, *args: Any, **kwargs: Any) -> AsyncIterator[ChatGenerationChunk]:
        await self._aconnect()
        async for chunk in super()._astream(*args, **kwargs):
            yield chunk

    def _connect(self) -> None:
        endpoint = start_server()
        for client in (self.root_client, self.root_async_client):
            client.base_url, client.api_key = endpoint

    async def _aconnect(self) -> None:
        """Connect in a thread that a cancelled call, or a process that ends, does not wait for."""
        connected: Future[None] = Future()
        connected.set_running_or_notify_cancel()

        def connect() -> None:
            try:
                self._connect()
                connected.set_result(None)
            except Exception as error:  # noqa: BLE001 - raised where it is awaited
                connected.set_exception(error)

        threading.Thread(target=connect, daemon=True).start()
        await asyncio.wrap_future(connected)


def local_chat_model(**kwargs: Any) -> ChatOpenAI:
    """Create the embedded chat model: Qwen2.5-Coder 1.5B Instruct on the CPU, without a key.

    The first call downloads the weights if they are missing (1.1 GB, once) and starts the server (3
    to 8 s). All models of a process share one server, which handles one request at a time. A prefix
    that prompts share is processed once.

    The model supports `with_structured_output(schema, method="json_schema")` and `logprobs=True`,
    but no tools. It is small: a weak judge until it has learned.

    Args:
        **kwargs: The arguments of `ChatOpenAI`.

    Returns:
        The chat model.
    """
    defaults: dict[str, Any] = {
        "model": MODEL,
        "base_url": "http://127.0.0.1:9/v1",  # until the server has an address
        "api_key": "not-started",
        "temperature": 0,
        "seed": 0,
        "max_tokens": 512,  # about half a minute on two cores
        "timeout": 1800.0,  # includes waiting for the one slot
        "max_retries": 1,
        "use_responses_api": False,
        # A connection kept open belongs to an event loop that may be closed at the next call.
        "default_headers": {"Connection": "close"},
        # No proxy for requests to this machine.
        "http_client": openai.DefaultHttpxClient(trust_env=False),
        "http_async_client": openai.DefaultAsyncHttpxClient(trust_env=False),
        # Without this, ChatOpenAI logs a warning about proxies.
        "http_socket_options": (),
        "profile": {
            "name": MODEL,
            "max_input_tokens": MAX_INPUT_TOKENS,
            "max_output_tokens": MAX_OUTPUT_TOKENS,
            "structured_output": True,
            "tool_calling": False,
        },
    }
    return cast("ChatOpenAI", declare_small(_LocalChatOpenAI(**{**defaults, **kwargs})))
