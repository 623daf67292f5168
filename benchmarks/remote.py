"""The model server as the runs see it: reset, slowed down and read out.

Only the standard library, since the peer's runs import this from another environment.
"""

import json
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

ZERO = {"chat": 0.0, "token": 0.0, "embedding": 0.0}
"""No latency at all: what is left is the client's own time and the server's."""

Measured = dict[str, Any]
"""What one stretch of work took (`wall_s`), and the server's counters for it."""


class Remote:
    """A model server that runs somewhere on this machine."""

    def __init__(self, base_url: str) -> None:
        self.base_url = base_url
        """Where it speaks OpenAI's protocol."""
        self._root = base_url.removesuffix("/v1")
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def counters(self) -> dict[str, Any]:
        """Return what the server counted since the last reset."""
        answer: dict[str, Any] = json.loads(self._call("/bench/counters"))
        return answer

    def reset(self) -> None:
        """Begin counting anew."""
        self._call("/bench/reset", {})

    @contextmanager
    def without_latency(self) -> Iterator[None]:
        """Let the server answer at once for as long as the block lasts."""
        self._call("/bench/latency", ZERO)
        try:
            yield
        finally:
            self._call("/bench/latency", {})

    def measure(self, work: Callable[[], object], *, prompts: bool = False) -> Measured:
        """Measure some work: its time, and what it asked the server for.

        Args:
            work: The work.
            prompts: Whether to keep the prompts it sent.

        Returns:
            The server's counters, with `wall_s`.

        Raises:
            RuntimeError: If the server refused a request: what was measured is then not the work.
        """
        self.reset()
        began = time.perf_counter()
        work()
        wall_s = time.perf_counter() - began
        measured = self.counters() | {"wall_s": wall_s}
        if measured["refused"]:
            raise RuntimeError(f"The model server refused {measured['refused']} request(s).")
        if not prompts:
            del measured["prompts"]
        return measured

    def _call(self, path: str, body: dict[str, Any] | None = None) -> bytes:
        data = None if body is None else json.dumps(body).encode()
        with self._opener.open(self._root + path, data=data, timeout=30) as response:
            answer: bytes = response.read()
        return answer
