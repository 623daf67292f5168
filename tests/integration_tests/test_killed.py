"""A killed process is continued by another one from the files."""

import asyncio
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from memalign_graph.nodes import learn
from tests.conftest import CASE, COLD, CRITERION, EVERY_WAY, Bench, distillings, judgings
from tests.integration_tests.alignment_worker import review
from tests.integration_tests.panels.support import TONE, reviewed
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


async def die(*_args: Any, **_options: Any) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("resumes", [False, True])
@pytest.mark.parametrize(
    ("kind", "step"),
    [
        ("comment", "distill_in_batches"),
        ("confirmation", "commit_distilled"),
        ("vague comment", "ask_with_retry"),
        ("panel", "distill_in_batches"),
        ("panel's confirmation", "commit_distilled"),
    ],
)
async def test_feedback_forgotten_before_the_killed_run_goes_on_stays_forgotten(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, kind: str, step: str, *, resumes: bool
) -> None:
    is_panel = kind.startswith("panel")
    reply: Any = {"value": True} if kind.endswith("confirmation") else COLD
    reply = {**reply, "author": "ann"}
    reply = {"tone": reply} if is_panel else reply
    clarifying = bench.review_graph(clarify=kind == "vague comment")
    graph = reviewed(bench, [TONE]) if is_panel else clarifying
    criterion = TONE if is_panel else CRITERION
    await bench.invoke(graph, CASE)
    with monkeypatch.context() as patch:
        patch.setattr(learn, step, die)
        with pytest.raises(KeyboardInterrupt):
            await bench.resume(graph, reply)
    assert len(await bench.episodes(criterion=criterion)) == 1
    bench.memory(criterion).forget(author="ann")
    done = await (bench.resume(graph, reply) if resumes else bench.invoke(graph, None))
    assert done["learned"] == ({"tone": None} if is_panel else None)
    assert await bench.episodes(criterion=criterion) == []
    assert await bench.guidelines(criterion=criterion) == []
    assert distillings(bench.server) == []
    await bench.review(graph, reply, on="given again")
    assert len(await bench.episodes(criterion=criterion)) == 1
