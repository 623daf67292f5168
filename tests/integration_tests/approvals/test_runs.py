"""Approvals when runs are cut off, resumed, streamed, nested, changed, or set up wrongly."""

import logging
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.tools import tool
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.store.sqlite import SqliteStore
from langgraph.types import Command

from memalign_graph import (
    ApprovalMiddleware,
    Categorical,
    Criterion,
    InvalidInputError,
    create_approval_wrapper,
)
from tests.conftest import Bench, distillings, judgings, thread
from tests.integration_tests.agents.support import AgentModel, Calls, calls
from tests.integration_tests.approvals.support import (
    APPROVE,
    BOTH_MODES,
    CALL,
    CRITERION,
    IN_MEMORY,
    REFUND,
    REJECT,
    Shop,
    WithId,
    agent,
    answers,
    ask,
    middleware,
    questions,
    results,
    start,
    trust_judge,
)
from tests.integration_tests.gates.support import DOWN
from tests.loopback import Rule


@BOTH_MODES
async def test_another_process_resumes_the_question_of_a_killed_one(
    bench: Bench, mode: str, tmp_path: Path
) -> None:
    def run(shop: Shop, given: Any) -> Any:
        store_file, saver_file = str(tmp_path / "store.db"), str(tmp_path / "threads.db")
        with (
            SqliteStore.from_conn_string(store_file) as bench.store,
            SqliteSaver.from_conn_string(saver_file) as bench.saver,
        ):
            bench.store.setup()
            graph = agent(bench, shop, *replies, interrupt_mode=mode)
            result = graph.invoke(given, thread("t"))
            said = [(it.value, it.rationale) for it in bench.memory(CRITERION).episodes()]
        return result, said

    replies: tuple[Any, ...] = (CALL,)
    killed, shop = Shop(), Shop()
    asked, _ = run(killed, ask())
    replies = ("Done.",)
    done, said = run(shop, Command(resume=answers(asked, REJECT)))
    assert (killed.ran, shop.ran) == ([], [])
    assert done["messages"][-1].text == "Done."
    assert said == [(False, "Not within 30 days.")]
    assert len(judgings(bench.server)) == 1
    replies = ()
    again, said_again = run(shop, Command(resume=answers(asked, APPROVE)))
    assert (shop.ran, said_again) == ([], said)  # nothing waits any more
    assert again["messages"][-1].text == "Done."


@BOTH_MODES
@IN_MEMORY
async def test_a_decision_counts_once_where_the_step_is_run_again(bench: Bench, mode: str) -> None:
    fails = [False, True]

    @tool
    def refund(order: str) -> str:
        """Refund an order."""
        if fails.pop():
            raise RuntimeError("The connection was cut.")
        return order

    call = calls("refund", order="A7")
    _, graph, asked = await start(bench, mode, call, "Done.", tools=[refund])
    edit = {"type": "edit", "edited_action": {"name": "refund", "args": {"order": "A8"}}}
    with pytest.raises(RuntimeError, match="cut"):
        await bench.resume(graph, answers(asked, edit))
    await bench.invoke(graph, None)
    values = [(it.value, it.rationale) for it in await bench.episodes(criterion=CRITERION)]
    assert sorted(values, key=str) == [
        (False, 'In the right call order is "A8", not "A7".'),
        (True, None),
    ]
    assert (len(judgings(bench.server)), len(distillings(bench.server))) == (1, 1)


@BOTH_MODES
@IN_MEMORY
async def test_a_judge_that_fails_has_a_person_asked_and_is_not_tried_again_on_resume(
    bench: Bench, mode: str, caplog: pytest.LogCaptureFixture
) -> None:
    await trust_judge(bench)
    bench.server.rules = [Rule(lambda chat: chat.schema_name == "judgment", reply=DOWN)]
    with caplog.at_level(logging.WARNING):
        shop, graph, asked = await start(bench, mode, CALL, "Done.")
    assert questions(asked) == [REFUND]
    assert "could not be judged" in caplog.text
    bench.server.rules = []  # now the judge would pass it, and it would run
    done = await bench.resume(graph, answers(asked, REJECT))
    assert (shop.ran, results(done)[0][0]) == ([], "error")
    said = [it.rationale for it in await bench.episodes(criterion=CRITERION)]
    assert said[-1] == "Not within 30 days."


@BOTH_MODES
async def test_a_decision_counts_even_if_nothing_can_be_learned(
    bench: Bench, mode: str, caplog: pytest.LogCaptureFixture
) -> None:
    shop, graph, asked = await start(bench, mode, CALL, "Done.")
    bench.server.rules = [Rule(lambda chat: chat.schema_name is not None, reply=DOWN)]
    bench.server.script_embeddings(DOWN, DOWN)
    done = await bench.resume(graph, answers(asked, REJECT))
    assert (shop.ran, done["messages"][-1].text) == ([], "Done.")
    [episode] = await bench.episodes(criterion=CRITERION)
    assert (episode.status, episode.rationale) == ("pending", "Not within 30 days.")


