"""A killed process is continued by another one from the files."""

import asyncio
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import COLD, CRITERION, EVERY_WAY, Bench, distillings, judgings
from tests.integration_tests.alignment_worker import review
from tests.loopback import Rule, hang
from tests.unit_tests.memory.worker import FORKS

Start = Callable[..., Any]

pytestmark = EVERY_WAY("sqlite-sync")


@pytest.fixture
def start(bench: Bench, tmp_path: Path) -> Iterator[Start]:
    workers: list[Any] = []

    async def start_and_kill(reply: Any, ready: Callable[[Any], Any]) -> None:
        worker_arguments = (tmp_path, dict(bench.server.environment), CRITERION, reply)
        workers.append(FORKS.Process(target=review, args=worker_arguments))
        workers[-1].start()
        give_up = time.monotonic() + 300
        while not ready(await bench.state(bench.review_graph())):
            assert time.monotonic() < give_up, "it never came so far"
            assert workers[-1].is_alive(), "it ended before"
            await asyncio.sleep(0.02)
        workers[-1].kill()
        workers[-1].join()

    yield start_and_kill
    for worker in workers:
        worker.kill()
        worker.join()


async def test_killed_between_interrupt_and_resume(bench: Bench, start: Start) -> None:
    await start(None, lambda state: state.interrupts)
    graph = bench.review_graph()
    [interrupt] = (await bench.state(graph)).interrupts
    result = await bench.resume(graph, COLD)
    assert result["judgment"]["rationale"] in str(interrupt.value)
    [episode] = await bench.episodes()
    [guideline] = await bench.guidelines()
    assert result["learned"]["episode_ids"] == [episode.id] == guideline.episode_ids
    assert episode.status == "distilled"
    assert len(judgings(bench.server)) == 1


@pytest.mark.parametrize("how", ["continue", "resume"])
async def test_killed_while_distilling(bench: Bench, start: Start, how: str) -> None:
    server = bench.server
    server.rules = [Rule(lambda chat: chat.schema_name != "judgment", reply=hang(600))]
    await start(COLD, lambda _: distillings(server))
    server.rules = []
    [pending] = await bench.episodes()
    assert (pending.status, await bench.guidelines()) == ("pending", [])
    graph = bench.review_graph()
    result = await (bench.invoke(graph, None) if how == "continue" else bench.resume(graph, COLD))
    assert len(result["learned"]["guidelines"]) == 1
    [episode] = await bench.episodes()
    [guideline] = await bench.guidelines()
    assert guideline.episode_ids == [episode.id] == [pending.id]
    assert (episode.status, episode.thread_ids) == ("distilled", ["t"])
    assert len(judgings(server)) == 1
    assert len(distillings(server)) == 2
