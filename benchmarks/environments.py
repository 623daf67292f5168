"""Environments: the peer's own, and a clean one to measure an installation in."""

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.plan import Job

ROOT = Path(__file__).resolve().parent.parent
"""The repository's root, which runs are started in."""

REQUIREMENTS = Path(__file__).with_name("peer-requirements.txt")
"""What the peer's environment holds."""

_COUNT = """
import importlib.metadata, json, pathlib, sys, sysconfig
tools = {"pip", "setuptools", "wheel"}
root = pathlib.Path(sysconfig.get_path("purelib"))
mine = {str(path) for name in tools for path in root.glob(f"{name}*")}
packages = {one.metadata["Name"].lower() for one in importlib.metadata.distributions()} - tools
size = sum(
    path.stat().st_size
    for path in root.rglob("*")
    if path.is_file() and str(root / path.relative_to(root).parts[0]) not in mine
)
print(json.dumps({"packages": len(packages), "megabytes": size / 1e6}))
"""


def ensure_peer(folder: Path) -> Path:
    """Make the peer's environment where it is not there, or holds something else.

    Args:
        folder: The virtual environment's folder.

    Returns:
        Its interpreter.
    """
    python = _python(folder)
    mark = folder / ".requirements"
    wanted = hashlib.sha256(REQUIREMENTS.read_bytes()).hexdigest()
    if not (mark.exists() and mark.read_text() == wanted):
        _make(folder, ["--requirement", str(REQUIREMENTS)])
        mark.write_text(wanted)
    return python


def install_ours(folder: Path) -> Path:
    """Install this package into a clean environment, as a user does.

    Args:
        folder: The virtual environment's folder; what is there is lost.

    Returns:
        Its interpreter.
    """
    _make(folder, [str(ROOT)])
    return _python(folder)


def measure_install(python: Path) -> dict[str, float]:
    """Count what an environment holds besides pip.

    Args:
        python: Its interpreter.

    Returns:
        `packages`, and `megabytes` in its package folder.
    """
    found: dict[str, float] = json.loads(_output([str(python), "-c", _COUNT]))
    return found


def measure_import(python: Path, statement: str, repeats: int) -> list[float]:
    """Time an import in fresh processes, after one that is not counted.

    Args:
        python: The interpreter.
        statement: The import.
        repeats: How many processes.

    Returns:
        Seconds each took from before the import to after it, without starting Python.
    """
    code = f"import time; t = time.perf_counter(); {statement}; print(time.perf_counter() - t)"
    return [float(_output([str(python), "-c", code])) for _ in range(repeats + 1)][1:]


def run_job(python: Path, job: Job, results: Path) -> None:
    """Run one side's part in a process of its own.

    Args:
        python: The interpreter of the side's environment.
        job: What to do.
        results: The file it writes.

    Raises:
        RuntimeError: If it fails.
    """
    job.folder.mkdir(parents=True, exist_ok=True)
    command = [str(python), "-m", f"benchmarks.{job.module}", job.to_text(), str(results)]
    log = job.folder / "log.txt"
    with log.open("a") as output:
        code = subprocess.call(
            command,
            cwd=ROOT,
            env=peer_environment(job.server, job.folder),
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    if code != 0:
        tail = "\n".join(log.read_text().splitlines()[-15:])
        raise RuntimeError(f"{job.module}, {job.what}: the run failed; the end of {log}:\n{tail}")


def peer_environment(server: str, folder: Path) -> dict[str, str]:
    """Return a run's variables: models on this machine, and nothing that reaches further.

    Args:
        server: The OpenAI-compatible server.
        folder: Where the peer keeps its files.

    Returns:
        The variables.
    """
    return {
        **os.environ,
        "OPENAI_API_KEY": "none",
        "OPENAI_API_BASE": server,
        "OPENAI_BASE_URL": server,
        "NO_PROXY": "127.0.0.1",
        "no_proxy": "127.0.0.1",
        "LANGSMITH_TRACING": "false",
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


def _make(folder: Path, packages: Sequence[str]) -> None:
    subprocess.check_call([sys.executable, "-m", "venv", "--clear", str(folder)])
    pip = [str(_python(folder)), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.check_call([*pip, *packages])


def _python(folder: Path) -> Path:
    # Not resolved: an environment's interpreter is often a link to another.
    return folder.absolute() / "bin" / "python"


def _output(command: Sequence[str]) -> str:
    return subprocess.check_output(list(command), text=True, cwd="/")
