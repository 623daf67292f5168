"""Questions to experts on the Agent Server: asked, refused, answered by id."""

from typing import Any

import pytest
from langgraph.graph import END
from langgraph_sdk.client import SyncLangGraphClient

from tests.conftest import distillings, judgings
from tests.integration_tests.agent_server.support import (
    ask,
    at_once,
    case,
    items,
    memory_of,
    new_thread,
    pending,
    refuse,
    resume,
    run,
)
from tests.integration_tests.alignment_model import Model, each_its_words
from tests.loopback import LoopbackServer

pytestmark = pytest.mark.outside

INVALID: list[tuple[Any, bool, str]] = [
    ({"value": "perhaps"}, True, "'perhaps' is not on the scale: the value is true or false."),
    ({"rationale": " "}, False, "the reply has neither a value nor a rationale: reply with text"),
    ({"decisions": [{"type": "reject"}]}, True, "say why in a sentence"),
]
"""Replies, whether they are given by the question's id, and why they are not taken."""

REASONS = [f"Reason {number}." for number in range(3)]


def test_invalid_replies_leave_the_question_open(
    client: SyncLangGraphClient, server: LoopbackServer
) -> None:
    thread = new_thread(client)
    asked = ask(client, thread, context={"namespace": ["invalid"]})
    assert asked["response_schema"]["properties"]["value"]["type"] == "boolean"
    for reply, by_id, reason in INVALID:
        assert reason in refuse(client, thread, {asked["id"]: reply} if by_id else reply)
        assert pending(client, thread) == [asked["id"]]
    assert items(client, "invalid", "facts") == []
    result = resume(client, thread, {asked["id"]: {"value": False, "rationale": "Too cold."}})
    assert result["feedback"]["rationale"] == "Too cold."
    assert len(result["learned"]["guidelines"]) == 1
    assert pending(client, thread) == []
    assert len(judgings(server)) == 1


def test_question_that_an_inbox_closes_teaches_nothing(client: SyncLangGraphClient) -> None:
    thread = new_thread(client)
    context = {"namespace": ["closed"]}
    first = ask(client, thread, context=context)
    client.threads.update_state(thread, values=None, as_node=END)
    assert pending(client, thread) == []
    assert client.threads.get(thread)["status"] == "idle"
    assert ask(client, thread, input=case(1), context=context)["id"] != first["id"]
    assert items(client, "closed", "facts") == []


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
    assert items(client, "waiting", "facts") == []

    server.responder = Model(distil=each_its_words)
    results = at_once(
        lambda number: resume(client, threads[number], {asked[number]["id"]: REASONS[number]}),
        (2, 0, 1),
    )
    for number, result in zip((2, 0, 1), results, strict=True):
        assert result["feedback"]["rationale"] == REASONS[number]
        assert result["feedback"]["example"]["inputs"] == f"Question {number}?"
        assert result["feedback"]["thread_id"] == threads[number]
    assert learned_from(client, "waiting") == REASONS
    assert len(judgings(server)) == 3


def learned_from(client: SyncLangGraphClient, namespace: str) -> list[Any]:
    """What experts said, as the store has it; each word taught one guideline of its own."""
    memory = memory_of(client, namespace)
    said = sorted(str(one.rationale) for one in memory.episodes())
    texts = sorted(one.text for one in memory.guidelines())
    assert len(texts) == len(said)
    assert all(word in text for word, text in zip(said, texts, strict=True))
    return said


def test_one_threads_questions_are_answered_one_at_a_time_and_a_bad_reply_loses_none(
    client: SyncLangGraphClient, server: LoopbackServer
) -> None:
    server.responder = Model(distil=each_its_words)
    thread = new_thread(client)
    given = {"cases": [case(number) for number in range(3)]}
    context = {"memalign": {"namespace": ["one_by_one"]}}
    asked = run(client, thread, "fan_out", input=given, context=context)["__interrupt__"]
    shown = {one["value"]["action_requests"][0]["description"]: one["id"] for one in asked}
    ids = [
        next(key for text, key in shown.items() if f"Question {number}?" in text)
        for number in range(3)
    ]
    assert client.threads.get_state(thread)["next"] == ["review"] * 3
    assert "specify the interrupt id" in refuse(client, thread, "Too cold.", "fan_out")
    replies = {ids[0]: {"value": "perhaps"}, ids[1]: REASONS[1]}
    assert "'perhaps' is not on the scale" in refuse(client, thread, replies, "fan_out")
    assert {ids[0], ids[2]} <= set(pending(client, thread))
    left = resume(client, thread, {ids[2]: REASONS[2]}, "fan_out")
    assert ids[0] in [one["id"] for one in left["__interrupt__"]]
    result = resume(client, thread, {ids[0]: REASONS[0]}, "fan_out")
    for number, said in enumerate(result["feedback"]):
        assert said["example"]["inputs"] == f"Question {number}?"
        assert said["rationale"] == REASONS[number]
    assert learned_from(client, "one_by_one") == REASONS
    assert len(judgings(server)) == len(distillings(server)) == 3
