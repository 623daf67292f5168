"""`judge_cases`: what the judge says of cases in memory, as if no expert had spoken of them."""

from dataclasses import replace
from typing import Any

import pytest
from langgraph.store.memory import InMemoryStore

from memalign_graph import ChatModelError, Numeric
from tests.conftest import CRITERION, EVERY_WAY, Bench, judgings
from tests.integration_tests.alignment_support import progress_of
from tests.integration_tests.evidence.judging_support import (
    Judge,
    by_number,
    case,
    earlier,
    learn,
    learning,
    measurings,
    number_of,
    word,
    words,
)
from tests.loopback import Answer, ChatRequest, Together, answer, error


def judged(bench: Bench) -> list[int]:
    """The numbers of the cases that were judged since, in order; what was asked is forgotten."""
    numbers = sorted(map(number_of, judgings(bench.server)))
    bench.server.chats.clear()
    return numbers


@EVERY_WAY
async def test_each_case_is_judged_once(bench: Bench) -> None:
    bench.server.responder = Judge(
        value=lambda number: number % 2 == 0, belief=lambda number: 0.1 * number + 0.2
    )
    feedback = [*words(6), word(0, author="bob", value=False)]
    report = await learn(bench, feedback, confidence=True)
    assert (report["judged_cases"], report["warnings"]) == (6, [])
    assert report["cost"]["chat_calls"] == len(bench.server.chats) == 12
    assert judged(bench) == list(range(6))
    episodes = await bench.episodes()
    assert len(episodes) == 7
    for episode in episodes:
        number = int(str(episode.example.inputs).split()[1].rstrip(":"))
        assert episode.judgment is not None
        assert episode.judgment.value is (number % 2 == 0)
        assert (episode.judgment.rationale, episode.judgment.example_id) == ("", episode.example_id)
        assert episode.id not in episode.judgment.episode_ids
        assert episode.judgment.confidence_source == "logprobs"
        assert episode.judgment.probabilities is not None
        assert episode.judgment.probabilities["true"] == pytest.approx(0.1 * number + 0.2)
        assert episode.value is (False if episode.author == "bob" else number % 4 < 2)
    drafts = bench.memory().access.layout.of("drafts")
    assert not await bench.call(bench.store, "search", drafts)
    again = await learn(bench, feedback, "again", confidence=True)
    assert (again["judged_cases"], again["cost"]["chat_calls"]) == (0, 0)
    assert again["memory_version_after"] == report["memory_version_after"]
    assert bench.server.chats == []
    assert (await learn(bench, words(8), "more"))["judged_cases"] == 2
    assert judged(bench) == [6, 7]


async def test_only_cases_that_tell_something_and_have_no_judgment_are_judged(bench: Bench) -> None:
    bench.server.responder = Judge(value=lambda _: False)
    graph = bench.review_graph(review="always")
    await bench.review(graph, {"value": True}, case(0), "reviewed")
    await learn(bench, [word(3)], "earlier", judge_cases=False)
    bench.server.chats.clear()
    alone = {**case(1), "rationale": "Say sorry."}
    numbers = CRITERION.model_copy(update={"scale": Numeric(minimum=0, maximum=10)})
    await bench.remember(word(9, value=7), criterion=numbers)  # off the scale as it is
    assert (await learn(bench, [word(0, author="bob"), alone, word(2)]))["judged_cases"] == 2
    assert judged(bench) == [2, 3]
    # One that is reviewed meanwhile keeps its own judgment.
    await bench.remember(word(4))
    await bench.invoke(graph, case(4), "review")
    bench.server.responder = Judge()
    await learn(bench, [], "t")
    await bench.resume(graph, {"value": False, "author": "bob"}, "review")
    inputs = case(4)["inputs"]
    reviewed = [item for item in await bench.episodes() if item.example.inputs == inputs]
    assert {episode.author: episode.judgment.value for episode in reviewed if episode.judgment} == {
        "ann": True,
        "bob": False,
    }
    assert (await learn(bench, [], "t", judge_cases=False))["judged_cases"] == 0


PROMPTS: dict[str, dict[str, Any]] = {
    "confidence": {"confidence": True},
    "no guidelines": {"use_guidelines": False},
    "few": {"k": 2, "max_guideline_tokens": 30},
}


@pytest.mark.parametrize("options", PROMPTS.values(), ids=PROMPTS)
async def test_the_prompt_is_the_judges_own(bench: Bench, options: dict[str, Any]) -> None:
    rules = [f"Rule {number}: name the {number}. order." for number in range(4)]
    for text in rules:
        await bench.add_guideline(text)
    bench.server.responder = Judge()
    await learn(bench, words(7), **options)
    asked = {number_of(chat): chat for chat in judgings(bench.server)}
    measured = {number_of(chat): chat for chat in measurings(bench)}
    bench.server.chats.clear()
    other = Bench(bench.server, InMemoryStore(), bench.saver, awaits=False)
    for text in rules:
        await other.add_guideline(text)
    await other.remember(*(record for record in words(7) if record != word(5)))
    await other.invoke(other.judge_graph(**options), case(5))
    [own] = judgings(bench.server)
    assert asked[5].messages == own.messages
    assert asked[5].body["response_format"] == own.body["response_format"]
    again = [chat.messages for chat in measurings(bench)]
    assert again == ([measured[5].messages] if "confidence" in options else [])


