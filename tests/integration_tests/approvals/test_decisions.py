"""Approvals: what is asked and runs, what decisions teach, and runs that are cut off or nested."""

import asyncio
import logging
from copy import deepcopy
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from langchain.agents.middleware import SummarizationMiddleware
from langchain.agents.structured_output import ToolStrategy
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.tools import tool
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.func import entrypoint, task
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode
from langgraph.store.sqlite import SqliteStore
from langgraph.types import Command, RetryPolicy, interrupt
from pydantic import BaseModel

from memalign_graph import (
    ApprovalMiddleware,
    Categorical,
    Criterion,
    InvalidInputError,
    call_judge,
    create_approval_wrapper,
)
from memalign_graph.io import run_sync
from tests.conftest import DOWN, Bench, distillings, judgings, thread
from tests.integration_tests.agents.support import AgentModel, Calls, calls
from tests.integration_tests.agents.support import agent as agent_with
from tests.integration_tests.approvals.support import (
    APPROVE,
    CALL,
    CRITERION,
    IN_MEMORY,
    REFUND,
    REJECT,
    TARGET,
    Shop,
    agent,
    answers,
    ask,
    asked_for,
    learned,
    middleware,
    questions,
    results,
    start,
    trust_judge,
)
from tests.integration_tests.gates.support import always, models
from tests.loopback import Rule


