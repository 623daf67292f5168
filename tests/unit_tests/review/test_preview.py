"""The preview of an answer, compared with the changes after it is stored."""

import asyncio
import random
from collections.abc import Iterable
from typing import Any

import pytest
from langgraph.store.memory import InMemoryStore

from memalign_graph import ChatModelError, Example, Feedback, JudgeMemory, Judgment
from memalign_graph.evidence.deciding import current_evidence_model
from memalign_graph.io import SYNC, run_sync
from memalign_graph.memory.recall import embed_once
from memalign_graph.review.dashboard import row_title
from memalign_graph.review.preview import (
    conflicting_labels,
    nearest_case,
    predicted_changes,
    proposed_guidelines,
)
from tests.conftest import CASE, COLD, CRITERION, operations
from tests.loopback import LoopbackServer, error
from tests.unit_tests.memory.support import learn, op

TOPICS = {"warm": True, "cold": False, "late": False, "kind": True}


def near(texts: Iterable[str]) -> list[list[float]]:
    """Return vectors that are close to each other for texts with the same first word."""
    noise = {text: random.Random(text) for text in texts}  # noqa: S311 - nothing secret
    return [
        [3.0 * text.startswith(name) + rng.gauss(0, 0.28) for name in (*TOPICS, "odd", *["-"] * 20)]
        for text, rng in noise.items()
    ]


def example(name: str) -> Example:
    return Example(inputs=name, outputs=f"The answer to {name}")


def feedback_on(name: str, value: Any, author: str = "ann", **fields: Any) -> Feedback:
    return Feedback(example=example(name), value=value, author=author, **fields)


def judged(name: str, value: Any, verdict: Any) -> Feedback:
    fields: Any = {"criterion": "c", "example_id": "", "rationale": "So.", "memory_version": ""}
    return feedback_on(name, value, judgment=Judgment(value=verdict, **fields))


def memory_of(*feedback: Feedback) -> JudgeMemory:
    memory = JudgeMemory(InMemoryStore(), CRITERION, embeddings=near)
    memory.remember(list(feedback))
    return memory


def settled(count: int = 24, errs: bool = True) -> list[Feedback]:  # noqa: FBT001, FBT002 - short
    """Return feedback on four topics; a judge that errs is wrong on half of it."""
    cases = [(number, *[*TOPICS.items()][number % 4]) for number in range(count)]
    wrong = {number for number, *_ in cases if errs and number % 8 < 4}
    return [
        judged(f"{name} {index}", value, value ^ (index in wrong)) for index, name, value in cases
    ]


def changes(memory: JudgeMemory, name: str, value: Any, *, embedded: bool = True) -> Any:
    vector = run_sync(embed_once(SYNC, [memory.access], example(name), always=True))
    answer = (
        feedback_on(name, value) if value is not None else feedback_on(name, value, rationale="Hm.")
    )
    return asyncio.run(predicted_changes(memory.access, answer, vector if embedded else None))


def estimates(memory: JudgeMemory) -> dict[str, Any]:
    estimates = run_sync(current_evidence_model(SYNC, memory.access)).leave_one_out_values()
    rows = {row.example_id: row for row in memory.access.view.rows()}
    return {row_title(rows[key]): value for key, value in estimates.items()}


def test_conflicting_labels_are_those_of_other_experts_on_the_same_case() -> None:
    other = Example(**{**example("warm 1").to_json(), "reference_outputs": "Hello"})
    memory = memory_of(
        feedback_on("warm 1", False, "bob", rationale="Too long."),
        feedback_on("warm 1", True, "cy"),
        feedback_on("warm 1", False),
        feedback_on("warm 1", None, "dee", rationale="?"),
        Feedback(example=other, value=False, author="eve"),
    )

    def conflicts(value: Any, author: str) -> Any:
        answer = feedback_on("warm 1", value, author, rationale="So.")
        return conflicting_labels(memory.access, answer)

    bobs = {"title": "The answer to warm 1", "author": "bob", "value": "No"}
    assert conflicts(True, "ann") == [{**bobs, "rationale": "Too long."}]
    assert [answer["author"] for answer in conflicts(True, "bob")] == ["ann"]
    assert conflicts(None, "zoe") == []


@pytest.mark.parametrize("new", ["odd 3", "odd 2"])  # a new case, and one with a label
def test_predicted_changes_are_the_changes_after_the_answer_is_stored(new: str) -> None:
    memory = memory_of(*settled(), judged("odd 1", True, False), judged("odd 2", False, True))
    before, version = estimates(memory), memory.version()
    [change], unknown = changes(memory, new, True)
    assert (unknown, memory.version()) == (None, version)
    memory.remember([feedback_on(new, True)])
    after = {**before, **estimates(memory)}
    assert {key for key in before if before[key] != after[key]} == {change["title"]}
    expected = {"before": "No", "after": "Yes", "expert": "Yes", "becomes": "right"}
    assert change == {"title": "The answer to odd 1", **expected}


def test_preview_says_why_it_predicts_no_changes() -> None:
    reason = changes(memory_of(*settled(4)), "odd 1", True)[1]
    assert reason == "Not known yet: 4 cases have an expert's value, and it takes 5."
    memory = memory_of(*settled())
    assert "has no embedding" in changes(memory, "odd 1", True, embedded=False)[1]
    assert "without a value" in changes(memory, "odd 1", None)[1]
    assert changes(memory, "warm 9", True) == ([], None)
    assert "verdicts decide" in changes(memory_of(*settled(errs=False)), "odd 1", True)[1]


@pytest.mark.parametrize("author", ["ann", "bob"])
def test_proposed_guidelines_are_not_stored(server: LoopbackServer, author: str) -> None:
    memory = memory_of(feedback_on("warm 1", True, rationale="Short."))
    learn(memory, op("add", *memory.episodes(), text="Be brief."))
    access_and_model = memory.access, server.chat_model(max_retries=0)
    feedback = Feedback(example=Example(**CASE), author=author, **COLD)
    version = memory.version()
    question = "Does it say sorry first?"
    guideline = {"action": "add", "text": "Say sorry first.", "question": question}
    server.script(operations({**guideline, "action": "retire", "guideline": "G1"}), error(500))
    gone = {"action": "retire", "text": "Be brief.", "question": None}
    # The guideline of another expert stays.
    expected = [guideline, gone] if author == "ann" else [guideline]
    assert asyncio.run(proposed_guidelines(*access_and_model, feedback)) == expected
    with pytest.raises(ChatModelError):
        asyncio.run(proposed_guidelines(*access_and_model, feedback))
    proposed = proposed_guidelines(*access_and_model, judged("warm 1", True, True))
    assert asyncio.run(proposed) == []
    assert (len(server.chats), memory.version()) == (2, version)


def test_nearest_case_is_another_case_with_a_value() -> None:
    cases = [
        feedback_on("warm 1", False),
        feedback_on("warm 2", None, rationale="Hm."),
        feedback_on("cold 1", True),
    ]
    memory = memory_of(*cases, feedback_on("warm 3", True, "bob", rationale="Fine."))
    nearest = asyncio.run(nearest_case(memory.access, example("warm 1"), None))
    answer = {"author": "bob", "value": "Yes", "rationale": "Fine."}
    expected = {**answer, "title": "The answer to warm 3", "example": example("warm 3")}
    assert nearest == {**expected, "similarity": pytest.approx(0.9, abs=0.1)}
    assert asyncio.run(nearest_case(memory.access, example("new"), None)) is None
