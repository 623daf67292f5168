"""Processes that a run needs: the model server, and one side in its environment."""

import hashlib
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PEER_VENV = ROOT / ".venv-peer"
"""The peer's environment, made where it is not there."""

_REQUIREMENTS = Path(__file__).with_name("peer-requirements.txt")


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


def peer_python(folder: Path) -> str:
    """Return the interpreter of the peer's environment, which is made where it is not there."""
    # Not resolved: an environment's interpreter is often a link to another.
    python, mark = str(folder.absolute() / "bin" / "python"), folder / ".requirements"
    wanted = hashlib.sha256(_REQUIREMENTS.read_bytes()).hexdigest()
    if not (mark.exists() and mark.read_text() == wanted):
        subprocess.check_call([sys.executable, "-m", "venv", "--clear", str(folder)])
        subprocess.check_call([python, "-m", "pip", "install", "--quiet", "-r", str(_REQUIREMENTS)])
        mark.write_text(wanted)
    return python


def run_side(python: str, side: str, arguments: Sequence[str], server: str, folder: Path) -> None:
    """Run a side's program, with models on this machine, and nothing that reaches further."""
    variables = {
        **os.environ,
        **dict.fromkeys(("OPENAI_API_BASE", "OPENAI_BASE_URL"), server),
        **dict.fromkeys(("NO_PROXY", "no_proxy"), "127.0.0.1"),
        "OPENAI_API_KEY": "none",
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
    command = [python, "-m", f"benchmarks.{side}", *arguments]
    log = folder / "log.txt"
    with log.open("a") as output:
        code = subprocess.call(command, cwd=ROOT, env=variables, stdout=output, stderr=output)
    if code != 0:
        tail = "\n".join(log.read_text().splitlines()[-15:])
        raise RuntimeError(f"{side}: the run failed; the end of {log}:\n{tail}")
