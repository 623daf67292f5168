"""A seen case judged as if it were not there: what is recalled is what another memory recalls."""

import random

import pytest

from memalign_graph import Example, Feedback, JudgeMemory
from memalign_graph.io import BLOCKING, run
from memalign_graph.memory.recall import recall, recall_besides
from tests.unit_tests.memory.support import CRITERION, hashed, in_memory, said


def memory(feedback: list[Feedback], rules: int) -> JudgeMemory:
    made = JudgeMemory(in_memory()(), CRITERION, embeddings=hashed)
    made.remember(feedback)
    for number in range(rules):
        made.add_guideline(f"Rule {number}.")
    return made


def some_feedback() -> list[Feedback]:
    chance = random.Random(7)  # noqa: S311 - nothing secret
    words = ("order", "cup", "late", "broken", "photo", "refund", "sorry", "parcel", "thanks")
    given = []
    for number in range(60):
        inputs = " ".join(chance.choices(words, k=4))
        authors = chance.sample(["ann", "bob", "carl"], chance.choice([1, 1, 2]))
        given += [said(f"{inputs} {number // 2}", author=one, value=True) for one in authors]
    return given


@pytest.mark.parametrize(("k", "rules"), [(0, 0), (1, 0), (20, 0), (5, 60)])
def test_case_is_left_out_as_if_it_had_never_been_there(k: int, rules: int) -> None:
    given = some_feedback()
    whole = memory(given, rules)
    whole.recall(Example(inputs="x", outputs="y"))
    for example in {one.example.id: one.example for one in given[::9]}.values():
        own = {one.episode_id for one in given if one.example.id == example.id}
        rest = memory([one for one in given if one.example.id != example.id], rules)
        wanted = run(recall(BLOCKING, rest.access, example, k))
        found = recall_besides(whole.access, example, k, own)
        assert [one.example.id for one in found.examples] == [
            one.example.id for one in wanted.examples
        ]
        assert [[each.id for each in one.episodes] for one in found.examples] == [
            [each.id for each in one.episodes] for one in wanted.examples
        ]
        assert found.nearness == wanted.nearness
