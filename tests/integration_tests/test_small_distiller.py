"""A small model distils yes/no questions from experts' comments alone."""

from typing import Any

from memalign_graph import Guideline
from memalign_graph.evidence.questions import fill_questions
from memalign_graph.io import BLOCKING, run
from tests.conftest import CASE, COLD, CRITERION, Bench
from tests.integration_tests.alignment_support import align, alignment, asked, record, said
from tests.loopback import ChatRequest, answer, error

QUESTIONS = "expert_questions"
PLANES = "Does the response state the tasks of both planes?"
APPLICATIONS = "Does the response mention the applications of the controller?"
SORRY = "Does the reply say sorry first?"


def wrote(*questions: str) -> dict[str, Any]:
    return {"questions": list(questions)}


def small(bench: Bench) -> Any:
    return bench.server.chat_model(profile={"max_input_tokens": 8192}, max_retries=0)


async def inputs_of(bench: Bench) -> dict[str, list[int]]:
    """The number of each case that a guideline comes from, by its text."""
    numbers = {
        one.id: int(str(one.example.inputs).split()[-1][:-1]) for one in await bench.episodes()
    }
    return {
        rule.text: sorted(numbers[key] for key in rule.episode_ids)
        for rule in await bench.guidelines()
    }


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
        True: wrote(PLANES, PLANES.upper(), "What planes?", "", "Does the ...?", APPLICATIONS),
        False: wrote(PLANES, "Does the reply thank the customer who waits?", f"Is {'x' * 160}?"),
    }

    def respond(chat: ChatRequest) -> Any:
        return answer(given[told[0] in chat.text])

    bench.server.responder = respond
    report = await align(bench, feedback, alignment(bench, model=small(bench)))
    first, second = sorted(bench.server.chats, key=lambda chat: told[0] not in chat.text)
    assert {first.schema_name, second.schema_name} == {QUESTIONS}
    assert CRITERION.instructions in first.text
    assert "- (false) The tasks of both planes are wrong.\n- (true) No applications" in first.text
    assert "controller. So it is incomplete.\n- (false) It does" in first.text
    assert "order" not in first.text
    assert "Answer" not in first.text
    # What has a value alone is shown by its outputs.
    assert "- (true) <outputs>\nAnswer 13: it is on its way" in second.text
    assert "Question" not in second.text
    found = await inputs_of(bench)
    assert sorted(found) == sorted([PLANES, APPLICATIONS])
    assert (found[PLANES], found[APPLICATIONS]) == ([0, 2, 12], [1])
    assert {rule.question for rule in await bench.guidelines()} == {PLANES, APPLICATIONS}
    assert len(report["warnings"]) == 4
    assert {one.status for one in await bench.episodes()} == {"distilled"}


async def test_a_word_of_an_expert_is_asked_anew_once_and_reworded_when_it_goes(
    bench: Bench,
) -> None:
    graph = bench.review_graph(model=small(bench))
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
    worded = [(rule.text, rule.question, rule.status) for rule in memory.guidelines()]
    assert ("Is there a word of sorry?", "Is there a word of sorry?", "standing") in worded
    count = len(bench.server.chats)
    memory.consolidate()
    assert len(bench.server.chats) == count


async def fill(bench: Bench, model: Any) -> tuple[str | None, list[Guideline]]:
    memory = bench.memory()
    rules = memory.guidelines()
    warning = run(fill_questions(BLOCKING, memory.access, model, CRITERION, rules))
    return warning, bench.memory().guidelines()


async def test_guidelines_by_hand_get_their_questions_once(bench: Bench) -> None:
    for text in ("Say sorry.", "Be brief."):
        await bench.add_guideline(text)
    bench.server.script(error(500))
    warning, rules = await fill(bench, bench.server.chat_model(max_retries=0))
    assert warning is not None
    assert warning.startswith("2 guideline(s) could not be made questions")
    assert {rule.question for rule in rules} == {None}
    bench.server.script(wrote(SORRY), error(500))
    warning, rules = await fill(bench, small(bench))
    assert warning is not None
    assert "- Say sorry." in bench.server.chats[1].text
    assert [rule.question for rule in rules] == [SORRY, None]
    bench.server.script(wrote(""))
    warning, rules = await fill(bench, bench.server.chat_model())
    assert "1. Be brief." in bench.server.chats[-1].text
    count = len(bench.server.chats)
    assert await fill(bench, small(bench)) == (None, rules)
    assert ([rule.question for rule in rules], warning) == ([SORRY, ""], None)
    assert len(bench.server.chats) == count
