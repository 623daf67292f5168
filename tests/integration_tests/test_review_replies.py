"""The review interrupt: what the expert sees, and what becomes of a reply."""

import json
from typing import Any

import pytest
from pydantic import TypeAdapter

from memalign_graph import Judgment
from tests.conftest import CASE, COLD, EVERY_WAY, OTHER, Bench, judgings

WORDS = "Too cold."
EDITED = {"value": False, "rationale": WORDS}


def decisions(**decision: Any) -> dict[str, Any]:
    return {"decisions": [decision]}


REPLIES: dict[str, tuple[Any, dict[str, Any] | None]] = {
    "native": (
        {"value": False, "rationale": WORDS, "author": "ann"},
        {"value": False, "rationale": WORDS, "author": "ann"},
    ),
    "text": (WORDS, {"rationale": WORDS}),
    "approve": (decisions(type="approve"), {"value": True}),
    "edit": (
        decisions(type="edit", edited_action={"name": "review_judgment", "args": EDITED}),
        EDITED,
    ),
    "inbox-response": ({"type": "response", "args": WORDS}, {"rationale": WORDS}),
    "ignored": ([{"type": "ignore", "args": None}], None),
}

INVALID: dict[str, tuple[Any, str]] = {
    "off-scale": ({"value": "perhaps"}, "'perhaps' is not on the scale"),
    "number": (7, "of type int"),
    "reject-silently": (decisions(type="reject"), "the message of 'reject' is empty"),
}


async def test_payload_is_a_plain_hitl_request(bench: Bench) -> None:
    hitl = pytest.importorskip("langchain.agents.middleware.human_in_the_loop")
    given = await bench.invoke(bench.review_graph(), CASE)
    [interrupt] = given["__interrupt__"]
    payload = interrupt.value
    assert json.loads(json.dumps(payload)) == payload
    assert TypeAdapter(hitl.HITLRequest).validate_python(payload) == payload
    [action] = payload["action_requests"]
    judgment = Judgment.model_validate(given["judgment"])
    assert action["name"] == "review_judgment"
    assert action["args"] == {"value": judgment.value, "rationale": judgment.rationale}
    schema = interrupt.response_schema
    assert json.loads(json.dumps(schema)) == schema
    assert set(schema["properties"]) == {"value", "rationale", "author"}
    assert schema["properties"]["value"]["type"] == "boolean"
    [config] = payload["review_configs"]
    assert config["allowed_decisions"] == ["approve", "edit", "reject", "respond"]


async def test_description_shows_the_case_the_verdict_and_the_memory_used(bench: Bench) -> None:
    graph = bench.review_graph()
    await bench.review(graph, COLD)
    given = await bench.invoke(graph, {**OTHER, "reference_outputs": "Say sorry."}, "u")
    description = given["__interrupt__"][0].value["action_requests"][0]["description"]
    [guideline] = await bench.guidelines()
    for shown in (
        *OTHER.values(),
        "Say sorry.",
        given["judgment"]["rationale"],
        "The judge says: true",
        guideline.text,
        CASE["outputs"],
        COLD["rationale"],
    ):
        assert str(shown) in description


@EVERY_WAY
@pytest.mark.parametrize("form", list(REPLIES))
async def test_reply_becomes_one_feedback(bench: Bench, form: str) -> None:
    reply, expected = REPLIES[form]
    given = await bench.review(bench.review_graph(), reply)
    feedback = given["feedback"]
    if expected is None:
        assert (feedback, given["learned"], await bench.episodes()) == (None, None, [])
        assert len(bench.server.chats) == 1
        return
    said = {name: feedback[name] for name in ("value", "rationale", "author")}
    assert {name: value for name, value in said.items() if value is not None} == expected
    assert feedback["example"] == {**CASE, "reference_outputs": None}
    assert feedback["judgment"] == given["judgment"]
    [episode] = await bench.episodes()
    assert (episode.value, episode.rationale) == (said["value"], said["rationale"])
    assert given["learned"]["episode_ids"] == [episode.id]
    assert episode.status == "distilled"
    assert len(judgings(bench.server)) == 1


@EVERY_WAY
@pytest.mark.parametrize("form", list(INVALID))
async def test_invalid_reply_keeps_the_question_open(bench: Bench, form: str) -> None:
    reply, problem = INVALID[form]
    graph = bench.review_graph()
    await bench.invoke(graph, CASE)
    await bench.resume(graph, {})  # no reply at all
    assert problem in await bench.refuse(graph, reply)
    assert await bench.episodes() == []
    [interrupt] = (await bench.state(graph)).interrupts
    assert problem in await bench.refuse(graph, reply)
    given = await bench.resume(graph, {interrupt.id: COLD})
    assert given["feedback"]["rationale"] == COLD["rationale"]
    assert len(await bench.episodes()) == 1
    assert len(judgings(bench.server)) == 1
