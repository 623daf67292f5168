"""What a review must not lose: words, also where distilling fails, guidelines, and settings."""

from typing import Any

import pytest
from langchain_core.language_models import FakeListChatModel

from memalign_graph import ChatModelError, EmbeddingError, Episode
from tests.conftest import CASE, COLD, OTHER, Bench, Graph, distillings, judgings, operations
from tests.loopback import LoopbackServer, Rule, error, refusal, truncated

APPROVE = {"type": "approve"}
DOWN = error(500, "It broke.", retry_after=0)
FAILURES: dict[str, tuple[Any, ...]] = {
    "down": (DOWN,),
    "prose": ("Well.", "Well."),
    "truncated": (truncated('{"oper'), truncated('{"oper')),
    "refused": (refusal(), refusal()),
}
NEWER = {"value": False, "rationale": "Too short: it must say what happens next.", "author": "ann"}
OLDER = {**COLD, "author": "ann"}
WORDS = {"rationale": COLD["rationale"]}


def judge_says(bench: Bench, value: Any) -> None:
    bench.server.rules = [Rule(lambda _: True, value=value)]


def patient_graph(bench: Bench) -> Graph:
    return bench.review_graph(model=bench.server.chat_model(max_retries=0))


async def fail_to_distill(
    bench: Bench, graph: Graph, reply: Any = COLD, on: str = "t", failure: str = "down"
) -> Episode:
    """Give a reply that is stored and not distilled."""
    await bench.invoke(graph, CASE, on)
    bench.server.script(*FAILURES[failure])
    learned = (await bench.resume(graph, reply, on))["learned"]
    [episode] = await bench.episodes()
    assert (learned["episode_ids"], learned["guidelines"]) == ([], [])
    assert any(f"Feedback {episode.id}" in warning for warning in learned["warnings"])
    assert (episode.status, episode.rationale) == ("pending", reply["rationale"])
    return episode


def said(episode: Episode) -> tuple[Any, ...]:
    return episode.value, episode.rationale, episode.status


async def test_approving_a_corrected_case_keeps_words_and_guidelines(bench: Bench) -> None:
    graph = bench.review_graph()
    await bench.review(graph, COLD, on="a")
    guidelines = await bench.guidelines()
    judge_says(bench, False)
    given = await bench.review(graph, APPROVE, on="b")
    [episode] = await bench.episodes()
    assert said(episode) == (False, COLD["rationale"], "distilled")
    assert episode.thread_ids == ["a", "b"]
    assert await bench.guidelines() == guidelines != []
    assert given["learned"]["episode_ids"] == [episode.id]
    assert given["learned"]["guidelines"] == []
    assert len(distillings(bench.server)) == 1
    assert len(judgings(bench.server)) == 2
    again = await bench.review(graph, APPROVE, on="b")
    assert again["learned"]["guidelines"] == []
    assert await bench.guidelines() == guidelines
    [episode] = await bench.episodes()
    assert len(episode.verdicts) == 3  # each judgment that was answered


async def test_bare_value_fills_in_what_the_words_left_open_and_the_opposite_takes_them_back(
    bench: Bench,
) -> None:
    graph = bench.review_graph()
    await bench.review(graph, WORDS, on="a")
    [before] = await bench.episodes()
    assert said(before) == (None, COLD["rationale"], "distilled")
    guidelines = await bench.guidelines()
    await bench.review(graph, {"value": False}, on="b")
    [episode] = await bench.episodes()
    assert said(episode) == (False, COLD["rationale"], "distilled")
    assert episode.created_at == before.created_at
    assert await bench.guidelines() == guidelines != []
    await bench.review(graph, APPROVE, on="c")  # the judge still says true
    [episode] = await bench.episodes()
    assert said(episode) == (True, None, "distilled")
    assert await bench.guidelines() == []
    assert len(distillings(bench.server)) == 1


