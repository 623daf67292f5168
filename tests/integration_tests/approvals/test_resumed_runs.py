"""Approvals in runs that are resumed, retried, cut off or nested: the answer counts, once."""

import asyncio
import logging
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.tools import tool
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.func import entrypoint, task
from langgraph.prebuilt import ToolNode
from langgraph.store.sqlite import SqliteStore
from langgraph.types import Command, RetryPolicy, interrupt

from memalign_graph import (
    call_judge,
)
from memalign_graph.io import run_sync
from tests.conftest import DOWN, Bench, distillings, judgings, thread
from tests.integration_tests.agents.support import APART, AgentModel, Calls, as_tool, calls
from tests.integration_tests.agents.support import agent as agent_with
from tests.integration_tests.approvals.support import (
    APPROVE,
    CALL,
    CRITERION,
    IN_MEMORY,
    REFUND,
    REJECT,
    Shop,
    agent,
    answers,
    ask,
    calling,
    graph_of,
    learned,
    middleware,
    questions,
    results,
    start,
    trust_judge,
    wrapper,
)
from tests.integration_tests.gates.support import always
from tests.loopback import Rule


async def test_another_process_resumes_a_question(bench: Bench, mode: str, tmp_path: Path) -> None:
    def run(shop: Shop, graph_input: Any) -> Any:
        store_file, saver_file = str(tmp_path / "store.db"), str(tmp_path / "threads.db")
        with (
            SqliteStore.from_conn_string(store_file) as bench.store,
            SqliteSaver.from_conn_string(saver_file) as bench.saver,
        ):
            bench.store.setup()
            graph = agent(bench, shop, *replies, interrupt_mode=mode)
            result = graph.invoke(graph_input, thread("t"))
            return result, run_sync(learned(bench))

    replies: tuple[Any, ...] = (CALL,)
    killed, shop = Shop(), Shop()
    asked, _ = run(killed, ask())
    replies = ("Done.",)
    done, feedback = run(shop, Command(resume=answers(asked, REJECT)))
    assert (killed.ran, shop.ran) == ([], [])
    assert done["messages"][-1].text == "Done."
    assert feedback == {("A7 20", False, "Not within 30 days.")}
    assert len(judgings(bench.server)) == 1
    replies = ()
    again, feedback_again = run(shop, Command(resume=answers(asked, APPROVE)))
    assert (shop.ran, feedback_again) == ([], feedback)  # nothing waits any more
    assert again["messages"][-1].text == "Done."


async def test_a_decision_that_two_processes_read_counts_once(bench: Bench, mode: str) -> None:
    shop, graph, asked = await start(bench, mode, CALL, "Done.", "Done.")
    bench.saver = deepcopy(bench.saver)
    other = agent(bench, shop, interrupt_mode=mode)
    for process in (graph, other):
        await bench.resume(process, answers(asked, REJECT))
    [episode] = await bench.episodes(criterion=CRITERION)
    assert len(episode.verdicts) == 1
    assert (shop.ran, len(distillings(bench.server))) == ([], 1)


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
    correction = 'In the right call order is "A8", not "A7".'
    assert await learned(bench) == {("A7", False, correction), ("A8", True, None)}
    assert (len(judgings(bench.server)), len(distillings(bench.server))) == (1, 1)


@IN_MEMORY
@pytest.mark.parametrize("always_ask", [[], ["refund"]])
async def test_a_retried_call_keeps_its_ruling(bench: Bench, always_ask: list[str]) -> None:
    """Else a retry asks, the resumed run finds the first ruling, and a rejected call runs."""
    await trust_judge(bench)
    ran: list[str] = []

    @tool
    def refund(order: str, amount: int) -> str:
        """Refund an order."""
        ran.append(f"{order} {amount}")
        if len(ran) == 1:
            raise ConnectionError("The connection was cut.")
        return "Done."

    approve = wrapper(bench, always_ask=always_ask)
    node = ToolNode([refund], wrap_tool_call=approve, awrap_tool_call=approve.awaiting)
    graph = graph_of(bench, node, retry_policy=RetryPolicy(0, max_attempts=2, jitter=False))
    result = await bench.invoke(graph, calling({**REFUND, "id": "1"}))
    assert questions(result) == [REFUND] * len(always_ask)
    if always_ask:
        result = await bench.resume(graph, answers(result, APPROVE))
    assert (ran, results(result)) == (["A7 20"] * 2, [("success", "Done.")])
    assert await learned(bench) == {("A7 20", True, None) for _ in always_ask}


