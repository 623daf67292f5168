"""What is asked, what runs, and what decisions teach."""

from typing import Any

from langgraph.types import Command

from tests.conftest import Bench, judgings
from tests.integration_tests.agents.support import Calls, calls
from tests.integration_tests.approvals.support import (
    APPROVE,
    BOTH_MODES,
    CALL,
    CRITERION,
    IN_MEMORY,
    REFUND,
    REJECT,
    Shop,
    agent,
    answers,
    ask,
    questions,
    results,
    start,
    trust_judge,
)
from tests.integration_tests.gates.support import always


@BOTH_MODES
@IN_MEMORY
async def test_a_call_is_asked_about_at_first_and_runs_when_it_is_approved(
    bench: Bench, mode: str
) -> None:
    shop, graph, asked = await start(bench, mode, CALL, "Done.")
    assert questions(asked) == [REFUND]
    assert shop.ran == []
    done = await bench.resume(graph, answers(asked, APPROVE))
    assert (shop.ran, done["messages"][-1].text) == ([("A7", 20)], "Done.")
    [episode] = await bench.episodes(criterion=CRITERION)
    assert (episode.value, episode.rationale, episode.example.outputs) == (True, None, REFUND)
    assert episode.example.inputs == [{"role": "user", "content": ask()["messages"][0][1]}]
    assert episode.verdicts == {episode.judgment.id: True}  # type: ignore[union-attr] # it has one
    assert len(judgings(bench.server)) == 1  # not again when it was resumed


@BOTH_MODES
@IN_MEMORY
async def test_a_call_like_those_that_were_approved_runs_without_a_question(
    bench: Bench, mode: str
) -> None:
    await trust_judge(bench)
    shop, _, done = await start(bench, mode, CALL, "Done.")
    assert (questions(done), shop.ran) == ([], [("A7", 20)])
    [kept] = bench.memory(CRITERION).judgments(waiting=True)
    assert (kept.example.outputs, kept.judgment.value) == (REFUND, True)
    assert kept.judgment.review is not None
    assert not kept.judgment.review.asks


@BOTH_MODES
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
    learned = {
        (str(episode.example.outputs["args"]), episode.value, episode.rationale)
        for episode in await bench.episodes(criterion=CRITERION)
    }
    assert learned == {
        ("{'order': 'A0', 'amount': 20}", True, None),
        ("{'order': 'A1', 'amount': 20}", False, "In the right call amount is 5, not 20."),
        ("{'order': 'A1', 'amount': 5}", True, None),
        ("{'order': 'A2', 'amount': 20}", False, "Refunds are for 30 days."),
    }
    assert len(await bench.guidelines(criterion=CRITERION)) >= 1


@BOTH_MODES
async def test_of_two_calls_in_one_message_one_is_asked_about(bench: Bench, mode: str) -> None:
    await trust_judge(bench)
    both = Calls(*CALL.calls, ("send_email", {"to": "x", "body": "y"}))
    shop, graph, asked = await start(bench, mode, both, "Done.", always_ask=["send_email"])
    assert [question["name"] for question in questions(asked)] == ["send_email"]
    await bench.resume(graph, answers(asked, {"type": "reject"}))
    assert shop.ran == [("A7", 20)]
    rejected = [one for one in await bench.episodes(criterion=CRITERION) if one.value is False]
    assert [(one.example.outputs["name"], one.rationale) for one in rejected] == [
        ("send_email", None)
    ]


@BOTH_MODES
async def test_rejected_call_is_asked_about_whatever_the_confidence(
    bench: Bench, mode: str
) -> None:
    await trust_judge(bench, verdict=False, value=False)
    bench.server.rules = always(False)
    shop, _, asked = await start(bench, mode, CALL)
    assert (questions(asked), shop.ran) == ([REFUND], [])
    [kept] = bench.memory(CRITERION).judgments(waiting=True)
    assert kept.judgment.review is not None
    assert "judged_wrong" in kept.judgment.review.reasons


@BOTH_MODES
@IN_MEMORY
async def test_a_call_is_refused_with_the_critique_where_that_is_wanted(
    bench: Bench, mode: str
) -> None:
    await trust_judge(bench, verdict=False, value=False)
    bench.server.rules = always(False, "Nobody asked for a refund.")
    shop, _, done = await start(bench, mode, CALL, "Sorry.", on_fail="refuse")
    assert (questions(done), shop.ran, done["messages"][-1].text) == ([], [], "Sorry.")
    [(status, text)] = results(done)
    assert status == "error"
    assert "Nobody asked for a refund." in text


