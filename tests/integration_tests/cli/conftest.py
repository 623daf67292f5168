"""A folder with a criterion file for the loopback server's models."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration_tests.cli.support import CRITERION_YAML, Shell
from tests.loopback import LoopbackServer


@pytest.fixture
def server(closing_server: LoopbackServer) -> Iterator[LoopbackServer]:
    closing_server.reset()
    yield closing_server
    assert closing_server.errors == []


@pytest.fixture
def shell(
    server: LoopbackServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Shell:
    environment = {**server.environment, "OPENAI_API_KEY": "sk-loopback-secret"}
    for name in ("MODEL", "EMBEDDINGS", "CRITERION", "STORE"):
        monkeypatch.delenv(f"MEMALIGN_{name}", raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    made = Shell(tmp_path, server, capsys, environment)
    made.write("tone.yaml", CRITERION_YAML)
    return made
