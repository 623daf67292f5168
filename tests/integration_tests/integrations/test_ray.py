"""A dataset of the real Ray, judged by two workers, one of which is killed half-way."""

import json
from pathlib import Path

import pytest

from tests.conftest import judgings
from tests.integration_tests.integrations.environments import run_worker
from tests.loopback import LoopbackServer, Rule, error

pytestmark = pytest.mark.outside

ROWS, BATCH = 300, 16


def test_a_killed_worker_loses_and_doubles_nothing(server: LoopbackServer, tmp_path: Path) -> None:
    server.rules = [
        Rule(lambda chat: "poison" in chat.text.rpartition("<case>")[2], reply=error(400, "No.")),
        Rule(lambda chat: True, value=False),
    ]
    told = json.loads(
        run_worker("ray", server, tmp_path, str(tmp_path), str(ROWS), str(BATCH)).splitlines()[-1]
    )
    assert (told["rows"], told["doubled"], told["workers"]) == (ROWS, 0, 3)
    assert told["versions"]
    assert set(told["errors"]) == {"1", "2"}
    assert told["errors"]["1"].startswith("outputs: must not be empty")
    assert "No." in told["errors"]["2"]
    # All but the one with nothing to judge, and what the killed worker was at.
    assert ROWS - 1 <= len(judgings(server)) <= ROWS - 1 + BATCH
