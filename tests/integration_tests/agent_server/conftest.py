"""One `langgraph dev` for all tests of the Agent Server, with a loopback server for its models."""

from collections.abc import Iterator

import pytest
from langgraph_sdk import get_sync_client
from langgraph_sdk.client import SyncLangGraphClient

from tests.integration_tests.agent_server.support import AgentServer, langgraph_dev
from tests.loopback import LoopbackServer


@pytest.fixture(scope="package")
def agent_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AgentServer]:
    folder = tmp_path_factory.mktemp("server")
    with (
        LoopbackServer() as models,
        langgraph_dev(folder, models) as url,
        get_sync_client(url=url) as client,
    ):
        yield AgentServer(client, models)


@pytest.fixture
def server(agent_server: AgentServer) -> Iterator[LoopbackServer]:
    """The loopback server of the Agent Server's models, without recorded requests."""
    agent_server.models.reset()
    yield agent_server.models
    errors = list(agent_server.models.errors)
    agent_server.models.reset()
    assert errors == []


@pytest.fixture
def client(agent_server: AgentServer, server: LoopbackServer) -> SyncLangGraphClient:
    return agent_server.client
