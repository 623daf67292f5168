"""A process killed half-way: another one goes on with what the files hold."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import CASE, COLD, CRITERION, EVERY_WAY, Bench, distillings, judgings
from tests.loopback import Rule, hang

ROOT = Path(__file__).parents[2]

Worker = subprocess.Popen[str]
Start = Callable[[Any], Worker]

pytestmark = EVERY_WAY("sqlite-sync")


@pytest.fixture
def start(bench: Bench, tmp_path: Path) -> Iterator[Start]:
    """Start a process that works on the bench's files."""
    workers: list[Worker] = []

    def start_worker(reply: Any) -> Worker:
        given = [str(tmp_path), CRITERION.model_dump_json(), json.dumps(CASE), json.dumps(reply)]
        worker = subprocess.Popen(
            [sys.executable, "-m", "tests.integration_tests.killed_worker", *given],
            cwd=ROOT,
            env={**os.environ, **bench.server.environment},
            stdout=subprocess.PIPE,
            text=True,
        )
        workers.append(worker)
        return worker

    yield start_worker
    for worker in workers:
        kill(worker)


def kill(worker: Worker) -> None:
    """SIGKILL: nothing is flushed, nothing is closed."""
    worker.kill()
    worker.wait()
    if worker.stdout is not None:
        worker.stdout.close()


def judgment_of(worker: Worker) -> Any:
    assert worker.stdout is not None
    return json.loads(worker.stdout.readline())


def wait_until(ready: Callable[[], Any], worker: Worker) -> None:
    give_up = time.monotonic() + 300
    while not ready():
        assert time.monotonic() < give_up, "it never came so far"
        assert worker.poll() is None, "it ended before"
        time.sleep(0.01)


async def test_killed_between_interrupt_and_resume(bench: Bench, start: Start) -> None:
    worker = start(None)
    judgment = judgment_of(worker)
    kill(worker)
    graph = bench.review_graph()
    assert len((await bench.state(graph)).interrupts) == 1
    given = await bench.resume(graph, COLD)
    assert given["judgment"] == judgment
    [episode] = await bench.episodes()
    [guideline] = await bench.guidelines()
    assert given["learned"]["episode_ids"] == [episode.id] == guideline.episode_ids
    assert episode.status == "distilled"
    assert len(judgings(bench.server)) == 1


@pytest.mark.parametrize("how", ["continue", "resume"])
async def test_killed_while_distilling(bench: Bench, start: Start, how: str) -> None:
    server = bench.server
    server.rules = [Rule(lambda chat: chat.schema_name != "judgment", reply=hang(600))]
    worker = start(COLD)
    wait_until(lambda: distillings(server), worker)
    kill(worker)
    server.rules = []
    [pending] = await bench.episodes()
    assert (pending.status, await bench.guidelines()) == ("pending", [])
    graph = bench.review_graph()
    given = await (bench.invoke(graph, None) if how == "continue" else bench.resume(graph, COLD))
    assert len(given["learned"]["guidelines"]) == 1
    [episode] = await bench.episodes()
    [guideline] = await bench.guidelines()
    assert guideline.episode_ids == [episode.id] == [pending.id]
    assert (episode.status, episode.thread_ids) == ("distilled", ["t"])
    assert len(judgings(server)) == 1
    assert len(distillings(server)) == 2
