"""The question back: in reviews, gates, agents, tools and parents, after failures and purges."""

import logging
from pathlib import Path
from typing import Any

import pytest
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import START, StateGraph
from langgraph.store.memory import InMemoryStore
from langgraph.store.sqlite import SqliteStore
from langgraph.types import Command
from typing_extensions import TypedDict

from memalign_graph import (
    ChatModelError,
    InvalidInputError,
    create_quality_gate_tool,
    create_review_graph,
)
from tests.conftest import (
    CASE,
    COLD,
    CRITERION,
    EVERY_WAY,
    OTHER,
    Bench,
    Graph,
    distillings,
    judgings,
    thread,
)
from tests.integration_tests.agents.support import AgentModel, agent, ask, calls, gate
from tests.integration_tests.gates.support import Writer, asked, gated, models
from tests.loopback import (
    ChatRequest,
    LoopbackServer,
    ReplyLike,
    Rule,
    error,
)
from tests.unit_tests.memory.purging import MARK, everything_in, holding, keep_deleted, left_in

SCHEMA = "feedback_question"
VAGUE: dict[str, Any] = {"value": False, "rationale": "Too cold.", "author": "ann"}
ASKS: dict[str, Any] = {
    "look_for": "",
    "checkable": False,
    "question": "What makes it too cold?",
    "example": 'Would "Sorry, check the page." be too cold, too?',
}
CLEAR = {"look_for": "too cold", "checkable": True, "question": "", "example": ""}
ANSWER = "Yes: a date is needed."
JOINED = (
    'Too cold.\n(Asked back: "What makes it too cold? '
    f"Would 'Sorry, check the page.' be too cold, too?\")\n{ANSWER}"
)
APPROVE = {"decisions": [{"type": "approve"}]}
DOWN = error(500, "It broke.", retry_after=0)


def questions(server: LoopbackServer) -> list[ChatRequest]:
    """The requests for a question."""
    return [chat for chat in server.chats if chat.schema_name == SCHEMA]


def called(bench: Bench) -> tuple[int, int]:
    """How often a judge was asked, and how often for a question."""
    return len(judgings(bench.server)), len(questions(bench.server))


def answers(reply: ReplyLike) -> list[Rule]:
    """A model with one answer to whether words make a rule."""
    return [Rule(lambda chat: chat.schema_name == SCHEMA, reply=reply)]


def action(given: dict[str, Any]) -> dict[str, Any]:
    """The one action that a run waits for."""
    [interrupt] = given["__interrupt__"]
    [one] = interrupt.value["action_requests"]
    return dict(one)


def clarifying_graph(bench: Bench, **options: Any) -> Graph:
    """A review that asks back; its model does not try again."""
    model = bench.server.chat_model(max_retries=0)
    return bench.review_graph(**{"model": model, "clarify": True, **options})


async def until_asked(
    bench: Bench, graph: Graph, said: Any = VAGUE, case: Any = CASE, on: str = "t", asks: Any = ASKS
) -> dict[str, Any]:
    """Judge a case, have the expert say something vague, and be asked back."""
    bench.server.rules = answers(asks)
    given: dict[str, Any] = await bench.review(graph, said, case, on)
    assert action(given)["name"] == "clarify_feedback"
    assert asks["question"] in action(given)["description"]
    return given


@EVERY_WAY
async def test_vague_words_are_asked_about_and_stored_with_the_answer(bench: Bench) -> None:
    graph = clarifying_graph(bench)
    await bench.add_guideline("A reply without regret is not appropriate.")
    given = await until_asked(bench, graph)
    for shown in (ASKS["example"], VAGUE["rationale"], *CASE.values()):
        assert shown in action(given)["description"]
    [chat] = questions(bench.server)
    for shown in (
        CRITERION.instructions,
        *CASE.values(),
        given["judgment"]["rationale"],
        "A reply without regret is not appropriate.",
        "The expert's value: false",
        "Too cold.",
    ):
        assert shown in chat.messages[-1]["content"]
    assert "ann" not in chat.messages[-1]["content"].split()
    assert (given["feedback"]["rationale"], given["learned"]) == ("Too cold.", None)
    for reply, problem in (
        ({"value": "perhaps"}, "'perhaps' is not on the scale"),
        (" ", "approve to go on with the words as they are"),
        ({"rationale": ANSWER, "author": "bob"}, "'ann' said these words"),
    ):
        assert problem in await bench.refuse(graph, reply)
    assert await bench.episodes() == []
    state = await bench.state(graph)
    assert state.next == ("clarify_feedback",)

    done = await bench.resume(graph, {state.interrupts[0].id: ANSWER})
    assert set(done) == {"judgment", "feedback", "learned"}
    assert (
        done["feedback"].items() >= {"value": False, "rationale": JOINED, "author": "ann"}.items()
    )
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
    assert [one.word for one in await bench.episodes()] == [episode.word]
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
    bench.server.rules = answers({**CLEAR, "look_for": "whether it says sorry"})
    done = await bench.review(graph, COLD, on="clear")
    assert "__interrupt__" not in done
    assert (done["feedback"]["rationale"], done["learned"]["warnings"]) == (COLD["rationale"], [])
    assert len(questions(bench.server)) == 1


