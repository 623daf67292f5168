"""Two alignments that learn from the same feedback at the same moment: each lesson once."""

from collections import Counter
from functools import partial
from typing import Any

import pytest

from memalign_graph import JudgeMemory
from memalign_graph.io import BLOCKING, run
from memalign_graph.memory.learning import learn, plain_words
from tests.unit_tests.memory.support import (
    CRITERION,
    Operation,
    commits,
    hashed,
    in_memory,
    interleaved,
    op,
    said,
)


def memories() -> tuple[JudgeMemory, JudgeMemory, list[str]]:
    opener = in_memory()
    one, other = (JudgeMemory(opener(), CRITERION, embeddings=hashed) for _ in range(2))
    stored = one.remember([said(f"q{number}") for number in range(4)])
    other.version()
    return one, other, [episode.id for episode in stored]


def learned(memory: JudgeMemory) -> Counter[str]:
    return Counter(key for one in memory.guidelines() for key in one.episode_ids)


def learning(memory: JudgeMemory, *operations: Any) -> Operation:
    """Learn as an alignment does: from feedback that is pending."""
    read = _words(memory, [key for one in operations for key in one.episode_ids])
    return lambda io: learn(io, memory.access, operations, read, reason="align")


SHARES = [
    ((0, 1, 2, 3), (0, 1, 2, 3)),
    ((0, 1, 2, 3), (2, 3)),
    ((2, 3), (0, 1, 2, 3)),
    ((0, 1, 2), (1, 2, 3)),
    ((0, 1), (2, 3)),
]


@pytest.mark.parametrize("texts", [("Rule A.", "Rule B."), ("Rule A.", "RULE  a")])
def test_lessons_learned_at_once_are_learned_once(texts: tuple[str, str]) -> None:
    for share in SHARES:
        one, other, ids = memories()
        mine, theirs = ([ids[place] for place in places] for places in share)
        interleaved(
            learning(one, op("add", *mine, text=texts[0])),
            commits,
            partial(run, learning(other, op("add", *theirs, text=texts[1]))(BLOCKING)),
        )
        assert learned(one) == dict.fromkeys({*mine, *theirs}, 1)
        assert learned(other) == learned(one)
        assert {episode.status for episode in one.episodes()} == {"distilled"}
        found = one.guidelines()
        assert len({plain_words(guideline.text) for guideline in found}) == len(found)


def test_what_is_learned_beside_a_rewording_keeps_one_wording_a_lesson() -> None:
    one, other, ids = memories()
    run(learn(BLOCKING, one.access, [op("add", ids[0], text="Old.")], _words(one, ids[:1])))
    [guideline] = one.guidelines()
    rest = _words(one, ids[1:])
    revised = op("revise", *ids[1:], text="New.", guideline_id=guideline.id)
    interleaved(
        lambda io: learn(io, one.access, [revised], rest),
        commits,
        lambda: run(learn(BLOCKING, other.access, [op("add", *ids[1:], text="Another.")], rest)),
    )
    assert learned(one) == dict.fromkeys(ids, 1)


def _words(memory: JudgeMemory, ids: list[str]) -> dict[str, str]:
    return {one.id: one.word for one in memory.episodes() if one.id in ids}
