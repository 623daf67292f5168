"""The replay guard with conflicts, and with guidelines that lost a source."""

from typing import Any

from tests.conftest import Bench
from tests.integration_tests.alignment_replay_support import (
    guarded,
    judge_by_rules,
    seed,
    teaching,
    verdicts,
    words,
)
from tests.integration_tests.alignment_support import (
    BOTH_WAYS,
    Model,
    add,
    align,
    alignment,
    feedback_in,
    record,
    rules_by_topic,
    sources,
)
from tests.loopback import ChatRequest

ALWAYS, NEVER = "On #a always, for it is false of cases 3.", "On #a never do so at all."


@BOTH_WAYS
async def test_loser_of_a_conflict_is_not_blamed(bench: Bench) -> None:
    """Of two contradicting rules the older loses, so that it breaks nothing; another one does."""
    await seed(bench, 6)
    bad = "On #bad it is false of cases 3."
    bench.server.responder = teaching()
    given = [
        words(101, ALWAYS, given_at=record(1)["given_at"]),
        words(102, NEVER),
        words(103, bad),
    ]
    report = await align(bench, given, guarded(bench, batch_size=1))
    assert {one["guideline"] for one in report["replay"]["broken"]} == {bad}
    assert set(sources(await bench.guidelines())) == {NEVER}
    assert await verdicts(bench, [3]) == [True]


@BOTH_WAYS
async def test_dropped_winner_of_a_conflict_leaves_the_loser_standing(bench: Bench) -> None:
    old = "On #a always name it."
    await seed(bench, 6, old)
    new = "On #a never name it, for it is false of cases 3."
    bench.server.responder = teaching()
    given = [words(101, "On #b thank them."), words(102, new)]
    report = await align(bench, given, guarded(bench, batch_size=1))
    assert set(sources(await bench.guidelines())) == {old, "On #b thank them."}
    assert report["guidelines"]["retired"] == []


@BOTH_WAYS
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


@BOTH_WAYS
async def test_wording_that_breaks_a_case_is_not_asked_for_for_ever(bench: Bench) -> None:
    """A guideline lost a source; its new wording breaks a case, and it goes."""
    await seed(bench, 6)
    bench.server.responder = Model(distil=rules_by_topic, judge=judge_by_rules())
    both = [words(n, f"On #x, said by {n}, thank them.") for n in (101, 102)]
    await align(bench, both)
    [guideline] = await bench.guidelines()
    memory = bench.memory()
    first = guideline.episode_ids[0]
    await memory.aforget(first) if bench.awaits else memory.forget(first)

    def distil(chat: ChatRequest) -> Any:
        assert "said by 102" in next(iter(feedback_in(chat).values()))
        return {"operations": [add("On #x it is false of cases 3.")]}

    bench.server.responder = Model(distil=distil, judge=judge_by_rules())
    report = await align(bench, [], guarded(bench))
    assert len(report["replay"]["broken"]) == 1
    assert await bench.guidelines() == []
    again = await align(bench, [], guarded(bench), "u")
    assert again["cost"]["chat_calls"] == 0


@BOTH_WAYS
async def test_what_comes_back_with_a_dropped_wording_breaks_nothing(bench: Bench) -> None:
    """The guideline that goes had put another out, which broke a case, and now would again."""
    await seed(bench, 6)
    bench.server.responder = Model(distil=rules_by_topic, judge=judge_by_rules())
    loser = words(101, "On #x always, for it is false of cases 3.")
    await align(bench, [loser])
    both = [words(n, f"On #x never do so, said {n}.") for n in (102, 103)]
    await align(bench, [*both, words(104, "On #y thank them.")], alignment(bench, batch_size=2))
    [winner] = [one for one in await bench.guidelines() if "never" in one.text]
    memory = bench.memory()
    first = winner.episode_ids[0]
    await memory.aforget(first) if bench.awaits else memory.forget(first)
    bench.server.responder = Model(
        distil=lambda _: {"operations": [add("On #x it is false of cases 3.")]},
        judge=judge_by_rules(),
    )
    await align(bench, [], guarded(bench))
    assert sources(await bench.guidelines()) == {"On #y thank them.": 1}
    assert await verdicts(bench, [3]) == [True]
    assert (await align(bench, [], guarded(bench), "u"))["cost"]["chat_calls"] == 0
