"""HTTP: read a request, get the server's reply, and send it."""

import json
from collections.abc import Iterable, Mapping
from http.server import BaseHTTPRequestHandler
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import urlsplit

from tests.loopback import wire
from tests.loopback.replies import Answer, Disconnect, Fault, Hang, Raw, error
from tests.loopback.requests import ChatRequest, EmbeddingRequest

if TYPE_CHECKING:
    from tests.loopback.server import HttpServer, LoopbackServer


class Handler(BaseHTTPRequestHandler):
    """One keep-alive connection."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    @property
    def loopback(self) -> "LoopbackServer":
        return cast("HttpServer", self.server).loopback

    def do_POST(self) -> None:
        sent = self.rfile.read(int(self.headers.get("content-length") or 0))
        headers = {name.lower(): value for name, value in self.headers.items()}
        try:
            body = json.loads(sent)
        except ValueError:
            body = None
        if not isinstance(body, dict):
            self._fail(error(400, "The body is no JSON object."))
            return
        match urlsplit(self.path).path:
            case "/v1/chat/completions":
                self._chat(ChatRequest(body, headers))
            case "/v1/embeddings":
                self._embeddings(EmbeddingRequest(body, headers))
            case _:
                self._fail(error(404, f"Unknown path: {self.path}"))

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name it has there
        """Keep the tests' output clean."""

    def _chat(self, request: ChatRequest) -> None:
        with self.loopback.handling_chat(request) as reply:
            if isinstance(reply, Answer):
                self._wait(self.loopback.latency_s + reply.latency_s)
                if request.streaming:
                    self._stream(wire.chunks(request, reply))
        # Finished before its last byte is sent, since the client may send the next request then.
        if not isinstance(reply, Answer):
            self._fail(reply)
        elif request.streaming:
            self._send_chunk(b"data: [DONE]\n\n")
            self._send_chunk(b"")
        else:
            self._send_json(wire.completion(request, reply))

    def _embeddings(self, request: EmbeddingRequest) -> None:
        reply = self.loopback.take_embedding_reply(request)
        self._wait(self.loopback.embedding_latency_s)
        if reply is None:
            self._send_json(wire.embeddings(request))
        else:
            self._fail(reply)

    def _fail(self, fault: Fault) -> None:
        match fault:
            case Raw():
                self._send(fault)
            case Hang():
                self._wait(fault.seconds)
                self.close_connection = True
            case Disconnect():
                if fault.midway:
                    self._head(200, {"Content-Length": "1000"})
                    self.wfile.write(b'{"id": "chatcmpl-')
                self.close_connection = True

    def _stream(self, events: Iterable[dict[str, Any]]) -> None:
        self._head(200, {"Content-Type": "text/event-stream", "Transfer-Encoding": "chunked"})
        for event in events:
            self._send_chunk(f"data: {json.dumps(event)}\n\n".encode())

    def _send_chunk(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%b\r\n" % (len(data), data))

    def _send_json(self, body: dict[str, Any]) -> None:
        self._send(Raw(200, json.dumps(body)))

    def _send(self, reply: Raw) -> None:
        body = reply.body.encode()
        head = {"Content-Type": reply.content_type, "Content-Length": str(len(body))}
        self._head(reply.status, {**head, **reply.headers})
        self.wfile.write(body)

    def _head(self, status: int, headers: Mapping[str, str]) -> None:
        self.send_response_only(status)
        for name, value in headers.items():
            self.send_header(name, value)
        if not self.loopback.keep_alive:
            self.send_header("Connection", "close")  # closes it after this answer
        self.end_headers()

    def _wait(self, seconds: float) -> None:
        if seconds > 0:
            self.loopback.released.wait(seconds)
