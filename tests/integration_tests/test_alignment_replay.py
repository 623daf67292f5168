"""`guard="replay"`: guidelines that regress more cases than chance are dropped."""

from collections import Counter
from typing import Any

import pytest

from memalign_graph import ChatModelError, Criterion
from tests.conftest import CRITERION, DOWN, EVERY_WAY, Bench, Graph
from tests.integration_tests.alignment_model import (
    JUDGE,
    Model,
    add,
    few_shot_cases_in,
    guideline_per_topic,
    judge_by_guidelines,
    judged_case,
    revise,
    verbatim_model,
)
from tests.integration_tests.alignment_support import (
    align,
    alignment,
    asked,
    comment,
    record,
    settle,
    sources,
)
from tests.loopback import ChatRequest, ReplyLike, content_filter


def comment_record(number: int, text: str, **fields: Any) -> dict[str, Any]:
    """A comment on a new case that becomes a guideline verbatim."""
    return comment(number, text, **{"value": True, **fields})


async def seed(
    bench: Bench, count: int, *rules: str, criterion: Criterion = CRITERION, value: Any = True
) -> None:
    """Fill a memory with cases where judge and expert agree, and guidelines."""
    bench.server.responder = Model(distil=lambda _: {"operations": [add(each) for each in rules]})
    feedback = [record(number, value=value) for number in range(count)]
    await align(bench, feedback, alignment(bench, criterion), "seed")
    assert len(await bench.guidelines(criterion=criterion)) == len(rules)
    bench.server.chats.clear()


def guarded(bench: Bench, criterion: Criterion = CRITERION, **options: Any) -> Graph:
    """The alignment graph with the guard on all cases."""
    return alignment(bench, criterion, **{"guard": "replay", "replay_cases": 50, **options})


VAGUE = "On #vague it is false of cases 2 3 4 and any other like it."
HARMLESS = "On #good thank them for their patience."
HARMLESS_RECORD = comment_record(101, HARMLESS)


@EVERY_WAY
async def test_dropped_guideline_is_reported_and_not_distilled_again(bench: Bench) -> None:
    """A case that the provider refuses is named, and counts for neither."""
    await seed(bench, 7)
    cases = {episode.example_id: [episode.id] for episode in await bench.episodes()}
    model = verbatim_model()

    def refusing(chat: ChatRequest) -> ReplyLike:
        is_refused = chat.schema_name == JUDGE and judged_case(chat) == 5
        return content_filter() if is_refused else model(chat)

    bench.server.responder = refusing
    feedback = [comment_record(101, VAGUE), comment_record(102, HARMLESS)]
    report = await align(bench, feedback, guarded(bench))
    assert sources(await bench.guidelines()) == {HARMLESS: 1}
    assert [change["text"] for change in report["guidelines"]["added"]] == [HARMLESS]
    replay = report["replay"]
    assert len({case["example_id"] for case in replay["broken"]}) == 3
    for case in replay["broken"]:
        assert case["episode_ids"] == cases[case["example_id"]]
        assert (case["expected"], case["got"]) == (True, False)
        assert (case["guideline"], case["outcome"]) == (VAGUE, "dropped")
    assert len(replay["failed"]) == 1
    assert (replay["cases"], replay["agreed_before"], replay["agree_after"]) == (9, 8, 8)
    [warning] = report["warnings"]
    assert warning.startswith("1 seen case(s) could not be judged again")
    assert {episode.status for episode in await bench.episodes()} == {"distilled"}
    again = await align(bench, feedback, guarded(bench), "u")
    assert (again["cost"]["chat_calls"], again["feedback"]["unchanged"]) == (0, 2)


async def test_judgments_of_a_replay_that_broke_off_are_not_repeated(bench: Bench) -> None:
    await seed(bench, 6)
    model = verbatim_model()
    bench.server.responder = lambda chat: DOWN if len(asked(bench, JUDGE)) > 9 else model(chat)
    graph = guarded(bench, model=bench.server.chat_model(max_retries=0))
    with pytest.raises(ChatModelError):
        await bench.invoke(graph.with_config(max_concurrency=1), {"feedback": [HARMLESS_RECORD]})
    failed = len(asked(bench, JUDGE)) - 9
    bench.server.responder = model
    report = (await bench.invoke(graph, None))["report"]
    assert (report["replay"]["cases"], report["replay"]["agree_after"]) == (7, 7)
    assert len(asked(bench, JUDGE)) == 2 * 7 + failed


async def test_revision_that_regresses_a_case_is_undone(bench: Bench) -> None:
    guideline = "On #keep it is true of cases 2 3 4, which look false."
    await seed(bench, 6, guideline)
    [before] = await bench.guidelines()
    changed = {"operations": [revise("G1", "On #keep name it always.", "F1")]}
    judge = judge_by_guidelines(wrong=(2, 3, 4))
    bench.server.responder = Model(distil=lambda _: changed, judge=judge)
    report = await align(bench, [record(101, value=True)], guarded(bench))
    assert await bench.guidelines() == [before]
    assert report["guidelines"]["revised"] == []


