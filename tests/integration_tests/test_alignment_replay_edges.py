"""The replay guard where it is hard: episodes that turn a verdict, conflicts, scales, failures."""

from typing import Any

import pytest

from memalign_graph import Boolean, Categorical, ChatModelError, Criterion, Numeric
from tests.conftest import Bench
from tests.integration_tests.alignment_replay_support import (
    guarded,
    judge_by_rules,
    judged_case,
    others_in,
    seed,
    teaching,
    words,
)
from tests.integration_tests.alignment_support import (
    BOTH_WAYS,
    DISTIL,
    JUDGE,
    Model,
    align,
    asked,
    record,
    rules_in,
    sources,
    version,
)
from tests.loopback import ChatRequest, error

HARMLESS = "On #good thank them for their patience."


def turned_by(episode: int, case: int, rules: Any = None) -> Any:
    """A judge who is misled on one case by an earlier case in the prompt."""
    judge = rules or judge_by_rules()

    def misled(chat: ChatRequest) -> Any:
        return judge(chat) and not (judged_case(chat) == case and episode in others_in(chat))

    return misled


@BOTH_WAYS
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


@BOTH_WAYS
async def test_verdict_turned_by_episodes_is_told_without_any_guideline_too(bench: Bench) -> None:
    await seed(bench, 6)
    bench.server.responder = Model(distil=lambda _: {"operations": []}, judge=turned_by(101, 2))
    report = await align(bench, [record(101, value=True)], guarded(bench, k=20))
    replay = report["replay"]
    assert len(replay["turned_by_episodes"]) == 1
    assert (replay["agreed_before"], replay["agree_after"]) == (7, 6)


@BOTH_WAYS
async def test_numbers_are_true_where_all_guidelines_are_dropped(bench: Bench) -> None:
    """The only guideline breaks case 1, and is what keeps case 2 right against a new episode."""
    await seed(bench, 6)
    rule = "On #both it is false of cases 1. So it is true of cases 2."
    bench.server.responder = teaching(
        judge=lambda chat: (
            judge_by_rules()(chat) if rule in rules_in(chat) else turned_by(101, 2)(chat)
        ),
    )
    report = await align(bench, [words(101, rule)], guarded(bench, k=20))
    assert await bench.guidelines() == []
    replay = report["replay"]
    assert len(replay["broken"]) == 1
    assert (replay["agreed_before"], replay["agree_after"]) == (7, 6)
    assert len(replay["turned_by_episodes"]) == 1


@BOTH_WAYS
async def test_case_turned_by_episodes_keeps_no_bad_guideline_in(bench: Bench) -> None:
    await seed(bench, 6)
    bad = "On #bad it is false of cases 3."
    bench.server.responder = teaching(judge=turned_by(101, 2))
    given = [words(101, HARMLESS), words(102, bad)]
    report = await align(bench, given, guarded(bench, k=20))
    assert sources(await bench.guidelines()) == {HARMLESS: 1}
    assert [one["guideline"] for one in report["replay"]["broken"]] == [bad]
    assert len(report["replay"]["turned_by_episodes"]) == 1


def numeric(*, integer: bool) -> Criterion:
    scale = Numeric(minimum=0, maximum=10, integer=integer)
    return Criterion(name="grade", instructions="How good is the reply?", scale=scale)


@BOTH_WAYS
@pytest.mark.parametrize(
    ("integer", "got", "breaks"),
    [(True, 7, True), (True, 8, False), (False, 7.1, False), (False, 6.9, True)],
)
async def test_values_of_numeric_scales(
    bench: Bench,
    integer: bool,  # noqa: FBT001
    got: float,
    breaks: bool,  # noqa: FBT001
) -> None:
    """On a continuous scale a tenth of its range is no disagreement."""
    criterion = numeric(integer=integer)
    await seed(bench, 5, criterion=criterion, value=8)
    bench.server.responder = teaching(judge=judge_by_rules(right=8, otherwise=got))
    given = [words(101, "On #n it is false of cases 3.", value=8)]
    report = await align(bench, given, guarded(bench, criterion))
    found = [(case["expected"], case["got"]) for case in report["replay"]["broken"]]
    assert found == ([(8, got)] if breaks else [])


@BOTH_WAYS
@pytest.mark.parametrize("value", ["good", True, 7.5])
async def test_values_of_an_earlier_scale_are_no_cases(bench: Bench, value: Any) -> None:
    """The scale was changed since: what experts said by the old one can't be compared."""
    before: Any = {
        "good": Categorical(choices=("good", "bad")),
        True: Boolean(),
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


@BOTH_WAYS
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


@BOTH_WAYS
async def test_judge_without_episodes_or_guidelines(bench: Bench) -> None:
    await seed(bench, 6)
    bench.server.responder = teaching()
    bad = words(101, "On #bad it is false of cases 3.")
    report = await align(bench, [bad], guarded(bench, use_episodes=False))
    assert len(report["replay"]["broken"]) == 1
    assert all(others_in(chat) == set() for chat in asked(bench, JUDGE))
    bench.server.chats.clear()
    bad = words(102, "On #worse it is false of cases 3.")
    report = await align(bench, [bad], guarded(bench, use_guidelines=False), "u")
    assert report["replay"]["broken"] == []
    assert all(rules_in(chat) == [] for chat in asked(bench, JUDGE))


@BOTH_WAYS
async def test_judge_and_distiller_are_two_models(bench: Bench) -> None:
    await seed(bench, 4)
    bench.server.responder = teaching()
    graph = guarded(bench, distill_model=bench.server.chat_model(model="gpt-big"))
    given = [words(101, "On #v it is false of cases 3 101.", value=False)]
    await align(bench, given, graph)
    assert {chat.model for chat in asked(bench, JUDGE)} == {"gpt-4.1-mini"}
    assert {chat.model for chat in asked(bench, DISTIL)} == {"gpt-big"}


@BOTH_WAYS
async def test_same_run_judges_the_same_cases_again(bench: Bench) -> None:
    """Which cases are a sample depends on the memory alone: a run made again finds its answers."""
    await seed(bench, 30)
    model = bench.server.chat_model(max_retries=0)
    down = error(500, retry_after=0)
    right = teaching()
    asked_for: list[set[int]] = []
    for _ in range(2):
        bench.server.chats.clear()
        bench.server.responder = lambda chat: down if chat.schema_name == JUDGE else right(chat)
        with pytest.raises(ChatModelError):
            await align(bench, [words(101, HARMLESS)], guarded(bench, model=model, replay_cases=8))
        asked_for.append({judged_case(chat) for chat in asked(bench, JUDGE)})
    bench.server.responder = right
    bench.server.chats.clear()
    graph = guarded(bench, model=model, replay_cases=8)
    report = await align(bench, [words(101, HARMLESS)], graph)
    cases = {judged_case(chat) for chat in asked(bench, JUDGE)}
    assert asked_for[0] | asked_for[1] <= cases
    assert report["replay"]["cases"] == len(cases) == 8
