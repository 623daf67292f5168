"""`guard="replay"`: no guideline is committed that breaks a seen case."""

from typing import Any

import pytest

from memalign_graph import Boolean, Categorical, ChatModelError, Criterion, Numeric
from tests.conftest import EVERY_WAY, Bench
from tests.integration_tests.alignment_replay_support import (
    guarded,
    judge_by_rules,
    judged_case,
    others_in,
    seed,
    teaching,
    verdicts,
    words,
)
from tests.integration_tests.alignment_support import (
    JUDGE,
    Model,
    add,
    align,
    asked,
    feedback_in,
    progress_of,
    record,
    rules_by_topic,
    sources,
    version,
)
from tests.loopback import ChatRequest, error

VAGUE = "On #vague it is false of cases 2 3 101 and any other like it."
GOOD = "On #good1 it is false of cases 201 202, whatever else they say."


@EVERY_WAY
async def test_dropped_guideline_is_told_and_not_asked_for_again(bench: Bench) -> None:
    await seed(bench, 6)
    [episode] = [one for one in await bench.episodes() if "Question 3:" in str(one.example.inputs)]
    bench.server.responder = teaching()
    rule = "On #vague it is false of cases 3 101."
    given = [words(101, rule, value=False)]
    report = await align(bench, given, guarded(bench))
    assert await bench.guidelines() == []
    assert report["guidelines"] == {"added": [], "revised": [], "retired": []}
    assert report["replay"]["broken"] == [
        {
            "example_id": episode.example_id,
            "episode_ids": [episode.id],
            "expected": True,
            "got": False,
            "guideline": rule,
            "outcome": "dropped",
        }
    ]
    assert report["replay"]["agree_after"] == report["replay"]["agreed_before"] == 6
    assert {one.status for one in await bench.episodes()} == {"distilled"}
    again = await align(bench, given, guarded(bench), "u")
    assert (again["cost"]["chat_calls"], again["feedback"]["unchanged"]) == (0, 1)


async def test_revision_that_breaks_a_case_is_undone(bench: Bench) -> None:
    rule = "On #keep it is true of cases 4, which look false."
    await seed(bench, 6, rule)
    [before] = await bench.guidelines()
    bench.server.responder = Model(
        distil=lambda _: {
            "operations": [
                {
                    "action": "revise",
                    "guideline": "G1",
                    "text": "On #keep name it always.",
                    "feedback": ["F1"],
                }
            ]
        },
        judge=judge_by_rules(wrong=(4,)),
    )
    report = await align(bench, [record(101, value=True)], guarded(bench))
    assert await bench.guidelines() == [before]
    assert report["guidelines"]["revised"] == []


async def test_what_agreed_before_agrees_with_the_committed_memory(bench: Bench) -> None:
    """Judged by the judge's own graph, after the run."""
    await seed(bench, 8)
    bench.server.responder = teaching()
    given = [
        words(101, VAGUE, value=False),
        words(102, "On #bad it is false of cases 5 6."),
        words(103, "On #good it is false of cases 103.", value=False),
    ]
    before = await verdicts(bench, range(8))
    report = await align(bench, given, guarded(bench))
    after = await verdicts(bench, range(8))
    assert before == [True] * 8
    assert after == before
    assert report["replay"]["agree_after"] == report["replay"]["agreed_before"]
    assert await verdicts(bench, [103]) == [False]


async def test_each_case_is_judged_without_itself_among_the_episodes(bench: Bench) -> None:
    await seed(bench, 6)
    bench.server.responder = teaching()
    given = [words(101, GOOD), words(102, "On #b thank them.")]
    await align(bench, given, guarded(bench, k=20))
    old, new = set(range(6)), {101, 102}
    seen: dict[bool, set[int]] = {False: set(), True: set()}
    for chat in asked(bench, JUDGE):
        # Before, nothing of the new feedback was there.
        with_new = GOOD in chat.text
        case = judged_case(chat)
        seen[with_new].add(case)
        assert others_in(chat) == (old | new if with_new else old) - {case}
    assert seen == {False: old | new, True: old | new}


async def test_progress_of_the_replay_reaches_its_end(bench: Bench) -> None:
    await seed(bench, 6)
    bench.server.responder = teaching()
    given = {"feedback": [words(101, VAGUE, value=False)]}
    events = await bench.stream(guarded(bench), given, "u", stream_mode="custom")
    found = progress_of(events, "replay")
    assert found[0] == (0, 7)
    assert found[-1] == (7, 7)
    assert all(0 <= done <= of for done, of in found)


ALWAYS, NEVER = "On #a always, for it is false of cases 3.", "On #a never do so at all."


async def test_conflict_settled_by_an_expert_is_replayed_too(bench: Bench) -> None:
    await seed(bench, 6)
    bench.server.responder = teaching()
    graph = guarded(bench, batch_size=1, conflicts="ask")
    given = [
        words(101, "On #a always name it, for it is false of cases 2."),
        words(102, "On #a never name it."),
    ]
    await bench.invoke(graph, {"feedback": given})
    chats = len(bench.server.chats)
    report = (await bench.resume(graph, {"C1": "first"}))["report"]
    assert len(bench.server.chats) > chats
    assert len(report["replay"]["broken"]) == 1
    assert report["replay"]["agree_after"] == report["replay"]["agreed_before"] == 8
    assert await verdicts(bench, [2]) == [True]


