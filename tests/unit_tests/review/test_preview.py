"""What an answer would do, beside what it then does."""

import random
from collections.abc import Iterable
from typing import Any

import pytest
from langgraph.store.memory import InMemoryStore

from memalign_graph import ChatModelError, Example, Feedback, JudgeMemory, Judgment
from memalign_graph.evidence.deciding import current_evidence_model
from memalign_graph.io import SYNC, run_sync
from memalign_graph.memory.recall import embed_once
from memalign_graph.review.preview import (
    conflicting_labels,
    nearest_case,
    predicted_changes,
    proposed_guidelines,
    title_of,
)
from tests.conftest import CASE, COLD, CRITERION, operations
from tests.loopback import LoopbackServer, error
from tests.unit_tests.memory.support import learn, op

TOPICS = {"warm": True, "cold": False, "late": False, "kind": True}


def near(texts: Iterable[str]) -> list[list[float]]:
    """Vectors of cases that lie close together where their first words are the same."""
    noise = {text: random.Random(text) for text in texts}  # noqa: S311 - nothing secret
    return [
        [3.0 * text.startswith(name) + rng.gauss(0, 0.28) for name in (*TOPICS, "odd", *["-"] * 20)]
        for text, rng in noise.items()
    ]


def example(name: str) -> Example:
    return Example(inputs=name, outputs=f"The answer to {name}")


def told(name: str, value: Any, author: str = "ann", **fields: Any) -> Feedback:
    return Feedback(example=example(name), value=value, author=author, **fields)


def judged(name: str, value: Any, verdict: Any) -> Feedback:
    fields: Any = {"criterion": "c", "example_id": "", "rationale": "So.", "memory_version": ""}
    return told(name, value, judgment=Judgment(value=verdict, **fields))


def memory_of(*feedback: Feedback) -> JudgeMemory:
    memory = JudgeMemory(InMemoryStore(), CRITERION, embeddings=near)
    memory.remember(list(feedback))
    return memory


def settled(count: int = 24, errs: bool = True) -> list[Feedback]:  # noqa: FBT001, FBT002 - short
    """Cases of four topics, of which a judge that errs is wrong on half."""
    cases = [(number, *[*TOPICS.items()][number % 4]) for number in range(count)]
    wrong = {number for number, *_ in cases if errs and number % 8 < 4}
    return [judged(f"{name} {at}", value, value ^ (at in wrong)) for at, name, value in cases]


def turns(memory: JudgeMemory, name: str, value: Any, **options: Any) -> Any:
    vector = run_sync(embed_once(SYNC, [memory.access], example(name), always=True))
    given = {"vector": vector, **options}
    return run_sync(predicted_changes(SYNC, memory.access, example(name), value, **given))


def estimates(memory: JudgeMemory) -> dict[str, Any]:
    found = run_sync(current_evidence_model(SYNC, memory.access)).leave_one_out_values()
    rows = {row.example_id: row for row in memory.access.view.rows()}
    return {title_of(rows[key]): value for key, (value, _) in found.items()}


def test_others_are_those_who_say_otherwise_of_the_very_same_case() -> None:
    other = Example(**{**example("warm 1").to_json(), "reference_outputs": "Hello"})
    memory = memory_of(
        told("warm 1", False, "bob", rationale="Too long."),
        told("warm 1", True, "cy"),
        told("warm 1", False),
        told("warm 1", None, "dee", rationale="?"),
        Feedback(example=other, value=False, author="eve"),
    )
    given = memory.access, example("warm 1")
    shown = {"author": "bob", "value": "No", "rationale": "Too long."}
    assert run_sync(conflicting_labels(SYNC, *given, True, "ann")) == [shown]
    assert [one["author"] for one in run_sync(conflicting_labels(SYNC, *given, True, "bob"))] == [
        "ann"
    ]
    assert run_sync(conflicting_labels(SYNC, *given, None, "zoe")) == []


@pytest.mark.parametrize("new", ["odd 3", "odd 2"])  # also another word on a settled one
def test_what_turns_is_what_is_then_estimated_otherwise(new: str) -> None:
    memory = memory_of(*settled(), judged("odd 1", True, False), judged("odd 2", False, True))
    before, version = estimates(memory), memory.version()
    [turn], untold = turns(memory, new, True)
    assert (untold, memory.version()) == (None, version)
    memory.remember([told(new, True)])
    after = {**before, **estimates(memory)}
    assert {key for key in before if before[key] != after[key]} == {turn["title"]}
    shown = {"before": "No", "after": "Yes", "expert": "Yes", "becomes": "right"}
    assert turn == {"title": "The answer to odd 1", **shown}


def test_what_is_not_known_is_said() -> None:
    assert "9 of the 10" in turns(memory_of(*settled(9)), "odd 1", True)[1]
    memory = memory_of(*settled())
    assert "never compared" in turns(memory, "odd 1", True, vector=None)[1]
    assert "without a value" in turns(memory, "odd 1", None)[1]
    assert turns(memory, "warm 9", True) == ([], None)
    assert "do not decide" in turns(memory_of(*settled(errs=False)), "odd 1", True)[1]


def test_rules_of_one_answer_are_told_and_not_kept(server: LoopbackServer) -> None:
    memory = memory_of(told("warm 1", True, rationale="Short."))
    learn(memory, op("add", *memory.episodes(), text="Be brief."))
    given = memory.access, server.chat_model(max_retries=0)
    feedback, version = Feedback(example=Example(**CASE), **COLD), memory.version()
    rule = {"action": "add", "text": "Say sorry first.", "question": "Does it say sorry first?"}
    server.script(operations({**rule, "action": "retire", "guideline": "G1"}), error(500))
    gone = {"action": "retire", "text": "Be brief.", "question": None}
    assert run_sync(proposed_guidelines(SYNC, *given, feedback)) == [gone, rule]
    with pytest.raises(ChatModelError):
        run_sync(proposed_guidelines(SYNC, *given, feedback))
    assert run_sync(proposed_guidelines(SYNC, *given, judged("warm 1", True, True))) == []
    assert (len(server.chats), memory.version()) == (2, version)


def test_the_nearest_case_is_another_one_that_has_a_value() -> None:
    cases = [told("warm 1", False), told("warm 2", None, rationale="Hm."), told("cold 1", True)]
    memory = memory_of(*cases, told("warm 3", True, "bob", rationale="Fine."))
    found = run_sync(nearest_case(SYNC, memory.access, example("warm 1"), None))
    shown = {"author": "bob", "value": "Yes", "rationale": "Fine.", "example": example("warm 3")}
    assert found == {**shown, "similarity": pytest.approx(0.9, abs=0.1)}
    assert run_sync(nearest_case(SYNC, memory.access, example("new"), None)) is None
