"""Learning curves of models that follow their prompts."""

from typing import Any

from langgraph.store.memory import InMemoryStore

from tests.conftest import CRITERION, judgings
from tests.integration_tests.alignment_model import few_shot_cases_in, judged_case
from tests.integration_tests.evaluation.support import (
    Caller,
    Model,
    asked,
    nothing_to_learn,
    plain,
    record,
    shown,
)
from tests.loopback import ChatRequest, LoopbackServer

TRUE = [record(number, values=(True,)) for number in range(8)]


async def test_learning_curve_of_a_judge_that_learns(call: Caller, server: LoopbackServer) -> None:
    """The judge is wrong until the prompt has episodes, and right on seen cases immediately."""

    def judge(chat: ChatRequest) -> Any:
        return len(few_shot_cases_in(chat)) > 1 or judged_case(chat) in shown(chat)

    server.responder = Model(judge=judge, distil=nothing_to_learn)
    test = [record(number, values=(True,)) for number in (50, 51, 52)]
    curve = await call("learning_curve", CRITERION, TRUE, test=test, sizes=[1, 4, 99])
    assert [step.feedback for step in curve.steps] == [0, 1, 4, 8]
    assert curve.test_cases == 3
    unseen = [step.unseen.metrics["agreement"].value for step in curve.steps]
    assert unseen == [0, 0, 1, 1]
    seen = [step.seen and step.seen.metrics["agreement"].value for step in curve.steps]
    assert seen == [None, 1, 1, 1]
    assert [step.seen.cases if step.seen else 0 for step in curve.steps] == [0, 1, 4, 8]
    for chat in judgings(server):
        assert not shown(chat) & {50, 51, 52}


async def test_last_step_of_the_curve_is_the_aligned_judge(
    call: Caller, server: LoopbackServer
) -> None:
    """Its evidence decides, also if no single step learns from five cases."""
    server.responder = Model(judge=lambda _: False, distil=nothing_to_learn)
    kinds = ["apple", "apple", "pear"] * 7
    fruit = [
        record(n, inputs=f"{kind} {n}", outputs=f"{kind} {kind}", value=kind == "apple")
        for n, kind in enumerate(kinds)
    ]
    options: dict[str, Any] = {"learning_curve": True, "sizes": [4, 8]}
    report = await call.evaluate(CRITERION, fruit[:12], test=fruit[12:], **options)
    assert report.metric("aligned", "agreement").value == 1
    assert report.metric("base", "agreement").value == 1 / 3
    assert report.curve is not None
    assert report.curve.steps[-1].unseen.metrics == report.of("aligned").metrics


async def test_learning_curve_learns_in_random_order(call: Caller, server: LoopbackServer) -> None:
    """Also with given test cases, and in `evaluate` as in `learning_curve`."""
    firsts = set()
    for seed in range(2):
        asked(server)
        await call("learning_curve", CRITERION, TRUE, test=[record(70)], sizes=[2], seed=seed)
        distilled = next(chat for chat in server.chats if chat.schema_name != "judgment")
        firsts.add(frozenset(shown(distilled)))
        store = InMemoryStore()
        options: dict[str, Any] = {"test": [record(70)], "sizes": [2], "seed": seed}
        report = await call(
            "evaluate", CRITERION, TRUE, **options, learning_curve=True, cache=store
        )
        asked(server)
        curve = await call("learning_curve", CRITERION, TRUE, **options, cache=store)
        assert asked(server) == (0, 0)
        assert plain(report.curve) == plain(curve)
    assert len(firsts) > 1