@BOTH_MODES
@pytest.mark.parametrize("kind", ["reject", "edit"])
async def test_text_that_no_store_takes_does_not_cost_the_decision(
    bench: Bench, mode: str, kind: str
) -> None:
    shop, graph, asked = await start(bench, mode, CALL, "Done.")
    edited = {"name": "refund", "args": {"order": "A\x007", "amount": 1}}
    decisions: dict[str, dict[str, Any]] = {
        "reject": {"type": "reject", "message": "No\x00"},
        "edit": {"type": "edit", "edited_action": edited},
    }
    await bench.resume(graph, answers(asked, decisions[kind]))
    assert [amount for _, amount in shop.ran] == ([1] if kind == "edit" else [])
    [episode] = await bench.episodes(criterion=CRITERION)
    words = {"reject": "No", "edit": r'In the right call order is "A\u00007", not "A7"'}
    assert episode.value is False
    assert str(episode.rationale).startswith(words[kind])


@BOTH_MODES
async def test_a_call_without_an_id_is_asked_about(bench: Bench, mode: str) -> None:
    await trust_judge(bench)
    shop, graph, asked = await start(bench, mode, WithId("", *CALL.calls), "Done.")
    assert (questions(asked), shop.ran) == ([REFUND], [])
    await bench.resume(graph, answers(asked, REJECT))
    assert shop.ran == []


async def test_without_a_store_every_call_is_asked_about(bench: Bench) -> None:
    shop, graph, asked = await start(bench, "batched", CALL, "Done.", store=None)
    assert questions(asked) == [REFUND]
    await bench.resume(graph, answers(asked, APPROVE))
    assert shop.ran == [("A7", 20)]


@BOTH_MODES
async def test_a_memory_is_the_one_of_the_run_also_after_a_question(
    bench: Bench, mode: str
) -> None:
    shop = Shop()
    graph = agent(bench, shop, CALL, calls("refund", order="A8", amount=1), interrupt_mode=mode)
    acme = {"memalign": {"namespace": ["acme"]}}
    asked = await bench.invoke(graph, ask(), context=acme)
    asked = await bench.resume(graph, answers(asked, APPROVE))  # without the context
    assert [it.value for it in bench.memory(CRITERION, namespace=["acme"]).episodes()] == [True]
    assert len(bench.memory(CRITERION, namespace=["acme"]).judgments()) == 2
    assert await bench.episodes(criterion=CRITERION) == []
    with pytest.raises(InvalidInputError, match="context"):
        await bench.invoke(graph, ask(), "other", context={"memaling": {}})


@BOTH_MODES
async def test_a_call_that_was_changed_after_the_decision_is_asked_about_again(
    bench: Bench, mode: str
) -> None:
    paused: Any = {"interrupt_before": ["tools"]}
    shop, graph, asked = await start(bench, mode, CALL, "Done.", **paused)
    if mode == "batched":
        await bench.resume(graph, answers(asked, APPROVE))
    state = graph.get_state(thread("t"))
    message = state.values["messages"][-1]
    changed = {**message.tool_calls[0], "args": {"order": "A7", "amount": 9_000}}
    own = message.model_copy(update={"tool_calls": [changed]})
    graph.update_state(thread("t"), {"messages": [own]}, as_node="ApprovalMiddleware.after_model")
    asked = await bench.invoke(graph, None)
    if "__interrupt__" not in asked:
        asked = await bench.invoke(graph, None)
    assert [question["args"]["amount"] for question in questions(asked)] == [9_000]
    assert shop.ran == []


@BOTH_MODES
async def test_a_subagents_calls_are_asked_about(bench: Bench, mode: str) -> None:
    shop = Shop()
    model = bench.server.chat_model(max_retries=0)
    worker: Any = create_agent(
        model, shop.tools, middleware=[middleware(bench, interrupt_mode=mode)], name="worker"
    )

    @tool
    def delegate(task: str) -> str:
        """Have the worker do a task."""
        return str(worker.invoke({"messages": [("human", task)]})["messages"][-1].text)

    AgentModel(bench.server, calls("delegate", task="Refund."), CALL, "It is done.", "Done.")
    graph = create_agent(model, [delegate], store=bench.store, checkpointer=bench.saver)
    asked = await bench.invoke(graph, ask())
    assert questions(asked) == [REFUND]
    done = await bench.resume(graph, answers(asked, APPROVE))
    assert (shop.ran, done["messages"][-1].text) == ([("A7", 20)], "Done.")
    assert len(judgings(bench.server)) == 1
    assert [it.value for it in await bench.episodes(criterion=CRITERION)] == [True]