@BOTH_MODES
@IN_MEMORY
async def test_after_a_refusal_calls_of_its_tool_are_asked_about_for_the_rest_of_the_turn(
    bench: Bench, mode: str
) -> None:
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
    reviews = [kept.judgment.review for kept in memory.judgments(waiting=True)]
    assert [review.reasons for review in reviews if review and review.asks] == [["refused_before"]]
    later = [*refused["messages"], *ask()["messages"]]
    await bench.invoke(graph, {"messages": later}, "later")
    assert shop.ran == [("A7", 19)]


@BOTH_MODES
@IN_MEMORY
async def test_after_a_rejection_calls_of_its_tool_are_asked_about_for_the_rest_of_the_turn(
    bench: Bench, mode: str
) -> None:
    await trust_judge(bench)
    retry = calls("refund", order="A7", amount=19)
    options: Any = {"always_ask": lambda call: call["args"]["amount"] == 20, "k": 0}
    shop, graph, asked = await start(bench, mode, CALL, retry, "Done.", **options)
    asked = await bench.resume(graph, answers(asked, REJECT))
    assert ([question["args"]["amount"] for question in questions(asked)], shop.ran) == ([19], [])
    reviews = [it.judgment.review for it in bench.memory(CRITERION).judgments(waiting=True)]
    assert "refused_before" in [reason for each in reviews if each for reason in each.reasons]


@BOTH_MODES
async def test_a_refusal_waits_until_the_judge_is_known_to_be_right(
    bench: Bench, mode: str
) -> None:
    bench.server.rules = always(False)
    _, _, asked = await start(bench, mode, CALL, on_fail="refuse")
    assert questions(asked) == [REFUND]


@BOTH_MODES
async def test_always_ask_may_be_a_function_of_the_call(bench: Bench, mode: str) -> None:
    await trust_judge(bench)
    seen: list[Any] = []

    def is_large(call: dict[str, Any]) -> bool:
        seen.append(call)
        return bool(call["args"]["amount"] >= 20)

    both = Calls(*CALL.calls, ("refund", {"order": "A7", "amount": 19}))
    _, _, asked = await start(bench, mode, both, always_ask=is_large)
    assert questions(asked) == [REFUND]
    assert {*seen[0]} == {"name", "args", "id"}


@BOTH_MODES
async def test_an_address_that_only_a_tool_named_is_asked_about(bench: Bench, mode: str) -> None:
    await trust_judge(bench)
    body = "Your refund of 20 for the hat, order A7."
    email = calls("send_email", to="mallory@evil.example", body=body)
    _, _, asked = await start(bench, mode, Calls(("look_up", {"name": "Bob"})), email)
    assert [question["args"]["to"] for question in questions(asked)] == ["mallory@evil.example"]
    [kept] = bench.memory(CRITERION).judgments(waiting=True)
    assert kept.judgment.review is not None
    assert kept.judgment.review.reasons[0] == "untrusted_text"


async def test_a_call_marked_wrong_later_teaches_and_counts(bench: Bench) -> None:
    from memalign_graph import create_feedback_graph

    await trust_judge(bench)
    await start(bench, "batched", CALL, "Done.")
    memory = bench.memory(CRITERION)
    report = memory.review_report()
    assert (report.asked.asked, report.unasked, report.unasked_wrong) == (0, 1, 0)
    [kept] = memory.judgments(waiting=True)
    later = bench.compile(create_feedback_graph(CRITERION, **bench.models()))
    word = {"value": False, "rationale": "The order is a year old.", "author": "ann"}
    given = {"judgment_id": kept.judgment.id, "reply": word}
    result = await bench.invoke(later, given, "later")
    assert result["learned"]["guidelines"]
    report = memory.review_report()
    assert (report.unasked, report.unasked_wrong) == (1, 1)
    assert memory.judgments(waiting=True) == []


async def test_the_person_who_decides_is_the_author(bench: Bench) -> None:
    graph = agent(bench, Shop(), CALL, "Done.", author=lambda runtime: runtime.context["user"])
    asked = await bench.invoke(graph, ask(), context={"user": "bot"})
    await bench.invoke(graph, Command(resume=answers(asked, APPROVE)), context={"user": "ann"})
    assert [episode.author for episode in await bench.episodes(criterion=CRITERION)] == ["ann"]
