"""Every operation with every other in its midst: whatever comes of it holds together."""

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial

import pytest

from memalign_graph import Episode, InvalidInputError, JudgeMemory
from memalign_graph.io import SYNC, run_sync
from memalign_graph.memory.recall import recall
from tests.unit_tests.memory.driver import (
    OF_TWO,
    ONE,
    OPERATIONS,
    THREE,
    Operation,
    check_same,
    interleave,
    start,
)
from tests.unit_tests.memory.purging import everything_in, left_in
from tests.unit_tests.memory.support import QUERY, said

BRINGS_ONE = {"say another word", "revise one", "import", "roll back"}
TAKES_ONE = {"forget one", "purge one", "roll back to nothing"}
TAKES_RULE = {"forget two", "revise two", "take away by hand", "roll back to nothing", "roll back"}

ROLLS_BACK = {"roll back", "roll back to nothing"}
READS: dict[str, Operation] = {
    "look": lambda io, access: access.refresh(io),
    "recall": lambda io, access: recall(io, access, QUERY, 5),
}
WHILE_IT_READS = 6
"""How many calls go before an operation is in the midst of its reading."""


def check(memories: Sequence[JudgeMemory], both: set[str]) -> None:
    """All see the same, nothing in it points nowhere, and each operation kept its promise."""
    *warm, cold = memories
    check_same(warm, cold)
    episodes = {one.id: one for one in cold.episodes()}
    rules = cold.guidelines()
    standing = {one.text for one in rules if one.status == "standing"}
    taught = Counter(key for one in rules for key in one.episode_ids)
    assert taught.keys() <= episodes.keys()
    assert taught[THREE.id] <= 1  # of two lessons that read it, one has it
    if "purge one" in both and not both & {"import", "roll back"}:
        assert left_in(everything_in(cold.access.store), "zqxone") == []
        if "say another word" not in both and "revise one" not in both:
            assert left_in(everything_in(cold.access.store), ONE.example_id) == []
    if both & TAKES_ONE and not both & BRINGS_ONE and both != {"judge", "roll back to nothing"}:
        assert ONE.id not in episodes
    for name, word in (("say another word", "Word 2."), ("revise one", "Word 3.")):
        if name in both and not (both - {name}) & (TAKES_ONE | BRINGS_ONE - {"import"}):
            assert episodes[ONE.id].rationale == word
            assert ONE.id not in taught
    if "word by hand" in both and not both & TAKES_RULE:
        assert "By hand." in standing
    if "take away by hand" in both and not both & {"import", "roll back", "word by hand"}:
        assert OF_TWO not in {one.id for one in rules if one.status == "standing"}
    if "learn from three" in both and not both & ROLLS_BACK:
        assert THREE.id in taught or episodes[THREE.id].status == "pending"
    check_judged(episodes, both, is_taught=THREE.id in taught)


def check_judged(episodes: Mapping[str, Episode], both: set[str], *, is_taught: bool) -> None:
    if both == {"learn from three", "judge"}:
        assert is_taught
        assert episodes[THREE.id].status == "distilled"
    elif "judge" in both and not both & ROLLS_BACK:
        assert episodes[THREE.id].judgment is not None


@pytest.mark.parametrize("moment", [WHILE_IT_READS, None])
@pytest.mark.parametrize("name", OPERATIONS)
def test_with_every_other_in_its_midst(name: str, moment: int | None) -> None:
    problems = []
    for other in OPERATIONS:
        here, there, cold = start()
        beside = partial(run_there, other, there)
        try:
            interleave(OPERATIONS[name], here.access, beside, moment)
        except InvalidInputError as error:
            assert "names no" in str(error)  # noqa: PT017 - what it speaks of is gone meanwhile
            continue
        try:
            check([here, there, cold], {name, other})
            here.remember(said("one more"))
            check_same([here, there], cold)
        except (AssertionError, InvalidInputError) as error:
            problems.append(f"{other}: {str(error).splitlines()[0][:200]}")
    assert problems == []


def run_there(name: str, memory: JudgeMemory) -> None:
    run_sync(OPERATIONS[name](SYNC, memory.access))


AT_EVERY_STEP = [
    ("roll back", "forget one"),
    ("forget one", "learn from three"),
    ("purge one", "say something new"),
    ("reword of two", "word by hand"),
    ("import", "revise one"),
]


@pytest.mark.parametrize(("name", "other"), AT_EVERY_STEP)
def test_at_every_step(name: str, other: str) -> None:
    for step in range(1, 35):
        here, there, cold = start()
        interleave(OPERATIONS[name], here.access, partial(run_there, other, there), step)
        check([here, there, cold], {name, other})


@pytest.mark.parametrize("other", OPERATIONS)
@pytest.mark.parametrize("name", READS)
def test_a_reader_in_whose_midst_another_writes(name: str, other: str) -> None:
    for step in range(1, 8):
        for is_first in (True, False):
            here, there, cold = start()
            reader = cold if is_first else here
            before = there.version()
            interleave(READS[name], reader.access, partial(run_there, other, there), step)
            assert reader.access.view.version in (before, there.version()) or other == "purge one"
            assert reader.at(reader.access.view.version).missing == [] or other == "purge one"
            check([here, there, cold], {other})
