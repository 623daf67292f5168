"""`guard="replay"`: no guideline is committed that breaks a seen case."""

from tests.conftest import Bench
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
    BOTH_WAYS,
    COMPARE,
    JUDGE,
    Model,
    align,
    asked,
    record,
    retire,
    sources,
)

VAGUE = "On #vague it is false of cases 2 3 101 and any other like it."
GOOD = "On #good1 it is false of cases 201 202, whatever else they say."


async def test_vague_guideline_is_dropped_for_all_that_it_breaks(bench: Bench) -> None:
    await seed(bench, 6)
    bench.server.responder = teaching()
    given = [words(101, VAGUE, value=False), words(102, GOOD)]
    report = await align(bench, given, guarded(bench))
    replay = report["replay"]
    assert sources(await bench.guidelines()) == {GOOD: 1}
    assert replay["agreed_before"] == replay["agree_after"] == 7
    # Two cases broke, of which one is told.
    [broken] = replay["broken"]
    assert broken["guideline"] == VAGUE


@BOTH_WAYS
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


@BOTH_WAYS
async def test_retirement_that_breaks_a_case_is_undone(bench: Bench) -> None:
    rule = "On #keep it is true of cases 4, which look false."
    await seed(bench, 6, rule)
    bench.server.responder = Model(
        distil=lambda _: {"operations": [retire("G1", "")]}, judge=judge_by_rules(wrong=(4,))
    )
    report = await align(bench, [record(101, value=True)], guarded(bench))
    assert list(sources(await bench.guidelines())) == [rule]
    [broken] = report["replay"]["broken"]
    assert (broken["expected"], broken["got"]) == (True, False)
    assert rule in broken["guideline"]


@BOTH_WAYS
async def test_merge_that_breaks_a_case_is_undone(bench: Bench) -> None:
    rules = ["On #keep name it always.", "On #keep it is true of cases 4, which look false."]
    await seed(bench, 6, *rules)
    bench.server.responder = Model(
        distil=teaching().distil,
        compare=lambda _: {"duplicates": [[1, 2]], "contradictions": []},
        judge=judge_by_rules(wrong=(4,)),
    )
    given = [words(101, "On #b thank them."), words(102, "On #c greet them.")]
    report = await align(bench, given, guarded(bench, batch_size=1))
    assert len(asked(bench, COMPARE)) == 1
    assert {one.text for one in await bench.guidelines()} == {
        *rules,
        *(one["rationale"] for one in given),
    }
    assert len(report["replay"]["broken"]) == 1
    assert report["guidelines"]["retired"] == []


@BOTH_WAYS
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


@BOTH_WAYS
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


async def test_extra_calls_are_counted_exactly(bench: Bench) -> None:
    await seed(bench, 6)
    bench.server.chats.clear()
    bench.server.responder = teaching()
    report = await align(bench, [words(101, VAGUE, value=False), words(102, GOOD)], guarded(bench))
    extra = len(asked(bench, JUDGE))
    assert report["replay"]["chat_calls"] == extra
    assert report["cost"]["chat_calls"] == len(bench.server.chats) == extra + 1
    assert report["cost"]["texts_embedded"] == 2
    # No prompt is paid for twice.
    prompts = [str(chat.messages) for chat in bench.server.chats]
    assert len(set(prompts)) == len(prompts)


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


@BOTH_WAYS
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


@BOTH_WAYS
async def test_several_experts_on_a_seen_case_count_as_one_case(bench: Bench) -> None:
    await seed(bench, 4)
    more = [record(1, author=name, value=False, rationale=None) for name in ("bob", "carl")]
    bench.server.responder = Model(distil=lambda _: {"operations": []})
    await align(bench, more)
    bench.server.responder = teaching()
    given = [words(101, "On #b it is false of cases 1 2.", value=False)]
    report = await align(bench, given, guarded(bench))
    # Case 1 is false by its majority: the guideline puts it right, and breaks case 2.
    replay = report["replay"]
    assert (replay["cases"], replay["agreed_before"]) == (5, 3)
    assert len(replay["broken"]) == 1
    assert all(judged_case(chat) not in others_in(chat) for chat in asked(bench, JUDGE))


@BOTH_WAYS
async def test_case_that_a_guideline_puts_right_is_counted(bench: Bench) -> None:
    await seed(bench, 4)
    bench.server.responder = teaching()
    given = [words(101, "On #b it is false of cases 101.", value=False)]
    replay = (await align(bench, given, guarded(bench)))["replay"]
    assert (replay["cases"], replay["agreed_before"], replay["agree_after"]) == (5, 4, 4)
    assert (replay["newly_agree"], replay["broken"]) == (1, [])
