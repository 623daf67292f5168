"""Environments of their own for extras that are not in the tests' own.

MLflow brings 600 MB and holds back packages that other tests use. Ray brings 400 MB.
"""

import json
import os
import subprocess
import sys
import tomllib
from importlib.util import find_spec
from pathlib import Path

from tests.loopback import LoopbackServer

ROOT = Path(__file__).parents[3]

_INSTALL_S = 900
_STEP_S = 300
_NEEDS = {"mlflow": ("mlflow",), "ray": ("ray", "pyarrow")}
_ADDED = {"ray": ["langgraph-checkpoint-sqlite>=3.0,<4"]}
"""What a test needs in addition to the extra."""


def python_with(extra: str) -> str:
    """The interpreter of an environment with an extra; made where there is none.

    `MEMALIGN_MLFLOW_PYTHON` and `MEMALIGN_RAY_PYTHON` name one that has it already.
    """
    if named := os.environ.get(f"MEMALIGN_{extra.upper()}_PYTHON"):
        return named
    if all(map(find_spec, _NEEDS[extra])):
        return sys.executable
    folder, added = Path(sys.prefix) / extra, _ADDED.get(extra, [])
    python, mark = folder / "bin" / "python", folder / "made-of"
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = json.dumps([project["dependencies"], project["optional-dependencies"][extra], added])
    if not (mark.exists() and mark.read_text() == wanted):
        _call(sys.executable, "-m", "venv", str(folder))
        pip = (str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
        _call(*pip, "--editable", f"{ROOT}[{extra}]", *added)
        mark.write_text(wanted)
    return str(python)


def run_worker(extra: str, server: LoopbackServer, folder: Path, *arguments: str) -> None:
    """Run a worker script with the real MLflow or Ray in a new process."""
    done = subprocess.run(
        [
            python_with(extra),
            "-m",
            f"tests.integration_tests.integrations.{extra}_worker",
            *arguments,
        ],
        cwd=folder,  # MLflow stores artifacts in its working directory
        env={**os.environ, **server.environment, **_quiet(folder)},
        capture_output=True,
        text=True,
        timeout=_STEP_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-5000:]


def _call(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=_INSTALL_S, check=False)
    assert done.returncode == 0, done.stderr[-5000:]


def _quiet(folder: Path) -> dict[str, str]:
    """Environment variables that disable network access of MLflow and Ray."""
    return {
        "PYTHONPATH": os.pathsep.join(
            [str(ROOT), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
        ),
        "MLFLOW_TRACKING_URI": f"sqlite:///{folder / 'mlflow.db'}",
        "MLFLOW_MODEL_CATALOG_URI": "",
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "LANGSMITH_TRACING": "false",
        "RAY_USAGE_STATS_ENABLED": "0",
    }
