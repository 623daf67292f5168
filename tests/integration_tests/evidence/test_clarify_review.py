"""A review that asks back where words are too vague: what is asked, stored and learned."""

import logging
from typing import Any

import pytest
from langgraph.types import Command

from memalign_graph import ChatModelError, InvalidInputError, create_panel_graph
from tests.conftest import (
    CASE,
    COLD,
    CRITERION,
    OTHER,
    Bench,
    distillings,
    judgings,
)
from tests.integration_tests.evidence.clarify_support import (
    ANSWER,
    APPROVE,
    ASKS,
    CLEAR,
    JOINED,
    VAGUE,
    action,
    answers,
    clarifying_graph,
    questions,
    until_asked,
)
from tests.loopback import LoopbackServer, content_filter, error, refusal, truncated

DOWN = error(500, "It broke.", retry_after=0)


async def test_vague_words_are_asked_about_and_stored_with_the_answer(bench: Bench) -> None:
    graph = clarifying_graph(bench)
    given = await until_asked(bench, graph)
    description = action(given)["description"]
    for shown in (ASKS["question"], ASKS["example"], VAGUE["rationale"], *CASE.values()):
        assert shown in description
    assert (given["feedback"]["rationale"], given["learned"]) == ("Too cold.", None)
    assert await bench.episodes() == []
    assert (await bench.state(graph)).next == ("clarify_feedback",)

    done = await bench.resume(graph, ANSWER)
    assert "__interrupt__" not in done
    assert set(done) == {"judgment", "feedback", "learned"}
    feedback = done["feedback"]
    said = (feedback["value"], feedback["rationale"], feedback["author"])
    assert said == (False, JOINED, "ann")
    assert feedback["judgment"] == done["judgment"]
    [episode] = await bench.episodes()
    assert (episode.rationale, episode.status) == (JOINED, "distilled")
    assert done["learned"]["episode_ids"] == [episode.id]
    assert done["learned"]["warnings"] == []
    [distilling] = distillings(bench.server)
    assert JOINED in distilling.text
    assert len(judgings(bench.server)) == len(questions(bench.server)) == 1


async def test_question_is_made_from_the_case_the_verdict_the_rules_and_the_words(
    bench: Bench,
) -> None:
    await bench.add_guideline("A reply without regret is not appropriate.")
    graph = clarifying_graph(bench)
    given = await until_asked(bench, graph)
    [asked] = questions(bench.server)
    case = asked.messages[-1]["content"]
    for shown in (
        CRITERION.instructions,
        *CASE.values(),
        given["judgment"]["rationale"],
        "A reply without regret is not appropriate.",
        "The expert's value: false",
        "Too cold.",
    ):
        assert shown in case
    assert "ann" not in case.split()


async def test_words_that_can_be_checked_are_not_asked_about(bench: Bench) -> None:
    graph = clarifying_graph(bench)
    bench.server.rules = answers({**CLEAR, "look_for": "whether it says sorry"})
    done = await bench.review(graph, COLD)
    assert "__interrupt__" not in done
    assert done["feedback"]["rationale"] == COLD["rationale"]
    assert done["learned"]["warnings"] == []
    assert len(questions(bench.server)) == len(distillings(bench.server)) == 1


@pytest.mark.parametrize(
    "reply",
    [APPROVE, {"value": True}, {"value": False}, {"type": "ignore"}],
    ids=["approve", "agrees", "value", "skips"],
)
async def test_who_says_no_words_is_not_asked(bench: Bench, reply: Any) -> None:
    graph = clarifying_graph(bench)
    bench.server.rules = answers(ASKS)
    done = await bench.review(graph, reply)
    assert "__interrupt__" not in done
    assert questions(bench.server) == []
    assert (done["learned"] is None) == (reply == {"type": "ignore"})