@IN_MEMORY
async def test_of_two_questions_one_is_answered_later(bench: Bench) -> None:
    both = Calls(*CALL.calls, ("refund", {"order": "A7", "amount": 1}))
    shop, graph, asked = await start(bench, "per_call", both, "Done.")
    first, second = answers(asked, APPROVE, REJECT).items()
    await bench.resume(graph, dict([second]))
    assert shop.ran == []
    await bench.resume(graph, dict([first]))
    assert shop.ran == [("A7", 20)]
    assert await learned(bench) == {("A7 20", True, None), ("A7 1", False, REJECT["message"])}
    assert len(judgings(bench.server)) == 2


async def test_in_the_functional_api_a_later_answer_counts(bench: Bench) -> None:
    await trust_judge(bench)
    shop = Shop()
    node = ToolNode(shop.tools, wrap_tool_call=wrapper(bench, always_ask=["send_email"]))

    @task
    def run_tools(messages: list[Any]) -> Any:
        return node.invoke({"messages": messages})

    @entrypoint(checkpointer=bench.saver, store=bench.store)
    def work(messages: list[Any]) -> list[Any]:
        email = {"name": "send_email", "args": {"to": "bob", "body": "Hello."}}
        for number, call in enumerate([email, REFUND]):
            made = {**call, "id": str(number)}
            messages = [*messages, AIMessage("", tool_calls=[made])]
            messages += run_tools(messages).result()["messages"]
        return messages

    asked: Any = work.invoke([HumanMessage(ask()["messages"][0][1])], thread("t"))
    for decision in (APPROVE, REJECT):
        asked = work.invoke(Command(resume=answers(asked, decision)), thread("t"))
    assert (shop.ran, asked[-1].status) == ([("bob", "Hello.")], "error")


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
    assert await learned(bench) == {("A7 20", False, "Not within 30 days.")}


@IN_MEMORY
async def test_an_answer_counts_though_the_ruling_was_lost(bench: Bench, mode: str) -> None:
    shop, graph, asked = await start(bench, mode, CALL, "Done.")
    saved = bench.saver.storage["t"]  # type: ignore[attr-defined] # an InMemorySaver
    for namespace in filter(None, [*saved]):
        del saved[namespace]
    await trust_judge(bench)  # now it would run without a question
    done = await bench.resume(graph, answers(asked, REJECT))
    assert (shop.ran, results(done)[0][0]) == ([], "error")


@IN_MEMORY
@pytest.mark.parametrize("decision", [APPROVE, REJECT], ids=lambda decision: decision["type"])
async def test_the_answer_to_a_question_of_a_continued_run_counts(
    bench: Bench, mode: str, decision: dict[str, Any]
) -> None:
    """Even if the judge would let the rejected call run, or refuse the approved one."""
    is_wrong = decision is REJECT
    await trust_judge(bench, verdict=is_wrong, value=is_wrong)
    bench.server.rules = always(is_wrong)
    runs = ["The first run breaks off."]

    def breaks_off(call: dict[str, Any]) -> bool:
        if runs:
            raise RuntimeError(runs.pop())
        return False

    shop = Shop()
    options: dict[str, Any] = {"always_ask": breaks_off, "on_fail": "refuse"}
    graph = agent(bench, shop, CALL, "Done.", interrupt_mode=mode, **options)
    with pytest.raises(RuntimeError, match="breaks off"):
        await bench.invoke(graph, ask())
    asked = await bench.invoke(graph, None)
    assert (questions(asked), len(judgings(bench.server))) == ([REFUND], 1)
    done = await bench.resume(graph, answers(asked, decision))
    assert (shop.ran, results(done)[0][0] == "error") == ([("A7", 20)] * (not is_wrong), is_wrong)
    assert {value for _, value, _ in await learned(bench)} == {not is_wrong}


@IN_MEMORY
async def test_an_answer_counts_where_a_subgraph_begins_again(bench: Bench, mode: str) -> None:
    """With `checkpointer=False` no ruling is stored; the call would pass the second time."""
    await trust_judge(bench)
    shop, asks = Shop(), [True]
    options: Any = {"always_ask": lambda _: bool(asks and asks.pop()), "checkpointer": False}
    inner = agent(bench, shop, CALL, CALL, "Done.", interrupt_mode=mode, **options)
    graph = graph_of(bench, inner)
    assert questions(await bench.invoke(graph, ask())) == [REFUND]
    done = await bench.resume(graph, {"decisions": [REJECT]} if mode == "batched" else REJECT)
    assert (shop.ran, results(done)[0][0]) == ([], "error")


