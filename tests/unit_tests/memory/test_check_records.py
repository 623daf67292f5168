"""Stored check questions and answers."""

import json
from collections.abc import Mapping
from functools import partial
from typing import Any

import pytest
from langgraph.store.memory import InMemoryStore

from memalign_graph import InvalidInputError, JudgeMemory
from memalign_graph.identity import asked_id
from memalign_graph.io import SYNC, run_sync
from memalign_graph.memory import learning
from memalign_graph.types import Check
from tests.builders import make_judgment
from tests.unit_tests.memory.driver import memories
from tests.unit_tests.memory.stores import Opener, in_memory, interleave, reads_head
from tests.unit_tests.memory.support import (
    CRITERION,
    comment,
    hashed,
    learn,
    learn_from,
    lesson,
    op,
)

SORRY, ASKS = "The reply must say sorry.", "Does the reply say sorry?"


def questions(memory: JudgeMemory) -> dict[str, str | None]:
    return {guideline.text: guideline.question for guideline in memory.guidelines()}


def ask(memory: JudgeMemory, asked: Mapping[str, str]) -> None:
    run_sync(learning.record_questions(SYNC, memory.access, asked))


def answer(memory: JudgeMemory, answers: Mapping[str, Mapping[str, float]]) -> None:
    run_sync(learning.record_check_answers(SYNC, memory.access, answers))


def test_check_question_belongs_to_its_exact_text(any_opener: Opener) -> None:
    memory = JudgeMemory(any_opener(), CRITERION, embeddings=hashed)
    episode, two, three = memory.remember([comment("one"), comment("two"), comment("three")])
    lesson = op("add", episode, text="Be brief.", question="Short?")
    learn(memory, op("add", episode, text=SORRY), lesson)
    version = memory.version()
    learn(memory, op("add", two, text=SORRY.upper(), question=ASKS))
    learn(memory, op("add", three, text=SORRY, question="Another?"))
    memory.add_guideline("By hand.")
    ask(memory, {SORRY: "Another?", "By hand.": "Is it so?", "Gone.": "Is it gone?"})
    expected = {SORRY: ASKS, "Be brief.": "Short?", "By hand.": "Is it so?"}
    assert questions(memory) == expected
    elsewhere = JudgeMemory(InMemoryStore(), CRITERION, embeddings=hashed)
    elsewhere.import_jsonl(memory.export_jsonl())
    assert elsewhere.guidelines() == memory.guidelines()
    assert elsewhere.version() == memory.version()

    sorry, brief, hand = memory.guidelines()
    learn(memory, op("revise", two, guideline_id=sorry.id, text="Say sorry."))
    memory.edit_guideline(brief.id, "Be very brief.")
    memory.edit_guideline(hand.id, "By hand, again.")
    assert set(questions(memory).values()) == {None}
    guidelines = memory.at(elsewhere.version()).guidelines
    assert {guideline.question for guideline in guidelines} == {*expected.values()}
    memory.rollback(version)
    assert questions(memory) == {SORRY: None, "Be brief.": "Short?"}


def test_check_question_is_stored_after_the_author_was_purged(memory: JudgeMemory) -> None:
    memory.remember(comment("one", author="ann"))
    memory.add_guideline(SORRY, author="ann")
    memory.forget(author="ann", purge=True)
    ask(memory, {SORRY: ASKS})
    assert questions(memory) == {SORRY: ASKS}


def test_concurrently_stored_check_question_is_kept() -> None:
    here, there = memories(in_memory(), 2)
    episode, two = here.remember([comment("one"), comment("two")])
    learn_from(here, op("add", episode, text=SORRY))
    teaching = lesson(here, op("add", two, text=SORRY))
    interleave(teaching, reads_head, lambda: ask(there, {SORRY: ASKS}), after=True)
    [guideline] = there.guidelines()
    assert (guideline.question, guideline.episode_ids) == (ASKS, [episode.id, two.id])
    there.forget(where=lambda _: True)

    edited, removed = here.add_guideline("By hand."), here.add_guideline("Removed.")
    here.version()
    there.version()

    def change() -> None:
        there.edit_guideline(edited.id, "By hand, again.")
        there.remove_guideline(removed.id)

    asked = {"By hand.": "Is it so?", "Removed.": "Is it gone?"}
    noting = partial(learning.record_questions, access=here.access, questions=asked)
    interleave(noting, reads_head, change, after=True)
    assert questions(here) == questions(there) == {"By hand, again.": None}


