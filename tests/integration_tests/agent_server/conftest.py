"""One `langgraph dev` for all tests of the Agent Server, with a loopback server for its models."""

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from langgraph_sdk import get_sync_client
from langgraph_sdk.client import SyncLangGraphClient

from tests.integration_tests.agent_server.support import AgentServer
from tests.loopback import LoopbackServer

ROOT = Path(__file__).parents[3]
FAN_OUT = Path(__file__).with_name("fan_out.py")
START_TIMEOUT_S = 300.0
RUNS_AT_ONCE = "8"


@pytest.fixture(scope="package")
def agent_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AgentServer]:
    """The real `langgraph dev`: the project's graphs, and a parent graph beside them."""
    url = f"http://127.0.0.1:{_free_port()}"
    folder = tmp_path_factory.mktemp("server")
    log = folder / "log"
    own = {k: v for k, v in os.environ.items() if not k.startswith(("LANGSMITH", "LANGCHAIN"))}
    with LoopbackServer() as models, log.open("w") as output:
        _write_config(folder)
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "langgraph_cli", "dev", "--no-browser", "--no-reload"),
                *("--port", url.rpartition(":")[2], "--n-jobs-per-worker", RUNS_AT_ONCE),
            ],
            cwd=folder,  # where the server keeps its state
            env=own | models.environment | {"LANGGRAPH_STRICT_MSGPACK": "true"},
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        try:
            with get_sync_client(url=url) as client:
                _wait_until_up(client, process, log)
                yield AgentServer(client, models)
        finally:
            process.terminate()
            process.wait(300)


@pytest.fixture
def server(agent_server: AgentServer) -> Iterator[LoopbackServer]:
    """The Agent Server's models; nothing is asked of them yet."""
    agent_server.models.reset()
    yield agent_server.models
    errors = list(agent_server.models.errors)
    agent_server.models.reset()
    assert errors == []


@pytest.fixture
def client(agent_server: AgentServer, server: LoopbackServer) -> SyncLangGraphClient:
    """A client of the Agent Server."""
    return agent_server.client


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _write_config(folder: Path) -> None:
    """Put the project's langgraph.json, its paths made absolute, where the server keeps state."""
    config = json.loads((ROOT / "langgraph.json").read_text(encoding="utf-8"))
    config["dependencies"] = [str(ROOT / one) for one in config["dependencies"]]
    config["graphs"] = {name: str(ROOT / entry) for name, entry in config["graphs"].items()}
    config["graphs"]["fan_out"] = f"{FAN_OUT}:graph"
    (folder / "langgraph.json").write_text(json.dumps(config), encoding="utf-8")


def _wait_until_up(
    client: SyncLangGraphClient, process: "subprocess.Popen[bytes]", log: Path
) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while process.poll() is None and time.monotonic() < deadline:
        try:
            client.assistants.search()
        except httpx.TransportError:
            time.sleep(0.2)
        else:
            return
    pytest.fail(f"langgraph dev did not start:\n{log.read_text()[-3000:]}")
