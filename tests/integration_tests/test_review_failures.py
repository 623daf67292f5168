"""Distilling that fails: an error, nothing claimed, nothing lost."""

from typing import Any

import pytest

from memalign_graph import ChatModelError, EmbeddingError, ModelAnswerError
from tests.conftest import CASE, COLD, OTHER, Bench, Graph, distillings, judgings, operations
from tests.loopback import error, refusal, truncated

DOWN = error(500, "It broke.", retry_after=0)
FAILURES: dict[str, tuple[tuple[Any, ...], type[Exception]]] = {
    "down": ((DOWN,), ChatModelError),
    "prose": (("Well.", "Well."), ModelAnswerError),
    "truncated": ((truncated('{"oper'), truncated('{"oper')), ModelAnswerError),
    "refused": ((refusal(), refusal()), ModelAnswerError),
}


def patient_graph(bench: Bench) -> Graph:
    return bench.review_graph(model=bench.server.chat_model(max_retries=0))


async def fail_to_distill(bench: Bench, graph: Graph, failure: str = "down") -> None:
    replies, expected = FAILURES[failure]
    await bench.invoke(graph, CASE)
    bench.server.script(*replies)
    with pytest.raises(expected):
        await bench.resume(graph, COLD)


@pytest.mark.parametrize("failure", list(FAILURES))
async def test_feedback_stays_pending_and_goes_on_after_recovery(
    bench: Bench, failure: str
) -> None:
    graph = patient_graph(bench)
    await fail_to_distill(bench, graph, failure)
    [episode] = await bench.episodes()
    assert (episode.status, episode.rationale) == ("pending", COLD["rationale"])
    assert await bench.guidelines() == []
    state = await bench.state(graph)
    assert state.next == ("distill_feedback",)
    assert state.values["learned"] is None
    goes_on = bench.resume(graph, COLD) if failure == "down" else bench.invoke(graph, None)
    given = await goes_on
    assert given["learned"]["episode_ids"] == [episode.id]
    assert [one.status for one in await bench.episodes()] == ["distilled"]
    assert len(await bench.guidelines()) == 1
    assert len(judgings(bench.server)) == 1


async def test_later_run_takes_the_pending_feedback_along(bench: Bench) -> None:
    graph = patient_graph(bench)
    await fail_to_distill(bench, graph)
    [old] = await bench.episodes()
    await bench.invoke(graph, OTHER, "u")
    bench.server.script(
        operations(
            {"action": "add", "text": "From the old one.", "feedback": ["F1"]},
            {"action": "add", "text": "From the new one.", "feedback": ["F2"]},
            {"action": "add", "text": "From both.", "feedback": ["F2", "f1", "F1"]},
        )
    )
    given = await bench.resume(graph, {"rationale": "Ask for the order's number."}, "u")
    [new] = [one for one in await bench.episodes() if one.id != old.id]
    prompt = distillings(bench.server)[-1].text
    assert prompt.index("Feedback F1") < prompt.index(COLD["rationale"])
    assert prompt.index(COLD["rationale"]) < prompt.index("Feedback F2")
    assert prompt.index("Feedback F2") < prompt.index("order's number")
    assert {one.text: one.episode_ids for one in await bench.guidelines()} == {
        "From the new one.": [new.id],
        "From the old one.": [old.id],
        "From both.": [new.id, old.id],
    }
    assert given["learned"]["episode_ids"] == sorted([old.id, new.id])
    assert {one.status for one in await bench.episodes()} == {"distilled"}
    # The first thread finds its work done.
    chats = len(bench.server.chats)
    late = await bench.invoke(graph, None)
    assert late["learned"]["episode_ids"] == [old.id]
    assert late["learned"]["guidelines"] == []
    assert len(bench.server.chats) == chats


async def test_feedback_that_can_not_be_embedded_is_not_lost(bench: Bench) -> None:
    graph = bench.review_graph(embeddings=bench.server.embedder(max_retries=0))
    await bench.invoke(graph, CASE)
    bench.server.script_embeddings(DOWN)
    with pytest.raises(EmbeddingError):
        await bench.resume(graph, COLD)
    assert await bench.episodes() == []
    assert (await bench.state(graph)).values["feedback"]["rationale"] == COLD["rationale"]
    await bench.invoke(graph, None)
    assert [one.status for one in await bench.episodes()] == ["distilled"]


async def test_failing_second_run_does_not_show_the_first_judgment(bench: Bench) -> None:
    graph = patient_graph(bench)
    await bench.review(graph, COLD)
    bench.server.script(DOWN)
    with pytest.raises(ChatModelError):
        await bench.invoke(graph, OTHER)
    assert (await bench.state(graph)).interrupts == ()
    given = await bench.invoke(graph, None)
    assert len(given["__interrupt__"]) == 1
    assert given["learned"] is None
    assert OTHER["outputs"] in judgings(bench.server)[-1].text
