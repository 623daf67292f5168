"""The replay guard with `decide="evidence"`: seen cases are decided as the deployed judge would."""

from typing import Any

from tests.conftest import TWO_WAYS, Bench
from tests.integration_tests.evidence.judging_support import (
    Judge,
    learn,
    measurings,
    number_of,
    truth,
    verdicts,
    word,
    words,
)
from tests.loopback import ChatRequest

TURNS = "Turn it round."


class Turned:
    """A judge that a rule turns round: half of its verdicts are right before, and after."""

    def __init__(self) -> None:
        self.teaches = False

    def __call__(self, chat: ChatRequest) -> Any:
        rules = [{"action": "add", "guideline": "none", "text": TURNS, "feedback": ["F1"]}]

        def says(number: int) -> bool:
            right = number // 4 % 2 == (0 if TURNS in chat.text else 1)
            return truth(number) if right else not truth(number)

        operations = {"operations": rules if self.teaches else []}
        judge = Judge(
            value=says,
            belief=lambda number: 0.8 if says(number) else 0.2,
            distil=lambda _: operations,
        )
        return judge(chat)


async def taught(bench: Bench, **options: Any) -> Any:
    """Learn a rule that turns verdicts round, in a memory whose cases were judged."""
    bench.server.responder = model = Turned()
    shared = {"use_episodes": False, **options}
    await learn(bench, words(24), "cases", **shared)
    await learn(bench, [], "distilled", distill=True, **shared)
    model.teaches = True
    bench.server.chats.clear()
    given = [word(24, rationale="So it has to be turned round.")]
    return await learn(
        bench, given, "rule", distill=True, guard="replay", replay_cases=12, **shared
    )


@TWO_WAYS
async def test_what_decides_nothing_breaks_nothing(bench: Bench) -> None:
    report = await taught(bench, decide="evidence")
    assert report["replay"]["cases"] == 12
    assert report["replay"]["agreed_before"] == 12
    assert report["replay"]["agree_after"] == 12
    assert report["replay"]["broken"] == []
    assert [one.text for one in await bench.guidelines()] == [TURNS]


@TWO_WAYS
async def test_by_the_verdict_the_same_rule_breaks_what_worked(bench: Bench) -> None:
    report = await taught(bench)
    assert report["replay"]["agreed_before"] < 12
    assert [one["outcome"] for one in report["replay"]["broken"]] == ["dropped"]
    assert await bench.guidelines() == []


@TWO_WAYS
async def test_confidence_is_measured_where_it_is_weighed(bench: Bench) -> None:
    await taught(bench, confidence=True)
    assert {number_of(chat) for chat in measurings(bench)} == {24}
    again = await taught_anew(bench)
    assert again["replay"]["broken"] == []
    measured = [chat.text.rpartition("\n\nThis time")[0] for chat in measurings(bench)]
    assert len(set(measured)) == len(measured)
    assert len(measured) == len({chat.text for chat in verdicts(bench)})


async def taught_anew(bench: Bench) -> Any:
    """The same with the evidence, in a memory that has its cases already."""
    bench.server.chats.clear()
    given = [word(28, rationale="So it has to be turned round.")]
    return await learn(
        bench,
        given,
        "evidence",
        distill=True,
        guard="replay",
        replay_cases=12,
        use_episodes=False,
        confidence=True,
        decide="evidence",
    )


@TWO_WAYS
async def test_a_case_has_no_vote_on_itself(bench: Bench) -> None:
    # One case of a topic of its own: only it knows what its expert says.
    odd = {
        "inputs": "Case 99: quite another matter.",
        "outputs": "Nothing like the others at all.",
        "value": False,
        "author": "ann",
        "given_at": "2026-01-01T00:00:00+00:00",
    }
    bench.server.responder = Turned()
    shared = {"use_episodes": False, "decide": "evidence"}
    await learn(bench, [*words(24), odd], "cases", **shared)
    judged = bench.judge_graph(use_episodes=False, decide="evidence")
    deployed = await bench.invoke(judged, {key: odd[key] for key in ("inputs", "outputs")})
    assert {one["similarity"] for one in deployed["judgment"]["evidence"]["neighbours"]} >= {1.0}
    model = Turned()
    model.teaches = True
    bench.server.responder = model
    given = [word(24, rationale="So it has to be turned round.")]
    report = await learn(
        bench, given, "rule", distill=True, guard="replay", replay_cases=40, **shared
    )
    # 26 cases: of the odd one nobody else can tell, so that it agrees with its expert by chance.
    assert report["replay"]["cases"] == 26
    assert report["replay"]["agreed_before"] <= 25
