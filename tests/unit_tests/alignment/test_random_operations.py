"""Random operations: what is committed is what was worked out, and goes with its sources."""

import random
from datetime import UTC, datetime
from typing import Any

import pytest

from memalign_graph import Guideline, JudgeMemory
from memalign_graph.io import SYNC, run_sync
from memalign_graph.memory.guidelines import GuidelineOperation, apply_operations, normalize_text
from memalign_graph.memory.learning import commit_lesson
from tests.unit_tests.memory.stores import in_memory
from tests.unit_tests.memory.support import CRITERION, comment, hashed, op

TEXTS = [f"Rule {letter}." for letter in "abcdefgh"]
ACTIONS = ["add", "add", "revise", "retire", "merge"]


def some_operations(
    chance: random.Random, guidelines: list[Guideline], sources: list[str], *actions: str
) -> list[GuidelineOperation]:
    """Operations as several distillers and a comparison may propose them together."""
    made = []
    for _ in range(chance.randrange(8)):
        action: Any = chance.choice(actions)
        ids = chance.sample(sources, 0 if action == "merge" else chance.randrange(1, 3))
        target, other = (chance.choice([None, *guidelines]) for _ in "12")
        made.append(
            op(
                action,
                *ids,
                text=chance.choice([*TEXTS, None] if action == "retire" else TEXTS),
                guideline_id=None if action == "add" or target is None else target.id,
                superseded_by=other.id if other and action in ("retire", "merge") else None,
            )
        )
    return made


def learned(memory: JudgeMemory, operations: list[GuidelineOperation], ids: list[str]) -> None:
    words = {episode.id: episode.word for episode in memory.episodes() if episode.id in ids}
    run_sync(commit_lesson(SYNC, memory.access, operations, words))


def shown(guidelines: list[Guideline]) -> list[Any]:
    return [(each.text, {*each.episode_ids}, each.origin, each.status) for each in guidelines]


def named(guidelines: list[Guideline]) -> set[str]:
    return {key for guideline in guidelines for key in guideline.episode_ids}


@pytest.mark.parametrize("seed", range(0, 100, 10))
def test_what_is_learned_is_what_was_worked_out_and_goes_with_its_sources(seed: int) -> None:
    for number in range(seed, seed + 10):
        now = datetime.now(UTC)
        chance, opener = random.Random(number), in_memory()  # noqa: S311 - nothing secret
        memory = JudgeMemory(opener(), CRITERION, embeddings=hashed)
        stored = memory.remember([comment(f"q{index}", given_at=now) for index in range(10)])
        first, ids = [each.id for each in stored[:5]], [each.id for each in stored[5:]]
        for text in chance.sample(TEXTS, chance.randrange(3)):
            memory.add_guideline(text)
        learned(memory, some_operations(chance, [], first, "add"), first)
        before = memory.guidelines()
        by_hand = [item for item in before if item.origin == "expert"]
        # Merges last: their losers' sources stay with the winners.
        actions = ACTIONS if number % 3 else ACTIONS[:-1]
        operations = some_operations(chance, before, ids, *actions)
        expected = apply_operations(before, operations)
        learned(memory, operations, ids)
        after = memory.guidelines()
        assert shown(after) == shown(sorted(expected, key=lambda item: item.position))
        # An expert's own guidelines are as they were, and no two rules say the same.
        assert [item for item in after if item.origin == "expert"] == by_hand
        assert len({normalize_text(item.text) for item in after}) == len(after)
        # Nothing was made of nothing.
        assert all(item.episode_ids for item in after if item.origin == "distilled")
        # Another process sees the same, and to learn it again changes nothing.
        other = JudgeMemory(opener(), CRITERION, embeddings=hashed)
        assert (other.guidelines(), other.version()) == (after, memory.version())
        learned(other, [each for each in operations if each.action != "merge"], ids)
        assert other.guidelines() == after
        # Without its sources what it retired comes back; what it worded is to be worded anew.
        memory.forget(ids)
        left, there = memory.guidelines(), {(item.id, item.text) for item in before}
        assert [item for item in left if item.origin == "expert"] == by_hand
        if actions != ACTIONS:
            assert named(left) == named(before)
            assert all((each.id, each.text) in there or each.status == "pending" for each in left)
