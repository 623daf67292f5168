"""Approvals: what is asked and runs, what decisions teach, and runs that are cut off or nested."""

from datetime import timedelta
from typing import Any

import pytest
from langchain.agents.middleware import SummarizationMiddleware
from langchain.agents.structured_output import ToolStrategy
from langchain_core.tools import tool
from langgraph.types import Command, interrupt
from pydantic import BaseModel

from memalign_graph import (
    ApprovalMiddleware,
    Categorical,
    Criterion,
    InvalidInputError,
    create_approval_wrapper,
)
from tests.conftest import DOWN, Bench, judgings
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
from tests.integration_tests.gates.support import always
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
    rule = await bench.add_guideline("Refund what was asked for.", criterion=CRITERION)
    broken = {"value": False, "rationale": "Nobody asked for it.", "broken_guidelines": [1]}
    bench.server.rules = [Rule(lambda chat: chat.schema_name == "judgment", reply=broken)]
    shop, _, done = await start(bench, mode, CALL, "Sorry.", on_fail="refuse")
    assert (questions(done), shop.ran, done["messages"][-1].text) == ([], [], "Sorry.")
    [(status, text)] = results(done)
    assert (status, "Nobody asked for it." in text, rule.text in text) == ("error", True, True)
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
    asked = await bench.invoke(graph, ask(), context={"user": "bot"})
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


ACME, BETA = ({"memalign": {"namespace": [name]}} for name in ("acme", "beta"))


@pytest.mark.parametrize("context", [None, {"memalign": {"k": 3}}, BETA])
async def test_the_memory_of_the_run_is_kept_after_a_question(
    bench: Bench, mode: str, context: Any
) -> None:
    """A later call is judged with the settings of the resume."""
    shop = Shop()
    graph = agent(bench, shop, CALL, calls("refund", order="A8", amount=1), interrupt_mode=mode)
    asked = await bench.invoke(graph, ask(), context=ACME)
    asked = await bench.resume(graph, answers(asked, APPROVE), context=context)
    episodes = bench.memory(CRITERION, namespace=["acme"]).episodes()
    assert [episode.value for episode in episodes] == [True]
    judged = [
        len(bench.memory(CRITERION, namespace=[name]).judgments()) for name in ["acme", "beta"]
    ]
    assert judged == ([1, 1] if context is BETA else [2, 0])
    assert await bench.episodes(criterion=CRITERION) == []
    with pytest.raises(InvalidInputError, match="context"):
        await bench.invoke(graph, ask(), "other", context={"memaling": {}})


async def test_a_share_of_the_calls_is_asked_about_at_random(bench: Bench, mode: str) -> None:
    await trust_judge(bench)
    shop, _, asked = await start(bench, mode, CALL, sample_share=1)
    assert (questions(asked), shop.ran, asked_for(bench)) == ([REFUND], [], [["sample"]])


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
