"""What checks say of a case by itself, before anything is fitted."""

import pytest
from langgraph.store.memory import InMemoryStore

from memalign_graph import JudgeMemory
from memalign_graph.evidence.features import pooled, vote
from memalign_graph.io import BLOCKING, run
from memalign_graph.memory.checking import note_answers
from tests.conftest import CASE, COLD, CRITERION, OTHER


def test_a_question_that_no_case_in_memory_was_asked_leaves_the_others_their_vote() -> None:
    memory = JudgeMemory(InMemoryStore(), CRITERION, embeddings=lambda texts: [[1.0]] * len(texts))
    bad, good = memory.remember([{**CASE, **COLD}, {**OTHER, "value": True}])
    answers = {"sorry": {bad.example_id: 0.1, good.example_id: 0.9}}
    run(note_answers(BLOCKING, memory.access, answers))
    own = {"sorry": 0.2, "new": 0.7}
    votes = vote(memory.access.view, CRITERION, own, [True, False], ())
    assert votes is not None
    shares, cases = votes
    assert (shares["false"] > 0.8, cases) == (True, 2)
    assert vote(memory.access.view, CRITERION, {"new": 0.7}, [True, False], ()) is None


def test_a_vote_of_eight_cases_has_half_of_its_weight_and_of_none_no_weight() -> None:
    even, votes = {"true": 0.5, "false": 0.5}, {"true": 0.8, "false": 0.2}
    assert pooled(even, votes, 0) == even
    # The odds of the vote are 4, their square root is 2.
    assert pooled(even, votes, 8)["true"] == pytest.approx(2 / 3)
