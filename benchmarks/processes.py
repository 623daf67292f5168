"""Processes that a run needs: the model server, the peer's environment, a clean installation."""

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.plan import Measured

ROOT = Path(__file__).resolve().parent.parent
"""The repository's root, which runs are started in."""

_REQUIREMENTS = Path(__file__).with_name("peer-requirements.txt")
_IMPORT_REPEATS = 5
_COUNT = """
import importlib.metadata, json, pathlib, sysconfig
tools = {"pip", "setuptools", "wheel"}
root = pathlib.Path(sysconfig.get_path("purelib"))
mine = {path.name for name in tools for path in root.glob(f"{name}*")}
packages = {one.metadata["Name"].lower() for one in importlib.metadata.distributions()} - tools
files = [p for p in root.rglob("*") if p.is_file() and p.relative_to(root).parts[0] not in mine]
size = sum(path.stat().st_size for path in files)
print(json.dumps({"packages": len(packages), "megabytes": size / 1e6}))
"""


@contextmanager
def serving(*options: str) -> Iterator[str]:
    """Run the model server for as long as the block lasts; yields its base URL."""
    command = [sys.executable, "-m", "benchmarks.server", *options]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            url = process.stdout.readline().strip() if process.stdout else ""
            if not url:
                raise RuntimeError("The model server did not start.")
            yield url
        finally:
            process.terminate()


def environment(server: str, folder: Path) -> dict[str, str]:
    """Return a run's variables: models on this machine, and nothing that reaches further."""
    return {
        **os.environ,
        **dict.fromkeys(("OPENAI_API_BASE", "OPENAI_BASE_URL"), server),
        **dict.fromkeys(("NO_PROXY", "no_proxy"), "127.0.0.1"),
        "OPENAI_API_KEY": "none",
        "PYTHONPATH": str(ROOT),
        "LANGSMITH_TRACING": "false",
        "TQDM_DISABLE": "1",
        "MLFLOW_TRACKING_URI": f"sqlite:///{folder / 'mlflow.db'}",
        # Without the first two, the peer reaches for the internet; where there is none, fetching
        # the catalogue alone costs the first judgment of a process six seconds of retries.
        "MLFLOW_MODEL_CATALOG_URI": "",
        "MLFLOW_DISABLE_TELEMETRY": "true",
        # Its queue drops traces when a thousand are logged in a row.
        "MLFLOW_ENABLE_ASYNC_TRACE_LOGGING": "false",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "DSPY_CACHEDIR": str(folder / "dspy"),
    }


def peer_python(folder: Path) -> Path:
    """Return the interpreter of the peer's environment, which is made where it is not there."""
    mark = folder / ".requirements"
    wanted = hashlib.sha256(_REQUIREMENTS.read_bytes()).hexdigest()
    if not (mark.exists() and mark.read_text() == wanted):
        _make(folder, "--requirement", str(_REQUIREMENTS))
        mark.write_text(wanted)
    return _python(folder)


def install_ours(folder: Path) -> Path:
    """Install this package into a clean environment, as a user does; returns its interpreter."""
    _make(folder, str(ROOT))
    return _python(folder)


def measure_install(python: Path) -> Measured:
    """Count what an environment holds besides pip."""
    found: Measured = json.loads(_output(python, _COUNT))
    return found


def measure_import(python: Path, module: str) -> list[Measured]:
    """Time an import in fresh processes, after one that is not counted."""
    statement = f"import {module}"
    if module == "memalign_graph":  # what it imports lazily, too
        statement = f"from {module} import JudgeMemory, create_alignment_graph, create_judge_graph"
    code = f"import time; t = time.perf_counter(); {statement}; print(time.perf_counter() - t)"
    times = [float(_output(python, code)) for _ in range(_IMPORT_REPEATS + 1)]
    return [{"wall_s": seconds} for seconds in times[1:]]


def _make(folder: Path, *packages: str) -> None:
    subprocess.check_call([sys.executable, "-m", "venv", "--clear", str(folder)])
    pip = [str(_python(folder)), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.check_call([*pip, *packages])


def _python(folder: Path) -> Path:
    # Not resolved: an environment's interpreter is often a link to another.
    return folder.absolute() / "bin" / "python"


def _output(python: Path, code: str) -> str:
    return subprocess.check_output([str(python), "-c", code], text=True, cwd=ROOT)
