"""Whatever operations are applied to guidelines: what must always hold of the outcome."""

import random
from typing import Any

import pytest

from memalign_graph import Guideline, JudgeMemory
from memalign_graph.io import BLOCKING, run
from memalign_graph.memory.learning import GuidelineOperation, applied, learn, plain_words
from tests.unit_tests.memory.support import CRITERION, hashed, in_memory, op, said

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


def taught(chance: random.Random) -> tuple[JudgeMemory, Any, list[str]]:
    """A memory that learned from some episodes, the store's opener, and further episodes."""
    opener = in_memory()
    memory = JudgeMemory(opener(), CRITERION, embeddings=hashed)
    ids = [one.id for one in memory.remember([said(f"q{number}") for number in range(10)])]
    for text in chance.sample(TEXTS, chance.randrange(3)):
        memory.add_guideline(text)
    learned(memory, some_operations(chance, [], ids[:5], "add"), ids[:5])
    return memory, opener, ids[5:]


def learned(memory: JudgeMemory, operations: list[GuidelineOperation], ids: list[str]) -> Any:
    words = {one.id: one.word for one in memory.episodes() if one.id in ids}
    return run(learn(BLOCKING, memory.access, operations, words))


def shown(guidelines: list[Guideline]) -> list[Any]:
    return [(one.text, set(one.episode_ids), one.origin, one.status) for one in guidelines]


def named(guidelines: list[Guideline]) -> set[str]:
    return {key for one in guidelines for key in one.episode_ids}


@pytest.mark.parametrize("block", range(4))
def test_what_is_learned_is_what_was_worked_out_and_sound(block: int) -> None:
    for seed in range(50 * block, 50 * (block + 1)):
        chance = random.Random(seed)  # noqa: S311 - nothing secret
        memory, opener, ids = taught(chance)
        before = memory.guidelines()
        operations = some_operations(chance, before, ids, *ACTIONS)
        expected = applied(before, operations)
        learned(memory, operations, ids)
        after = memory.guidelines()
        assert shown(after) == shown(sorted(expected, key=lambda one: one.position)), seed
        # An expert's own guidelines are as they were, and no two rules say the same.
        assert [one for one in after if one.origin == "expert"] == [
            one for one in before if one.origin == "expert"
        ], seed
        assert len({plain_words(one.text) for one in after}) == len(after), seed
        # Nothing was made of nothing.
        assert all(one.episode_ids for one in after if one.origin == "distilled"), seed
        # Another process sees the same, and to learn it again changes nothing.
        other = JudgeMemory(opener(), CRITERION, embeddings=hashed)
        assert (other.guidelines(), other.version()) == (after, memory.version()), seed
        learned(other, operations, ids)
        assert other.version() == memory.version(), seed


@pytest.mark.parametrize("block", range(2))
def test_what_a_lesson_did_goes_with_its_sources(block: int) -> None:
    """What it retired comes back, and what it worded is to be worded anew from what was there."""
    for seed in range(50 * block, 50 * (block + 1)):
        chance = random.Random(seed)  # noqa: S311 - nothing secret
        memory, _, ids = taught(chance)
        before = memory.guidelines()
        operations = some_operations(chance, before, ids, "add", "revise", "retire")
        learned(memory, operations, ids)
        memory.forget(ids)
        after = memory.guidelines()
        assert named(after) == named(before), seed
        there = {(one.id, one.text) for one in before}
        assert all((one.id, one.text) in there or one.status == "pending" for one in after), seed
        assert [one for one in after if one.origin == "expert"] == [
            one for one in before if one.origin == "expert"
        ], seed