async def test_of_what_comes_from_a_case_alone_its_judge_knows_nothing(bench: Bench) -> None:
    def distil(_: ChatRequest) -> Any:
        blank = {"action": "add", "guideline": "none"}
        return {
            "operations": [
                {**blank, "text": "Of the first alone: always say why.", "feedback": ["F1"]},
                {**blank, "text": "Of the second alone: give a date.", "feedback": ["F2"]},
                {**blank, "text": "Of both: name the order.", "feedback": ["F1", "F2"]},
            ]
        }

    bench.server.responder = Judge(distil=distil)
    feedback = words(2, rationale="Too vague, as so often.")
    await learn(bench, feedback, judge_cases=False, distill=True)
    sources = {guideline.text: guideline.episode_ids for guideline in await bench.guidelines()}
    assert len(sources) == 3
    episodes = by_number(await bench.episodes())
    bench.server.chats.clear()
    # Of the same inputs and outputs, with a right answer beside them: nearly the same case.
    await learn(bench, [word(0, reference_outputs="Sorry.", author="bob")], "later")
    for chat in judgings(bench.server):
        number = number_of(chat)
        for text, ids in sources.items():
            assert (text in chat.text) is not (ids == [episodes[number].id])
        assert number not in earlier(chat)
    assert len(judgings(bench.server)) == 3


async def test_it_comes_after_what_is_distilled_and_changes_nothing_of_it(bench: Bench) -> None:
    bench.server.responder = Judge()
    await learn(bench, words(2), distill=True)
    kinds = [chat.schema_name for chat in bench.server.chats]
    assert kinds == ["guideline_operations"] + ["judgment"] * 2
    await learn(bench, words(3), "more", judge_cases=False)
    before = by_number(await bench.episodes())
    await learn(bench, [], "judged")
    after = by_number(await bench.episodes())
    assert [after[number].status for number in range(3)] == ["distilled"] * 2 + ["pending"]
    assert after[2].judgment is not None
    same = {"judgment": None, "updated_at": before[2].updated_at}
    assert after[2].model_copy(update=same) == before[2]


async def test_a_case_without_an_answer_is_left_without(bench: Bench) -> None:
    odd = {"prose": True}

    def value(number: int) -> Any:
        return answer("I would rather not.") if number == 1 and odd["prose"] else True

    bench.server.responder = Judge(value=value)
    report = await learn(bench, words(3), distill=True)
    assert report["judged_cases"] == 2
    [warning] = report["warnings"]
    assert warning.startswith("1 case(s) could not be judged")
    assert "I would rather not." in warning
    episodes = by_number(await bench.episodes())
    assert [episodes[number].judgment is None for number in range(3)] == [False, True, False]
    assert {episode.status for episode in episodes.values()} == {"distilled"}
    odd["prose"] = False
    bench.server.chats.clear()
    assert (await learn(bench, [], "again"))["judged_cases"] == 1
    assert judged(bench) == [1]


def without_logprobs(judge: Judge) -> Any:
    """The same model, whose server sends no log-probabilities."""

    def quiet(chat: ChatRequest) -> Any:
        reply = judge(chat)
        return replace(reply, logprobs=None) if isinstance(reply, Answer) else reply

    return quiet


async def test_how_sure_it_is_by_samples_is_said_and_its_calls_are_bounded(bench: Bench) -> None:
    bench.server.responder = Together(2, without_logprobs(Judge()), "judgment")
    graph = learning(bench, confidence=True, samples=3).with_config(max_concurrency=2)
    events = await bench.stream(graph, {"feedback": words(4)}, stream_mode="custom")
    assert progress_of(events, "judge") == [(done, 4) for done in range(5)]
    assert len(judgings(bench.server)) == 4 * 4
    assert bench.server.peak_chats == 2
    kept: Any = [episode.judgment for episode in await bench.episodes()]
    assert {item.confidence_source for item in kept} == {"samples"}
    bench.server.responder = without_logprobs(Judge())
    report = await learn(bench, [word(5), word(6)], "more", confidence=True)
    [warning] = report["warnings"]
    assert warning.startswith("2 case(s) were judged with a warning: No confidence by log-p")


class Failing:
    """A model that fails on one case for as long as it is told to."""

    def __init__(self, number: int) -> None:
        self.number: int | None = number

    def __call__(self, chat: ChatRequest) -> Any:
        if chat.schema_name == "judgment" and number_of(chat) == self.number:
            return error(401, "No such day.")
        return Judge(belief=lambda number: 0.5 + number / 100)(chat)


@pytest.mark.parametrize("goes_on", [True, False])
async def test_what_was_answered_is_found_again(bench: Bench, *, goes_on: bool) -> None:
    bench.server.responder = model = Failing(5)
    graph = learning(bench, confidence=True).with_config(max_concurrency=1)
    with pytest.raises(ChatModelError, match="No such day"):
        await bench.invoke(graph, {"feedback": words(6)})
    done = set(judged(bench)) - {5}
    assert done
    assert (await bench.state(graph)).next == ("judge_cases",)  # what was learned is committed
    model.number = None
    again = (None, "t") if goes_on else ({"feedback": words(6)}, "again")
    assert (await bench.invoke(graph, *again))["report"]["judged_cases"] == 6
    assert {number_of(chat) for chat in measurings(bench)} == set(range(6)) - done
    assert set(judged(bench)) == set(range(6)) - done
    for number, episode in by_number(await bench.episodes()).items():
        assert episode.judgment is not None
        assert episode.judgment.probabilities is not None
        assert episode.judgment.probabilities["true"] == pytest.approx(0.5 + number / 100)
        assert episode.judgment.model