async def test_approving_pending_feedback_leaves_it_to_be_distilled(bench: Bench) -> None:
    graph = patient_graph(bench)
    await fail_to_distill(bench, graph, COLD, "a")
    judge_says(bench, False)
    await bench.review(graph, APPROVE, on="b")
    [episode] = await bench.episodes()
    assert said(episode) == (False, COLD["rationale"], "pending")
    await bench.review(graph, WORDS, OTHER, on="c")
    assert {said(one)[2] for one in await bench.episodes()} == {"distilled"}


async def test_next_review_distils_a_newer_comment_that_is_still_pending(bench: Bench) -> None:
    graph = patient_graph(bench)
    await fail_to_distill(bench, graph, OLDER, "a")
    newer = await fail_to_distill(bench, graph, NEWER, "b")
    assert newer.rationale == NEWER["rationale"]
    given = await bench.review(graph, WORDS, OTHER, on="c")
    assert newer.id in given["learned"]["episode_ids"]
    prompt = distillings(bench.server)[-1].text
    assert str(NEWER["rationale"]) in prompt
    assert {one.status for one in await bench.episodes()} == {"distilled"}


@pytest.mark.parametrize(
    ("options", "distils"),
    [
        ({}, "gpt-other"),
        ({"distill_model": "openai:gpt-own"}, "gpt-own"),
    ],
)
async def test_model_of_the_context_distils_unless_another_was_chosen(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, options: Any, distils: str
) -> None:
    graph = bench.review_graph(model="openai:gpt-own", **options)
    # Nobody closes the connections of a client that a string makes.
    with LoopbackServer(keep_alive=False) as server:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        await bench.invoke(graph, CASE, context={"model": "openai:gpt-other"})
        await bench.resume(graph, COLD)  # the context is gone here
        asked = [(chat.schema_name, chat.model) for chat in server.chats]
    assert asked == [("judgment", "gpt-other"), ("guideline_operations", distils)]


class Unstructured(FakeListChatModel):
    """A model that can't answer in the shape of a schema."""


@pytest.mark.parametrize(
    ("distiller", "reason"),
    [("openai:gpt-own", "OPENAI_API_KEY"), (Unstructured(responses=[]), "structured output")],
)
async def test_a_distiller_that_can_not_be_used_loses_no_reply(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, distiller: Any, reason: str
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    graph = bench.review_graph(distill_model=distiller)
    await bench.invoke(graph, CASE)
    learned = (await bench.resume(graph, COLD))["learned"]
    [episode] = await bench.episodes()
    assert said(episode) == (False, COLD["rationale"], "pending")
    assert (learned["episode_ids"], learned["guidelines"]) == ([], [])
    [warning] = learned["warnings"]
    assert f"Feedback {episode.id} is stored, and nothing was distilled from it" in warning
    assert reason in warning
    await bench.review(bench.review_graph(), WORDS, OTHER, on="mended")
    assert {one.status for one in await bench.episodes()} == {"distilled"}


@pytest.mark.parametrize("failure", list(FAILURES))
async def test_feedback_stays_pending_and_the_same_review_again_distils_it(
    bench: Bench, failure: str
) -> None:
    graph = patient_graph(bench)
    episode = await fail_to_distill(bench, graph, failure=failure)
    assert await bench.guidelines() == []
    assert (await bench.state(graph)).next == ()
    given = await bench.review(graph, COLD, on="again")
    assert given["learned"]["episode_ids"] == [episode.id]
    assert [one.status for one in await bench.episodes()] == ["distilled"]
    assert len(await bench.guidelines()) == 1


async def test_later_run_takes_the_pending_feedback_along(bench: Bench) -> None:
    graph = patient_graph(bench)
    old = await fail_to_distill(bench, graph)
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
    assert {one.text: one.episode_ids for one in await bench.guidelines()} == {
        "From the new one.": [new.id],
        "From the old one.": [old.id],
        "From both.": [new.id, old.id],
    }
    assert given["learned"]["episode_ids"] == sorted([old.id, new.id])


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
