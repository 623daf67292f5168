"""Questions to experts on the Agent Server: asked, refused, answered by id."""

from typing import Any

import pytest
from langgraph_sdk.client import SyncLangGraphClient

from tests.conftest import distillings, judgings
from tests.integration_tests.agent_server.support import (
    CASE,
    ask,
    at_once,
    case,
    items,
    new_thread,
    pending,
    refuse,
    resume,
    run,
    values,
)
from tests.loopback import LoopbackServer

INVALID: list[tuple[Any, str]] = [
    ({"value": "perhaps"}, "'perhaps' is not on the scale: the value is true or false."),
    ({"rationale": " "}, "the reply has neither a value nor a rationale: reply with text"),
    ({"decisions": [{"type": "reject"}]}, "say why in a sentence"),
]


def test_judge_interrupt_resume_and_learn(client: SyncLangGraphClient) -> None:
    context = {"namespace": ["shop"]}
    thread = new_thread(client)
    interrupt = ask(client, thread, context=context)
    assert interrupt["value"]["action_requests"][0]["name"] == "review_judgment"

    assert "'perhaps' is not on the scale" in refuse(client, thread, {"value": "perhaps"})
    assert client.threads.get_state(thread)["next"] == ["collect_feedback"]

    reply = {interrupt["id"]: {"value": False, "rationale": "Too cold."}}
    result = resume(client, thread, reply)
    [learned] = result["learned"]["guidelines"]
    assert "Too cold." in learned["text"]
    assert values(client, "shop", "guidelines", "text") == [learned["text"]]

    judged = run(client, new_thread(client), "judge", input=CASE, context=context)["judgment"]
    assert judged["guideline_ids"] == [learned["guideline_id"]]
    assert judged["episode_ids"] == result["learned"]["episode_ids"]


@pytest.mark.parametrize("by_id", [False, True], ids=["bare", "by-id"])
def test_invalid_replies_leave_the_question_open(
    client: SyncLangGraphClient, server: LoopbackServer, *, by_id: bool
) -> None:
    namespace = f"invalid_{by_id}"
    thread = new_thread(client)
    asked = ask(client, thread, context={"namespace": [namespace]})
    assert asked["response_schema"]["properties"]["value"]["type"] == "boolean"
    for reply, reason in INVALID:
        given = {asked["id"]: reply} if by_id else reply
        assert reason in refuse(client, thread, given)
        assert pending(client, thread) == [asked["id"]]
    assert items(client, namespace, "episodes") == []
    taken = {"value": False, "rationale": "Too cold."}
    result = resume(client, thread, {asked["id"]: taken} if by_id else taken)
    assert result["feedback"]["rationale"] == "Too cold."
    assert len(result["learned"]["guidelines"]) == 1
    assert pending(client, thread) == []
    assert len(judgings(server)) == 1


def test_several_threads_wait_at_the_same_time(
    client: SyncLangGraphClient, server: LoopbackServer
) -> None:
    context = {"namespace": ["waiting"]}
    threads = [new_thread(client) for _ in range(3)]
    asked = at_once(
        lambda number: ask(client, threads[number], input=case(number), context=context), range(3)
    )
    waiting = client.threads.search(ids=threads, status="interrupted")
    assert {one["thread_id"] for one in waiting} == set(threads)
    for number, interrupt in enumerate(asked):
        [action] = interrupt["value"]["action_requests"]
        assert f"Question {number}?" in action["description"]

    # The id of another thread's question answers nothing here.
    again = resume(client, threads[0], {asked[1]["id"]: {"rationale": "On another thread."}})
    assert [one["id"] for one in again["__interrupt__"]] == [asked[0]["id"]]
    assert items(client, "waiting", "episodes") == []

    for number in (2, 0, 1):
        reply = {asked[number]["id"]: {"rationale": f"Reason {number}."}}
        result = resume(client, threads[number], reply)
        assert result["feedback"]["rationale"] == f"Reason {number}."
        assert result["feedback"]["example"]["inputs"] == f"Question {number}?"
        assert result["feedback"]["thread_id"] == threads[number]
    assert values(client, "waiting", "episodes", "rationale") == [
        f"Reason {number}." for number in range(3)
    ]
    assert len(judgings(server)) == 3


def fan_out(client: SyncLangGraphClient, namespace: str) -> tuple[str, list[str]]:
    """Have three cases reviewed on one thread; returns it, and its questions' ids in order."""
    thread = new_thread(client)
    given = {"cases": [case(number) for number in range(3)]}
    context = {"memalign": {"namespace": [namespace]}}
    asked = run(client, thread, "fan_out", input=given, context=context)["__interrupt__"]
    ids = {one["value"]["action_requests"][0]["description"]: one["id"] for one in asked}
    assert client.threads.get_state(thread)["next"] == ["review"] * 3
    return thread, [
        next(key for text, key in ids.items() if f"Question {number}?" in text)
        for number in range(3)
    ]


def learned_from(client: SyncLangGraphClient, namespace: str) -> list[Any]:
    """What experts said, as the store has it; each word taught one guideline of its own."""
    said = values(client, namespace, "episodes", "rationale")
    texts = values(client, namespace, "guidelines", "text")
    assert len(texts) == len(said)
    assert all(word in text for word, text in zip(said, texts, strict=True))
    return said


def test_one_threads_questions_are_answered_one_at_a_time(
    client: SyncLangGraphClient, server: LoopbackServer
) -> None:
    thread, ids = fan_out(client, "one_by_one")
    assert "specify the interrupt id" in refuse(client, thread, "Too cold.", "fan_out")
    left = list(ids)
    result: Any = None
    for number in (1, 2, 0):
        assert sorted(pending(client, thread)) == sorted(left)
        result = resume(client, thread, {ids[number]: f"Reason {number}."}, "fan_out")
        left.remove(ids[number])
        assert [one["id"] for one in result.get("__interrupt__", [])] == left
    assert [one["rationale"] for one in result["feedback"]] == [f"Reason {n}." for n in range(3)]
    assert [one["example"]["inputs"] for one in result["feedback"]] == [
        f"Question {n}?" for n in range(3)
    ]
    assert learned_from(client, "one_by_one") == [f"Reason {n}." for n in range(3)]
    assert len(judgings(server)) == len(distillings(server)) == 3
