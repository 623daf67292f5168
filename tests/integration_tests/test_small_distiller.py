"""A small model distils yes/no questions from experts' comments alone."""

from typing import Any

from memalign_graph import Guideline
from memalign_graph.evidence.questions import fill_questions
from memalign_graph.io import BLOCKING, run
from tests.conftest import CASE, COLD, CRITERION, Bench
from tests.integration_tests.alignment_support import align, alignment, asked, record, said
from tests.loopback import answer, error

QUESTIONS = "expert_questions"
PLANES = "Does the response state the tasks of both planes?"
APPLICATIONS = "Does the response mention the applications of the controller?"
SORRY = "Does the reply say sorry first?"


def wrote(*questions: str) -> dict[str, Any]:
    return {"questions": list(questions)}


def small(bench: Bench) -> Any:
    return bench.server.chat_model(profile={"max_input_tokens": 8192}, max_retries=0)


async def test_questions_come_from_comments_alone_and_know_their_sources(bench: Bench) -> None:
    told = [
        "The tasks of both planes are wrong.",
        "No applications of the controller.\nSo it is incomplete.",
        "It does state the tasks of one of both planes.",
        *(f"Something else, number {number}." for number in range(3, 12)),
        "Planes: the tasks of both are missing.",
    ]
    feedback = [said(number, text) for number, text in enumerate(told)]
    feedback.append(record(13, rationale=None))
    given = {
        True: wrote(PLANES, "Does the ...?", APPLICATIONS, "Is it one question too many?"),
        False: wrote(PLANES.upper(), f"Is {'x' * 160}?", "Is the customer thanked for waiting?"),
    }
    bench.server.responder = lambda chat: answer(given[told[0] in chat.text])
    report = await align(bench, feedback, alignment(bench, model=small(bench)))
    first, second = sorted(asked(bench, QUESTIONS), key=lambda chat: told[0] not in chat.text)
    assert len(bench.server.chats) == 2  # none compares
    assert "- (false) The tasks of both planes are wrong.\n- (true) No applications" in first.text
    assert "controller. So it is incomplete.\n- (false) It does" in first.text
    assert not any(word in first.text for word in ("order", "Answer", "Question"))
    # What has a value alone is shown by its outputs.
    assert "- (true) <outputs>\nAnswer 13: it is on its way" in second.text
    assert "Question" not in second.text
    words = {one.id: one.rationale for one in await bench.episodes()}
    found = {
        rule.question: {words[key] for key in rule.episode_ids} for rule in await bench.guidelines()
    }
    assert found == {PLANES: {told[0], told[2], told[12]}, APPLICATIONS: {told[1]}}
    assert (len(report["warnings"]), report["batches"]) == (3, 2)
    assert {one.status for one in await bench.episodes()} == {"distilled"}


async def test_a_word_of_an_expert_is_asked_anew_once_and_reworded_when_it_goes(
    bench: Bench,
) -> None:
    graph = bench.review_graph(distill_model=small(bench))
    judged = {"rationale": "Fine.", "value": True}
    bench.server.script(judged, wrote("How are you?"), wrote(SORRY))
    await bench.review(graph, COLD)
    [chat, again] = asked(bench, QUESTIONS)
    assert chat.text.endswith(
        'What the experts said of the outputs:\n- (false) Too cold: it must say sorry first.\n\n'
        'Write up to 2 different questions, as JSON: {"questions": ["Does the ...?", ...]}'
    )  # fmt: skip
    assert "answered by yes or no" in again.text[len(chat.text) :]
    bench.server.script(judged, wrote(SORRY, "Does the reply offer a refund?"))
    other = {**CASE, "inputs": "Another order."}
    await bench.review(graph, {"value": False, "rationale": "No sorry, no refund."}, other, "u")
    sorry, refund = await bench.guidelines()
    assert (len(sorry.episode_ids), len(refund.episode_ids)) == (2, 1)

    bench.server.script(wrote("Is there a word of sorry?"))
    memory = bench.memory(model=small(bench))
    memory.forget(sorry.episode_ids[0])
    assert "Write one question" in bench.server.chats[-1].text
    assert "Too cold: it" not in bench.server.chats[-1].text
    worded = memory.guidelines()[0]
    assert (worded.text, worded.status) == (worded.question, "standing") != (SORRY, "standing")


async def fill(bench: Bench, model: Any) -> tuple[str | None, list[Guideline]]:
    access, rules = bench.memory().access, await bench.guidelines()
    warning = run(fill_questions(BLOCKING, access, model, CRITERION, rules))
    return warning, await bench.guidelines()


async def test_guidelines_by_hand_get_their_questions_once(bench: Bench) -> None:
    for text in ("Say sorry.", "Be brief."):
        await bench.add_guideline(text)
    bench.server.script(error(500))
    warning, rules = await fill(bench, bench.server.chat_model(max_retries=0))
    assert str(warning).startswith("2 guideline(s) could not be made questions")
    assert {rule.question for rule in rules} == {None}
    bench.server.responder = lambda chat: (
        answer(wrote(SORRY)) if "- Say sorry." in chat.text else error(500)
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
