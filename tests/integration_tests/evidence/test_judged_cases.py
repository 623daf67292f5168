"""`judge_cases`: what the judge says of cases in memory, as if no expert had spoken of them."""

from dataclasses import replace
from typing import Any

import pytest
from langgraph.store.memory import InMemoryStore

from memalign_graph import (
    Criterion,
    Feedback,
    InvalidInputError,
    JudgeMemory,
    Pairwise,
    create_alignment_graph,
    create_judge_graph,
)
from tests.conftest import CRITERION, Bench
from tests.integration_tests.alignment_support import progress_of
from tests.integration_tests.evidence.judging_support import (
    Judge,
    by_number,
    case,
    distillings,
    earlier,
    learn,
    learning,
    measurings,
    number_of,
    verdicts,
    word,
    words,
)
from tests.loopback import Answer, ChatRequest, Together, answer


async def history(bench: Bench) -> list[Any]:
    memory = bench.memory()
    return await memory.ahistory() if bench.awaits else memory.history()


async def test_each_case_is_judged_once(bench: Bench) -> None:
    bench.server.responder = Judge(value=lambda number: number % 2 == 0)
    given = [*words(6), word(0, author="bob", value=False)]
    report = await learn(bench, given)
    assert report["judged_cases"] == 6
    assert report["warnings"] == []
    assert report["cost"]["chat_calls"] == 6
    assert sorted(map(number_of, verdicts(bench))) == list(range(6))
    episodes = await bench.episodes()
    assert len(episodes) == 7
    for one in episodes:
        number = int(str(one.example.inputs).split()[1].rstrip(":"))
        assert one.judgment is not None
        assert one.judgment.value is (number % 2 == 0)
        assert one.judgment.rationale == ""
        assert one.judgment.example_id == one.example_id
        assert one.id not in one.judgment.episode_ids
        assert one.value is (False if one.author == "bob" else number % 4 < 2)
    assert [one.reason for one in await history(bench)] == ["judge cases", "remember"]


async def test_a_second_run_asks_nothing(bench: Bench) -> None:
    bench.server.responder = Judge()
    first = await learn(bench, words(4), confidence=True)
    asked, version = len(bench.server.chats), first["memory_version_after"]
    again = await learn(bench, words(4), "again", confidence=True)
    assert (again["judged_cases"], again["cost"]["chat_calls"]) == (0, 0)
    assert len(bench.server.chats) == asked
    assert again["memory_version_after"] == version


async def test_only_what_is_new_is_judged(bench: Bench) -> None:
    bench.server.responder = Judge()
    await learn(bench, words(3))
    bench.server.chats.clear()
    assert (await learn(bench, words(5), "again"))["judged_cases"] == 2
    assert sorted(map(number_of, verdicts(bench))) == [3, 4]


async def test_what_an_earlier_run_learned_is_judged_too(bench: Bench) -> None:
    bench.server.responder = Judge()
    await learn(bench, words(3), judge_cases=False)
    report = await learn(bench, [], "later")
    assert report["judged_cases"] == 3


async def test_cases_that_tell_nothing_are_not_judged(bench: Bench) -> None:
    bench.server.responder = Judge(value=lambda _: False)
    graph = bench.review_graph(review="always")
    await bench.review(graph, {"value": True}, case(0), "reviewed")
    bench.server.chats.clear()
    report = await learn(
        bench, [word(0, author="bob"), {**case(1), "rationale": "Say sorry."}, word(2)]
    )
    assert report["judged_cases"] == 1
    assert [number_of(one) for one in verdicts(bench)] == [2]


PROMPTS: dict[str, dict[str, Any]] = {
    "as it is": {},
    "no guidelines": {"use_guidelines": False},
    "no episodes": {"use_episodes": False},
    "few episodes": {"k": 2},
    "few guidelines": {"max_guideline_tokens": 30},
    "confidence": {"confidence": True},
}


@pytest.mark.parametrize("options", PROMPTS.values(), ids=PROMPTS)
async def test_the_prompt_is_the_judges_own(bench: Bench, options: dict[str, Any]) -> None:
    rules = [f"Rule {number}: name the {number}. order." for number in range(4)]
    for text in rules:
        await bench.add_guideline(text)
    bench.server.responder = Judge()
    await learn(bench, words(7), **options)
    asked = {number_of(chat): chat for chat in [*verdicts(bench)]}
    measured = {number_of(chat): chat for chat in measurings(bench)}
    for number in (0, 5):
        bench.server.chats.clear()
        store = InMemoryStore()
        memory = JudgeMemory(store, CRITERION, embeddings=bench.server.embedder())
        for text in rules:
            memory.add_guideline(text)
        memory.remember([Feedback.model_validate(one) for one in words(7) if one != word(number)])
        graph = create_judge_graph(
            CRITERION,
            model=bench.server.chat_model(),
            embeddings=bench.server.embedder(),
            **options,
        ).compile(store=store)
        graph.invoke(case(number))
        [own] = verdicts(bench)
        assert asked[number].messages == own.messages
        assert asked[number].body["response_format"] == own.body["response_format"]
        if "confidence" in options:
            [sure] = measurings(bench)
            assert measured[number].messages == sure.messages


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
    given = words(2, rationale="Too vague, as so often.")
    await learn(bench, given, judge_cases=False, distill=True)
    sources = {one.text: one.episode_ids for one in await bench.guidelines()}
    assert len(sources) == 3
    episodes = by_number(await bench.episodes())
    bench.server.chats.clear()
    # Of the same inputs and outputs, with a right answer beside them: nearly the same case.
    await learn(bench, [word(0, reference_outputs="Sorry.", author="bob")], "later")
    for chat in verdicts(bench):
        number = number_of(chat)
        own = episodes[number].id
        for text, ids in sources.items():
            alone = ids == [own]
            assert (text in chat.text) is not alone
        assert number not in earlier(chat)
    assert len(verdicts(bench)) == 3