async def test_each_case_is_judged_without_its_own_episode(bench: Bench) -> None:
    await seed(bench, 6)
    bench.server.responder = verbatim_model()
    feedback = [HARMLESS_RECORD, comment_record(102, "On #b thank them.")]
    await align(bench, feedback, guarded(bench, k=20))
    cases, times = {*range(6), 101, 102}, Counter[int]()
    for chat in asked(bench, JUDGE):
        case = judged_case(chat)
        times[case] += 1
        assert few_shot_cases_in(chat) == cases - {case}
        # Otherwise its own feedback would be in the prompt without its texts.
        assert f"so said of case {case}." not in chat.text
    assert times == dict.fromkeys(cases, 2)


async def test_conflict_resolved_by_an_expert_is_replayed(bench: Bench) -> None:
    await seed(bench, 6)
    bench.server.responder = verbatim_model()
    graph = guarded(bench, batch_size=1, conflicts="ask")
    values = [
        comment_record(101, "On #a always name it, for it is false of cases 2 3 4."),
        comment_record(102, "On #a never name it."),
    ]
    await bench.invoke(graph, {"feedback": values})
    chats = len(bench.server.chats)
    report = await settle(bench, graph, "first")
    assert len(bench.server.chats) > chats
    assert len(report["replay"]["broken"]) == 3
    assert report["replay"]["agree_after"] == report["replay"]["agreed_before"] == 8
    assert sources(await bench.guidelines()) == {"On #a never name it.": 1}


async def test_regressing_wording_is_tried_three_times(bench: Bench) -> None:
    await seed(bench, 6)
    bench.server.responder = Model(distil=guideline_per_topic, judge=judge_by_guidelines())
    feedback = [
        comment_record(n, f"On #x, said by {n}, thank them.", author=f"e{n}")
        for n in range(101, 105)
    ]
    await align(bench, feedback)
    [before] = await bench.guidelines()
    bench.memory().forget(author="e101")

    def distil(chat: ChatRequest) -> Any:
        assert "said by 101" not in chat.text
        return {"operations": [add("On #x it is false of cases 2 3 4.")]}

    bench.server.responder = Model(distil=distil, judge=judge_by_guidelines())
    for night in range(3):
        report = await align(bench, [], guarded(bench), f"night {night}")
        assert len(report["replay"]["broken"]) == 3
        assert report["guidelines"] == {"added": [], "revised": [], "retired": []}
        [warning] = report["warnings"]
        assert f"Guideline {before.id} could not be distilled and stays pending" in warning
        assert "the replay dropped its new wording" in warning
        [after] = await bench.guidelines()
        assert (after.id, after.text, after.status) == (before.id, before.text, "pending")
        assert len(after.episode_ids) == 3
    again = await align(bench, [], guarded(bench), "given up")
    assert again["cost"]["chat_calls"] == 0
    assert "1 pending guideline(s) could not be distilled in 3" in again["warnings"][0]


async def test_verdict_changed_only_by_new_episodes_does_not_count(bench: Bench) -> None:
    await seed(bench, 6)

    def misled(chat: ChatRequest) -> bool:
        return judged_case(chat) != 2 or 101 not in few_shot_cases_in(chat)

    bench.server.responder = verbatim_model(judge=misled)
    report = await align(bench, [HARMLESS_RECORD], guarded(bench, k=20))
    replay = report["replay"]
    assert (replay["broken"], replay["agreed_before"], replay["agree_after"]) == ([], 6, 6)
    assert sources(await bench.guidelines()) == {HARMLESS: 1}


async def test_two_bad_guidelines_among_many_good_ones_are_found(bench: Bench) -> None:
    await seed(bench, 10)
    good = [
        comment_record(100 + n, f"On #good{n} it is false of cases {200 + n}.") for n in range(12)
    ]
    bad = [
        comment_record(150, "On #bad1 it is false of cases 1 2 3."),
        comment_record(151, "On #bad2 it is false of cases 6 7 8."),
    ]
    feedback = [*good[:4], bad[0], *good[4:9], bad[1], *good[9:]]
    bench.server.responder = verbatim_model()
    report = await align(bench, feedback, guarded(bench))
    assert set(sources(await bench.guidelines())) == {record["rationale"] for record in good}
    result = {case["guideline"] for case in report["replay"]["broken"]}
    assert result == {record["rationale"] for record in bad}
    assert len(report["guidelines"]["added"]) == 12
    # Bisection needs far fewer judgments than guidelines times cases.
    assert report["replay"]["chat_calls"] < 24 * 7
