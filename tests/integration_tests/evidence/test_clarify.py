"""The question back: in reviews, gates, agents, tools and parents, after failures and purges."""

from pathlib import Path
from typing import Any

import pytest

from memalign_graph.io import SYNC, run_sync
from memalign_graph.memory.feedback import record_judgments
from memalign_graph.nodes import learn
from tests.conftest import (
    CASE,
    COLD,
    CRITERION,
    DOWN,
    EVERY_WAY,
    OTHER,
    Bench,
    Graph,
    distillings,
    judgings,
)
from tests.integration_tests.gates.support import Writer, asked, gated
from tests.loopback import ChatRequest, LoopbackServer, ReplyLike, Rule
from tests.unit_tests.memory.purging import (
    MARK,
    everything_in,
    holding,
    keep_deleted,
    left_in,
    untold,
)

SCHEMA = "feedback_question"
VAGUE: dict[str, Any] = {"value": False, "rationale": "Too cold.", "author": "ann"}
ASKS: dict[str, Any] = {"question": "What makes it too cold?"}
CLEAR = {"question": ""}
ANSWER = "Yes: a date is needed."
JOINED = f'Too cold.\n(Asked back: "What makes it too cold?")\n{ANSWER}'
APPROVE = {"decisions": [{"type": "approve"}]}


def questions(server: LoopbackServer) -> list[ChatRequest]:
    return [chat for chat in server.chats if chat.schema_name == SCHEMA]


def called(bench: Bench) -> tuple[int, int]:
    """How often a judge was asked, and how often for a question."""
    return len(judgings(bench.server)), len(questions(bench.server))


def answers(reply: ReplyLike) -> list[Rule]:
    """A model with one answer to whether words make a rule."""
    return [Rule(lambda chat: chat.schema_name == SCHEMA, reply=reply)]


def action(result: dict[str, Any]) -> dict[str, Any]:
    """The one action that a run waits for."""
    [interrupt] = result["__interrupt__"]
    [request] = interrupt.value["action_requests"]
    return dict(request)


def clarifying_graph(bench: Bench, **options: Any) -> Graph:
    """A review that asks back; its model does not try again."""
    model = bench.server.chat_model(max_retries=0)
    return bench.review_graph(**{"model": model, "clarify": True, **options})


async def until_asked(
    bench: Bench,
    graph: Graph,
    reply: Any = VAGUE,
    case: Any = CASE,
    on: str = "t",
    asks: Any = ASKS,
) -> dict[str, Any]:
    """Judge a case, have the expert say something vague, and be asked back."""
    bench.server.rules = answers(asks)
    result: dict[str, Any] = await bench.review(graph, reply, case, on)
    assert action(result)["name"] == "clarify_feedback"
    assert asks["question"] in action(result)["description"]
    return result


@EVERY_WAY
async def test_vague_words_are_asked_about_and_stored_with_the_answer(bench: Bench) -> None:
    graph = clarifying_graph(bench)
    await bench.add_guideline("A reply without regret is not appropriate.")
    result = await until_asked(bench, graph)
    for shown in (VAGUE["rationale"], *CASE.values()):
        assert shown in action(result)["description"]
    [chat] = questions(bench.server)
    for shown in (
        CRITERION.instructions,
        *CASE.values(),
        result["judgment"]["rationale"],
        "A reply without regret is not appropriate.",
        "The expert's value: false",
        "Too cold.",
    ):
        assert shown in chat.messages[-1]["content"]
    assert "ann" not in chat.messages[-1]["content"].split()
    assert (result["feedback"]["rationale"], result["learned"]) == ("Too cold.", None)
    for reply, problem in (
        ({"value": "perhaps"}, "'perhaps' is not on the scale"),
        (" ", "approve to continue without an answer"),
        ({"rationale": ANSWER, "author": "bob"}, "'ann' wrote this comment"),
    ):
        assert problem in await bench.refuse(graph, reply)
    [episode] = await bench.episodes()
    assert (episode.rationale, episode.status) == ("Too cold.", "pending")
    state = await bench.state(graph)
    assert state.next == ("clarify_feedback",)

    done = await bench.resume(graph, {state.interrupts[0].id: ANSWER})
    assert set(done) == {"judgment", "feedback", "learned"}
    feedback = {"value": False, "rationale": JOINED, "author": "ann"}
    assert done["feedback"].items() >= feedback.items()
    assert done["feedback"]["judgment"] == done["judgment"]
    [episode] = await bench.episodes()
    assert (episode.rationale, episode.status) == (JOINED, "distilled")
    assert (done["learned"]["episode_ids"], done["learned"]["warnings"]) == ([episode.id], [])
    [distilling] = distillings(bench.server)
    assert JOINED in distilling.text
    assert called(bench) == (1, 1)
    # The same words again change nothing, and are not asked about.
    rules = await bench.guidelines()
    done = await bench.review(graph, VAGUE, on="again")
    assert (done["feedback"]["rationale"], done["learned"]["guidelines"]) == (JOINED, [])
    assert [stored.word for stored in await bench.episodes()] == [episode.word]
    assert (await bench.guidelines(), called(bench)) == (rules, (2, 1))