@pytest.mark.parametrize(("reply", "value"), [({"value": True}, True), (APPROVE, False)])
async def test_reply_without_words_goes_on_with_those_there_are(
    bench: Bench, reply: Any, *, value: bool
) -> None:
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


async def test_answer_of_a_megabyte_is_cut_where_a_model_reads_it(bench: Bench) -> None:
    graph = clarifying_graph(bench)
    await until_asked(bench, graph)
    done = await bench.resume(graph, f"{'wordy ' * 170_000} It ends.")
    [distilling] = distillings(bench.server)
    assert len(distilling.text) < 20_000
    assert "It ends." in distilling.text
    assert len(done["learned"]["guidelines"]) == 1


async def test_streamed_updates_name_each_node(bench: Bench) -> None:
    graph = clarifying_graph(bench, review=lambda _: True)
    bench.server.rules = answers(ASKS)
    await bench.invoke(graph, CASE)
    for reply, nodes in (
        (VAGUE, ["collect_feedback", "question_feedback", "__interrupt__"]),
        (ANSWER, ["clarify_feedback", "distill_feedback", "commit_memory"]),
    ):
        parts = await bench.stream(graph, Command(resume=reply), stream_mode="updates")
        assert [next(iter(part)) for part in parts] == nodes


FAILURES: dict[str, Any] = {
    "prose": "Well.",
    "no question": {**ASKS, "question": ""},
    "a megabyte": {**ASKS, "question": "Why? " * 200_000},
    "surrogate": '{"look_for": "", "checkable": false, "question": "\\ud83d?", "example": ""}',
}


@pytest.mark.parametrize("failure", ["down", *FAILURES])
async def test_without_a_usable_question_the_words_go_on_and_it_is_said(
    bench: Bench, failure: str, caplog: pytest.LogCaptureFixture
) -> None:
    graph = clarifying_graph(bench)
    await bench.invoke(graph, CASE)
    bench.server.script(*([DOWN] if failure == "down" else [FAILURES[failure]] * 2))
    with caplog.at_level(logging.WARNING, "memalign_graph.nodes.review"):
        done = await bench.resume(graph, VAGUE)
    [warning] = done["learned"]["warnings"]
    assert warning.startswith("The expert was not asked back, since no question could be made: ")
    assert [record.getMessage() for record in caplog.records] == [warning]
    [episode] = await bench.episodes()
    assert (episode.rationale, episode.status) == ("Too cold.", "distilled")
    assert len(done["learned"]["guidelines"]) == 1
    assert len(questions(bench.server)) == (1 if failure == "down" else 2)
    # The next run knows nothing of it.
    done = await bench.review(graph, APPROVE, OTHER)
    assert done["learned"]["warnings"] == []
    assert "clarification" not in (await bench.state(graph)).values["judge_lesson"]


async def test_each_thread_waits_for_its_own_answer_until_a_new_run(bench: Bench) -> None:
    graph = clarifying_graph(bench)
    await until_asked(bench, graph, on="a")
    await until_asked(bench, graph, {"rationale": "Meh."}, OTHER, "b")
    later = await bench.resume(graph, "Name the cup.", "b")
    assert later["feedback"]["rationale"].startswith("Meh.\n(Asked back:")
    assert len((await bench.state(graph, "a")).interrupts) == 1
    given = await bench.invoke(graph, OTHER, "a")
    assert action(given)["name"] == "review_judgment"
    assert OTHER["outputs"] in action(given)["description"]
    bench.server.rules = answers(CLEAR)
    done = await bench.resume(graph, {"rationale": "It is too cold."}, "a")
    assert done["feedback"]["rationale"] == "It is too cold."
    assert "clarification" not in (await bench.state(graph, "a")).values["judge_lesson"]


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


