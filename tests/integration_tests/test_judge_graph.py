"""The judge graph: what it asks the model, and what it says of its judgment."""

import json
from typing import Any

import pytest

from memalign_graph import (
    Boolean,
    Categorical,
    Criterion,
    InvalidInputError,
    Judgment,
    Numeric,
    Pairwise,
)
from tests.conftest import CASE, COLD, CRITERION, EVERY_WAY, OTHER, Bench
from tests.loopback import ChatRequest, Rule

SMUGGLED = "zebra-4711"


def system_of(chat: ChatRequest) -> str:
    [text] = [one["content"] for one in chat.messages if one["role"] == "system"]
    return str(text)


async def test_returns_the_judgment_alone(bench: Bench) -> None:
    given = await bench.invoke(bench.judge_graph(), CASE)
    assert set(given) == {"judgment"}
    [chat] = bench.server.chats
    assert chat.schema is not None
    assert list(chat.schema["properties"]) == ["rationale", "value"]
    judgment = Judgment.model_validate(given["judgment"])
    assert (judgment.value, judgment.criterion, judgment.thread_id) == (True, "support_tone", "t")
    assert judgment.model == "gpt-4.1-mini"
    assert judgment.warnings == []


@EVERY_WAY
@pytest.mark.parametrize(
    ("scale", "first", "expected", "learned"),
    [
        (Boolean(), True, True, False),
        (Categorical(choices=("Poor", "Good")), "good", "Good", "Poor"),
        (Numeric(minimum=1, maximum=5, integer=True), "3", 3, 1),
        (Pairwise(), "b", "B", "tie"),
    ],
    ids=["boolean", "categorical", "numeric", "pairwise"],
)
async def test_every_scale_judges_and_learns(
    bench: Bench, scale: Any, first: Any, expected: Any, learned: Any
) -> None:
    criterion = Criterion(name="quality", instructions="How good is it?", scale=scale)
    graph = bench.review_graph(criterion)
    bench.server.rules = [Rule(lambda _: True, value=first)]
    asked = await bench.invoke(graph, CASE)
    assert asked["judgment"]["value"] == expected
    assert type(asked["judgment"]["value"]) is type(expected)
    given = await bench.resume(graph, {"value": str(learned).upper()})
    assert given["feedback"]["value"] == learned
    bench.server.rules = []
    await bench.invoke(graph, OTHER, "u")
    *_, earlier, answered, _ = bench.server.chats[-1].messages
    assert CASE["outputs"] in earlier["content"]
    answer = json.dumps({"rationale": "", "value": learned})
    assert answered == {"role": "assistant", "content": answer}


@EVERY_WAY
async def test_memory_stands_in_the_prompt_after_feedback(bench: Bench) -> None:
    graph = bench.review_graph()
    first = await bench.review(graph, COLD)
    given = await bench.invoke(graph, OTHER, "u")
    assert given["judgment"]["memory_version"] == first["learned"]["memory_version"]
    assert given["judgment"]["memory_version"] != first["judgment"]["memory_version"]
    before, after = bench.server.chats[0], bench.server.chats[-1]
    [guideline] = await bench.guidelines()
    [episode] = await bench.episodes()
    assert guideline.text not in before.text
    assert guideline.text in system_of(after)
    assert [one["role"] for one in after.messages] == ["system", "user", "assistant", "user"]
    _, earlier, answered, asked = after.messages
    assert CASE["outputs"] in earlier["content"]
    assert json.loads(answered["content"]) == {"rationale": COLD["rationale"], "value": False}
    assert CASE["outputs"] not in asked["content"]
    assert OTHER["outputs"] in asked["content"]
    for chat in (before, after):
        assert f'Criterion "support_tone":\n{CRITERION.instructions}' in system_of(chat)
    judgment = given["judgment"]
    assert judgment["guideline_ids"] == [guideline.id]
    assert judgment["episode_ids"] == [episode.id]


async def test_prefix_is_byte_identical_for_two_cases(bench: Bench) -> None:
    graph = bench.review_graph(review="never")
    await bench.review(bench.review_graph(), COLD)
    bench.server.chats.clear()
    await bench.invoke(graph, CASE, "a")
    await bench.invoke(graph, {**OTHER, "reference_outputs": "Say sorry."}, "b")
    one, two = bench.server.chats
    assert system_of(one).encode() == system_of(two).encode()
    assert "Too cold" in system_of(one)
    assert one.body["response_format"] == two.body["response_format"]


async def test_no_application_text_in_the_system_message(bench: Bench) -> None:
    case = {name: f"{SMUGGLED} {name}" for name in ("inputs", "outputs", "reference_outputs")}
    graph = bench.review_graph()
    bench.server.rules = [Rule(lambda _: True, rationale=f"It says {SMUGGLED}.")]
    await bench.review(graph, {"value": False}, case)
    bench.server.rules = []
    await bench.invoke(graph, OTHER, "u")
    assert SMUGGLED in bench.server.chats[-1].text
    for chat in bench.server.chats:
        assert SMUGGLED not in system_of(chat)


async def test_reference_of_an_earlier_run_is_not_left_over(bench: Bench) -> None:
    graph = bench.judge_graph()
    await bench.invoke(graph, {**CASE, "reference_outputs": SMUGGLED})
    await bench.invoke(graph, CASE)
    first, second = bench.server.chats
    assert SMUGGLED in first.text
    assert SMUGGLED not in second.text


@pytest.mark.parametrize(
    ("case", "field"),
    [
        ({"inputs": "", "outputs": "x"}, "inputs"),
        ({"inputs": "x"}, "outputs"),
        ({"inputs": "x", "outputs": {"at": object()}}, "outputs"),
    ],
    ids=["empty", "missing", "no-json"],
)
async def test_bad_input_is_one_sentence_and_no_call(
    bench: Bench, case: dict[str, Any], field: str
) -> None:
    graph = bench.judge_graph()
    graph.checkpointer = None  # a checkpointer would refuse to keep some of these first
    with pytest.raises(InvalidInputError) as caught:
        await bench.invoke(graph, case, None)
    assert str(caught.value).startswith(field)
    assert "\n" not in str(caught.value)
    assert bench.server.chats == []
