"""Several processes on one SQLite file or Postgres database."""

import os
from pathlib import Path
from typing import Any

import pytest

from memalign_graph import Episode, JudgeMemory
from memalign_graph.memory.memory_state import build_state
from tests.unit_tests.memory.driver import check_same
from tests.unit_tests.memory.support import CRITERION, hashed
from tests.unit_tests.memory.worker import act, start, store_at

COUNT = 3
"""How many processes act at once."""

STEPS = int(os.environ.get("MEMALIGN_TEST_STEPS", "30"))
"""How often each process acts; a thousand times tells more."""


def without_times(episodes: list[Episode]) -> list[Episode]:
    """Leave out when a record was written: two writers of equal feedback write it at two times."""
    times = dict.fromkeys(("created_at", "updated_at"))
    return sorted((each.model_copy(update=times) for each in episodes), key=lambda each: each.id)


@pytest.mark.parametrize("kind", ["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def test_random_processes(request: pytest.FixtureRequest, tmp_path: Path, kind: str) -> None:
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
    expected = (memory.version(), guidelines, without_times(episodes))
    for version, their_guidelines, their_episodes in seen:
        assert (version, their_guidelines, without_times(their_episodes)) == expected
    facts, rows = memory.access.view.facts()
    assert all(written)
    assert sorted(fact.id for fact in facts) == sorted(key for item in written for key in item)
    assert build_state(facts, rows).version == memory.version()
    check_same([memory], cold)