async def test_who_is_not_asked(bench: Bench) -> None:
    graph = clarifying_graph(bench)
    bench.server.rules = answers(ASKS)
    for reply in (APPROVE, {"value": True}, {"value": False}, {"type": "ignore"}):
        done = await bench.review(graph, reply, on=str(reply))
        assert "__interrupt__" not in done
        assert (done["learned"] is None) == (reply == {"type": "ignore"})
    await bench.review(bench.review_graph(), VAGUE, on="off")
    assert "clarify_feedback" not in bench.review_graph().nodes
    assert questions(bench.server) == []
    bench.server.rules = answers(CLEAR)
    done = await bench.review(graph, COLD, on="clear")
    assert "__interrupt__" not in done
    assert (done["feedback"]["rationale"], done["learned"]["warnings"]) == (COLD["rationale"], [])
    assert len(questions(bench.server)) == 1


@pytest.mark.parametrize(("reply", "value"), [({"value": True}, True), (APPROVE, False)])
async def test_reply_without_words(bench: Bench, reply: Any, *, value: bool) -> None:
    graph = clarifying_graph(bench)
    await until_asked(bench, graph)
    done = await bench.resume(graph, reply)
    assert len(done["learned"]["guidelines"]) == 1
    [episode] = await bench.episodes()
    assert (episode.rationale, episode.value, episode.status) == ("Too cold.", value, "distilled")
    # Not even words that went on unclear are asked about again, but another's are.
    await bench.review(graph, {**VAGUE, "value": value}, on="again")
    assert len(questions(bench.server)) == 1
    await until_asked(bench, graph, {**VAGUE, "author": "bob"}, on="another's")


FAILURES: dict[str, Any] = {
    "prose": "Well.",
    "no question": {"question": None},
    "a megabyte": {**ASKS, "question": "Why? " * 200_000},
    "surrogate": '{"question": "\\ud83d?"}',
}


@pytest.mark.parametrize("failure", ["down", *FAILURES])
async def test_without_a_usable_question_the_words_go_on_and_it_is_said(
    bench: Bench, failure: str, caplog: pytest.LogCaptureFixture
) -> None:
    graph = clarifying_graph(bench)
    await bench.invoke(graph, CASE)
    bench.server.script(*([DOWN] if failure == "down" else [FAILURES[failure]] * 2))
    done = await bench.resume(graph, VAGUE)
    [warning] = done["learned"]["warnings"]
    assert warning.startswith("No clarifying question was asked, because the model failed: ")
    assert caplog.messages == [f"Memory of {CRITERION.name!r}: {warning}"]
    [episode] = await bench.episodes()
    assert (episode.rationale, episode.status) == ("Too cold.", "distilled")
    assert len(done["learned"]["guidelines"]) == 1
    assert len(questions(bench.server)) == (1 if failure == "down" else 2)
    # The next run knows nothing of it.
    done = await bench.review(graph, APPROVE, OTHER)
    assert done["learned"]["warnings"] == []
    assert "clarification" not in (await bench.state(graph)).values["judge_lesson"]


