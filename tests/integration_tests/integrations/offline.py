"""A fake LangSmith server that records run names, to check that nothing is sent."""

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

_NAME = re.compile(rb'"name":\s*"([^"]*)"')


class _Noting(BaseHTTPRequestHandler):
    names: list[str]

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        self.names += [name.decode() for name in _NAME.findall(body)]
        self.do_GET()

    def log_message(self, *_: object) -> None:
        """Keep the tests' output clean."""


@contextmanager
def noting_langsmith() -> Iterator[tuple[str, list[str]]]:
    """Serve on a free port; yields the address and the list of received run names."""
    names: list[str] = []
    handler = type("Handler", (_Noting,), {"names": names})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", names
        server.shutdown()
        thread.join()
