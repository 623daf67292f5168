"""What the tests of examples share: a loopback model, and examples run as a user would."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.loopback import LoopbackServer

ROOT = Path(__file__).parents[2]


@pytest.fixture(name="server")
def example_server() -> Iterator[LoopbackServer]:
    with LoopbackServer() as running:
        yield running
        assert running.errors == []


def run_example(server: LoopbackServer, *command: str, cwd: Path = ROOT, typed: str = "") -> str:
    done = subprocess.run(
        [sys.executable, *command],
        cwd=cwd,
        env={**os.environ, **server.environment},
        input=typed,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