async def test_wording_that_breaks_a_case_is_not_asked_for_for_ever(bench: Bench) -> None:
    """A guideline lost a source; its new wording breaks a case, and it goes."""
    await seed(bench, 6)
    bench.server.responder = Model(distil=rules_by_topic, judge=judge_by_rules())
    both = [words(n, f"On #x, said by {n}, thank them.") for n in (101, 102)]
    await align(bench, both)
    [guideline] = await bench.guidelines()
    bench.memory().forget(guideline.episode_ids[0])

    def distil(chat: ChatRequest) -> Any:
        assert "said by 102" in next(iter(feedback_in(chat).values()))
        return {"operations": [add("On #x it is false of cases 3.")]}

    bench.server.responder = Model(distil=distil, judge=judge_by_rules())
    report = await align(bench, [], guarded(bench))
    assert len(report["replay"]["broken"]) == 1
    assert await bench.guidelines() == []
    again = await align(bench, [], guarded(bench), "u")
    assert again["cost"]["chat_calls"] == 0


HARMLESS = "On #good thank them for their patience."


def turned_by(episode: int, case: int, rules: Any = None) -> Any:
    """A judge who is misled on one case by an earlier case in the prompt."""
    judge = rules or judge_by_rules()

    def misled(chat: ChatRequest) -> Any:
        return judge(chat) and not (judged_case(chat) == case and episode in others_in(chat))

    return misled


async def test_verdict_turned_by_new_episodes_alone_is_told_as_such(bench: Bench) -> None:
    await seed(bench, 6)
    [turned] = [one for one in await bench.episodes() if "Question 2:" in str(one.example.inputs)]
    bench.server.responder = teaching(judge=turned_by(101, 2))
    report = await align(bench, [words(101, HARMLESS)], guarded(bench, k=20))
    replay = report["replay"]
    assert replay["broken"] == []
    assert replay["turned_by_episodes"] == [turned.example_id]
    assert (replay["agreed_before"], replay["agree_after"]) == (7, 6)
    assert sources(await bench.guidelines()) == {HARMLESS: 1}


@pytest.mark.parametrize("value", ["good", 7.5])
async def test_values_of_an_earlier_scale_are_no_cases(bench: Bench, value: Any) -> None:
    """The scale was changed since: what experts said by the old one can't be compared."""
    before: Any = {
        "good": Categorical(choices=("good", "bad")),
        7.5: Numeric(minimum=0, maximum=10),
    }[value]
    after: Any = Boolean() if value == 7.5 else Numeric(minimum=0, maximum=10)
    old, new = (
        Criterion(name="grade", instructions="How good?", scale=scale) for scale in (before, after)
    )
    await seed(bench, 3, criterion=old, value=value)
    got: Any = False if value == 7.5 else 5.0
    bench.server.responder = teaching(judge=lambda _: got)
    given = [words(101, HARMLESS, value=got)]
    report = await align(bench, given, guarded(bench, new))
    assert report["replay"]["cases"] == 1
    assert len(report["guidelines"]["added"]) == 1


async def test_failing_judge_fails_the_run_and_loses_nothing(bench: Bench) -> None:
    await seed(bench, 6)
    before = await version(bench)
    down = error(500, retry_after=0)
    right = teaching()

    def broken(chat: ChatRequest) -> Any:
        return down if chat.schema_name == JUDGE and judged_case(chat) == 4 else right(chat)

    bench.server.responder = broken
    graph = guarded(bench, model=bench.server.chat_model(max_retries=0))
    with pytest.raises(ChatModelError):
        await align(bench, [words(101, HARMLESS)], graph)
    assert await bench.guidelines() == []
    bench.server.responder = right
    bench.server.chats.clear()
    report = (await bench.invoke(graph, None))["report"]
    assert sources(await bench.guidelines()) == {HARMLESS: 1}
    assert report["memory_version_before"] == before
    assert report["replay"]["agree_after"] == 7
    assert [chat.schema_name for chat in bench.server.chats].count("guideline_operations") == 0
    # Nothing waits in the memory any more.
    assert (await align(bench, [], graph, "u"))["cost"]["chat_calls"] == 0


async def test_two_bad_ones_among_many_good_are_both_found(bench: Bench) -> None:
    await seed(bench, 10)
    good = [words(100 + n, f"On #good{n} it is false of cases {200 + n}.") for n in range(12)]
    bad = [
        words(150, "On #bad1 it is false of cases 2."),
        words(151, "On #bad2 it is false of cases 7."),
    ]
    given = [*good[:4], bad[0], *good[4:9], bad[1], *good[9:]]
    bench.server.responder = teaching()
    report = await align(bench, given, guarded(bench))
    assert set(sources(await bench.guidelines())) == {one["rationale"] for one in good}
    found = {one["guideline"] for one in report["replay"]["broken"]}
    assert found == {one["rationale"] for one in bad}
    assert len(report["guidelines"]["added"]) == 12
    # Halving finds them: far fewer judgments than guidelines times cases.
    assert report["replay"]["chat_calls"] < 24 * 5