async def test_it_is_off_unless_asked_for(bench: Bench) -> None:
    done = await bench.review(bench.review_graph(), VAGUE)
    assert done["learned"]["warnings"] == []
    assert questions(bench.server) == []
    assert "clarify_feedback" not in bench.review_graph().nodes


@pytest.mark.parametrize("clarify", [None, 1, "yes"])
def test_option_is_true_or_false(server: LoopbackServer, clarify: Any) -> None:
    from memalign_graph import create_review_graph

    with pytest.raises(InvalidInputError, match=r"clarify: .* is neither True nor False"):
        create_review_graph(CRITERION, clarify=clarify)
    options: Any = {"clarify": clarify}
    with pytest.raises(InvalidInputError, match="clarify: is not a field that is known here"):
        create_panel_graph([CRITERION], **options)


REPLIES: dict[str, tuple[Any, str, Any]] = {
    "text": (ANSWER, JOINED, False),
    "value": ({"value": True}, "Too cold.", True),
    "approve": (APPROVE, "Too cold.", False),
    "inbox-response": ([{"type": "response", "args": ANSWER}], JOINED, False),
    "inbox-ignore": ([{"type": "ignore", "args": None}], "Too cold.", False),
}


@pytest.mark.parametrize("form", list(REPLIES))
async def test_every_reply_goes_on_to_be_learned_from(bench: Bench, form: str) -> None:
    reply, rationale, value = REPLIES[form]
    graph = clarifying_graph(bench)
    await until_asked(bench, graph)
    done = await bench.resume(graph, reply)
    assert (done["feedback"]["rationale"], done["feedback"]["value"]) == (rationale, value)
    [episode] = await bench.episodes()
    assert (episode.rationale, episode.value, episode.status) == (rationale, value, "distilled")
    assert len(done["learned"]["guidelines"]) == 1
    assert len(judgings(bench.server)) == len(questions(bench.server)) == 1


@pytest.mark.parametrize(
    ("reply", "problem"),
    [
        ({"value": "perhaps"}, "'perhaps' is not on the scale"),
        (" ", "approve to go on with the words as they are"),
        ({"rationale": ANSWER, "author": "bob"}, "'ann' said these words"),
    ],
)
async def test_invalid_reply_keeps_the_question_open(
    bench: Bench, reply: Any, problem: str
) -> None:
    graph = clarifying_graph(bench)
    await until_asked(bench, graph)
    for _ in range(2):
        assert problem in await bench.refuse(graph, reply)
        assert await bench.episodes() == []
        [interrupt] = (await bench.state(graph)).interrupts
    done = await bench.resume(graph, {interrupt.id: ANSWER})
    assert done["feedback"]["rationale"] == JOINED
    assert len(judgings(bench.server)) == len(questions(bench.server)) == 1


async def test_one_question_a_review_however_vague_the_answer(bench: Bench) -> None:
    graph = clarifying_graph(bench)
    await until_asked(bench, graph)
    done = await bench.resume(graph, "It just is.")
    assert "__interrupt__" not in done
    assert done["feedback"]["rationale"].endswith("It just is.")
    assert len(questions(bench.server)) == 1


@pytest.mark.parametrize("review", ["always", lambda _: True])
async def test_streamed_updates_name_each_node(bench: Bench, review: Any) -> None:
    graph = clarifying_graph(bench, review=review)
    bench.server.rules = answers(ASKS)
    await bench.invoke(graph, CASE)
    asked = await bench.stream(graph, Command(resume=VAGUE), stream_mode="updates")
    named = [next(iter(one)) for one in asked]
    assert named == ["collect_feedback", "question_feedback", "__interrupt__"]
    answered = await bench.stream(graph, Command(resume=ANSWER), stream_mode="updates")
    named = [next(iter(one)) for one in answered]
    assert named == ["clarify_feedback", "distill_feedback", "commit_memory"]