async def test_nothing_is_learned_if_the_answer_is_for_an_earlier_message(
    bench: Bench, mode: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A subgraph with `checkpointer=False` begins again, and the model may call another tool."""
    shop = Shop()
    other = calls("refund", order="A7", amount=999)
    inner = agent(bench, shop, CALL, other, "Done.", interrupt_mode=mode, checkpointer=False)
    graph = graph_of(bench, inner)
    asked = await bench.invoke(graph, ask())
    await bench.resume(graph, answers(asked, APPROVE))
    assert await learned(bench) == set()
    assert ("Nothing was learned" in caplog.text) is (mode == "batched")


async def test_of_two_answers_to_a_question_the_one_that_is_carried_out_is_learned(
    bench: Bench, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first run is cancelled while it learns."""

    async def is_cancelled(*_: Any) -> None:
        run.cancel()
        await asyncio.Event().wait()

    def reply(decision: dict[str, Any]) -> Command[Any]:
        own = {"decisions": [decision]} if mode == "batched" else decision
        return Command(resume={question.id: own})

    shop, graph, asked = await start(bench, mode, CALL, "Done.")
    [question] = asked["__interrupt__"]
    monkeypatch.setattr(call_judge, "index_missing", is_cancelled)
    run = asyncio.create_task(graph.ainvoke(reply(REJECT), thread("t")))
    with pytest.raises(asyncio.CancelledError):
        await run
    monkeypatch.undo()
    assert await learned(bench) == {("A7 20", False, REJECT["message"])}
    await graph.ainvoke(reply(APPROVE), thread("t"))
    assert (shop.ran, await learned(bench)) == ([("A7", 20)], {("A7 20", True, None)})
    assert await bench.guidelines(criterion=CRITERION) == []
    [episode] = await bench.episodes(criterion=CRITERION)
    assert [*episode.verdicts.values()] == [True]


async def test_a_call_changed_after_the_decision_is_asked_about(bench: Bench, mode: str) -> None:
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


async def test_the_answer_to_the_question_about_a_changed_call_counts(
    bench: Bench, mode: str
) -> None:
    await trust_judge(bench)
    options: Any = {"always_ask": lambda call: call["args"]["amount"] == 20}
    shop, graph, asked = await start(bench, mode, CALL, "Done.", **options)
    message = graph.get_state(thread("t")).values["messages"][-1]
    call = {**message.tool_calls[0], "args": {"order": "A7", "amount": 21}}
    changed = {"messages": [message.model_copy(update={"tool_calls": [call]})]}
    last = {"batched": "model", "per_call": "ApprovalMiddleware.after_model"}
    graph.update_state(thread("t"), changed, as_node=last[mode])
    for decision, amount in [(APPROVE, 21), (REJECT, None)]:
        reply = {"decisions": [decision]} if mode == "batched" else decision
        asked = await bench.resume(graph, {asked["__interrupt__"][0].id: reply})
        assert [each["args"]["amount"] for each in questions(asked)] == [amount] * bool(amount)
    assert shop.ran == []


async def test_a_rejected_call_does_not_run_if_the_mode_was_changed(
    bench: Bench, mode: str
) -> None:
    await trust_judge(bench)
    asks = [True]
    options: dict[str, Any] = {"always_ask": lambda _: bool(asks and asks.pop())}
    shop, _, asked = await start(bench, mode, CALL, "Done.", **options)
    other = "per_call" if mode == "batched" else "batched"
    graph = agent(bench, shop, interrupt_mode=other, **options)
    again = await bench.resume(graph, answers(asked, REJECT))
    assert (shop.ran, questions(again)) == ([], [REFUND] if mode == "batched" else [])


async def test_a_subagents_calls_are_asked_about(bench: Bench, mode: str) -> None:
    shop = Shop()
    worker = agent_with(bench, middleware(bench, interrupt_mode=mode), tools=shop.tools, **APART)
    AgentModel(bench.server, calls("helper", question="Refund."), CALL, "It is done.", "Done.")
    graph = agent_with(bench, tools=[as_tool(worker)])
    asked = await bench.invoke(graph, ask())
    assert questions(asked) == [REFUND]
    done = await bench.resume(graph, answers(asked, APPROVE))
    assert (shop.ran, done["messages"][-1].text) == ([("A7", 20)], "Done.")
    assert len(judgings(bench.server)) == 1
    assert await learned(bench) == {("A7 20", True, None)}


async def test_a_tool_with_a_subagent_that_asks_is_resumed_if_its_condition_does_not_hold(
    bench: Bench, mode: str
) -> None:
    @tool
    def confirm(text: str) -> str:
        """Have the user confirm."""
        return str(interrupt(text))

    asking = [calls("helper", question="Refund."), calls("confirm", text="Sure?")]
    AgentModel(bench.server, *asking, "It is done.", "Done.")
    worker = agent_with(bench, tools=[confirm], **APART)
    config = {"allowed_decisions": ["approve"], "when": lambda _: False}
    approvals = middleware(bench, interrupt_mode=mode, interrupt_on={"helper": config})
    graph = agent_with(bench, approvals, tools=[as_tool(worker)])
    await bench.invoke(graph, ask())
    done = await bench.resume(graph, "yes")
    assert [text for _, text in results(done)] == ["It is done."]
