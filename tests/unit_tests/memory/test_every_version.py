"""Random changes of every kind: each version that ever was can be read and restored, exactly."""

from typing import Any

import pytest

from memalign_graph.io import AWAITING, BLOCKING, run
from tests.unit_tests.memory.acting import Actor
from tests.unit_tests.memory.support import EVERY_STORE, Bench

pytestmark = EVERY_STORE

STEPS = 60


@pytest.mark.parametrize("seed", [1, 2])
async def test_every_version_ever_seen_can_be_read_and_restored(
    bench: Bench, reopen: Any, seed: int
) -> None:
    actor = Actor(bench.memory(), seed)
    seen: dict[str, list[Any]] = {}
    for _ in range(STEPS):
        if bench.awaits:
            await actor.act(AWAITING)
        else:
            run(actor.act(BLOCKING))
        now = await bench.contents()
        assert seen.setdefault(await bench.do("version"), now) == now
    reopen()
    assert len(seen) > STEPS / 4
    assert actor.done.count("roll_back") > 1
    for version, contents in seen.items():
        then = await bench.do("at", version)
        assert [one.to_json() for one in (*then.episodes, *then.guidelines)] == contents
        assert then.missing == []
    for version in actor.random.sample(list(seen), 8):
        await bench.do("rollback", version)
        assert await bench.contents() == seen[version]
        assert await bench.do("version") == version
    told = {one.version for one in await bench.do("history")}
    assert set(seen) <= {*told, "0" * 32}