FAILURES: dict[str, tuple[Any, ...]] = {
    "down": (DOWN,),
    "prose": ("Well.", "Well."),
    "truncated": (truncated('{"look'), truncated('{"look')),
    "refused": (refusal(), refusal()),
    "filtered": (content_filter(), content_filter()),
    "no-question": ({**ASKS, "question": ""},) * 2,
    "5000-characters": ({**ASKS, "question": "Why? " * 1_000},) * 2,
    "repeats-its-prompt": (
        {**ASKS, "question": "You say whether the words tell that judge what to look for?"},
    )
    * 2,
    "surrogate": ('{"look_for": "", "checkable": false, "question": "\\ud83d?", "example": ""}',)
    * 2,
}


@pytest.mark.parametrize("failure", list(FAILURES))
async def test_without_a_usable_question_the_words_go_on_and_it_is_said(
    bench: Bench, failure: str, caplog: pytest.LogCaptureFixture
) -> None:
    graph = clarifying_graph(bench)
    await bench.invoke(graph, CASE)
    bench.server.script(*FAILURES[failure])
    with caplog.at_level(logging.WARNING, "memalign_graph.nodes.review"):
        done = await bench.resume(graph, VAGUE)
    assert "__interrupt__" not in done
    [warning] = done["learned"]["warnings"]
    assert warning.startswith("The expert was not asked back, since no question could be made: ")
    assert [one.getMessage() for one in caplog.records] == [warning]
    [episode] = await bench.episodes()
    assert (episode.rationale, episode.status) == ("Too cold.", "distilled")
    assert len(done["learned"]["guidelines"]) == 1
    assert len(questions(bench.server)) == len(FAILURES[failure])


async def test_second_answer_of_the_model_counts(bench: Bench) -> None:
    graph = clarifying_graph(bench)
    await bench.invoke(graph, CASE)
    bench.server.script({**ASKS, "question": "..."}, ASKS)
    given = await bench.resume(graph, VAGUE)
    assert ASKS["question"] in action(given)["description"]
    _, again = questions(bench.server)
    assert 'has no "question"' in again.messages[-1]["content"]


async def test_warning_and_question_of_one_run_are_not_the_next_ones(bench: Bench) -> None:
    graph = clarifying_graph(bench)
    await bench.invoke(graph, CASE)
    bench.server.script(DOWN)
    assert (await bench.resume(graph, VAGUE))["learned"]["warnings"]
    done = await bench.review(graph, {"value": False}, OTHER)
    assert done["learned"]["warnings"] == []
    done = await bench.review(graph, APPROVE, OTHER)
    assert done["learned"]["warnings"] == []

    await until_asked(bench, graph, {"rationale": "Meh."}, OTHER)
    await bench.resume(graph, ANSWER)
    assert "clarification" not in (await bench.state(graph)).values["judge_lesson"]
    done = await bench.review(graph, {"type": "ignore"}, OTHER)
    assert (done["feedback"], done["learned"]) == (None, None)
    assert (await bench.state(graph)).values["judge_lesson"] == {}


async def test_question_that_a_new_run_passes_by_is_gone(bench: Bench) -> None:
    graph = clarifying_graph(bench)
    await until_asked(bench, graph)
    given = await bench.invoke(graph, OTHER)
    assert action(given)["name"] == "review_judgment"
    assert OTHER["outputs"] in action(given)["description"]
    bench.server.rules = answers(CLEAR)
    done = await bench.resume(graph, {"rationale": "It is too cold."})
    assert done["feedback"]["rationale"] == "It is too cold."
    assert [one.rationale for one in await bench.episodes()] == ["It is too cold."]
    assert ASKS["question"] not in str((await bench.state(graph)).values)


async def test_threads_wait_for_their_own_answers(bench: Bench) -> None:
    graph = clarifying_graph(bench)
    await until_asked(bench, graph, on="a")
    await until_asked(bench, graph, {"rationale": "Meh."}, OTHER, "b")
    later = await bench.resume(graph, "Name the cup.", "b")
    assert later["feedback"]["rationale"].startswith("Meh.\n(Asked back:")
    assert len((await bench.state(graph, "a")).interrupts) == 1
    sooner = await bench.resume(graph, ANSWER, "a")
    assert sooner["feedback"]["rationale"] == JOINED


