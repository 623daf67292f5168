"""The real MLflow and Ray: assessments, a scorer, and a dataset judged by two workers."""

import json
import os
import signal
import time
from itertools import count
from pathlib import Path

import pytest

from tests.conftest import judgings
from tests.integration_tests.integrations.environments import run_worker
from tests.loopback import ChatRequest, LoopbackServer, Reply, Rule, error

pytestmark = pytest.mark.outside

ROWS, BATCH = 300, 16


class Killer:
    """A model that kills the calling worker half-way and waits for its restart."""

    def __init__(self, server: LoopbackServer) -> None:
        self.server, self.asked = server, count(1)
        self.workers = set[int]()

    def __call__(self, chat: ChatRequest) -> Reply:
        worker, count = int(chat.headers["x-worker"]), next(self.asked)
        self.workers.add(worker)
        if count == ROWS // 2:
            os.kill(worker, signal.SIGKILL)
        end = time.monotonic() + 100
        while count >= ROWS // 2 and len(self.workers) < 3 and time.monotonic() < end:
            time.sleep(0.1)
        return self.server.judge(chat)


def test_killed_worker_loses_and_repeats_no_row(server: LoopbackServer, tmp_path: Path) -> None:
    refused = error(400, "No.")
    server.rules = [Rule(lambda chat: "poison" in chat.text.rpartition("<case>")[2], reply=refused)]
    server.responder = killer = Killer(server)
    run_worker("ray", server, tmp_path, str(tmp_path), str(ROWS), str(BATCH))
    result = json.loads((tmp_path / "told.json").read_text())
    assert (result["rows"], result["doubled"], result["versions"]) == (ROWS, 0, True)
    assert len(killer.workers) == 3
    assert set(result["errors"]) == {"1", "2"}
    assert result["errors"]["1"].startswith("outputs: must not be empty")
    assert "No." in result["errors"]["2"]
    # All but the one with nothing to judge, and again what the killed worker was at; the refused
    # one is asked once more without similar cases each time.
    assert ROWS - 1 < len(judgings(server)) <= ROWS - 1 + BATCH + 2


def test_mlflow_scores_and_gives_feedback(server: LoopbackServer, tmp_path: Path) -> None:
    server.rules = [
        Rule(lambda chat: "refused" in chat.text, reply=error(400, "It is refused by the server.")),
        Rule(lambda _: True, value=False, rationale="Too cold."),
    ]
    run_worker("mlflow", server, tmp_path)
    requests = [chat for chat in server.chats if "We are sorry." in chat.text]
    assert requests, "expectations are the reference"
