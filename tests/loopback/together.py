"""Concurrency tests without timing."""

import threading
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.loopback.replies import ReplyLike
    from tests.loopback.requests import ChatRequest
    from tests.loopback.server import Responder

_GIVE_UP_S = 120.0
_LINGER_S = 0.1


class Together:
    """A responder that answers once so many requests, if named of one schema, are in hand."""

    def __init__(self, count: int, responder: "Responder", schema_name: str | None = None) -> None:
        self._count = count
        self._responder = responder
        self._schema_name = schema_name
        self._lock = threading.Lock()
        self._came = 0
        self._all_there = threading.Event()

    def __call__(self, request: "ChatRequest") -> "ReplyLike":
        if self._schema_name in (None, request.schema_name):
            with self._lock:
                self._came += 1
                is_last = self._came == self._count
            if is_last:
                time.sleep(_LINGER_S)  # one too many would be in hand, too
                self._all_there.set()
            if not self._all_there.wait(_GIVE_UP_S):
                raise TimeoutError(f"{self._came} of {self._count} requests came side by side.")
        return self._responder(request)
