"""Whatever batches propose and a comparison finds: what must always hold of the outcome."""

import itertools
import random
from typing import Any

import pytest

from memalign_graph.alignment.merging import Merging
from memalign_graph.memory.learning import plain_words
from tests.unit_tests.alignment.alignment_cases import (
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
    count = len(Merging(guidelines, proposals, dated()).rules)
    places = range(count)
    pairs = [pair for pair in itertools.combinations(places, 2) if chance.random() < 0.15]
    groups = [chance.sample(places, 2) for _ in range(chance.randrange(3)) if count > 1]
    opposed = {frozenset(pair) for pair in pairs}
    groups = [group for group in groups if frozenset(group) not in opposed]
    return guidelines, proposals, relations(groups, pairs)


@pytest.mark.parametrize("block", range(4))
def test_whatever_is_proposed_the_outcome_is_sound(block: int) -> None:
    for seed in range(150 * block, 150 * (block + 1)):
        guidelines, proposals, found = random_table(seed)
        merged = merge(guidelines, *proposals, found=found)
        assert merged == merge(guidelines, *proposals, found=found)
        left = after(guidelines, merged)
        # An expert's own guidelines are as they were.
        for one in guidelines:
            if one.origin == "expert":
                assert left[one.text] == one, seed
        # Of two that contradict each other and are touched one goes, or both lost to others.
        ids = [one.id for one in left.values()]
        assert len(set(ids)) == len(ids)
        for conflict in merged.conflicts:
            assert conflict.first.guideline_id != conflict.second.guideline_id, seed
        alive = stands(left)
        hand = {one.text for one in guidelines if one.origin == "expert"}
        for conflict in merged.conflicts:
            both = {conflict.first.text, conflict.second.text}
            assert not both <= set(alive) or both <= hand, seed
        # No source of a rule that was added is lost, unless its rule lost or is an expert's.
        proposed = [one for batch in proposals for one in batch]
        words = {plain_words(text) for text in hand}
        by_hand = {one.id for one in guidelines if one.origin == "expert"}
        told = [one for one in proposed if one.text and plain_words(one.text) not in words]
        kept = {key for one in left.values() for key in one.episode_ids}
        for conflict in merged.conflicts:
            kept |= {*conflict.first.episode_ids, *conflict.second.episode_ids}
        lost = any(one.action == "retire" and not one.text for one in proposed) or any(
            one.superseded_by in by_hand for one in merged.operations
        )
        if not found.duplicates and not lost:
            assert {key for one in told for key in one.episode_ids} <= kept, seed
