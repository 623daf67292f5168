"""The replay guard with `decide="evidence"`: seen cases are decided as the deployed judge would."""

from typing import Any

from memalign_graph import Example
from memalign_graph.io import AWAITING, BLOCKING, IO, run
from memalign_graph.nodes.judge import judge_again
from memalign_graph.runtime import Parts, Run, Step
from memalign_graph.settings import Judge as Settings
from tests.conftest import CRITERION, Bench
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


async def test_what_decides_nothing_breaks_nothing(bench: Bench) -> None:
    report = await taught(bench, decide="evidence")
    assert report["replay"]["cases"] == 12
    assert report["replay"]["agreed_before"] == 12
    assert report["replay"]["agree_after"] == 12
    assert report["replay"]["broken"] == []
    assert [one.text for one in await bench.guidelines()] == [TURNS]


async def test_by_the_verdict_the_same_rule_breaks_what_worked(bench: Bench) -> None:
    report = await taught(bench)
    assert report["replay"]["agreed_before"] < 12
    assert len(report["replay"]["broken"]) == 1
    assert await bench.guidelines() == []


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


async def seen(bench: Bench, example: Any) -> Any:
    """What is decided on a case in memory, with its episodes in the prompt and not in the vote."""
    access = bench.memory().access
    judge = Settings(criterion=CRITERION, model=bench.server.chat_model(), k=0, decide="evidence")

    def judged(io: IO) -> Any:
        parts = Parts(judge)
        step = Step(io, parts, Run(access.store), parts.defaults, access)
        case = Example.model_validate(example)
        return judge_again(step, case, guidelines=[], besides=frozenset())

    return (await judged(AWAITING) if bench.awaits else run(judged(BLOCKING))).value


async def test_a_case_has_no_vote_on_itself(bench: Bench) -> None:
    odd = {"inputs": "Case 96: quite another matter.", "outputs": "Nothing like the others."}
    bench.server.responder = model = Turned()
    shared: dict[str, Any] = {"use_episodes": False, "decide": "evidence"}
    await learn(bench, words(24), "cases", **shared)
    judge = bench.judge_graph(**shared)
    new = (await bench.invoke(judge, odd, "new"))["judgment"]["value"]
    # Its expert says what none of the others would have told.
    said = {**odd, "value": not new, "author": "ann"}
    await learn(bench, [said], "odd", **shared)
    known = (await bench.invoke(judge, odd, "known"))["judgment"]
    assert max(one["similarity"] for one in known["evidence"]["neighbours"]) == 1.0
    assert known["value"] is not new
    assert await seen(bench, odd) is new
    model.teaches = True
    given = [word(24, rationale="So it has to be turned round.")]
    report = await learn(
        bench, given, "rule", distill=True, guard="replay", replay_cases=40, **shared
    )
    assert report["replay"]["cases"] == 26
    assert report["replay"]["agreed_before"] == 25
