"""Workers that share a Postgres database: one goes on where another stopped, or was killed."""

import signal
from typing import Any

import pytest
from langgraph.types import Command

from memalign_graph import create_review_graph
from tests.conftest import CASE, COLD, CRITERION, distillings, judgings
from tests.integration_tests.alignment_worker import ON, models
from tests.integration_tests.postgres_worker import learn, serve
from tests.integration_tests.test_database_faults import Open, picture, same, worker
from tests.loopback import LoopbackServer
from tests.unit_tests.memory.support import hashed
from tests.unit_tests.memory.worker import start

pytestmark = pytest.mark.postgres

__all__ = ["worker"]  # a fixture
