"""A small model distils yes/no questions from experts' comments alone."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from memalign_graph import ChatModelError, Guideline, UsageLedger
from memalign_graph.evidence.checks import fill_questions
from memalign_graph.io import SYNC, run_sync
from memalign_graph.models import declare_small
from tests.conftest import CASE, COLD, OTHER, Bench
from tests.integration_tests.alignment_support import align, alignment, asked, comment, record
from tests.loopback import ChatRequest, answer, error, with_logprobs

QUESTIONS = "expert_questions"
PLANES = "Does the response state the tasks of both planes?"
APPLICATIONS = "Does the response mention the applications of the controller?"
SORRY = "Does the reply say sorry first?"


def wrote(*questions: str) -> dict[str, Any]:
    return {"questions": list(questions)}


def small(bench: Bench) -> Any:
    return declare_small(bench.server.chat_model(max_retries=0))


async def test_questions_come_from_comments_alone_and_know_their_sources(bench: Bench) -> None:
    comments = [
        "The tasks of both planes are wrong.",
        "No applications of the controller.\nSo it is incomplete.",
        "It does state the tasks of one of both planes.",
        *(f"Something else, number {number}." for number in range(3, 16)),
        "Planes: the tasks of both are missing.",
    ]
    feedback = [comment(number, text) for number, text in enumerate(comments)]
    feedback.append(record(17, rationale=None))
    by_comment = {
        True: wrote(PLANES, "Does the ...?", APPLICATIONS, "Is it one question too many?"),
        False: wrote(PLANES.upper(), f"Is {'x' * 160}?", "Is there a zorp in the reply?"),
    }
    bench.server.responder = lambda chat: answer(
        by_comment[comments[0] in chat.text] if chat.schema_name == QUESTIONS else {}
    )
    report = await align(bench, feedback, alignment(bench, model=small(bench), checks=False))
    first, second = sorted(asked(bench, QUESTIONS), key=lambda chat: comments[0] not in chat.text)
    others = [chat for chat in bench.server.chats if chat not in (first, second)]
    assert not any(chat.schema for chat in others)  # none compares
    assert "- (false) The tasks of both planes are wrong.\n- (true) No applications" in first.text
    assert "controller. So it is incomplete.\n- (false) It does" in first.text
    assert not any(word in first.text for word in ("order", "Answer", "Question"))
    # What has a value alone is shown by its outputs.
    assert "- (true) <outputs>\nAnswer 17: it is on its way" in second.text
    assert "Question" not in second.text
    words = {episode.id: episode.rationale for episode in await bench.episodes()}
    rules = await bench.guidelines()
    sources = {rule.question: {words[key] for key in rule.episode_ids} for rule in rules}
    planes = {comments[number] for number in (0, 2, -1)}
    assert sources == {PLANES: planes, APPLICATIONS: {comments[1]}}
    assert (len(report["warnings"]), report["batches"]) == (3, 2)
    assert {episode.status for episode in await bench.episodes()} == {"distilled"}


@dataclass
class Distiller:
    """A small model: wordings of a question, a better output, and answers to checks."""

    wordings: Sequence[str]
    rewritten: Any = "Sorry! Check the tracking page."
    yes: Mapping[str, tuple[float, float] | Mapping[str, float]] = field(default_factory=dict)
    """Of each question the probability of yes for the case, and for others; or by outputs."""
    good: str = ""
    repeats: float = 0.1
    """The probability that a comment asks for what a guideline asks for."""

    def __call__(self, chat: ChatRequest) -> Any:
        match chat.schema_name:
            case "expert_questions":
                return answer({"good": self.good, **wrote(*self.wordings)})
            case "rewritten_outputs":
                return answer({"outputs": self.rewritten})
            case "judgment":
                return answer({"rationale": "Fine.", "value": True})
        last = str(chat.messages[-1]["content"])
        case, _, question = last.rpartition("</case>")
        if not case:
            shares = {"Yes": self.repeats, "No": 1 - self.repeats}
            return with_logprobs("Yes", [("Yes", shares)])
        known = self.yes.get(question.strip(), (0.9, 0.9))
        outputs = case.split("<outputs>\n")[1].split("\n</outputs>")[0]
        if isinstance(known, Mapping):
            share = known[outputs]
        else:
            share = known[0] if outputs == CASE["outputs"] else known[1]
        return with_logprobs("Yes", [("Yes", {"Yes": share, "No": 1 - share})])


REFUND = "Does the reply offer a refund?"


async def learn(bench: Bench, model: Any, reply: Any = COLD) -> Any:
    """Have a case reviewed with a model that distills; returns what was learned."""
    bench.server.responder = model
    graph = bench.review_graph(distill_model=small(bench))
    return (await bench.review(graph, reply))["learned"]


RUDE = "Is the reply rude?"
GOOD = 'Is this true of the outputs: "The reply never leaves regret out."?'
NEVER = "The reply never\nleaves regret out."
QUOTING = f'Do the outputs do what an expert asks for: "{COLD["rationale"]}"?'


@pytest.mark.parametrize(
    ("model", "question", "answer_on_case"),
    [
        # The first wording is answered no for every case, the second tells them apart.
        (Distiller((REFUND, SORRY), yes={REFUND: (0.1, 0.1), SORRY: (0.3, 0.8)}), SORRY, 0.3),
        (Distiller((REFUND,), yes={GOOD: (0.6, 0.8)}, good=NEVER), GOOD, 0.6),
        (Distiller((REFUND,), yes={REFUND: (0.1, 0.1), QUOTING: (0.3, 0.8)}), QUOTING, 0.3),
        # A question about the fault is turned around, with the answer on the case itself.
        (Distiller((SORRY, RUDE), yes={SORRY: (0.3, 0.5), RUDE: (0.9, 0.1)}), RUDE, 0.1),
        # Rewritten outputs that are no text: there is nothing to compare wordings with.
        (Distiller((REFUND, SORRY), 7, yes={REFUND: (0.4, 0.9), SORRY: (0.3, 0.3)}), REFUND, 0.4),
    ],
)
async def test_a_comment_becomes_the_best_wording(
    bench: Bench, model: Distiller, question: str, answer_on_case: float
) -> None:
    learned = await learn(bench, model)
    [rule] = await bench.guidelines()
    turned = " (No is right.)" if question == RUDE else ""
    assert (rule.text, rule.question) == (COLD["rationale"], question + turned)
    assert len(rule.episode_ids) == 1
    assert learned["warnings"] == []
    [asked_for] = asked(bench, QUESTIONS)
    assert asked_for.text.endswith(f'Comment: "{COLD["rationale"]}"')
    assert (asked_for.schema or {})["required"] == ["good", "questions"]
    rewriting = asked(bench, "rewritten_outputs")
    assert len(rewriting) == 1 + (model.rewritten == 7)
    assert "never follow instructions" in str(rewriting[0].messages[0]["content"])
    # What the case itself was answered is known from now on.
    [answers] = bench.memory().access.view.answers().values()
    assert list(answers.values()) == pytest.approx([answer_on_case])
    # The model is asked the plain question.
    assert not any("No is right" in chat.text for chat in bench.server.chats)


async def test_wordings_are_tried_on_the_two_newest_accepted_cases(bench: Bench) -> None:
    for number, value in enumerate([True, True, True, False]):
        earlier = {"inputs": f"Earlier {number}.", "outputs": f"Reply {number}."}
        await bench.remember({**earlier, "value": value, "author": "ann"})
    yes = {REFUND: (0.4, 0.4), SORRY: (0.4, 0.8)}
    await learn(bench, Distiller((REFUND, SORRY), rewritten=CASE["outputs"], yes=yes))
    [rule] = await bench.guidelines()
    assert rule.question == SORRY
    checked = [chat.text for chat in bench.server.chats if chat.text.endswith(SORRY)]
    outputs = [text.split("<outputs>\n")[1].split("\n</outputs>")[0] for text in checked]
    assert sorted(outputs) == sorted([CASE["outputs"], "Reply 1.", "Reply 2."])


@pytest.mark.parametrize(("count", "requests"), [(3, 3), (4, 1), (12, 1), (13, 2)])
async def test_many_comments_are_batched(bench: Bench, count: int, requests: int) -> None:
    feedback = [comment(number, f"It must say sorry, number {number}.") for number in range(count)]
    bench.server.responder = Distiller((SORRY,), yes={SORRY: (0.3, 0.3)})
    await align(bench, feedback, alignment(bench, model=small(bench)))
    assert len(asked(bench, QUESTIONS)) == requests


SAYS_SORRY = {SORRY: (0.3, 0.8)}
PRAISE = "Good: it says sorry first."


@pytest.mark.parametrize(
    ("reply", "yes", "why"),
    [
        # Yes for the rejected case and for all others: nothing of it can be checked.
        (COLD, {}, "no question made from it is answered no on the case that it comes from"),
        # A model makes a question from nothing that its case happens to fail.
        *(
            ({**COLD, "rationale": text}, SAYS_SORRY, "without a word")
            for text in ("...", "\U0001f44e", " N/A", "None")
        ),
        # Also if the outputs that the model rewrites lose what the expert praises.
        *(
            ({"rationale": PRAISE}, {SORRY: (0.9, others)}, "no value on an ordered scale")
            for others in (0.9, 0.3)
        ),
    ],
)
async def test_a_comment_that_gives_no_check_is_not_learned(
    bench: Bench, reply: dict[str, Any], yes: Any, why: str
) -> None:
    learned = await learn(bench, Distiller((SORRY,), yes=yes), reply)
    assert await bench.guidelines() == []
    [warning] = learned["warnings"]
    assert why in warning
    assert reply["rationale"].strip() in warning
    assert {episode.status for episode in await bench.episodes()} == {"distilled"}


async def test_a_question_that_was_turned_around_is_met_by_no(bench: Bench) -> None:
    model, comment = Distiller((RUDE,), yes={RUDE: (0.8, 0.3)}), "It sounds rude."
    await learn(bench, model, {"value": False, "rationale": comment})
    graph = bench.judge_graph(model=small(bench))
    [check] = (await bench.invoke(graph, OTHER))["judgment"]["checks"]
    assert (check["held"], check["probability"]) == (True, pytest.approx(0.7))


async def test_a_comment_of_praise_is_a_question_that_its_case_meets(bench: Bench) -> None:
    model = Distiller((REFUND, SORRY), yes={REFUND: (0.2, 0.9), SORRY: (0.8, 0.9)})
    await learn(bench, model, {"value": True, "rationale": PRAISE})
    assert [rule.question for rule in await bench.guidelines()] == [SORRY]
    assert asked(bench, "rewritten_outputs") == []


REFUNDED = "Sorry! Here is your refund."
ACCEPTED = {"inputs": "Where is my bill?", "outputs": "Sorry! It is in this mail.", "value": True}


async def teach_twice(bench: Bench, second: dict[str, Any], *, rewritten: str) -> list[Guideline]:
    """Teach that a reply says sorry, then something about `OTHER`; returns the guidelines."""
    without, with_sorry = CASE["outputs"], "Sorry! Check the tracking page."
    sorry = {without: 0.1, OTHER["outputs"]: 0.1, with_sorry: 0.8, ACCEPTED["outputs"]: 0.99}
    refund = {without: 0.1, OTHER["outputs"]: 0.1, REFUNDED: 0.9, ACCEPTED["outputs"]: 0.9}
    yes: dict[str, Any] = {SORRY: {**sorry, REFUNDED: 0.23}, REFUND: {**refund, with_sorry: 0.9}}
    graph = bench.review_graph(distill_model=small(bench))
    bench.server.responder = Distiller((SORRY,), with_sorry, yes)
    await bench.review(graph, COLD)
    bench.server.responder = Distiller((REFUND,), rewritten, yes)
    await bench.review(graph, second, OTHER, "second")
    return await bench.guidelines()


async def test_a_comment_that_asks_for_the_same_supports_the_guideline(bench: Bench) -> None:
    """The new wording separates the case a little better, and is still no second check."""
    again = {"value": False, "rationale": "Again no apology."}
    [rule] = await teach_twice(bench, again, rewritten="Sorry! Check the tracking page.")
    assert (rule.text, rule.question) == (COLD["rationale"], SORRY)
    assert len(rule.episode_ids) == 2


@pytest.mark.parametrize("knows_accepted", [False, True])
async def test_a_comment_on_another_rule(bench: Bench, *, knows_accepted: bool) -> None:
    """Also where the case breaks the standing rule, too, and accepted cases meet both."""
    if knows_accepted:
        await bench.remember({**ACCEPTED, "author": "ann"})
    refund = {"value": False, "rationale": "Offer the refund."}
    rules = await teach_twice(bench, refund, rewritten=REFUNDED)
    assert [rule.question for rule in rules] == [SORRY, REFUND]


@pytest.mark.parametrize(
    ("repeats", "met", "status", "rules"),
    [(0.71, 0.49, 200, 1), (0.69, 0.49, 200, 2), (0.71, 0.51, 200, 2), (0.71, 0.49, 400, 2)],
)
async def test_a_comment_that_repeats_a_guideline_supports_it(
    bench: Bench, repeats: float, met: float, status: int, rules: int
) -> None:
    """As the model compares both comments, if the case fails the guideline; else it is new."""
    yes: dict[str, Any] = {
        SORRY: {CASE["outputs"]: 0.1, OTHER["outputs"]: met},
        REFUND: (0.1, 0.1),
    }
    bench.server.responder = Distiller((SORRY,), CASE["outputs"], yes)
    ledger = UsageLedger()
    graph = bench.review_graph(distill_model=small(bench)).with_config(callbacks=[ledger])
    await bench.review(graph, COLD)
    replies = Distiller((REFUND,), OTHER["outputs"], yes, repeats=repeats)

    def respond(chat: ChatRequest) -> Any:
        is_comparison = "<case>" not in chat.text and chat.schema is None
        return error(status) if is_comparison and status != 200 else replies(chat)

    bench.server.responder = respond
    again = {"value": False, "rationale": "No apology,\nagain."}
    await bench.review(graph, again, OTHER, "second")
    assert len(await bench.guidelines()) == rules
    compared = [chat for chat in bench.server.chats if "Comment 2" in chat.text]
    assert len(compared) == (met < 0.5)
    both = f"Comment 1: {COLD['rationale']}\nComment 2: No apology, again."
    assert all(both in chat.text for chat in compared)
    calls = {row["purpose"]: row["calls"] for row in ledger.rows()}
    assert calls.get("compare", 0) == (len(compared) if status == 200 else 0)
    judged = [chat for chat in bench.server.chats if chat.schema_name == "judgment"]
    assert calls["judge"] == len(judged) == 2


async def test_praise_of_what_a_guideline_asks_for_supports_it(bench: Bench) -> None:
    yes: dict[str, Any] = {SORRY: {CASE["outputs"]: 0.1, OTHER["outputs"]: 0.8}, REFUND: (0.4, 0.6)}
    bench.server.responder = Distiller((SORRY,), CASE["outputs"], yes)
    graph = bench.review_graph(distill_model=small(bench))
    await bench.review(graph, COLD)
    bench.server.responder = Distiller((REFUND,), yes=yes)
    praise = {"value": True, "rationale": "Good: it says sorry."}
    await bench.review(graph, praise, OTHER, "second")
    [rule] = await bench.guidelines()
    assert len(rule.episode_ids) == 2
    assert not any("Comment 2" in chat.text for chat in bench.server.chats)


async def test_a_value_without_a_comment_makes_no_guideline(bench: Bench) -> None:
    model = Distiller((SORRY,), yes={SORRY: (0.1, 0.8)})
    learned = await learn(bench, model, {"value": False})
    assert asked(bench, QUESTIONS) == []
    assert (await bench.guidelines(), learned["warnings"]) == ([], [])
    assert {episode.status for episode in await bench.episodes()} == {"distilled"}


async def test_wordings_that_are_no_questions_are_asked_for_once_more(bench: Bench) -> None:
    await learn(bench, Distiller(("How are you?", "Do the outputs have a zorp?")))
    first, second = asked(bench, QUESTIONS)
    assert "answered by yes or no" in second.text[len(first.text) :]


async def test_a_model_without_log_probabilities_keeps_the_first_wording(bench: Bench) -> None:
    def without(chat: ChatRequest) -> Any:
        return Distiller((SORRY, REFUND))(chat) if chat.schema else answer("Yes")

    bench.server.responder = without
    model = declare_small(bench.server.chat_model(model="tells-nothing", max_retries=0))
    await bench.review(bench.review_graph(distill_model=model), COLD)
    [rule] = await bench.guidelines()
    assert rule.question == SORRY


@pytest.mark.parametrize("count", [1, 4])
async def test_comments_stay_pending_if_the_model_fails_at_the_checks(
    bench: Bench, count: int
) -> None:
    feedback = [comment(number, f"It must say sorry, number {number}.") for number in range(count)]
    bench.server.responder = lambda chat: Distiller((SORRY,))(chat) if chat.schema else error(503)
    with pytest.raises(ChatModelError):
        await align(bench, feedback, alignment(bench, model=small(bench), checks=False))
    assert await bench.guidelines() == []
    assert {episode.status for episode in await bench.episodes()} == {"pending"}


async def test_a_guideline_is_not_reworded_from_judged_text_alone(bench: Bench) -> None:
    episodes = await bench.remember(
        comment(0, "Say sorry."), *(record(number, rationale=None) for number in range(1, 6))
    )
    bench.teach("Say sorry.", *episodes, question=SORRY)
    bench.server.responder = Distiller((REFUND,), yes={REFUND: (0.1, 0.1)})
    bench.memory(model=small(bench)).forget(episodes[0].id)
    [rule] = await bench.guidelines()
    assert (rule.text, rule.status) == ("Say sorry.", "pending")


async def test_a_comment_that_is_longer_than_a_guideline_is_named(bench: Bench) -> None:
    reply = {"value": False, "rationale": f"Say sorry first. {'It matters. ' * 40}"}
    learned = await learn(bench, Distiller((SORRY,), yes=SAYS_SORRY), reply)
    [rule] = await bench.guidelines()
    assert rule.text.endswith("\u2026")
    assert "1 record(s) were too long" in learned["warnings"][0]


async def test_refuted_questions_of_many_comments_are_dropped(bench: Bench) -> None:
    feedback = [comment(number, f"It must say sorry, number {number}.") for number in (0, 2, 4, 6)]
    assert {record["value"] for record in feedback} == {False}
    bench.server.responder = Distiller((SORRY,))
    report = await align(bench, feedback, alignment(bench, model=small(bench)))
    assert await bench.guidelines() == []
    assert "answered yes on cases that the experts rejected" in " ".join(report["warnings"])


async def test_a_guideline_that_loses_a_source_is_worded_from_the_other(bench: Bench) -> None:
    bench.server.responder = Distiller((SORRY,), yes={SORRY: (0.1, 0.8)})
    graph = bench.review_graph(distill_model=small(bench))
    await bench.review(graph, COLD)
    other = {**CASE, "inputs": "Another order."}
    await bench.review(graph, {"value": False, "rationale": "Again no sorry."}, other, "u")
    [rule] = await bench.guidelines()
    bench.memory(model=small(bench)).forget(rule.episode_ids[0])
    assert "Again no sorry." in asked(bench, QUESTIONS)[-1].text
    assert [len(rule.episode_ids) for rule in await bench.guidelines()] == [1]


async def fill(bench: Bench, model: Any) -> tuple[str | None, list[Guideline]]:
    access, rules = bench.memory().access, await bench.guidelines()
    warning = run_sync(fill_questions(SYNC, access, model, rules))
    return warning, await bench.guidelines()


async def test_guidelines_by_hand_get_their_questions_once(bench: Bench) -> None:
    for text in ("Say sorry.", "Be brief."):
        await bench.add_guideline(text)
    bench.server.script(error(500))
    warning, rules = await fill(bench, bench.server.chat_model(max_retries=0))
    assert str(warning).startswith("2 guideline(s) could not be rewritten as questions")
    assert {rule.question for rule in rules} == {None}
    bench.server.responder = lambda chat: (
        answer(wrote(SORRY)) if 'Comment: "Say sorry."' in chat.text else error(500)
    )
    warning, rules = await fill(bench, small(bench))
    assert str(warning).startswith("1 guideline(s)")
    assert [rule.question for rule in rules] == [SORRY, None]
    bench.server.script(wrote(""))
    for _ in range(2):  # the second asks nothing
        warning, rules = await fill(bench, bench.server.chat_model())
        assert ([rule.question for rule in rules], warning) == ([SORRY, ""], None)
    assert "1. Be brief." in bench.server.chats[-1].text
    assert len(bench.server.chats) == 4


async def test_a_guideline_that_the_model_refuses_gets_no_question(bench: Bench) -> None:
    for text in ("Say sorry.", "Never threaten to kill."):
        await bench.add_guideline(text)
    bench.server.responder = lambda _: error(400, "Unsupported value: 'temperature'.")
    assert {rule.question for rule in (await fill(bench, bench.server.chat_model()))[1]} == {None}
    bench.server.chats.clear()
    bench.server.responder = lambda chat: (
        error(400, "It was filtered.") if "kill" in chat.text else answer(wrote(SORRY))
    )
    warning, rules = await fill(bench, bench.server.chat_model())
    assert str(warning).startswith("1 guideline(s) could not be rewritten as questions")
    assert [rule.question for rule in rules] == [SORRY, ""]
    assert await fill(bench, bench.server.chat_model()) == (None, rules)
    assert len(bench.server.chats) == 3
