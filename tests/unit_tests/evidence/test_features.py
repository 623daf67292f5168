"""What checks say of a case by itself, before anything is fitted."""

from langgraph.store.memory import InMemoryStore

from memalign_graph import JudgeMemory
from memalign_graph.evidence.features import vote
from memalign_graph.io import BLOCKING, run
from memalign_graph.memory.checking import note_answers
from tests.conftest import CASE, COLD, CRITERION, OTHER


def test_a_question_that_no_case_in_memory_was_asked_leaves_the_others_their_vote() -> None:
    memory = JudgeMemory(InMemoryStore(), CRITERION, embeddings=lambda texts: [[1.0]] * len(texts))
    bad, good = memory.remember([{**CASE, **COLD}, {**OTHER, "value": True}])
    answers = {"sorry": {bad.example_id: 0.1, good.example_id: 0.9}}
    run(note_answers(BLOCKING, memory.access, answers))
    own = {"sorry": 0.2, "new": 0.7}
    shares = vote(memory.access.view, CRITERION, own, [True, False], ())
    assert shares is not None
    assert shares["false"] > 0.8
    assert vote(memory.access.view, CRITERION, {"new": 0.7}, [True, False], ()) is None
