"""Fixtures of the tests of evaluations."""

import pytest

from tests.integration_tests.evaluation.support import Caller, Model
from tests.loopback import LoopbackServer


@pytest.fixture
def call(server: LoopbackServer) -> Caller:
    server.responder = Model()
    return Caller(server)
