"""An environment with the extra `mlflow`, apart from the tests' own.

MLflow's MemAlign calls models with `litellm`, which takes an older `openai` than ours: in one
environment all other tests would run with that one, too.
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
VARIABLE = "MEMALIGN_MLFLOW_PYTHON"
"""Names an interpreter that has the extra already."""

_INSTALL_S = 900
_STEP_S = 300


def mlflow_python() -> str:
    """The interpreter of an environment with the extra; made where there is none."""
    if os.environ.get(VARIABLE):
        return os.environ[VARIABLE]
    if find_spec("mlflow") and find_spec("dspy"):
        return sys.executable
    folder = Path(sys.prefix) / "mlflow"
    python, mark = folder / "bin" / "python", folder / "made-of"
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = json.dumps([project["dependencies"], project["optional-dependencies"]["mlflow"]])
    if not (mark.exists() and mark.read_text() == wanted):
        _call(sys.executable, "-m", "venv", str(folder))
        pip = (str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
        _call(*pip, "--editable", f"{ROOT}[mlflow]")
        mark.write_text(wanted)
    return str(python)


def run_worker(server: LoopbackServer, folder: Path) -> None:
    """Do what the real MLflow has to do, in a process of its own."""
    done = subprocess.run(
        [mlflow_python(), "-m", "tests.integration_tests.integrations.mlflow_worker"],
        cwd=folder,  # MLflow keeps what it calls artifacts where it runs
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
    """Variables that keep MLflow and what it calls on this machine."""
    return {
        "PYTHONPATH": str(ROOT),
        "MLFLOW_TRACKING_URI": f"sqlite:///{folder / 'mlflow.db'}",
        "MLFLOW_MODEL_CATALOG_URI": "",
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "DSPY_CACHEDIR": str(folder / "dspy"),
        "LANGSMITH_TRACING": "false",
    }
