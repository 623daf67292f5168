"""Which cases the replay guard judges, how many and how."""

from typing import Any

from tests.conftest import Bench
from tests.integration_tests.alignment_replay_support import (
    guarded,
    judged_case,
    seed,
    teaching,
    words,
)
from tests.integration_tests.alignment_support import (
    BOTH_WAYS,
    JUDGE,
    align,
    alignment,
    asked,
    progress_of,
    sources,
)
from tests.loopback import Together

VAGUE = "On #vague it is false of cases 2 3 101 and any other like it."
GOOD = "On #good1 it is false of cases 201 202, whatever else they say."


@BOTH_WAYS
async def test_off_by_default(bench: Bench) -> None:
    await seed(bench, 6)
    bench.server.chats.clear()
    bench.server.responder = teaching()
    report = await align(bench, [words(101, VAGUE, value=False)])
    assert report["replay"] is None
    assert asked(bench, JUDGE) == []
    assert sources(await bench.guidelines()) == {VAGUE: 1}


@BOTH_WAYS
async def test_nothing_to_replay(bench: Bench) -> None:
    """No seen case has a value: there is nothing that could be judged wrongly."""
    bench.server.responder = teaching()
    given = [words(n, f"On #{n} thank them.", value=None) for n in range(3)]
    report = await align(bench, given, guarded(bench))
    replay = report["replay"]
    assert (replay["cases"], replay["agreed_before"], replay["chat_calls"]) == (0, 0, 0)
    assert asked(bench, JUDGE) == []
    assert len(await bench.guidelines()) == 3


@BOTH_WAYS
async def test_no_more_cases_than_told(bench: Bench) -> None:
    await seed(bench, 12)
    bench.server.responder = teaching()
    report = await align(bench, [words(101, GOOD)], guarded(bench, replay_cases=5))
    assert report["replay"]["cases"] == 5
    assert len({judged_case(chat) for chat in asked(bench, JUDGE)}) == 5


@BOTH_WAYS
async def test_progress_of_the_replay_reaches_its_end(bench: Bench) -> None:
    await seed(bench, 6)
    bench.server.responder = teaching()
    given = {"feedback": [words(101, VAGUE, value=False)]}
    events = await bench.stream(guarded(bench), given, "u", stream_mode="custom")
    found = progress_of(events, "replay")
    assert found[0] == (0, 7)
    assert found[-1] == (7, 7)
    assert all(0 <= done <= of for done, of in found)


@BOTH_WAYS
async def test_judgments_run_side_by_side(bench: Bench) -> None:
    await seed(bench, 8)
    bench.server.responder = Together(9, teaching(), JUDGE)
    bench.server.peak_chats = 0
    await align(bench, [words(101, GOOD)], guarded(bench))
    assert bench.server.peak_chats == 9
    bench.server.responder = Together(2, teaching(), JUDGE)
    graph: Any = alignment(bench, guard="replay").with_config(max_concurrency=2)
    bench.server.peak_chats = 0
    await align(bench, [words(102, "On #c thank them.")], graph, "u")
    assert bench.server.peak_chats == 2
