"""The loopback server: scripts, records, and the real clients that speak to it."""

import socket
import socketserver
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, Self

from tests.loopback import wire
from tests.loopback.handler import Handler
from tests.loopback.judge_double import Rule, judged
from tests.loopback.replies import Fault, Raw, Reply, ReplyLike, as_reply, error
from tests.loopback.requests import ChatRequest, EmbeddingRequest

if TYPE_CHECKING:
    import openai
    from langchain_openai import ChatOpenAI, OpenAIEmbeddings

Responder = Callable[[ChatRequest], ReplyLike]
"""Answers the chat requests for which nothing is scripted."""

_JOIN_S = 5.0


class HttpServer(ThreadingHTTPServer):
    """Tracks its connections so that it can close them."""

    daemon_threads = True
    request_queue_size = 256

    def __init__(self, loopback: "LoopbackServer") -> None:
        self.loopback = loopback
        self._open: dict[threading.Thread, socket.socket] = {}
        self._open_lock = threading.Lock()
        super().__init__(("127.0.0.1", 0), Handler)

    def server_bind(self) -> None:
        """Bind without the name lookup of `HTTPServer`, which can be slow or blocked."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = "127.0.0.1", self.socket.getsockname()[1]

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        with self._open_lock:
            self._open[threading.current_thread()] = request
        try:
            super().process_request_thread(request, client_address)
        finally:
            with self._open_lock:
                del self._open[threading.current_thread()]

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore closed connections; keep other errors for the test."""
        problem = sys.exception()
        if isinstance(problem, Exception) and not isinstance(problem, ConnectionError):
            self.loopback.errors.append(problem)

    def end_connections(self) -> None:
        with self._open_lock:
            still_open = dict(self._open)
        for connection in still_open.values():
            try:
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue  # already closed
        for thread in still_open:
            thread.join(_JOIN_S)


class LoopbackServer:
    """An OpenAI-compatible server on 127.0.0.1, to be used as a context manager."""

    def __init__(self, *, keep_alive: bool = True) -> None:
        self.keep_alive = keep_alive
        """False closes each connection after its answer: for clients that nobody closes."""
        self.errors: list[Exception] = []
        """What went wrong inside the server or a responder."""
        self.released = threading.Event()
        self._lock = threading.Lock()
        self._chats_in_hand = 0
        self._http_client: openai.DefaultHttpxClient | None = None
        self._http_async_client: openai.DefaultAsyncHttpxClient | None = None
        self.reset()
        self._http = HttpServer(self)
        self._thread = threading.Thread(
            target=self._http.serve_forever, args=(0.02,), name="loopback", daemon=True
        )
        self._thread.start()

    def reset(self) -> None:
        """Clear records, scripts, rules and delays, and release hanging requests."""
        with self._lock:
            self.chats: list[ChatRequest] = []
            self.embeddings: list[EmbeddingRequest] = []
            self.peak_chats = 0
            """The most chat requests that were in hand at one time."""
            self.latency_s = self.embedding_latency_s = 0.0
            self.refused_text = ""
            """Embedding requests with this text are refused."""
            self.rules: list[Rule] = []
            """What the default responder goes by."""
            self.responder: Responder = self.judge
            self.errors.clear()
            self._script: deque[Reply] = deque()
            self._embedding_script: deque[Fault | None] = deque()
            self.released.set()
            self.released = threading.Event()

    def stop(self) -> None:
        """Close all connections, threads and the port; idempotent."""
        self._http.shutdown()
        self._thread.join(_JOIN_S)
        self.released.set()
        if self._http_client is not None:
            # Only the connections: the client must find the port closed.
            self._http_client._transport.close()
        self._http.end_connections()
        self._http.server_close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def port(self) -> int:
        return self._http.server_port

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables that direct `"openai:..."` strings to this server."""
        return {
            "OPENAI_API_KEY": "test",
            "OPENAI_BASE_URL": self.base_url,
            "OPENAI_API_BASE": self.base_url,
            "NO_PROXY": "127.0.0.1",
            "no_proxy": "127.0.0.1",
        }

    def judge(self, request: ChatRequest) -> Reply:
        """The default responder: a deterministic model."""
        return judged(request, self.rules)

    def script(self, *replies: ReplyLike) -> None:
        """Queue replies for the next chat requests; they take precedence over the responder."""
        with self._lock:
            self._script.extend(as_reply(reply) for reply in replies)

    def script_embeddings(self, *replies: Fault | None) -> None:
        """Queue faults for the next embedding requests; `None` lets one pass."""
        with self._lock:
            self._embedding_script.extend(replies)

    def chat_model(self, **kwargs: Any) -> "ChatOpenAI":
        """A real `ChatOpenAI` for this server, independent of the environment."""
        from langchain_openai import ChatOpenAI

        return ChatOpenAI(**{"model": "gpt-4.1-mini", **self._connection(), **kwargs})

    def embedder(self, **kwargs: Any) -> "OpenAIEmbeddings":
        """A real `OpenAIEmbeddings` for this server without token counting."""
        from langchain_openai import OpenAIEmbeddings

        settings = {"model": "text-embedding-3-small", "check_embedding_ctx_length": False}
        return OpenAIEmbeddings(**{**settings, **self._connection(), **kwargs})

    @contextmanager
    def handling_chat(self, request: ChatRequest) -> Iterator[Reply]:
        """Record a chat request and yield its reply while it is in flight."""
        with self._lock:
            self.chats.append(request)
            self._chats_in_hand += 1
            self.peak_chats = max(self.peak_chats, self._chats_in_hand)
        try:
            yield self._chat_reply(request)
        finally:
            with self._lock:
                self._chats_in_hand -= 1

    def take_embedding_reply(self, request: EmbeddingRequest) -> Fault | None:
        """Record an embedding request; returns a fault, or None for a normal answer."""
        with self._lock:
            self.embeddings.append(request)
            scripted = self._embedding_script.popleft() if self._embedding_script else None
        fault = wire.fault_in_embeddings(request)
        if self.refused_text and any(self.refused_text in text for text in request.texts):
            fault = "The content management policy refuses the input."
        return error(400, fault) if fault else scripted

    def _chat_reply(self, request: ChatRequest) -> Reply:
        fault = wire.fault_in_chat(request)
        if fault:
            return error(400, fault)
        with self._lock:
            if self._script:
                return self._script.popleft()
            responder = self.responder
        try:
            return as_reply(responder(request))
        except Exception as problem:  # noqa: BLE001 - whatever it is, the test is to see it
            self.errors.append(problem)
            failure = error(500, f"The responder failed: {problem!r}")
            return Raw(failure.status, failure.body, headers={"x-should-retry": "false"})

    def _connection(self) -> dict[str, Any]:
        """Settings of a client of this server.

        `stop` closes the synchronous connections. An asynchronous one is closed after its answer,
        so that none is left open behind a closed event loop.
        """
        import openai

        with self._lock:
            if self._http_client is None:
                self._http_client = openai.DefaultHttpxClient(trust_env=False, verify=False)
            if self._http_async_client is None:
                self._http_async_client = openai.DefaultAsyncHttpxClient(
                    trust_env=False, verify=False, headers={"Connection": "close"}
                )
        return {
            "base_url": self.base_url,
            "api_key": "test",
            "max_retries": 2,
            "openai_proxy": None,
            "http_client": self._http_client,
            "http_async_client": self._http_async_client,
        }
