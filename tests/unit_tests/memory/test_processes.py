"""Real processes on one SQLite file or Postgres database."""

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from memalign_graph import JudgeMemory
from memalign_graph.memory.memory_state import build_state
from tests.loopback import LoopbackServer
from tests.unit_tests.memory.driver import check_same
from tests.unit_tests.memory.stores import Opener
from tests.unit_tests.memory.support import CRITERION, QUERY, hashed, learn, op, said
from tests.unit_tests.memory.worker import FORKS, act, die, look, start, store_at

COUNT = 3
"""How many processes act at once."""

STEPS = int(os.environ.get("MEMALIGN_TEST_STEPS", "30"))
"""How often each process acts; a thousand times tells more."""


@pytest.mark.parametrize("kind", ["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def test_random_processes_lose_nothing_and_see_the_same_memory(
    request: pytest.FixtureRequest, tmp_path: Path, kind: str
) -> None:
    place: Path | str = tmp_path / "store.db"
    if kind == "postgres":
        place = request.getfixturevalue("postgres_uri")
    stores: list[Any] = [store_at(place), store_at(place)]
    for store in stores:
        request.addfinalizer(store.conn.close)
    memory, cold = (JudgeMemory(store, CRITERION, embeddings=hashed) for store in stores)
    memory.version()
    children = [start(act, place, f"actor {number}", STEPS) for number in range(COUNT)]
    pipes = [pipe for _, pipe in children]
    assert [pipe.recv() for pipe in pipes] == ["ready"] * COUNT
    for pipe in pipes:
        pipe.send("go")
    written = [pipe.recv() for pipe in pipes]
    for pipe in pipes:
        pipe.send("look")
    seen = [pipe.recv() for pipe in pipes]

    guidelines, episodes = memory.guidelines(), memory.episodes()
    assert seen == [(memory.version(), guidelines, episodes)] * COUNT
    facts, feedback_records = memory.access.view.facts()
    assert all(written)
    assert sorted(fact.id for fact in facts) == sorted(key for item in written for key in item)
    assert (
        build_state(facts, feedback_records, memory.access.embedder.id).version == memory.version()
    )
    check_same([memory], cold)


def test_writer_killed_before_its_commit_leaves_the_memory_unchanged(
    server: LoopbackServer, opener: Opener, tmp_path: Path
) -> None:
    memory = JudgeMemory(opener(), CRITERION, embeddings=server.embedder())
    before = memory.version()
    child = FORKS.Process(target=die, args=(tmp_path / "store.db", dict(server.environment)))
    child.start()
    child.join()
    assert child.exitcode == -signal.SIGKILL
    assert [request.texts for request in server.embeddings] == [["one\n\na", "two\n\na"]]

    assert memory.episodes() == []
    assert memory.recall(QUERY) == []
    assert memory.version() == before
    server.embeddings.clear()
    memory.remember([said("one"), said("two")])
    assert len(memory.recall(said("one").example)) == 2
    assert server.embeddings == []


def test_every_process_recalls_in_the_same_order_and_embeds_only_the_query(
    server: LoopbackServer, opener: Opener, tmp_path: Path
) -> None:
    memory = JudgeMemory(opener(), CRITERION, embeddings=server.embedder())
    episodes = memory.remember([said(f"case {number}") for number in range(20)])
    learn(
        memory,
        *(op("add", episode, text=f"Rule of {episode.example.inputs}.") for episode in episodes),
    )
    server.embeddings.clear()
    _, pipe = start(look, tmp_path / "store.db", dict(server.environment))
    guidelines = [guideline.id for guideline in memory.guidelines()]
    assert pipe.recv() == (memory.version(), guidelines, [episode.id for episode in episodes], 20)
    assert [request.texts for request in server.embeddings] == [["a new question\n\na"]]
