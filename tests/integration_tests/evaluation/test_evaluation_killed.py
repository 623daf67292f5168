"""Evaluations in processes of their own: one is killed, and two that share its file go on."""

import time
from pathlib import Path
from typing import Any

from memalign_graph.evaluation import Report
from tests.integration_tests.evaluation.support import Model, asked, judged, plain, words
from tests.integration_tests.evaluation.worker import FORKS, work
from tests.loopback import LoopbackServer

WORDS = words(9)


def started(server: LoopbackServer, file: Path, limit: int) -> Any:
    worker = FORKS.Process(target=work, args=(dict(server.environment), file, WORDS, limit))
    worker.start()
    return worker


def test_killed_run_goes_on(server: LoopbackServer, tmp_path: Path) -> None:
    """Only what was not answered is asked, and the end is as if nothing had been."""
    server.responder = follow = Model(judge=lambda chat: judged(chat) % 2 > 0)
    file = tmp_path / "kept.db"
    undisturbed = started(server, tmp_path / "other.db", 4)
    undisturbed.join(240)
    assert undisturbed.exitcode == 0
    whole = len(server.chats)
    (written,) = tmp_path.glob("other-*.json")
    wanted = Report.model_validate_json(written.read_text())
    for stop_at in (3, 8):
        server.reset()
        server.responder = follow
        server.latency_s = 0.03
        worker = started(server, file, 2)
        give_up = time.monotonic() + 240
        while len(server.chats) < stop_at:
            assert time.monotonic() < give_up
            assert worker.is_alive()
            time.sleep(0.005)
        worker.kill()
        worker.join()
    server.reset()
    server.responder = follow
    workers = [started(server, file, 4) for _ in range(2)]
    for worker in workers:
        worker.join(240)
        assert worker.exitcode == 0
    assert len(server.chats) > 0
    assert len({chat.text for chat in server.chats}) < whole - 6
    for out in tmp_path.glob("kept-*.json"):
        assert plain(Report.model_validate_json(out.read_text())) == plain(wanted)
    asked(server)
    again = started(server, file, 4)
    again.join(240)
    assert again.exitcode == 0
    assert asked(server) == (0, 0)
