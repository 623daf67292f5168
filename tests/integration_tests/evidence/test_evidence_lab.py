"""The evaluation lab with `decide="evidence"`: learned, judged and compared as it is deployed."""

from collections import Counter
from typing import Any

import pytest

from memalign_graph import InvalidInputError, JudgeMemory
from memalign_graph import Judge as LabJudge
from memalign_graph.evaluation import ablations
from memalign_graph.evaluation.results import ALIGNED, BASE
from tests.conftest import CRITERION
from tests.integration_tests.evaluation.support import Caller, answers, memory_of, remember
from tests.integration_tests.evidence.judging_support import (
    Judge,
    asks_for_value,
    case,
    earlier,
    number_of,
    truth,
    word,
    words,
)
from tests.loopback import ChatRequest, LoopbackServer

VERDICT = "aligned verdict"
GIVEN = words(32)
SHARED: dict[str, Any] = {"decide": "evidence", "use_guidelines": False, "k": 3}


def wrong_half(number: int) -> bool:
    """A judge as good as a coin: right on every other case of each topic."""
    return truth(number) if number // 4 % 2 else not truth(number)


@pytest.fixture(params=["sync"])
def lab(request: pytest.FixtureRequest, server: LoopbackServer) -> Caller:
    """Evaluations called both ways."""
    server.responder = Judge(value=wrong_half)
    return Caller(server, awaits=request.param == "async", defaults=dict(SHARED))


def asked(server: LoopbackServer) -> list[ChatRequest]:
    return [chat for chat in server.chats if chat.schema_name == "judgment"]


async def test_base_verdict_and_evidence_stand_beside_each_other(
    lab: Caller, server: LoopbackServer
) -> None:
    found = await lab.evaluate(CRITERION, GIVEN, folds=4, resamples=50)
    judges = [one.judge for one in found.scores]
    assert judges == ["majority", "kNN", "evidence", BASE, VERDICT, ALIGNED]
    assert found.metric(BASE, "agreement").value == 0.5
    assert found.metric(VERDICT, "agreement").value == 0.5
    assert found.metric(ALIGNED, "agreement").value == 1.0
    pairs = {(one.judge, one.against): one for one in found.comparisons}
    assert pairs[ALIGNED, VERDICT].differences["agreement"].value == 0.5
    assert pairs[ALIGNED, VERDICT].is_ahead("agreement") is True
    assert pairs[VERDICT, BASE].differences["agreement"].value == 0
    for one in found.cases:
        said, base = one.judgments[ALIGNED], one.judgments[BASE]
        assert said.evidence is not None
        assert said.evidence.decided_by == "evidence"
        assert one.value_of(VERDICT) == said.evidence.verdict
        assert one.value_of(ALIGNED) == said.value
        assert base.evidence is None
    assert "aligned: the evidence decided 32 of 32 cases." in found.warnings
    # Each case once by the base judge, once by the aligned one, and once in each memory it is in.
    assert answers(found, stage="learn") == 4 * (24 + 1)
    assert [answers(found, stage="judge", judge=name) for name in (BASE, ALIGNED)] == [32, 32]
    server.chats.clear()
    plain = await lab.evaluate(CRITERION, GIVEN, folds=4, decide="verdict")
    assert [one.judge for one in plain.scores] == ["majority", "kNN", "evidence", BASE, ALIGNED]


async def test_no_fold_sees_its_own_cases(lab: Caller, server: LoopbackServer) -> None:
    given = [*words(12, rationale="Seen by ann."), *words(4, author="bob")]
    await lab.evaluate(CRITERION, given, folds=3)
    for chat in asked(server):
        assert number_of(chat) not in earlier(chat)
    # Each case is judged as if it were new in two folds of three, and when all is learned.
    counts = Counter(number_of(chat) for chat in asked(server) if earlier(chat))
    assert set(counts.values()) <= {3, 4}


async def test_how_sure_it_is_is_scored(lab: Caller, server: LoopbackServer) -> None:
    server.responder = Judge(
        value=wrong_half, belief=lambda number: 0.9 if wrong_half(number) else 0.1
    )
    found = await lab.evaluate(CRITERION, GIVEN, folds=4, confidence=True)
    for judge in (BASE, VERDICT, ALIGNED):
        assert found.metric(judge, "auc").value is not None
        assert found.metric(judge, "ece").value is not None
    assert found.metric(VERDICT, "auc").value == pytest.approx(0.5)
    assert found.metric(ALIGNED, "auc").value == 1.0
    assert answers(found, stage="learn") == 4 * (2 * 24 + 1)
    assert [answers(found, stage="judge", judge=name) for name in (BASE, ALIGNED)] == [64, 64]


async def test_samples_are_not_one_kept_answer(lab: Caller, server: LoopbackServer) -> None:
    seen: Counter[str] = Counter()

    def turns(chat: ChatRequest) -> Any:
        judge = Judge(value=lambda _: seen[chat.text] % 2 == 0)
        reply: Any = judge(chat)
        seen[chat.text] += 1
        return {"value": True} if asks_for_value(chat) else reply

    server.responder = turns
    found = await lab.evaluate(
        CRITERION, words(8), folds=2, confidence=True, samples=3, decide="verdict"
    )
    shares = [one.judgments[ALIGNED].probabilities for one in found.cases]
    assert shares
    assert all(one is not None and 0 < one["true"] < 1 for one in shares)


