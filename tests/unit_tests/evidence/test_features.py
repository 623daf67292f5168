"""What checks say of a case by itself, before anything is fitted."""

from collections.abc import Sequence
from typing import Any

import pytest
from langgraph.store.memory import InMemoryStore

from memalign_graph import JudgeMemory
from memalign_graph.evidence.check_value import check_vote, combine_probabilities
from memalign_graph.evidence.deciding import current_evidence_model
from memalign_graph.identity import asked_id
from memalign_graph.io import SYNC, run_sync
from memalign_graph.memory.learning import record_check_answers, record_questions
from tests.conftest import CASE, CRITERION


def voting(answers: Sequence[float], values: Sequence[bool]) -> JudgeMemory:
    """A memory whose cases were asked one check."""
    memory = JudgeMemory(InMemoryStore(), CRITERION, embeddings=lambda texts: [[1.0]] * len(texts))
    cases = [{**CASE, "inputs": f"Case {number}"} for number in range(len(values))]
    feedback = [{**case, "value": value} for case, value in zip(cases, values, strict=True)]
    ids = [episode.example_id for episode in memory.remember(feedback)]
    run_sync(
        record_check_answers(SYNC, memory.access, {"sorry": dict(zip(ids, answers, strict=True))})
    )
    return memory


def vote_of(memory: JudgeMemory, own: dict[str, float]) -> Any:
    return check_vote(memory.access.view, CRITERION.scale, own, [True, False], ())


def test_cases_with_similar_checks_vote_and_count_more_the_more_they_are() -> None:
    few = voting([0.1, 0.9] * 3, [False, True] * 3)
    many = voting([0.1, 0.9] * 20, [False, True] * 20)
    (shares, weight), (_, larger) = (vote_of(memory, {"sorry": 0.12}) for memory in (few, many))
    assert shares["false"] > 0.8
    assert (weight, larger) == (pytest.approx(6 / 14), pytest.approx(40 / 48))


def test_checks_that_tell_nothing_of_the_values_have_no_weight() -> None:
    memory = voting([0.1, 0.1, 0.9, 0.9] * 5, [False, True] * 10)
    _, weight = vote_of(memory, {"sorry": 0.1})
    assert weight == 0


def test_a_question_that_no_case_in_memory_was_asked_leaves_the_others_their_vote() -> None:
    memory = voting([0.1, 0.9], [False, True])
    shares, _ = vote_of(memory, {"sorry": 0.1, "new": 0.7})
    assert shares["false"] > 0.8
    assert vote_of(memory, {"new": 0.7}) is None


@pytest.mark.parametrize("newest", [True, False])
def test_where_two_experts_differ_on_a_case_the_newest_value_votes(
    newest: bool,  # noqa: FBT001 - a value
) -> None:
    memory = voting([0.1], [not newest])
    [case] = memory.episodes()
    memory.remember({**case.example.to_json(), "value": newest, "author": "bob"})
    shares, _ = vote_of(memory, {"sorry": 0.1})
    assert shares[str(newest).lower()] > 0.8


def test_a_vote_is_pooled_by_its_weight() -> None:
    even, votes = {"true": 0.5, "false": 0.5}, {"true": 0.8, "false": 0.2}
    assert combine_probabilities(even, votes, 0) == even
    # The odds of the vote are 4, their square root is 2.
    assert combine_probabilities(even, votes, 0.5)["true"] == pytest.approx(2 / 3)


@pytest.mark.parametrize(("count", "columns"), [(9, 0), (10, 1)])
def test_a_question_is_evidence_once_it_was_asked_of_ten_cases(count: int, columns: int) -> None:
    memory = voting([0.1, 0.9] * 6, [False, True] * 6)
    memory.add_guideline("Say sorry.")
    run_sync(record_questions(SYNC, memory.access, {"Say sorry.": "Does it say sorry?"}))
    ids = [episode.example_id for episode in memory.episodes()]
    answers = {asked_id("Does it say sorry?", "m"): dict.fromkeys(ids[:count], 0.5)}
    run_sync(record_check_answers(SYNC, memory.access, answers))
    assert run_sync(current_evidence_model(SYNC, memory.access)).features.count == columns
