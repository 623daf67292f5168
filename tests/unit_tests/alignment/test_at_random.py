"""Whatever is proposed, found and apply_operations: what must always hold of the outcome."""

import itertools
import random
from typing import Any

from memalign_graph import Guideline, JudgeMemory
from memalign_graph.alignment.merge import ProposalMerger
from memalign_graph.io import SYNC, run_sync
from memalign_graph.memory.guidelines import GuidelineOperation, apply_operations, normalize_text
from memalign_graph.memory.learning import commit_lesson
from tests.unit_tests.alignment.alignment_cases import (
    BY_ANN,
    add,
    after,
    at,
    by_hand,
    dated,
    merge,
    relations,
    retire,
    revise,
    standing,
    stands,
)
from tests.unit_tests.memory.stores import in_memory
from tests.unit_tests.memory.support import CRITERION, hashed, op, said


def random_table(seed: int) -> tuple[Any, Any, Any]:
    """Some guidelines, proposals and relations as a model may give them."""
    chance = random.Random(seed)  # noqa: S311 - nothing secret
    texts = [f"Rule {letter}." for letter in "abcdefgh"]
    guidelines = [
        standing(text, f"e{number}", position=number)
        if chance.random() < 0.7
        else by_hand(text, position=number, updated_at=at(chance.randrange(30)))
        for number, text in enumerate(texts[: chance.randrange(4)])
    ]
    proposals = []
    for batch in range(chance.randrange(1, 4)):
        operations = []
        for number in range(chance.randrange(4)):
            source = f"e{10 * batch + number + 10}"
            text = chance.choice(texts)
            target = chance.choice(guidelines) if guidelines else None
            kind = chance.random()
            if target is None or kind < 0.5:
                operations.append(add(text, source))
            elif kind < 0.75:
                operations.append(revise(target, text, source))
            else:
                operations.append(retire(target, chance.choice([None, text]), source))
        proposals.append(operations)
    count = len(ProposalMerger(guidelines, proposals, dated(), BY_ANN).guidelines)
    places = range(count)
    pairs = [pair for pair in itertools.combinations(places, 2) if chance.random() < 0.15]
    groups = [chance.sample(places, 2) for _ in range(chance.randrange(3)) if count > 1]
    opposed = {frozenset(pair) for pair in pairs}
    groups = [group for group in groups if frozenset(group) not in opposed]
    return guidelines, proposals, relations(groups, pairs)


def test_whatever_is_proposed_the_outcome_is_sound() -> None:
    for seed in range(300):
        guidelines, proposals, found = random_table(seed)
        merged = merge(guidelines, *proposals, found=found)
        assert merged == merge(guidelines, *proposals, found=found)
        left = after(guidelines, merged)
        # An expert's own guidelines are as they were.
        for guideline in guidelines:
            if guideline.origin == "expert":
                assert left[guideline.text] == guideline, seed
        # Of two that contradict each other and are touched one goes, or both lost to others.
        ids = [item.id for item in left.values()]
        assert len(set(ids)) == len(ids)
        for conflict in merged.conflicts:
            assert conflict.first.guideline_id != conflict.second.guideline_id, seed
        alive = stands(left)
        hand = {guideline.text for guideline in guidelines if guideline.origin == "expert"}
        for conflict in merged.conflicts:
            both = {conflict.first.text, conflict.second.text}
            assert not both <= set(alive) or both <= hand, seed
        # No source of a rule that was added is lost, unless its rule lost or is an expert's.
        proposed = [item for batch in proposals for item in batch]
        words = {normalize_text(text) for text in hand}
        by_hand = {guideline.id for guideline in guidelines if guideline.origin == "expert"}
        told = [item for item in proposed if item.text and normalize_text(item.text) not in words]
        kept = {key for item in left.values() for key in item.episode_ids}
        for conflict in merged.conflicts:
            kept |= {*conflict.first.episode_ids, *conflict.second.episode_ids}
        lost = any(item.action == "retire" and not item.text for item in proposed) or any(
            operation.superseded_by in by_hand for operation in merged.operations
        )
        if not found.duplicates and not lost:
            assert {key for item in told for key in item.episode_ids} <= kept, seed


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
    opener = in_memory()
    memory = JudgeMemory(opener(), CRITERION, embeddings=hashed)
    ids = [episode.id for episode in memory.remember([said(f"q{number}") for number in range(10)])]
    for text in chance.sample(TEXTS, chance.randrange(3)):
        memory.add_guideline(text)
    learned(memory, some_operations(chance, [], ids[:5], "add"), ids[:5])
    return memory, opener, ids[5:]


def learned(memory: JudgeMemory, operations: list[GuidelineOperation], ids: list[str]) -> Any:
    words = {episode.id: episode.word for episode in memory.episodes() if episode.id in ids}
    return run_sync(commit_lesson(SYNC, memory.access, operations, words))


def shown(guidelines: list[Guideline]) -> list[Any]:
    return [
        (guideline.text, set(guideline.episode_ids), guideline.origin, guideline.status)
        for guideline in guidelines
    ]


def named(guidelines: list[Guideline]) -> set[str]:
    return {key for guideline in guidelines for key in guideline.episode_ids}


def test_what_is_learned_is_what_was_worked_out_and_goes_with_its_sources() -> None:
    for seed in range(100):
        chance = random.Random(seed)  # noqa: S311 - nothing secret
        memory, opener, ids = taught(chance)
        before = memory.guidelines()
        by_hand = [item for item in before if item.origin == "expert"]
        # Merges last: their losers' sources stay with the winners.
        actions = ACTIONS if seed % 3 else ACTIONS[:-1]
        operations = some_operations(chance, before, ids, *actions)
        expected = apply_operations(before, operations)
        learned(memory, operations, ids)
        after = memory.guidelines()
        assert shown(after) == shown(sorted(expected, key=lambda one: one.position)), seed
        # An expert's own guidelines are as they were, and no two rules say the same.
        assert [item for item in after if item.origin == "expert"] == by_hand, seed
        assert len({normalize_text(item.text) for item in after}) == len(after), seed
        # Nothing was made of nothing.
        assert all(item.episode_ids for item in after if item.origin == "distilled"), seed
        # Another process sees the same, and to learn it again changes nothing.
        other = JudgeMemory(opener(), CRITERION, embeddings=hashed)
        assert (other.guidelines(), other.version()) == (after, memory.version()), seed
        learned(other, operations, ids)
        assert other.version() == memory.version(), seed
        # Without its sources what it retired comes back; what it worded is to be worded anew.
        memory.forget(ids)
        left, there = memory.guidelines(), {(item.id, item.text) for item in before}
        assert [item for item in left if item.origin == "expert"] == by_hand, seed
        if actions != ACTIONS:
            assert named(left) == named(before), seed
            assert all(
                (item.id, item.text) in there or item.status == "pending" for item in left
            ), seed
