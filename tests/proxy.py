"""A TCP proxy for a database that adds latency or cuts connections within a message."""

import select
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from typing import Literal
from urllib.parse import parse_qs, urlsplit


class Proxy:
    """Forwards bytes between clients and a Postgres server at a Unix socket."""

    def __init__(self, uri: str) -> None:
        parts = urlsplit(uri)
        self._socket = f"{parse_qs(parts.query)['host'][0]}/.s.PGSQL.5432"
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._ended = threading.Event()
        port = self._listener.getsockname()[1]
        self.uri = f"postgresql://postgres@127.0.0.1:{port}{parts.path}"
        self.latency_s = 0.0
        self.carried: list[Literal["asked", "answered"]] = []
        """What went through since it was last emptied, part by part."""
        self.cut_at: int | None = None
        """In the midst of the part that comes as so many-th the connection ends."""
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):  # closed at the end
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with closing(client), socket.socket(socket.AF_UNIX) as server, suppress(OSError):
            server.connect(self._socket)
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            while not self._ended.is_set():
                ready, _, _ = select.select([client, server], [], [], 0.1)
                for source in ready:
                    data = source.recv(1 << 20)
                    if not data:
                        return
                    time.sleep(self.latency_s)
                    is_cut = self.cut_at == len(self.carried)
                    self.carried.append("asked" if source is client else "answered")
                    target = server if source is client else client
                    target.sendall(data[: len(data) // 2] if is_cut else data)
                    if is_cut:
                        self.cut_at = None
                        return

    def close(self) -> None:
        self._ended.set()
        self._listener.close()


@contextmanager
def proxied(uri: str) -> Iterator[Proxy]:
    proxy = Proxy(uri)
    try:
        yield proxy
    finally:
        proxy.close()