async def test_what_was_distilled_stays_distilled(bench: Bench) -> None:
    bench.server.responder = Judge()
    await learn(bench, words(3), judge_cases=False, distill=True)
    await learn(bench, [word(3)], "new", judge_cases=False)
    before = by_number(await bench.episodes())
    bench.server.chats.clear()
    await learn(bench, [], "judged")
    after = by_number(await bench.episodes())
    assert [after[number].status for number in range(4)] == [*["distilled"] * 3, "pending"]
    for number, one in after.items():
        assert one.word == before[number].word
        assert (
            one.model_copy(update={"judgment": None, "updated_at": before[number].updated_at})
            == before[number]
        )
    bench.server.chats.clear()
    await learn(bench, [], "distilled", distill=True)
    [prompt] = distillings(bench)
    assert "Case 3" in prompt.text
    assert "Case 0" not in prompt.text


async def test_it_comes_before_what_is_distilled(bench: Bench) -> None:
    bench.server.responder = Judge()
    report = await learn(bench, words(3), distill=True)
    kinds = [chat.schema_name for chat in bench.server.chats]
    assert kinds == ["judgment"] * 3 + ["guideline_operations"]
    assert report["judged_cases"] == 3
    assert {one.status for one in await bench.episodes()} == {"distilled"}


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
    assert {one.status for one in episodes.values()} == {"distilled"}
    odd["prose"] = False
    bench.server.chats.clear()
    assert (await learn(bench, [], "again"))["judged_cases"] == 1
    assert [number_of(one) for one in verdicts(bench)] == [1]


async def test_how_sure_it_is_is_kept(bench: Bench) -> None:
    bench.server.responder = Judge(belief=lambda number: 0.1 * number + 0.2)
    await learn(bench, words(4), confidence=True)
    for number, one in by_number(await bench.episodes()).items():
        assert one.judgment is not None
        assert one.judgment.confidence_source == "logprobs"
        assert one.judgment.probabilities is not None
        assert one.judgment.probabilities["true"] == pytest.approx(0.1 * number + 0.2)


async def test_how_sure_it_is_by_samples(bench: Bench) -> None:
    seen: list[int] = []

    def value(number: int) -> bool:
        seen.append(number)
        return seen.count(number) % 2 == 1

    bench.server.responder = without_logprobs(Judge(value=value))
    report = await learn(bench, words(2), confidence=True, samples=4)
    assert report["judged_cases"] == 2
    for one in await bench.episodes():
        assert one.judgment is not None
        assert one.judgment.confidence_source == "samples"
        assert one.judgment.probabilities == {"false": 0.5, "true": 0.5}


def without_logprobs(judge: Judge) -> Any:
    """The same model, whose server sends no log-probabilities."""

    def quiet(chat: ChatRequest) -> Any:
        reply = judge(chat)
        return replace(reply, logprobs=None) if isinstance(reply, Answer) else reply

    return quiet


async def test_what_could_not_be_measured_is_said(bench: Bench) -> None:
    bench.server.responder = without_logprobs(Judge())
    report = await learn(bench, words(3), confidence=True)
    assert report["judged_cases"] == 3
    [warning] = report["warnings"]
    assert warning.startswith("3 case(s) were judged so: No confidence by log-probabilities")


async def test_two_outputs_in_both_orders(bench: Bench) -> None:
    criterion = Criterion(name="better", instructions="Which is better?", scale=Pairwise())
    bench.server.responder = Judge(value=lambda _: "A")
    given = [
        {**one, "outputs": ["It left.", "Ask the post office."], "value": "A"} for one in words(2)
    ]
    report = await learn(bench, given, criterion=criterion, swap=True)
    assert report["judged_cases"] == 2
    assert len(verdicts(bench)) == 4
    for one in await bench.episodes(criterion=criterion):
        assert one.judgment is not None
        assert one.judgment.value == "tie"


async def test_progress_is_told(bench: Bench) -> None:
    bench.server.responder = Judge()
    events = await bench.stream(learning(bench), {"feedback": words(3)}, stream_mode="custom")
    assert progress_of(events, "judge") == [(0, 3), (1, 3), (2, 3), (3, 3)]


async def test_no_more_calls_at_a_time_than_allowed(bench: Bench) -> None:
    bench.server.responder = Together(2, without_logprobs(Judge()), "judgment")
    graph = learning(bench, confidence=True, samples=3).with_config(max_concurrency=2)
    await bench.invoke(graph, {"feedback": words(4)})
    assert len(verdicts(bench)) == 4 * 4
    assert bench.server.peak_chats == 2


async def test_a_threads_earlier_run_counts_no_more(bench: Bench) -> None:
    bench.server.responder = Judge()
    assert (await learn(bench, words(2)))["judged_cases"] == 2
    assert (await learn(bench, words(2), judge_cases=False))["judged_cases"] == 0


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"judge_cases": 1}, "judge_cases: 1 is neither"),
        ({"distill": "no"}, "distill: 'no' is neither"),
        ({"confidence": "yes"}, "confidence: 'yes' is neither"),
        ({"samples": 3}, "samples: they measure the confidence"),
        ({"samples": 1000, "confidence": True}, "samples: 1000 is too much"),
        ({"decide": "votes"}, "decide: 'votes' is not known"),
        ({"swap": True}, "swap: only"),
        ({"swap": 1}, "swap: 1 is neither"),
    ],
)
async def test_what_can_not_be_used(bench: Bench, options: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidInputError, match=f"^{says}"):
        create_alignment_graph(CRITERION, model=bench.server.chat_model(), **options)
    assert bench.server.chats == []