async def test_new_run_on_the_thread_drops_the_question_and_not_the_comment(bench: Bench) -> None:
    graph = clarifying_graph(bench)
    await until_asked(bench, graph)
    result = await bench.invoke(graph, OTHER)
    assert [episode.rationale for episode in await bench.episodes()] == ["Too cold."]
    assert action(result)["name"] == "review_judgment"
    assert OTHER["outputs"] in action(result)["description"]
    bench.server.rules = answers(CLEAR)
    done = await bench.resume(graph, {"rationale": "It is too cold."})
    assert done["feedback"]["rationale"] == "It is too cold."
    assert "clarification" not in (await bench.state(graph)).values["judge_lesson"]


async def test_the_distill_model_asks(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    asks = bench.server.chat_model(model="gpt-asks")
    graph = clarifying_graph(bench, distill_model=asks)
    await until_asked(bench, graph)
    await bench.resume(graph, ANSWER)
    assert [chat.model for chat in bench.server.chats[1:]] == ["gpt-asks"] * 2
    # A model that is not there loses no words.
    graph = clarifying_graph(bench, distill_model="openai:gpt-none")
    await bench.invoke(graph, OTHER, "none")
    warnings = (await bench.resume(graph, VAGUE, "none"))["learned"]["warnings"]
    assert ["needs a key" in warning for warning in warnings] == [True, True]  # ask back, distil
    assert {episode.status for episode in await bench.episodes()} == {"distilled", "pending"}


async def test_gate_asks_back_and_goes_by_what_the_expert_said(bench: Bench) -> None:
    bench.server.rules = answers(ASKS)
    writer = Writer("Wait.", "Sorry!")
    graph = gated(bench, writer, review="always", clarify=True, max_revisions=1)
    result = await bench.review(graph, VAGUE, asked())
    assert action(result)["name"] == "clarify_feedback"
    assert "Wait." in action(result)["description"]
    result = await bench.resume(graph, ANSWER)
    request = writer.seen[1]["messages"][-1].text
    assert "Too cold." in request
    assert ANSWER in request
    assert action(result)["name"] == "review_judgment"  # of the second draft
    verdict = (await bench.resume(graph, APPROVE))["quality_gate"]
    assert (verdict["status"], verdict["revisions"]) == ("accepted", 1)
    assert {episode.rationale for episode in await bench.episodes()} == {JOINED, None}
    assert called(bench) == (2, 1)


@pytest.mark.parametrize("author", ["ann", None])
async def test_answer_counts_after_newer_feedback(bench: Bench, author: str | None) -> None:
    """Also where only the answer names its author."""
    bench.server.rules = answers(ASKS)
    graph = clarifying_graph(bench)
    await bench.invoke(graph, CASE)
    await bench.resume(graph, {**VAGUE, "author": author})
    meanwhile = {**CASE, "value": True, "rationale": "Fine after all.", "author": "ann"}
    bench.memory().remember([meanwhile])
    result = await bench.resume(graph, {"rationale": ANSWER, "author": "ann"})
    [episode] = await bench.episodes()
    assert (episode.value, episode.rationale, episode.author) == (False, JOINED, "ann")
    assert result["learned"]["episode_ids"] == [episode.id]
    [distilled] = distillings(bench.server)
    assert ANSWER in distilled.text


async def die(*_args: Any, **_options: Any) -> None:
    raise KeyboardInterrupt


EARLIER = {**CASE, "value": False, "rationale": "It must give the date of delivery."}


@pytest.mark.parametrize("gone", ["nothing", "forgotten", "purged"])
async def test_anonymous_feedback_survives_a_comment_whose_author_only_the_answer_names(
    bench: Bench, gone: str
) -> None:
    [earlier] = await bench.remember(EARLIER)
    bench.teach("Demand the date of delivery.", earlier)
    graph = clarifying_graph(bench)
    await until_asked(bench, graph, {"value": False, "rationale": "Too cold."})
    assert [episode.rationale for episode in await bench.episodes()] == ["Too cold."]
    if gone != "nothing":
        options: dict[str, Any] = {"purge": True} if gone == "purged" else {}
        await bench.call(bench.memory(), "forget", episode_ids=[earlier.id], **options)
    reply = {"rationale": ANSWER, "author": "ann"}
    done = await bench.resume(graph, reply)
    survives = gone == "nothing"
    left = [(None, EARLIER["rationale"])] * survives + [("ann", JOINED)]
    assert [(episode.author, episode.rationale) for episode in await bench.episodes()] == left
    texts = [guideline.text for guideline in await bench.guidelines()]
    assert ("Demand the date of delivery." in texts) == survives
    assert (len(texts), done["learned"]["warnings"]) == (len(left), [])


async def test_death_after_the_answer_names_its_author(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same words were given before by nobody, and the judge judged all cases meanwhile."""
    [earlier] = await bench.remember({**CASE, "value": False, "rationale": "Too cold."})
    graph = clarifying_graph(bench)
    await until_asked(bench, graph, {"value": True, "rationale": "Too warm."})
    [comment] = await bench.episodes()
    assert comment.judgment is not None
    judgments = {comment.example_id: comment.judgment}
    run_sync(record_judgments(SYNC, bench.memory().access, judgments, replaces=True))
    with monkeypatch.context() as patch:
        patch.setattr(learn, "distill_in_batches", die)
        with pytest.raises(KeyboardInterrupt):
            await bench.resume(graph, {"rationale": ANSWER, "author": "ann"})
        with pytest.raises(KeyboardInterrupt):
            await bench.invoke(graph, None)
    await bench.invoke(graph, None)
    by_author = {episode.author: episode for episode in await bench.episodes()}
    assert by_author.keys() == {None, "ann"}
    assert by_author[None].word == earlier.word
    assert by_author["ann"].rationale == JOINED.replace("cold", "warm", 1)


PLANTED = {"question": "What is zqxask of it?"}
SAID = {"value": False, "rationale": "So zqxwhy.", "author": "zqxann"}
QUOTING = {"operations": [{"text": "Never be zqxask, nor zqxyes.", "action": "add"}]}


async def checkpoints(bench: Bench) -> str:
    if bench.awaits:
        return repr([checkpoint async for checkpoint in bench.saver.alist(None)])
    return repr(list(bench.saver.list(None)))


@EVERY_WAY
async def test_purge_covers_question_and_answer(bench: Bench, tmp_path: Path) -> None:
    await keep_deleted(bench.store, bench.saver)
    graph = clarifying_graph(bench)
    await until_asked(bench, graph, SAID, on="of ann", asks=PLANTED)
    bench.server.script(QUOTING)
    done = await bench.resume(graph, "Yes, zqxyes it is.", "of ann")
    assert "zqxyes" in done["feedback"]["rationale"]
    [guideline] = await bench.guidelines()
    assert guideline.text == "Never be zqxask, nor zqxyes."
    await bench.invoke(bench.judge_graph(), OTHER, "recalled it")
    await bench.remember({**CASE, "rationale": "His own words.", "author": "bob"})
    # A thread goes that waits for the answer, though all else on it is another expert's, too.
    waiting = clarifying_graph(bench, use_episodes=False, use_guidelines=False)
    await until_asked(bench, waiting, {**SAID, "value": True}, on="waits", asks=PLANTED)
    await until_asked(bench, waiting, {"rationale": "Meh."}, OTHER, "other")
    assert MARK in await checkpoints(bench)
    options = {"purge": True, "checkpointer": bench.saver}
    forgotten = await bench.call(bench.memory(), "forget", author="zqxann", **options)
    assert forgotten.purged is not None
    assert set(forgotten.purged.thread_ids) == {"of ann", "recalled it", "waits"}
    assert untold(forgotten.purged.warnings, bench.store) == []
    assert MARK not in await checkpoints(bench)
    assert holding(tmp_path) == []
    assert bench.awaits or left_in(everything_in(bench.store)) == []
    assert await bench.guidelines() == []
    assert [episode.author for episode in await bench.episodes()] == ["bob", None]
    done = await bench.resume(waiting, "Say more.", "other")
    assert done["feedback"]["rationale"].startswith("Meh.\n(Asked back:")