async def test_a_misspelt_tool_is_a_warning(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    own = {"interrupt_on": {"refnud": True, "refund": True}}
    _, graph, asked = await start(bench, "batched", CALL, "Done.", **own)
    await bench.resume(graph, answers(asked, APPROVE))
    [warning] = caplog.messages
    assert warning.startswith("interrupt_on: the model was not offered refnud, only ")


@IN_MEMORY
@pytest.mark.parametrize("durability", ["async", "exit"])
async def test_an_approved_call_runs(
    bench: Bench, mode: str, durability: Any, caplog: pytest.LogCaptureFixture
) -> None:
    shop = Shop()
    graph = agent(bench, shop, CALL, "Done.", interrupt_mode=mode)
    asked = await bench.invoke(graph, ask(), durability=durability)
    assert questions(asked) == [REFUND]
    assert shop.ran == []
    done = await bench.resume(graph, answers(asked, APPROVE), durability=durability)
    assert (shop.ran, done["messages"][-1].text) == ([("A7", 20)], "Done.")
    assert await learned(bench) == {("A7 20", True, None)}
    [episode] = await bench.episodes(criterion=CRITERION)
    assert episode.example.outputs == REFUND
    assert episode.example.inputs == [{"role": "user", "content": ask()["messages"][0][1]}]
    assert episode.verdicts == {episode.judgment.id: True}  # type: ignore[union-attr] # it has one
    assert len(judgings(bench.server)) == 1  # not again when it was resumed
    assert caplog.messages == []


@IN_MEMORY
async def test_approve_edit_reject_and_respond_in_one_message(bench: Bench, mode: str) -> None:
    several = [("refund", {"order": f"A{number}", "amount": 20}) for number in range(4)]
    shop, graph, asked = await start(bench, mode, Calls(*several), "Done.")
    assert [question["args"]["order"] for question in questions(asked)] == ["A0", "A1", "A2", "A3"]
    edited = {"name": "refund", "args": {"order": "A1", "amount": 5}}
    decisions: list[dict[str, Any]] = [
        APPROVE,
        {"type": "edit", "edited_action": edited},
        {"type": "reject", "message": "Refunds are for 30 days."},
        {"type": "respond", "message": "The bank is closed."},
    ]
    done = await bench.resume(graph, answers(asked, *decisions))
    assert sorted(shop.ran) == [("A0", 20), ("A1", 5)]
    by_status = sorted(results(done))
    assert [status for status, _ in by_status] == ["error", "success", "success", "success"]
    assert "Refunds are for 30 days." in by_status[0][1]
    assert await learned(bench) == {
        ("A0 20", True, None),
        ("A1 20", False, "In the right call amount is 5, not 20."),
        ("A1 5", True, None),
        ("A2 20", False, "Refunds are for 30 days."),
    }
    assert len(await bench.guidelines(criterion=CRITERION)) >= 1


@pytest.mark.parametrize("is_function", [False, True])
async def test_of_two_calls_in_one_message_one_is_always_asked_about(
    bench: Bench, mode: str, *, is_function: bool
) -> None:
    await trust_judge(bench)

    def is_email(call: dict[str, Any]) -> bool:
        assert {*call} == {"name", "args", "id"}
        return bool(call["args"].get("to"))

    both = Calls(*CALL.calls, ("send_email", {"to": "x", "body": "y"}))
    always_ask: Any = is_email if is_function else ["send_email"]
    shop, graph, asked = await start(bench, mode, both, "Done.", always_ask=always_ask)
    assert [question["name"] for question in questions(asked)] == ["send_email"]
    await bench.resume(graph, answers(asked, {"type": "reject"}))
    assert shop.ran == [("A7", 20)]
    assert await learned(bench) == {("x y", False, None)}


async def test_a_call_that_the_judge_rejects_is_asked_about(bench: Bench, mode: str) -> None:
    await trust_judge(bench, verdict=False, value=False)
    bench.server.rules = always(False)
    shop, _, asked = await start(bench, mode, CALL)
    assert (questions(asked), shop.ran) == ([REFUND], [])
    [reasons] = asked_for(bench)
    assert "judged_wrong" in reasons


@IN_MEMORY
async def test_a_refusal_has_the_critique(bench: Bench, mode: str) -> None:
    await trust_judge(bench, verdict=False, value=False)
    bench.server.rules = always(False, "Nobody asked for a refund.")
    shop, _, done = await start(bench, mode, CALL, "Sorry.", on_fail="refuse")
    assert (questions(done), shop.ran, done["messages"][-1].text) == ([], [], "Sorry.")
    [(status, text)] = results(done)
    assert (status, "Nobody asked for a refund." in text) == ("error", True)
    assert "`refund` was refused and did not run. The call did not pass." in text


async def test_a_structured_answer_beside_a_refused_call_is_dropped(bench: Bench) -> None:
    class Outcome(BaseModel):
        """What was done."""

        text: str

    await trust_judge(bench, verdict=False, value=False)
    bench.server.rules = always(False)
    shop = Shop()
    early = Calls(*CALL.calls, ("Outcome", {"text": "Refunded."}))
    AgentModel(bench.server, early, calls("Outcome", text="I could not refund it."))
    approvals, form = middleware(bench, on_fail="refuse"), ToolStrategy(Outcome)
    graph = agent_with(bench, approvals, tools=shop.tools, response_format=form)
    done = await bench.invoke(graph, ask())
    assert (done["structured_response"].text, shop.ran) == ("I could not refund it.", [])


@IN_MEMORY
async def test_after_a_refusal_its_tool_is_asked_about_in_the_turn(bench: Bench, mode: str) -> None:
    """A model may try other arguments until the judge passes them."""
    await trust_judge(bench, verdict=False, value=False)
    bench.server.rules = always(False)
    shop, _, refused = await start(bench, mode, CALL, "Sorry.", on_fail="refuse")
    memory = bench.memory(CRITERION)
    memory.forget([episode.id for episode in memory.episodes()], purge=True)
    await trust_judge(bench)
    bench.server.rules = always(True)
    retry = calls("refund", order="A7", amount=19)
    graph = agent(bench, shop, retry, retry, "Done.", on_fail="refuse", interrupt_mode=mode)
    asked = await bench.invoke(graph, {"messages": refused["messages"][:-1]}, "retry")
    assert ([question["args"]["amount"] for question in questions(asked)], shop.ran) == ([19], [])
    assert ["refused_before"] in asked_for(bench)
    later = [*refused["messages"], *ask()["messages"]]
    await bench.invoke(graph, {"messages": later}, "later")
    assert shop.ran == [("A7", 19)]


@IN_MEMORY
@pytest.mark.parametrize("is_summarized", [False, True])
async def test_after_a_rejection_its_tool_is_asked_about_in_the_turn(
    bench: Bench, mode: str, *, is_summarized: bool
) -> None:
    await trust_judge(bench)
    options: Any = {"always_ask": lambda call: call["args"]["amount"] == 20, "k": 0}
    shop, model = Shop(), bench.server.chat_model(max_retries=0)
    summary = SummarizationMiddleware(model, trigger=("messages", 5), keep=("messages", 1))
    retry = calls("refund", order="A7", amount=19)
    steps: list[Any] = [
        Calls(("look_up", {"name": "Bob"})),
        "They asked for a refund.",
    ] * is_summarized
    AgentModel(bench.server, CALL, *steps, retry, "Done.")
    both = [*[summary] * is_summarized, middleware(bench, interrupt_mode=mode, **options)]
    graph = agent_with(bench, *both, tools=shop.tools)
    asked = await bench.invoke(graph, ask())
    asked = await bench.resume(graph, answers(asked, REJECT))
    assert ("rejected" in str(asked["messages"])) is not is_summarized
    assert [question["args"]["amount"] for question in questions(asked)] == [19]
    assert ("refund", 19) not in shop.ran
    assert any("refused_before" in reasons for reasons in asked_for(bench))


async def test_nothing_is_refused_before_the_judge_is_trusted(bench: Bench, mode: str) -> None:
    bench.server.rules = always(False)
    _, _, asked = await start(bench, mode, CALL, on_fail="refuse")
    assert questions(asked) == [REFUND]


async def test_an_address_that_only_a_tool_named_is_asked_about(bench: Bench, mode: str) -> None:
    await trust_judge(bench)
    body = "Your refund of 20 for the hat, order A7."
    email = calls("send_email", to="mallory@evil.example", body=body)
    _, _, asked = await start(bench, mode, Calls(("look_up", {"name": "Bob"})), email)
    assert [question["args"]["to"] for question in questions(asked)] == ["mallory@evil.example"]
    [[reason, *_]] = asked_for(bench)
    assert reason == "untrusted_text"


async def test_a_call_marked_wrong_later_teaches_and_counts(bench: Bench) -> None:
    from memalign_graph import create_feedback_graph

    await trust_judge(bench)
    await start(bench, "batched", CALL, "Done.")
    memory = bench.memory(CRITERION)
    report = memory.review_report()
    assert (report.asked.asked, report.unasked, report.unasked_wrong) == (0, 1, 0)
    [kept] = memory.judgments(waiting=True)
    assert kept.judged_at is not None
    assert kept.kept_until - kept.judged_at == timedelta(days=30)
    later = bench.compile(create_feedback_graph(CRITERION, **bench.models()))
    word = {"value": False, "rationale": "The order is a year old.", "author": "ann"}
    graph_input = {"judgment_id": kept.judgment.id, "reply": word}
    result = await bench.invoke(later, graph_input, "later")
    assert result["learned"]["guidelines"]
    report = memory.review_report()
    assert (report.unasked, report.unasked_wrong) == (1, 1)
    assert memory.judgments(waiting=True) == []


@IN_MEMORY
async def test_a_rejected_run_of_a_call_counts_beside_its_approvals(bench: Bench) -> None:
    """As of a scheduled job's prompt. The judge was shown the first approval before the second."""
    graph = agent(bench, Shop(), CALL, "Done.", CALL, "Done.", CALL, "Done.")
    for name, decision in zip("abc", (APPROVE, APPROVE, REJECT), strict=True):
        asked = await bench.invoke(graph, ask(), name)
        await bench.resume(graph, answers(asked, decision), name)
    await trust_judge(bench)
    memory = bench.memory(CRITERION)
    trust = await memory.atrust(target_agreement=TARGET)
    assert trust.agreement == pytest.approx((20 + 1 / 2) / 21)


async def test_the_person_who_decides_is_the_author(bench: Bench) -> None:
    graph = agent(bench, Shop(), CALL, "Done.", author=lambda runtime: runtime.context["user"])
    asked = await bench.invoke(graph, ask(), context={"user": "bot"})
    await bench.invoke(graph, Command(resume=answers(asked, APPROVE)), context={"user": "ann"})
    assert [episode.author for episode in await bench.episodes(criterion=CRITERION)] == ["ann"]


async def test_resume_with_the_context_that_names_the_author_has_the_decision_count(
    bench: Bench, mode: str
) -> None:
    def author(runtime: Any) -> str:
        return str(runtime.context["user"])

    shop, graph, asked = await start(bench, mode, CALL, "Done.", author=author)
    with pytest.raises(TypeError, match="NoneType"):
        await bench.resume(graph, answers(asked, APPROVE))
    assert shop.ran == []
    await bench.resume(graph, answers(asked, APPROVE), context={"user": "ann"})
    [episode] = await bench.episodes(criterion=CRITERION)
    assert (episode.author, episode.value, shop.ran) == ("ann", True, [("A7", 20)])


async def test_a_decision_is_its_authors_if_someone_else_answers_the_tools_question(
    bench: Bench, mode: str
) -> None:
    @tool
    def refund(order: str, amount: int) -> str:
        """Refund an order."""
        return str(interrupt(f"Which card gets {amount} for {order}?"))

    options: Any = {"tools": [refund], "interrupt_on": {"refund": True}, "interrupt_mode": mode}
    author = {"author": lambda runtime: runtime.context["user"]}
    graph = agent(bench, Shop(), CALL, "Done.", **author, **options)
    asked = await bench.invoke(graph, ask(), context={"user": "ann"})
    await bench.resume(graph, answers(asked, APPROVE), context={"user": "ann"})
    done = await bench.resume(graph, "The old one.", context={"user": "bob"})
    assert [text for _, text in results(done)] == ["The old one."]
    assert [episode.author for episode in await bench.episodes(criterion=CRITERION)] == ["ann"]


@pytest.mark.parametrize(
    ("options", "context"), [({}, {"k": 0}), ({"k": 0}, {}), ({"use_episodes": False}, {})]
)
async def test_without_similar_calls_in_the_prompt_a_person_is_asked(
    bench: Bench, options: Any, context: Any
) -> None:
    graph = agent(bench, Shop(), CALL, "A", decide="verdict", confidence=True, **options)
    await bench.invoke(graph, ask(), context={"memalign": context})
    assert "no_similar_episode" in asked_for(bench)[0]


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


@pytest.mark.parametrize("kind", ["reject", "edit"])
async def test_unstorable_text_loses_no_decision(bench: Bench, mode: str, kind: str) -> None:
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


async def test_without_a_store_every_call_is_asked_about(bench: Bench) -> None:
    shop, graph, asked = await start(bench, "batched", CALL, "Done.", store=None)
    assert questions(asked) == [REFUND]
    await bench.resume(graph, answers(asked, APPROVE))
    assert shop.ran == [("A7", 20)]


@pytest.mark.parametrize("context", [None, {"memalign": {"k": 3}}])
async def test_the_memory_of_the_run_is_kept_after_a_question(
    bench: Bench, mode: str, context: Any
) -> None:
    shop = Shop()
    graph = agent(bench, shop, CALL, calls("refund", order="A8", amount=1), interrupt_mode=mode)
    acme = {"memalign": {"namespace": ["acme"]}}
    asked = await bench.invoke(graph, ask(), context=acme)
    asked = await bench.resume(graph, answers(asked, APPROVE), context=context)
    episodes = bench.memory(CRITERION, namespace=["acme"]).episodes()
    assert [episode.value for episode in episodes] == [True]
    assert len(bench.memory(CRITERION, namespace=["acme"]).judgments()) == 2
    assert await bench.episodes(criterion=CRITERION) == []
    with pytest.raises(InvalidInputError, match="context"):
        await bench.invoke(graph, ask(), "other", context={"memaling": {}})


async def test_a_later_call_is_judged_with_the_settings_of_the_resume(
    bench: Bench, mode: str
) -> None:
    later = calls("refund", order="A8", amount=1)
    graph = agent(bench, Shop(), CALL, later, interrupt_mode=mode)
    acme, beta = ({"memalign": {"namespace": [name]}} for name in ("acme", "beta"))
    asked = await bench.invoke(graph, ask(), context=acme)
    await bench.resume(graph, answers(asked, APPROVE), context=beta)
    assert len(bench.memory(CRITERION, namespace=["beta"]).judgments()) == 1


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


async def test_a_subagents_calls_are_asked_about(bench: Bench, mode: str) -> None:
    shop = Shop()
    apart: dict[str, Any] = {"store": None, "checkpointer": None, "name": "worker"}
    approvals = middleware(bench, interrupt_mode=mode)
    worker = agent_with(bench, approvals, tools=shop.tools, **apart)

    @tool
    def delegate(task: str) -> str:
        """Have the worker do a task."""
        return str(worker.invoke({"messages": [("human", task)]})["messages"][-1].text)

    AgentModel(bench.server, calls("delegate", task="Refund."), CALL, "It is done.", "Done.")
    graph = agent_with(bench, tools=[delegate])
    asked = await bench.invoke(graph, ask())
    assert questions(asked) == [REFUND]
    done = await bench.resume(graph, answers(asked, APPROVE))
    assert (shop.ran, done["messages"][-1].text) == ([("A7", 20)], "Done.")
    assert len(judgings(bench.server)) == 1
    assert await learned(bench) == {("A7 20", True, None)}


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


async def test_in_the_functional_api_a_later_answer_counts(bench: Bench) -> None:
    await trust_judge(bench)
    shop = Shop()
    options: Any = {"always_ask": ["send_email"], "target_agreement": TARGET, "sample_share": 0}
    approve = create_approval_wrapper(
        CRITERION, {"refund": True, "send_email": True}, **options, **models(bench)
    )
    node = ToolNode(shop.tools, wrap_tool_call=approve)

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

    options: Any = {"always_ask": always_ask, "target_agreement": TARGET, "sample_share": 0}
    approve = create_approval_wrapper(CRITERION, {"refund": True}, **options, **models(bench))
    node = ToolNode([refund], wrap_tool_call=approve, awrap_tool_call=approve.awaiting)
    builder = StateGraph(MessagesState)
    builder.add_node("tools", node, retry_policy=RetryPolicy(0, max_attempts=2, jitter=False))
    builder.add_edge(START, "tools")
    graph = bench.compile(builder)
    made = AIMessage("", tool_calls=[{**REFUND, "id": "1"}])
    result = await bench.invoke(graph, {"messages": [*ask()["messages"], made]})
    assert questions(result) == [REFUND] * len(always_ask)
    if always_ask:
        result = await bench.resume(graph, answers(result, APPROVE))
    assert (ran, results(result)) == (["A7 20"] * 2, [("success", "Done.")])
    assert await learned(bench) == {("A7 20", True, None) for _ in always_ask}


@IN_MEMORY
async def test_an_answer_counts_where_a_subgraph_begins_again(bench: Bench, mode: str) -> None:
    """With `checkpointer=False` no ruling is stored; the call would pass the second time."""
    await trust_judge(bench)
    shop, asks = Shop(), [True]
    options: Any = {"always_ask": lambda _: bool(asks and asks.pop()), "checkpointer": False}
    inner = agent(bench, shop, CALL, CALL, "Done.", interrupt_mode=mode, **options)
    builder = StateGraph(MessagesState)
    builder.add_node("agent", inner)
    builder.add_edge(START, "agent")
    graph = bench.compile(builder)
    assert questions(await bench.invoke(graph, ask())) == [REFUND]
    done = await bench.resume(graph, {"decisions": [REJECT]} if mode == "batched" else REJECT)
    assert (shop.ran, results(done)[0][0]) == ([], "error")


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


async def test_a_tool_with_a_subagent_that_asks_is_resumed_if_its_condition_does_not_hold(
    bench: Bench, mode: str
) -> None:
    @tool
    def confirm(text: str) -> str:
        """Have the user confirm."""
        return str(interrupt(text))

    AgentModel(
        bench.server,
        calls("delegate", task="Refund."),
        calls("confirm", text="Sure?"),
        "It is done.",
        "Done.",
    )
    worker = agent_with(bench, tools=[confirm], store=None, checkpointer=None, name="worker")

    @tool
    def delegate(task: str) -> str:
        """Have the worker do a task."""
        return str(worker.invoke({"messages": [("human", task)]})["messages"][-1].text)

    config = {"allowed_decisions": ["approve"], "when": lambda _: False}
    approvals = middleware(bench, interrupt_mode=mode, interrupt_on={"delegate": config})
    graph = agent_with(bench, approvals, tools=[delegate])
    await bench.invoke(graph, ask())
    done = await bench.resume(graph, "yes")
    assert [text for _, text in results(done)] == ["It is done."]


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
async def test_calls_like_approved_ones_run_without_a_question(bench: Bench, mode: str) -> None:
    await trust_judge(bench)
    email = calls("send_email", to="bob", body="Hello.")
    shop, graph, asked = await start(bench, mode, email, CALL, "Done.", always_ask=["send_email"])
    done = await bench.resume(graph, answers(asked, APPROVE))
    assert (questions(done), shop.ran) == ([], [("bob", "Hello."), ("A7", 20)])
    [kept] = bench.memory(CRITERION).judgments(waiting=True)
    assert (kept.example.outputs, kept.judgment.value, asked_for(bench)) == (REFUND, True, [[]])


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
    required: dict[str, Any] = {"criterion": CRITERION, "interrupt_on": {"refund": True}}
    colors = Criterion(name="color", instructions="Which?", scale=Categorical(choices=("a", "b")))
    wrong: dict[str, dict[str, Any]] = {
        "always_ask: 'refnud' is not a tool": {"always_ask": ["refnud"]},
        "always_ask: expected a list of tool names, or a function": {"always_ask": "refund"},
        "author: 'ann' is not a function": {"author": "ann"},
        "on_fail": {"on_fail": "run"},
        "criterion": {"criterion": colors},
        "decide": {"decide": "verdict"},
        "target_agreement": {"target_agreement": 0.99999},
        "modle": {"modle": "x"},
    }
    for name, options in wrong.items():
        with pytest.raises(InvalidInputError, match=name):
            ApprovalMiddleware(**{**required, **options})
    with pytest.raises(InvalidInputError, match="interrupt_mode"):
        create_approval_wrapper(**required, interrupt_mode="batched")
