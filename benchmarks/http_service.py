"""A small HTTP/1.1 server on asyncio: keep-alive, bodies with a length, and delayed answers.

It shares its cores with the clients it measures, so it does as little as it can for a request.
"""

import asyncio
import re
from collections.abc import Callable
from dataclasses import dataclass

_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)

_HEAD_END = b"\r\n\r\n"


@dataclass(frozen=True, slots=True)
class Response:
    """What a request gets, and when."""

    body: bytes
    """JSON."""

    delay_s: float = 0.0
    """How long after its arrival the request is answered, what it took to answer included."""

    status: int = 200
    """The HTTP status."""

    sent: Callable[[float], None] | None = None
    """Told how long the request was held, once it is answered."""


Respond = Callable[[str, str, bytes], Response]
"""Answers a method, a path and a body."""


class Connection(asyncio.Protocol):
    """One client's connection; requests on it are answered one after another."""

    def __init__(self, respond: Respond) -> None:
        self._respond = respond
        self._loop = asyncio.get_running_loop()
        self._received = bytearray()
        self._busy = False
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the connection's transport."""
        if not isinstance(transport, asyncio.Transport):
            raise TypeError("the server listens on a stream.")
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - its name there
        """Forget the transport: what is not answered yet is not answered any more."""
        self._transport = None

    def data_received(self, data: bytes) -> None:
        """Take in what the client sent."""
        self._received += data
        self._next()

    def _next(self) -> None:
        if self._busy:
            return
        head_end = self._received.find(_HEAD_END)
        if head_end < 0:
            return
        length = _LENGTH.search(self._received, 0, head_end)
        body_at = head_end + len(_HEAD_END)
        end = body_at + (int(length[1]) if length else 0)
        if len(self._received) < end:
            return
        arrived = self._loop.time()
        method, path, _ = self._received[: self._received.index(b"\r\n")].decode().split(" ", 2)
        body = bytes(self._received[body_at:end])
        del self._received[:end]
        self._busy = True
        response = self._respond(method, path, body)
        due = arrived + response.delay_s
        if due <= self._loop.time():
            self._send(response, arrived)
        else:
            self._loop.call_at(due, self._send, response, arrived)

    def _send(self, response: Response, arrived: float) -> None:
        self._busy = False
        if self._transport is None:
            return
        head = (
            f"HTTP/1.1 {response.status} {'OK' if response.status < 400 else 'Refused'}\r\n"  # noqa: PLR2004 - HTTP's own
            f"content-type: application/json\r\ncontent-length: {len(response.body)}\r\n\r\n"
        )
        self._transport.write(head.encode() + response.body)
        if response.sent is not None:
            response.sent(self._loop.time() - arrived)
        self._next()


async def serve(respond: Respond, port: int, started: Callable[[int], None]) -> None:
    """Serve on 127.0.0.1 until cancelled.

    Args:
        respond: Answers requests.
        port: Where; 0 takes a free port.
        started: Told the port once connections are taken.
    """
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Connection(respond), "127.0.0.1", port, backlog=256)
    async with server:
        started(server.sockets[0].getsockname()[1])
        await server.serve_forever()
