"""Text that a store cannot keep, and text that could break out of a prompt."""

import json
from typing import Any

import pytest

from tests.conftest import (
    CASE,
    COLD,
    EVERY_WAY,
    POSTGRES_WAYS,
    Bench,
    distillings,
    judgings,
    operations,
)
from tests.loopback import answer

HALF = "Too cold \ud83d"
BAD = [("Too\x00cold.", "NUL character"), (HALF, "half of a surrogate pair")]
SORRY = "A reply that says no word of regret is not appropriate."


@EVERY_WAY("memory-sync", *POSTGRES_WAYS)
@pytest.mark.parametrize(("text", "problem"), BAD)
async def test_reply_that_cannot_be_stored_keeps_the_interrupt_pending(
    bench: Bench, text: str, problem: str
) -> None:
    graph = bench.review_graph()
    await bench.invoke(graph, CASE)
    for reply in (
        {"value": False, "rationale": text},
        {"value": False, "author": text},
        {"value": False, "id": text},
        {"type": "response", "args": text},
    ):
        assert problem in await bench.refuse(graph, reply)
    assert await bench.episodes() == []
    [interrupt] = (await bench.state(graph)).interrupts
    result = await bench.resume(graph, {interrupt.id: COLD})
    assert result["feedback"]["rationale"] == COLD["rationale"]
    assert [episode.status for episode in await bench.episodes()] == ["distilled"]
    assert len(judgings(bench.server)) == 1


@pytest.mark.parametrize(("text", "problem"), BAD)
@pytest.mark.parametrize("raw", [False, True], ids=["escaped", "raw"])
async def test_model_answer_that_cannot_be_stored_is_requested_again(
    bench: Bench, text: str, problem: str, *, raw: bool
) -> None:
    """As a JSON escape, or as a lone surrogate."""

    def said(content: dict[str, Any]) -> Any:
        return answer(content) if raw else answer(json.dumps(content))

    good = {"rationale": "It is polite.", "value": True}
    bench.server.script(
        said({"rationale": text, "value": False}),
        good,
        said(operations({"action": "add", "text": text})),
        operations({"action": "add", "text": SORRY}),
    )
    result = await bench.review(bench.review_graph(), COLD)
    assert [item["text"] for item in result["learned"]["guidelines"]] == [SORRY]
    assert [guideline.text for guideline in await bench.guidelines()] == [SORRY]
    [episode] = await bench.episodes()
    assert episode.judgment is not None
    assert episode.judgment.rationale == good["rationale"]
    for first, second in (judgings(bench.server), distillings(bench.server)):
        assert second.messages[:2] == first.messages
        assert problem in second.messages[3]["content"]
        if raw and text == HALF:
            assert "Too cold ?" in second.messages[2]["content"]