def test_check_answers_are_stored_overwritten_and_rolled_back(any_opener: Opener) -> None:
    key = asked_id(ASKS, "model")
    memory = JudgeMemory(any_opener(), CRITERION, embeddings=hashed)
    episode, two = memory.remember([comment("one"), comment("two")])
    versions = [memory.version()]
    both = {episode.example_id: 0.5, two.example_id: 0.25, "x": 1.0}
    for answers in (both, {episode.example_id: 0.75}):
        before = memory.access.view.answers()
        answer(memory, {key: answers})
        versions.append(memory.version())
    assert before == {key: {episode.example_id: 0.5, two.example_id: 0.25}}
    latest = {key: {episode.example_id: 0.75, two.example_id: 0.25}}
    answer(memory, {key: {"x": 1.0}})
    assert len({*versions}) == 3
    assert memory.version() == versions[-1]
    cold = JudgeMemory(any_opener(), CRITERION, embeddings=hashed)
    assert cold.version() == versions[-1]
    assert cold.access.view.answers() == memory.access.view.answers() == latest
    assert [commit.reason for commit in cold.history()] == ["check", "check", "remember"]
    changed = cold.diff(versions[0]).guidelines, cold.diff(versions[0]).episodes
    assert not any(part.added or part.removed or part.changed for part in changed)

    bob = memory.remember(comment("two", author="bob"))
    memory.forget(two.id, purge=True)
    assert memory.access.view.answers() == latest  # bob's is on the same case
    memory.forget(bob.id, purge=True)
    assert memory.access.view.answers() == {key: {episode.example_id: 0.75}}
    cold.rollback(versions[1])
    assert cold.access.view.answers() == {key: {episode.example_id: 0.5}}
    assert memory.version() == cold.version()


def test_checks_of_a_judgment_count_as_probabilities(memory: JudgeMemory) -> None:
    answers = {"a": (True, 0.25), "b": (True, None), "c": (False, None), "d": (None, None)}
    checks = [
        Check(guideline_id="g", asked=asked, held=held, probability=probability)
        for asked, (held, probability) in answers.items()
    ]
    memory.remember(comment("one", judgment=make_judgment(checks=checks)))
    [row] = memory.access.view.rows()
    assert row.past_verdict is not None
    assert row.past_verdict.checks == {"a": 0.25, "b": 1.0, "c": 0.0}


def test_export_has_the_check_answers_and_keeps_version_and_auc(memory: JudgeMemory) -> None:
    key = asked_id(ASKS, "model")
    episodes = memory.remember([comment(f"q{n}", value=n % 2 == 0) for n in range(12)])
    gone = memory.remember(comment("gone", value=True))
    learn(memory, op("add", episodes[0], text=SORRY, question=ASKS))
    answers = {episode.example_id: 0.75 if episode.value else 0.25 for episode in [*episodes, gone]}
    answer(memory, {key: answers, "other": {episodes[0].example_id: 1.0}})
    memory.forget(gone.id)
    text = memory.export_jsonl()
    assert gone.example_id not in text

    [elsewhere] = memories(in_memory(), 1)
    for _ in range(2):
        elsewhere.import_jsonl(text)
        assert (elsewhere.version(), elsewhere.export_jsonl()) == (memory.version(), text)
    [commit] = elsewhere.history()
    assert elsewhere.access.view.answers()[key].keys() == {each.example_id for each in episodes}
    assert elsewhere.guidelines() == memory.guidelines()
    [guideline] = elsewhere.guidelines()
    assert guideline.worth is not None
    assert guideline.worth.cases == 11
    other = elsewhere.remember(comment("another"))
    answer(elsewhere, {key: {other.example_id: 0.5}})
    memory.import_jsonl(elsewhere.export_jsonl())
    assert memory.version() == elsewhere.version()
    assert memory.access.view.answers()[key][other.example_id] == 0.5
    elsewhere.forget(episodes[0].id, purge=True)
    assert episodes[0].example_id not in str(elsewhere.access.view.facts())
    assert elsewhere.at(commit.version).missing


@pytest.mark.parametrize(
    ("fields", "fault"),
    [
        ({"ids": [], "answers": {"a": {"b": 0.5}}}, "ids"),
        ({"ids": ["1"], "answers": {"a": {"b": 2}}}, "answers.a.b"),
        ({"ids": ["1"], "answers": {"a": {"b": "yes"}}}, "answers.a.b"),
    ],
)
def test_invalid_check_answers_are_refused(fields: Any, fault: str, memory: JudgeMemory) -> None:
    lines = [memory.export_jsonl(), json.dumps({"type": "answers", **fields})]
    with pytest.raises(InvalidInputError, match=f"line 2: {fault}"):
        memory.import_jsonl(lines)
    assert memory.history() == []
