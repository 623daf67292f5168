"""Purging while a model is at work on what it read before: its answer brings nothing back."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command

from memalign_graph import JudgeMemory, create_review_graph
from tests.loopback import ChatRequest
from tests.unit_tests.memory.purging import MARK, everything_in, left_in
from tests.unit_tests.memory.support import CRITERION, Bench, learn, op, said

WHY = "It is zqxwhy, she says, that matters here."


def with_handles(change: dict[str, Any], request: ChatRequest) -> dict[str, Any]:
    """An operation as the schema wants it: from the feedback that is not the planted one."""
    schema = json.dumps(request.schema)
    if '"guideline"' in schema:
        change = {"guideline": "none", **change}
    if '"feedback"' in schema:
        before, _, _ = request.text.partition("zqxwhy")
        change = {"feedback": ["F2" if "Feedback F2" not in before else "F1"], **change}
    return {"operations": [change]}


def review(
    bench: Bench, meanwhile: Callable[[ChatRequest], dict[str, Any]]
) -> tuple[dict[str, Any], InMemorySaver]:
    """Review a case; the model that distils answers as `meanwhile` says."""
    saver = InMemorySaver()
    graph = create_review_graph(
        CRITERION, model=bench.server.chat_model(), embeddings=bench.embeddings
    ).compile(store=bench.store, checkpointer=saver)
    config: Any = {"configurable": {"thread_id": "t"}}
    graph.invoke({"inputs": "three", "outputs": "a"}, config)
    bench.server.responder = meanwhile
    return dict(graph.invoke(Command(resume="It must be brief."), config)["learned"]), saver


def check_clean(memory: JudgeMemory, learned: dict[str, Any]) -> None:
    assert left_in(everything_in(memory.access.store)) == []
    assert MARK not in repr(learned)
    statuses = {one.example.inputs: one.status for one in memory.episodes()}
    assert statuses["three"] == "pending"


@pytest.mark.parametrize("action", ["names it", "names another"])
def test_what_a_model_that_read_it_proposes_after_the_purge_does_not_stand(
    near: Bench, action: str
) -> None:
    memory = near.memory()
    planted = memory.remember(said("one", WHY, author="zqxann"))

    def purges(request: ChatRequest) -> dict[str, Any]:
        assert "zqxwhy" in request.text
        memory.forget(planted.id, purge=True)
        change = {"text": "What zqxwhy said holds always.", "action": "add"}
        answer = with_handles(change, request)
        if action == "names it":
            answer["operations"][0]["feedback"] = ["F1", "F2"]
        return answer

    learned, _ = review(near, purges)
    check_clean(memory, learned)


def test_a_revision_of_a_wording_that_is_purged_meanwhile_does_not_stand(near: Bench) -> None:
    memory = near.memory()
    one, two = memory.remember([said("one", WHY, author="zqxann"), said("two")])
    learn(memory, op("add", one, two, text="What zqxwhy said."))

    def purges(request: ChatRequest) -> dict[str, Any]:
        if "zqxwhy" not in request.text:
            return with_handles({"text": "Of the second alone.", "action": "add"}, request)
        memory.forget(one.id, purge=True)
        change = {"text": "What zqxwhy said, briefly.", "action": "revise", "guideline": "G1"}
        return with_handles(change, request)

    learned, _ = review(near, purges)
    check_clean(memory, learned)


def test_a_case_that_is_purged_before_it_is_committed_stays_away(near: Bench) -> None:
    memory = near.memory()

    def purges(request: ChatRequest) -> dict[str, Any]:
        [episode] = memory.episodes()
        memory.forget(episode.id, purge=True)
        return with_handles({"text": "Of three, in so many words.", "action": "add"}, request)

    learned, _ = review(near, purges)
    assert memory.episodes() == []
    assert memory.guidelines() == []
    assert learned["guidelines"] == []
    assert left_in(everything_in(near.store), "it must be brief") == []