@BOTH_MODES
async def test_a_thread_that_is_saved_only_when_it_stops_is_judged_once(
    bench: Bench, mode: str
) -> None:
    shop = Shop()
    graph = agent(bench, shop, CALL, "Done.", interrupt_mode=mode)
    asked = await bench.invoke(graph, ask(), durability="exit")
    await bench.resume(graph, answers(asked, APPROVE), durability="exit")
    assert (shop.ran, len(judgings(bench.server))) == ([("A7", 20)], 1)


@BOTH_MODES
@IN_MEMORY
async def test_an_answer_counts_also_where_the_ruling_was_lost_meanwhile(
    bench: Bench, mode: str
) -> None:
    shop, graph, asked = await start(bench, mode, CALL, "Done.")
    saved = bench.saver.storage["t"]  # type: ignore[attr-defined] # an InMemorySaver
    for namespace in filter(None, [*saved]):
        del saved[namespace]
    await trust_judge(bench)  # now it would run without a question
    done = await bench.resume(graph, answers(asked, REJECT))
    assert (shop.ran, results(done)[0][0]) == ([], "error")


@BOTH_MODES
async def test_a_decision_that_two_processes_read_counts_once(bench: Bench, mode: str) -> None:
    shop, graph, asked = await start(bench, mode, CALL, "Done.", "Done.")
    bench.saver = deepcopy(bench.saver)
    other = agent(bench, shop, interrupt_mode=mode)
    for process in (graph, other):
        await bench.resume(process, answers(asked, REJECT))
    [episode] = await bench.episodes(criterion=CRITERION)
    assert len(episode.verdicts) == 1
    assert (shop.ran, len(distillings(bench.server))) == ([], 1)


@BOTH_MODES
@IN_MEMORY
async def test_after_an_answer_calls_run_without_a_question_again(bench: Bench, mode: str) -> None:
    await trust_judge(bench)
    email = calls("send_email", to="bob", body="Hello.")
    shop, graph, asked = await start(bench, mode, email, CALL, "Done.", always_ask=["send_email"])
    done = await bench.resume(graph, answers(asked, APPROVE))
    assert (questions(done), shop.ran) == ([], [("bob", "Hello."), ("A7", 20)])


@IN_MEMORY
async def test_of_two_questions_one_is_answered_later(bench: Bench) -> None:
    both = Calls(*CALL.calls, ("refund", {"order": "A7", "amount": 1}))
    shop, graph, asked = await start(bench, "per_call", both, "Done.")
    first, second = answers(asked, APPROVE, REJECT).items()
    await bench.resume(graph, dict([second]))
    assert shop.ran == []
    await bench.resume(graph, dict([first]))
    assert shop.ran == [("A7", 20)]
    episodes = await bench.episodes(criterion=CRITERION)
    said = {(it.example.outputs["args"]["amount"], it.value) for it in episodes}
    assert said == {(20, True), (1, False)}
    assert len(judgings(bench.server)) == 2


@BOTH_MODES
@IN_MEMORY
async def test_the_judges_own_tokens_are_not_streamed(bench: Bench, mode: str) -> None:
    shop = Shop()
    graph = agent(bench, shop, CALL, "Done.", interrupt_mode=mode)
    parts = await bench.stream(graph, ask(), stream_mode="messages")
    assert all("rationale" not in str(message.content) for message, _ in parts)
    state = await bench.state(graph)
    reply = answers({"__interrupt__": state.interrupts}, APPROVE)
    parts = await bench.stream(graph, Command(resume=reply), stream_mode="messages")
    assert "".join(message.text for message, _ in parts).endswith("Done.")
    assert shop.ran == [("A7", 20)]


def test_invalid_options_are_refused(bench: Bench) -> None:
    given: dict[str, Any] = {"criterion": CRITERION, "interrupt_on": {"refund": True}}
    colors = Criterion(name="color", instructions="Which?", scale=Categorical(choices=("a", "b")))
    wrong: dict[str, dict[str, Any]] = {
        "always_ask": {"always_ask": ["refnud"]},
        "on_fail": {"on_fail": "run"},
        "criterion": {"criterion": colors},
        "decide": {"decide": "verdict"},
        "target_agreement": {"target_agreement": 1.0},
        "modle": {"modle": "x"},
    }
    for name, options in wrong.items():
        with pytest.raises(InvalidInputError, match=name):
            ApprovalMiddleware(**{**given, **options})
    with pytest.raises(InvalidInputError, match="interrupt_mode"):
        create_approval_wrapper(**given, interrupt_mode="batched")
    with pytest.raises(ValueError, match="allowed_decisions"):
        ApprovalMiddleware(CRITERION, {"refund": {"allowed_decisions": []}})
