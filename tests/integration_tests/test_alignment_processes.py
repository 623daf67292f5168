"""Two processes that align the same memory at once in one SQLite file."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from langgraph.store.sqlite import SqliteStore

from memalign_graph import JudgeMemory
from tests.conftest import CRITERION
from tests.integration_tests.alignment_support import Model, record
from tests.integration_tests.alignment_worker import FORKS, Job, connect, texts, work
from tests.loopback import LoopbackServer


def said(first: int) -> list[dict[str, Any]]:
    return [
        record(n, rationale=f"On #{n % 10} always name it, said {n}.")
        for n in range(first, first + 100)
    ]


def align_at_once(
    server: LoopbackServer, folder: Path, *sets: list[dict[str, Any]], awaits: bool
) -> JudgeMemory:
    """Align each set in a process of its own, all at once; returns the memory."""
    server.responder = Model()
    server.latency_s = 0.05
    SqliteStore(connect(folder / "store.db")).setup()
    workers = []
    for number, feedback in enumerate(sets):
        job = Job(
            folder,
            dict(server.environment),
            CRITERION,
            feedback,
            awaits=awaits,
            checkpoints=False,
            name=f"steps{number}",
        )
        workers.append(FORKS.Process(target=work, args=(job,)))
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(300)
    assert [worker.exitcode for worker in workers] == [0] * len(workers)
    return JudgeMemory(SqliteStore(connect(folder / "store.db")), CRITERION)


def sources_of(memory: JudgeMemory) -> Counter[str]:
    """In how many guidelines each case stands."""
    inputs = {one.id: str(one.example.inputs) for one in memory.episodes()}
    found: Counter[str] = Counter()
    for guideline in memory.guidelines():
        found.update(inputs[key] for key in guideline.episode_ids)
    return found


@pytest.mark.parametrize("awaits", [False, True], ids=["sync", "async"])
def test_disjoint_sets(server: LoopbackServer, tmp_path: Path, awaits: bool) -> None:  # noqa: FBT001
    memory = align_at_once(server, tmp_path, said(0), said(100), awaits=awaits)
    episodes = memory.episodes()
    assert len(episodes) == 200
    assert {one.status for one in episodes} == {"distilled"}
    assert sources_of(memory) == {one.example.inputs: 1 for one in episodes}
    assert set(texts(server).values()) == {1}
    assert len(texts(server)) == 200
    ids = [one.id for one in memory.guidelines()]
    assert len(set(ids)) == len(ids)
    wordings = [one.text for one in memory.guidelines()]
    assert len(set(wordings)) == len(wordings)
    memory.access.store.conn.close()  # type: ignore[attr-defined]


@pytest.mark.parametrize("awaits", [False, True], ids=["sync", "async"])
def test_identical_sets(server: LoopbackServer, tmp_path: Path, awaits: bool) -> None:  # noqa: FBT001
    memory = align_at_once(server, tmp_path, said(0), said(0), awaits=awaits)
    episodes = memory.episodes()
    assert len(episodes) == 100
    assert {one.status for one in episodes} == {"distilled"}
    assert sources_of(memory) == {one.example.inputs: 1 for one in episodes}
    wordings = [one.text for one in memory.guidelines()]
    assert len(wordings) == len(set(wordings)) == 10
    memory.access.store.conn.close()  # type: ignore[attr-defined]
