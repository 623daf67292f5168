"""The replay guard and the evaluation lab with `decide="evidence"`: measured as it is deployed."""

from typing import Any

import pytest

from memalign_graph.evaluation.report import ALIGNED, BASE
from tests.conftest import CRITERION, Bench, judgings
from tests.integration_tests.evaluation.support import Caller, answers, memory_of, remember
from tests.integration_tests.evidence.judging_support import (
    Judge,
    case,
    earlier,
    learn,
    measurings,
    number_of,
    truth,
    word,
    words,
)
from tests.loopback import ChatRequest, LoopbackServer

TURNS = "Turn it round."
VERDICT = "aligned verdict"
FEEDBACK = words(32)
JUDGED = {"criterion": CRITERION.name, "example_id": "", "rationale": "", "memory_version": ""}
JUDGED["model"] = "gpt-4.1-mini"


@pytest.fixture(autouse=True)
def _nothing_is_unlike(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that no case is by chance less like the others than they are like each other."""
    monkeypatch.setattr("memalign_graph.evidence.evidence_model._NOVELTY_QUANTILE", 0.0)


def wrong_half(number: int) -> bool:
    """A judge as good as a coin: right on every other case of each topic."""
    return truth(number) if number // 4 % 2 else not truth(number)


class Turned:
    """A judge that a rule turns round: half of its verdicts are right before, and after."""

    def __init__(self) -> None:
        self.teaches = False

    def __call__(self, chat: ChatRequest) -> Any:
        rules = [{"action": "add", "guideline": "none", "text": TURNS, "feedback": ["F1"]}]

        def says(number: int) -> bool:
            return wrong_half(number) != (TURNS in chat.text)

        return Judge(
            value=says,
            belief=lambda number: 0.8 if says(number) else 0.2,
            distil=lambda _: {"operations": rules if self.teaches else []},
        )(chat)


async def taught(bench: Bench, *earlier: Any, **options: Any) -> Any:
    """Learn a rule that turns verdicts round, in a memory whose cases were judged."""
    bench.server.responder = model = Turned()
    shared = {"use_episodes": False, "confidence": True, **options}
    await learn(bench, [*words(24), *earlier], "cases", **shared)
    await learn(bench, [], "distilled", distill=True, **shared)
    model.teaches = True
    bench.server.chats.clear()
    feedback = [word(24, rationale="So it has to be turned round.")]
    guarded = {"distill": True, "guard": "replay", "replay_cases": 40, **shared}
    return (await learn(bench, feedback, "rule", **guarded))["replay"]


async def test_what_decides_nothing_breaks_nothing(bench: Bench) -> None:
    replay = await taught(bench, decide="evidence")
    assert (replay["cases"], replay["agreed_before"], replay["agree_after"]) == (25, 25, 25)
    assert replay["broken"] == []
    assert [guideline.text for guideline in await bench.guidelines()] == [TURNS]
    measured = [chat.text.rpartition("\n\nThis time")[0] for chat in measurings(bench)]
    assert len(set(measured)) == len(measured)
    assert len(measured) == len({chat.text for chat in judgings(bench.server)})


async def test_a_case_has_no_vote_on_itself(bench: Bench) -> None:
    odd = {"inputs": "Case 96: quite another matter.", "outputs": "Nothing like the others."}
    # What the others tell of it is not what its expert says; with its own vote it would be.
    replay = await taught(bench, {**odd, "value": True, "author": "ann"}, decide="evidence")
    assert (replay["cases"], replay["agreed_before"]) == (26, 25)
    judge = bench.judge_graph(use_episodes=False, decide="evidence")
    assert (await bench.invoke(judge, odd, "known"))["judgment"]["value"] is True


@pytest.fixture
def lab(server: LoopbackServer) -> Caller:
    belief = {True: 0.9, False: 0.1}
    server.responder = Judge(value=wrong_half, belief=lambda number: belief[wrong_half(number)])
    shared = {"decide": "evidence", "use_guidelines": False, "k": 3}
    return Caller(server, defaults=shared)


async def test_base_verdict_and_evidence_are_reported(lab: Caller, server: LoopbackServer) -> None:
    report = await lab.evaluate(CRITERION, FEEDBACK, folds=4, resamples=50, confidence=True)
    judges = [scores.judge for scores in report.scores]
    assert judges == ["majority", "kNN", "evidence", BASE, VERDICT, ALIGNED]
    agreement = [report.metric(name, "agreement").value for name in (BASE, VERDICT, ALIGNED)]
    assert agreement == [0.5, 0.5, 1.0]
    assert report.metric(VERDICT, "auc").value == pytest.approx(0.5)
    assert report.metric(ALIGNED, "auc").value == 1.0
    pairs = {(pair.judge, pair.against): pair for pair in report.comparisons}
    assert pairs[ALIGNED, VERDICT].is_ahead("agreement") is True
    # No fold sees its own cases.
    assert not any(number_of(chat) in earlier(chat) for chat in judgings(server))
    for judged in report.cases:
        judgment = judged.judgments[ALIGNED]
        assert judgment.evidence is not None
        assert judgment.evidence.decided_by == "evidence"
        assert judged.value_of(VERDICT) == judgment.evidence.verdict
        assert judged.value_of(ALIGNED) == judgment.value
        assert judged.judgments[BASE].evidence is None
    assert "aligned: the evidence decided 32 of 32 cases." in report.warnings
    # Each case once by the base judge, once by the aligned one, and once in each memory it is in;
    # and as often for the value alone.
    assert answers(report, stage="learn") == 4 * (2 * 24 + 1)
    assert [answers(report, stage="judge", judge=name) for name in (BASE, ALIGNED)] == [64, 64]


async def test_the_default_weighs_evidence_against_verdicts(lab: Caller) -> None:
    report = await lab.evaluate(CRITERION, FEEDBACK, folds=4, resamples=50, decide="auto")
    assert [scores.judge for scores in report.scores][-3:] == [BASE, VERDICT, ALIGNED]
    assert "aligned: the evidence decided 32 of 32 cases." in report.warnings
    assert answers(report, stage="learn") >= 4 * (24 + 1)
    # Fewer than five cases weigh nothing: each memory distils, and judges no case.
    report = await lab.evaluate(CRITERION, FEEDBACK[:6], folds=3, resamples=50, decide="auto")
    assert [scores.judge for scores in report.scores][-2:] == [BASE, ALIGNED]
    assert answers(report, stage="learn") == 3
    feedback = words(32, judgment={**JUDGED, "value": True})
    report = await lab.evaluate(CRITERION, feedback, folds=4, resamples=50, decide="auto")
    assert [scores.judge for scores in report.scores][-3:] == [BASE, VERDICT, ALIGNED]
    assert report.metric(ALIGNED, "agreement").value == 1.0
    assert "aligned: the evidence decided 32 of 32 cases." in report.warnings


async def test_the_evidence_alone_knows_no_verdicts(lab: Caller) -> None:
    """Beside a judge that is always right it would decide nothing."""
    feedback = [word(number, judgment={**JUDGED, "value": truth(number)}) for number in range(32)]
    report = await lab.evaluate(CRITERION, feedback, folds=4, decide="verdict")
    assert report.metric("evidence", "agreement").value == 1


async def test_a_guideline_changes_no_decision(lab: Caller, server: LoopbackServer) -> None:
    memory = memory_of(server)
    remember(memory, *words(24))
    bench = Bench(server, memory.access.store, None, awaits=False)  # type: ignore[arg-type] # no thread
    server.responder = Turned()
    await learn(bench, [], None)
    version = memory.version()
    memory.add_guideline(TURNS)
    options = {"use_guidelines": True, "k": 0}
    flips = await lab("flips", memory, since=version, **options, decide="verdict")
    numbers = {case(number)["inputs"]: number for number in range(24)}
    assert {numbers[flip.example.inputs] for flip in flips} == {
        number for number in range(24) if wrong_half(number) == truth(number)
    }
    assert await lab("flips", memory, since=version, **options) == []
