"""One OpenAI-compatible address for both sides: a chat model's server, and the same embeddings.

Chat requests are passed on as they come; embeddings are those of `LocalEmbeddings`.
"""

import base64
import json
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np

from memalign_graph.local import LocalEmbeddings

_TIMEOUT_S = 1800


@contextmanager
def serve(base_url: str, api_key: str, port: int) -> Iterator[str]:
    """Serve for as long as the block lasts.

    Args:
        base_url: The chat model's server, such as `http://127.0.0.1:8080/v1`.
        api_key: Its key.
        port: Where to serve: an answer is kept by its model's address, too.

    Yields:
        The address, such as `http://127.0.0.1:43119/v1`.
    """
    embeddings = LocalEmbeddings()
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            status, answer = 200, b""
            if self.path.endswith("/embeddings"):
                answer = _embed(embeddings, json.loads(body))
            else:
                status, answer = self._pass_on(body)
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def _pass_on(self, body: bytes) -> tuple[int, bytes]:
            request = urllib.request.Request(  # noqa: S310 - an address the caller gave
                base_url + self.path.removeprefix("/v1"),
                body,
                {"content-type": "application/json", "authorization": f"Bearer {api_key}"},
            )
            try:
                with opener.open(request, timeout=_TIMEOUT_S) as response:
                    return response.status, response.read()
            except urllib.error.HTTPError as error:
                return error.code, error.read()

        def log_message(self, *_: Any) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/v1"
    finally:
        server.shutdown()
        server.server_close()


def _embed(embeddings: LocalEmbeddings, body: dict[str, Any]) -> bytes:
    given = body["input"]
    texts = [given] if isinstance(given, str) else given
    vectors = embeddings.embed_documents(texts)
    as_text = body.get("encoding_format") == "base64"
    data = [
        {"object": "embedding", "index": index, "embedding": _encoded(one) if as_text else one}
        for index, one in enumerate(vectors)
    ]
    usage = {"prompt_tokens": 0, "total_tokens": 0}
    reply = {"object": "list", "data": data, "model": body.get("model"), "usage": usage}
    return json.dumps(reply).encode()


def _encoded(vector: list[float]) -> str:
    return base64.b64encode(np.asarray(vector, "<f4").tobytes()).decode()
