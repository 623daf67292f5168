"""Run operations with sync and async calls."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any

from langchain_core.messages import HumanMessage

from memalign_graph.asking import with_schema
from memalign_graph.io import ASYNC, IO, SYNC, run_sync
from memalign_graph.replies import ChatReply
from tests.loopback import LoopbackServer

SCHEMA = {
    "title": "verdict",
    "type": "object",
    "properties": {"value": {"type": "boolean"}},
    "required": ["value"],
    "additionalProperties": False,
}

_GIVE_UP_S = 120.0

Operation = Callable[[IO], Coroutine[Any, Any, Any]]
Drive = Callable[[Operation], Any]


def blocking(operation: Operation) -> Any:
    return run_sync(operation(SYNC))


def awaiting(operation: Operation) -> Any:
    return asyncio.run(operation(ASYNC))


class Barrier:
    """A barrier that releases operations once a number of them is in flight."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._came = 0
        self._lock = threading.Lock()
        self._threads, self._tasks = threading.Event(), asyncio.Event()

    async def wait(self, io: IO) -> None:
        with self._lock:
            self._came += 1
            if self._came == self._count:
                self._threads.set()
                self._tasks.set()
        assert await io.call_either(
            lambda: self._threads.wait(_GIVE_UP_S),
            lambda: asyncio.wait_for(self._tasks.wait(), _GIVE_UP_S),
        )


async def say(io: IO, server: LoopbackServer) -> ChatReply:
    model = with_schema(server.chat_model(max_retries=0), SCHEMA)
    return await io.chat(model, [HumanMessage("Well?")])