async def test_model_that_distils_is_the_one_that_asks(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Nobody closes the connections of a client that a string makes.
    with LoopbackServer(keep_alive=False) as server:
        server.rules = answers(ASKS)
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        for options, asks in (
            ({}, "gpt-other"),
            ({"distill_model": "openai:gpt-distils"}, "gpt-distils"),
        ):
            graph = bench.review_graph(model="openai:gpt-own", clarify=True, **options)
            case = {**CASE, "inputs": asks}
            await bench.invoke(graph, case, asks, context={"model": "openai:gpt-other"})
            await bench.resume(graph, VAGUE, asks)  # the context is gone here
            await bench.resume(graph, ANSWER, asks)
            assert [chat.model for chat in server.chats] == ["gpt-other", asks, asks]
            server.chats.clear()
    # A model that is not there loses no words.
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    graph = clarifying_graph(bench, distill_model="openai:gpt-none")
    await bench.invoke(graph, OTHER, "none")
    with pytest.raises(InvalidInputError, match="needs a key"):
        await bench.resume(graph, VAGUE, "none")  # by the node that distils
    assert {one.status for one in await bench.episodes()} == {"distilled", "pending"}


async def test_gate_asks_back_and_goes_by_what_the_expert_said(bench: Bench) -> None:
    bench.server.rules = answers(ASKS)
    writer = Writer("Wait.", "Sorry!")
    graph = gated(bench, writer, review="always", clarify=True, max_revisions=1)
    given = await bench.review(graph, VAGUE, asked())
    assert action(given)["name"] == "clarify_feedback"
    assert "Wait." in action(given)["description"]
    given = await bench.resume(graph, ANSWER)
    told = writer.seen[1]["messages"][-1].text
    assert "Too cold." in told
    assert ANSWER in told
    assert action(given)["name"] == "review_judgment"  # of the second draft
    verdict = (await bench.resume(graph, APPROVE))["quality_gate"]
    assert (verdict["status"], verdict["revisions"]) == ("accepted", 1)
    assert {one.rationale for one in await bench.episodes()} == {JOINED, None}
    assert called(bench) == (2, 1)


@pytest.mark.parametrize("place", ["middleware", "tool"])
async def test_agents_ask_back(bench: Bench, place: str) -> None:
    if place == "tool":
        tool = create_quality_gate_tool(CRITERION, review="always", clarify=True, **models(bench))
        model = AgentModel(
            bench.server, calls("check_quality", inputs="Why?", outputs="So."), "Done."
        )
        graph = agent(bench, tools=[tool])
    else:
        model = AgentModel(bench.server, "Wait.", "Sorry!")
        graph = agent(bench, gate(bench, review="always", clarify=True, max_revisions=1))
    await bench.invoke(graph, ask())
    bench.server.script(ASKS)
    assert action(await bench.resume(graph, VAGUE))["name"] == "clarify_feedback"
    assert len(model.requests) == 1
    await bench.resume(graph, ANSWER)
    assert ANSWER in str(model.requests[1].messages[-1]["content"])
    assert [one.rationale for one in await bench.episodes()] == [JOINED]
    assert len(questions(bench.server)) == 1


async def test_review_graph_asks_back_within_another(bench: Bench) -> None:
    inner = create_review_graph(CRITERION, clarify=True, **models(bench)).compile()

    class Parent(TypedDict, total=False):
        inputs: str
        outputs: str
        judgment: dict[str, Any]
        feedback: dict[str, Any] | None
        after: str

    builder = StateGraph(Parent)
    builder.add_node("review", inner)
    builder.add_node("after", lambda state: {"after": state["feedback"]["rationale"]})
    builder.add_edge(START, "review")
    builder.add_edge("review", "after")
    graph = bench.compile(builder)
    await until_asked(bench, graph)
    assert "of type int" in await bench.refuse(graph, 7)
    done = await bench.resume(graph, ANSWER)
    assert done["after"] == JOINED
    assert "clarification" not in done
    assert called(bench) == (1, 1)


async def test_question_is_answered_in_another_process(bench: Bench, tmp_path: Path) -> None:
    """With another graph object and other connections, as after a restart."""
    store_file, saver_file = str(tmp_path / "s.db"), str(tmp_path / "t.db")

    def carry_on(given: Any) -> Any:
        with (
            SqliteStore.from_conn_string(store_file) as store,
            SqliteSaver.from_conn_string(saver_file) as saver,
        ):
            store.setup()
            graph = clarifying_graph(bench)
            graph.store, graph.checkpointer = store, saver
            return graph.invoke(given, thread("t"), durability="exit")

    bench.server.rules = answers(ASKS)
    carry_on(CASE)
    assert action(carry_on(Command(resume=VAGUE)))["name"] == "clarify_feedback"
    with pytest.raises(ValueError, match="of type int"):
        carry_on(Command(resume=7))
    assert carry_on(Command(resume=ANSWER))["feedback"]["rationale"] == JOINED
    assert called(bench) == (1, 1)


PLANTED = {**ASKS, "question": "What is zqxask of it?", "example": "Would zqxsay be so, too?"}
SAID = {"value": False, "rationale": "So zqxwhy.", "author": "zqxann"}
EARLIER = {"value": False, "rationale": "It was zqxold then, and must not be.", "author": "zqxann"}
QUOTING = {"operations": [{"text": "Never be zqxask, nor zqxyes.", "action": "add"}]}


async def purge(bench: Bench, folder: Path, **selection: Any) -> Any:
    """Purge; what was said is in the checkpoints before, and nowhere after."""
    assert MARK in await checkpoints(bench)
    memory, options = bench.memory(), {"purge": True, "checkpointer": bench.saver, **selection}
    forgotten = await memory.aforget(**options) if bench.awaits else memory.forget(**options)
    assert MARK not in await checkpoints(bench)
    assert holding(folder) == []
    assert forgotten.purged.warnings == []
    return set(forgotten.purged.thread_ids)


async def checkpoints(bench: Bench) -> str:
    if bench.awaits:
        return repr([one async for one in bench.saver.alist(None)])
    return repr(list(bench.saver.list(None)))


@EVERY_WAY
async def test_thread_that_waits_for_the_answer_goes_with_the_episode(
    bench: Bench, tmp_path: Path
) -> None:
    """Though all else on it is another expert's, too, whose word on the case stays."""
    if not isinstance(bench.store, InMemoryStore):
        await keep_deleted(bench.store, bench.saver)
    graph = clarifying_graph(bench, use_episodes=False)
    await bench.remember({**CASE, "rationale": "His own words.", "author": "bob"})
    await bench.remember({**CASE, **EARLIER})
    await until_asked(bench, graph, SAID, on="of ann", asks=PLANTED)
    await until_asked(bench, graph, {"rationale": "Meh."}, OTHER, "other")
    assert await purge(bench, tmp_path, author="zqxann") == {"of ann"}
    assert [one.author for one in await bench.episodes()] == ["bob"]
    done = await bench.resume(graph, "Say more.", "other")
    assert done["feedback"]["rationale"].startswith("Meh.\n(Asked back:")


@EVERY_WAY
async def test_words_the_question_and_the_answer_go_from_everywhere(
    bench: Bench, tmp_path: Path
) -> None:
    if not isinstance(bench.store, InMemoryStore):
        await keep_deleted(bench.store, bench.saver)
    graph = clarifying_graph(bench)
    await until_asked(bench, graph, SAID, on="of ann", asks=PLANTED)
    bench.server.script(QUOTING)
    done = await bench.resume(graph, "Yes, zqxyes it is.", "of ann")
    assert "zqxyes" in done["feedback"]["rationale"]
    assert [one.text for one in await bench.guidelines()] == ["Never be zqxask, nor zqxyes."]
    await bench.invoke(bench.judge_graph(), OTHER, "recalled it")
    [episode] = await bench.episodes()
    gone = await purge(bench, tmp_path, episode_ids=[episode.id])
    assert gone == {"of ann", "recalled it"}
    assert await bench.guidelines() == []
    if not bench.awaits:
        assert left_in(everything_in(bench.store)) == []