async def test_a_kept_run_costs_nothing(lab: Caller, server: LoopbackServer) -> None:
    from langgraph.store.memory import InMemoryStore

    cache = InMemoryStore()
    options = {"cache": cache, "folds": 2, "confidence": True}
    first = await lab.evaluate(CRITERION, words(10), **options)
    server.chats.clear()
    again = await lab.evaluate(CRITERION, words(10), **options)
    assert server.chats == []
    assert [one.value_of(ALIGNED) for one in again.cases] == [
        one.value_of(ALIGNED) for one in first.cases
    ]


async def test_evidence_needs_neither_guidelines_nor_episodes_in_the_prompt(
    lab: Caller, server: LoopbackServer
) -> None:
    found = await lab.evaluate(CRITERION, GIVEN, folds=4, use_episodes=False)
    assert found.metric(ALIGNED, "agreement").value == 1.0
    assert not any(earlier(chat) for chat in asked(server))


async def test_the_whole_report(lab: Caller, server: LoopbackServer) -> None:
    report = await lab(
        "evaluate", CRITERION, GIVEN, test=[word(number) for number in range(40, 48)], folds=2
    )
    assert report.metric(ALIGNED, "agreement").value == 1.0
    text = report.to_markdown()
    assert "the evidence decided 8 of 8 cases" in text
    assert VERDICT in text
    assert VERDICT in report.to_html()


async def test_a_learning_curve_weighs_what_there_is(lab: Caller, server: LoopbackServer) -> None:
    test = [word(number) for number in range(40, 48)]
    curve = await lab("learning_curve", CRITERION, words(24), test=test, sizes=[4])
    agreement = [one.unseen.metrics["agreement"].value for one in curve.steps]
    assert [one.feedback for one in curve.steps] == [0, 4, 24]
    assert agreement[0] == 0.5
    assert agreement[-1] == 1.0
    assert answers(curve, purpose="distil") == 2


async def test_a_judge_without_any_memory_is_refused(lab: Caller, server: LoopbackServer) -> None:
    options = {"use_guidelines": False, "use_episodes": False, "decide": "verdict"}
    with pytest.raises(InvalidInputError, match=r"^use_episodes: a judge without guidelines and"):
        await lab.evaluate(CRITERION, GIVEN, **options)
    assert server.chats == []


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"decide": "votes"}, "decide: 'votes' is not known"),
        ({"confidence": 1}, "confidence: 1 is neither"),
        ({"samples": 2}, "samples: they measure the confidence"),
        ({"use_guidelines": "no"}, "use_guidelines: 'no' is neither"),
    ],
)
async def test_what_can_not_be_used(
    lab: Caller, server: LoopbackServer, options: dict[str, Any], says: str
) -> None:
    with pytest.raises(InvalidInputError, match=f"^{says}"):
        await lab.evaluate(CRITERION, GIVEN, **options)
    assert server.chats == []


async def test_an_ablation_by_evidence(lab: Caller, server: LoopbackServer) -> None:
    judge = LabJudge(criterion=CRITERION, **lab.models(), decide="evidence", k=3)
    lab.defaults = {}
    found = await lab.evaluate(CRITERION, GIVEN, folds=2, judges=ablations(judge))
    assert found.metric(BASE, "agreement").value == 0.5
    for name in ("semantic only", "episodic only", ALIGNED, "labels only"):
        assert found.metric(name, "agreement").value == 1.0


def learned(server: LoopbackServer, count: int) -> JudgeMemory:
    """A memory whose cases are judged."""
    from memalign_graph import create_alignment_graph

    memory = memory_of(server)
    remember(memory, *words(count))
    graph = create_alignment_graph(
        CRITERION,
        model=server.chat_model(),
        embeddings=server.embedder(),
        judge_cases=True,
        distill=False,
    ).compile(store=memory.access.store)
    graph.invoke({"feedback": []})
    server.chats.clear()
    return memory


async def test_a_guideline_that_turns_verdicts_turns_no_decision(
    lab: Caller, server: LoopbackServer
) -> None:
    memory = learned(server, 24)
    version = memory.version()
    memory.add_guideline("Turn it round.")
    plain = server.responder

    def turned(chat: ChatRequest) -> Any:
        if "Turn it round." in chat.text:
            return Judge(value=lambda number: not wrong_half(number))(chat)
        return plain(chat)

    server.responder = turned
    options = {"use_guidelines": True, "k": 0}
    flips = await lab("flips", memory, since=version, **options, decide="verdict")
    assert {number for flip in flips for number in [_number(flip.example)]} == {
        number for number in range(24) if wrong_half(number) == truth(number)
    }
    assert await lab("flips", memory, since=version, **options) == []
    [credit] = await lab("guideline_credit", memory, **options, decide="verdict")
    assert len(credit.changed) == 20
    [credit] = await lab("guideline_credit", memory, **options)
    assert (credit.shown_for, credit.changed) == (20, [])


def _number(example: Any) -> int:
    return next(number for number in range(24) if case(number)["inputs"] == example.inputs)