async def test_failed_distilling_goes_on_without_asking_again(bench: Bench) -> None:
    graph = clarifying_graph(bench)
    await until_asked(bench, graph)
    bench.server.script(DOWN)
    with pytest.raises(ChatModelError):
        await bench.resume(graph, ANSWER)
    [episode] = await bench.episodes()
    assert (episode.rationale, episode.status) == (JOINED, "pending")
    done = await bench.invoke(graph, None)
    assert done["learned"]["episode_ids"] == [episode.id]
    assert len(questions(bench.server)) == 1


async def test_same_words_again_change_nothing_and_are_not_asked_about(bench: Bench) -> None:
    graph = clarifying_graph(bench)
    await until_asked(bench, graph)
    await bench.resume(graph, ANSWER)
    before = await bench.episodes(), await bench.guidelines()
    chats = len(bench.server.chats)
    done = await bench.review(graph, VAGUE, on="again")
    assert "__interrupt__" not in done
    assert done["feedback"]["rationale"] == JOINED
    assert done["learned"]["guidelines"] == []
    [episode], guidelines = await bench.episodes(), await bench.guidelines()
    assert (episode.word, guidelines) == (before[0][0].word, before[1])
    assert len(bench.server.chats) == chats + 1  # the judge


async def test_words_that_went_on_unclear_are_not_asked_about_again(bench: Bench) -> None:
    graph = clarifying_graph(bench)
    await until_asked(bench, graph)
    await bench.resume(graph, APPROVE)
    done = await bench.review(graph, VAGUE, on="again")
    assert "__interrupt__" not in done
    assert len(questions(bench.server)) == 1
    await until_asked(bench, graph, {**VAGUE, "author": "bob"}, on="another's")


@pytest.mark.parametrize("reply", [VAGUE, {**VAGUE, "rationale": "x" * 1_000_000}])
async def test_answer_of_a_megabyte_is_kept_whole(bench: Bench, reply: Any) -> None:
    graph = clarifying_graph(bench)
    given = await until_asked(bench, graph, reply)
    assert len(action(given)["description"]) < 10_000
    long = f"Yes, {'really ' * 150_000}it is."
    done = await bench.resume(graph, long)
    rationale = done["feedback"]["rationale"]
    assert rationale.startswith(f"{reply['rationale']}\n(Asked back: ")
    assert rationale.endswith(f'")\n{long}')


@pytest.mark.parametrize(
    ("options", "asks"),
    [({}, "gpt-other"), ({"distill_model": "openai:gpt-distils"}, "gpt-distils")],
    ids=["own", "distill-model"],
)
async def test_model_that_distils_is_the_one_that_asks(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, options: Any, asks: str
) -> None:
    graph = bench.review_graph(model="openai:gpt-own", clarify=True, **options)
    # Nobody closes the connections of a client that a string makes.
    with LoopbackServer(keep_alive=False) as server:
        server.rules = answers(ASKS)
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        await bench.invoke(graph, CASE, context={"model": "openai:gpt-other"})
        await bench.resume(graph, VAGUE)  # the context is gone here
        await bench.resume(graph, ANSWER)
        asked = [(chat.schema_name, chat.model) for chat in server.chats]
    assert asked == [
        ("judgment", "gpt-other"),
        ("feedback_question", asks),
        ("guideline_operations", asks),
    ]


async def test_model_that_is_not_there_loses_no_words(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    graph = clarifying_graph(bench, distill_model="openai:gpt-none")
    await bench.invoke(graph, CASE)
    with pytest.raises(InvalidInputError, match="needs a key"):
        await bench.resume(graph, VAGUE)  # by the node that distils
    [episode] = await bench.episodes()
    assert (episode.rationale, episode.status) == ("Too cold.", "pending")
