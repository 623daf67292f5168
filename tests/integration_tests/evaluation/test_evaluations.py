"""`evaluate`, failures, progress, and calls from where one would make them."""

from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, StateGraph
from langgraph.store.memory import InMemoryStore
from typing_extensions import TypedDict

from memalign_graph.errors import InvalidInputError, MemAlignError
from memalign_graph.evaluation import Report, aevaluate, cross_validate
from tests.conftest import CRITERION
from tests.integration_tests.evaluation.support import (
    Caller,
    Model,
    asked,
    judged,
    judgings,
    perfect,
    plain,
    shown,
    word,
    words,
)
from tests.loopback import LoopbackServer, Together, answer, error, refusal

GIVEN = words(8)


async def test_everything_at_once(call: Caller, server: LoopbackServer) -> None:
    """What the parts find alone, and nothing is asked twice."""
    store = InMemoryStore()
    server.responder = Model(judge=lambda chat: judged(chat) % 2 > 0)
    report = await call(
        "evaluate", CRITERION, GIVEN, folds=2, learning_curve=True, sizes=[2], cache=store
    )
    assert isinstance(report, Report)
    assert report.learning_curve is not None
    assert [step.feedback for step in report.learning_curve.steps] == [0, 2, 6]
    assert len(report.guidelines) == 8
    assert len(report.credit) == 8
    assert {one.shown_for for one in report.credit} == {8}
    assert len(report.sources) == 8
    asked(server)
    evaluation = await call.cross_validate(CRITERION, GIVEN, folds=2, cache=store)
    curve = await call("learning_curve", CRITERION, GIVEN, sizes=[2], cache=store)
    assert asked(server) == (0, 0)
    assert plain(evaluation) == plain(report.evaluation)
    assert plain(curve) == plain(report.learning_curve)
    again = await call(
        "evaluate", CRITERION, GIVEN, folds=2, learning_curve=True, sizes=[2], cache=store
    )
    assert asked(server) == (0, 0)
    assert plain(again) == plain(report)


async def test_no_credit_no_curve(call: Caller, server: LoopbackServer) -> None:
    report = await call("evaluate", CRITERION, GIVEN, folds=2, credit_cases=0)
    assert report.credit == []
    assert report.learning_curve is None
    assert len(report.guidelines) == 8
    assert len(judgings(server)) == 16


async def test_told_cases_are_never_learned(call: Caller, server: LoopbackServer) -> None:
    test = [word(2), word(50)]
    report = await call("evaluate", CRITERION, GIVEN, test=test, learning_curve=True, sizes=[3])
    assert len(report.guidelines) == 7
    assert [step.feedback for step in report.learning_curve.steps] == [0, 3, 7]
    for chat in server.chats:
        assert not {2, 50} & shown(chat)
    # Credit, too, is given on what was learned alone.
    assert {one.shown_for for one in report.credit} == {7}


async def test_perfect_judge(call: Caller, server: LoopbackServer) -> None:
    server.responder = perfect(GIVEN)
    report = await call("evaluate", CRITERION, GIVEN, folds=2, learning_curve=True, sizes=[2])
    assert report.metric("aligned", "kappa").value == 1
    assert {one.worth for one in report.credit} == {"useless"}
    assert [step.flips for step in report.learning_curve.steps] == [[], [], []]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"credit_cases": -1}, "credit_cases: -1 is not"),
        ({"credit_cases": True}, "credit_cases: True is not"),
        ({"learning_curve": "yes"}, "learning_curve: 'yes' is neither"),
        ({"learning_curve": True, "sizes": [0]}, "sizes: 0 is not"),
        ({"folds": 20}, "folds: 20 folds need"),
        ({"resamples": "many"}, "resamples: 'many' is not"),
        ({"nonsense": 1}, "nonsense: is not a field"),
    ],
)
async def test_what_can_not_be_used(
    once: Caller, server: LoopbackServer, options: Any, says: str
) -> None:
    with pytest.raises(InvalidInputError, match=rf"^{says}"):
        await once("evaluate", CRITERION, GIVEN, **{"folds": 2, **options})
    assert asked(server) == (0, 0)


async def test_failures_are_counted_and_named(call: Caller, server: LoopbackServer) -> None:
    """Case 3 gets no verdict by the base judge, case 5 by neither."""

    def judge(chat: Any) -> Any:
        if judged(chat) == 5:
            return refusal("No.")
        return answer("I would say yes.") if judged(chat) == 3 and not shown(chat) else True

    server.responder = Model(judge=judge)
    found = await call.cross_validate(CRITERION, GIVEN, resamples=30)
    base, aligned = found.of("base"), found.of("aligned")
    assert (base.cases, base.failed, aligned.cases, aligned.failed) == (6, 2, 7, 1)
    assert base.confusion is not None
    assert sum(map(sum, base.confusion.counts)) == 6
    right = [one["value"] for n, one in enumerate(GIVEN) if n not in (3, 5)]
    assert base.metrics["agreement"].value == pytest.approx(sum(right) / 6)
    (compared,) = [
        one for one in found.comparisons if (one.judge, one.against) == ("aligned", "base")
    ]
    assert compared.cases == 6
    assert compared.differences["agreement"].value == 0
    told = [one for one in found.warnings if "no verdict" in one]
    assert told[0].startswith("base: 2 of 8 cases have no verdict")
    assert told[1].startswith("aligned: 1 of 8 cases have no verdict")
    failed = {case.example.inputs: set(case.failures) for case in found.cases if case.failures}
    assert failed == {GIVEN[3]["inputs"]: {"base"}, GIVEN[5]["inputs"]: {"base", "aligned"}}
    for case in found.cases:
        assert set(case.failures) | set(case.judgments) == {"base", "aligned"}
        assert set(case.failures) & set(case.judgments) == set()
    assert len(found.wrong("base")) == sum(not one for one in right)
    # Each was asked twice, and both times count.
    assert found.judging["base"].chat_calls == 8 + 2


async def test_judge_that_never_answers(call: Caller, server: LoopbackServer) -> None:
    server.responder = Model(judge=lambda _: answer("Well."))
    found = await call.cross_validate(CRITERION, GIVEN, resamples=20)
    for judge in ("base", "aligned"):
        assert (found.of(judge).cases, found.of(judge).failed) == (0, 8)
        assert {one.value for one in found.of(judge).metrics.values()} == {None}
    assert found.of("constant").cases == 8


async def test_answers_that_are_mended_when_asked_again(
    call: Caller, server: LoopbackServer
) -> None:
    server.responder = Model(
        judge=lambda chat: True if "can't be used" in chat.text else answer("Well.")
    )
    found = await call.cross_validate(CRITERION, GIVEN)
    assert found.of("base").failed == found.of("aligned").failed == 0
    assert found.judging["base"].chat_calls == 16
    assert found.warnings == []


async def test_dead_endpoint(call: Caller, server: LoopbackServer) -> None:
    server.responder = lambda _: error(500, "Down.", retry_after=0)
    with pytest.raises(MemAlignError, match=r"gpt-4.1-mini failed"):
        await call.cross_validate(CRITERION, GIVEN, model=server.chat_model(max_retries=0))


async def test_embeddings_that_fail(call: Caller, server: LoopbackServer) -> None:
    server.script_embeddings(*[error(401, "No key.")] * 50)
    with pytest.raises(MemAlignError, match="text-embedding-3-small failed"):
        await call.cross_validate(CRITERION, GIVEN)
    assert server.chats == []


@pytest.mark.parametrize("name", ["cross_validate", "ablate", "learning_curve", "evaluate"])
async def test_progress_ends_where_all_is_done(
    call: Caller, server: LoopbackServer, name: str
) -> None:
    told: list[tuple[int, int]] = []
    options: dict[str, Any] = {} if name == "learning_curve" else {"folds": 2}
    if name in ("learning_curve", "evaluate"):
        options["sizes"] = [2]
    if name == "evaluate":
        options["learning_curve"] = True
    await call(name, CRITERION, GIVEN, progress=lambda *one: told.append(one), **options)
    assert told[-1][0] == told[-1][1] > 0
    assert all(done <= of for done, of in told)
    assert told == sorted(told)
    assert {done for done, _ in told} == set(range(told[-1][1] + 1))


async def test_progress_function_that_fails(call: Caller, server: LoopbackServer) -> None:
    """Its error is told as it is, and stops the run."""

    def tell(done: int, _: int) -> None:
        if done == 3:
            raise RuntimeError("stop here")

    with pytest.raises(RuntimeError, match="stop here"):
        await call.cross_validate(CRITERION, GIVEN, progress=tell)


async def test_bar_leaves_nothing(
    call: Caller, server: LoopbackServer, capsys: pytest.CaptureFixture[str]
) -> None:
    await call.cross_validate(CRITERION, GIVEN, progress=True)
    shown_by_bar = capsys.readouterr()
    assert shown_by_bar.out == ""
    assert "step" in shown_by_bar.err
    # The last that is written blanks the line.
    assert "\n" not in shown_by_bar.err
    assert shown_by_bar.err.rstrip("\r").rpartition("\r")[2].strip() == ""
    await call.cross_validate(CRITERION, GIVEN, progress=False)
    assert capsys.readouterr() == ("", "")


async def test_bar_goes_also_when_it_fails(
    call: Caller, server: LoopbackServer, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(InvalidInputError):
        await call.cross_validate(CRITERION, [], progress=True)
    assert "\n" not in capsys.readouterr().err


async def test_many_side_by_side(call: Caller, server: LoopbackServer) -> None:
    server.responder = Together(5, server.responder, "judgment")
    await call.cross_validate(CRITERION, GIVEN, max_concurrency=5)
    assert server.peak_chats == 5


async def test_one_at_a_time(call: Caller, server: LoopbackServer) -> None:
    server.latency_s = 0.002
    await call("evaluate", CRITERION, GIVEN, folds=2, max_concurrency=1, batch_size=2)
    assert server.peak_chats == 1


async def test_blocking_call_inside_a_running_loop(server: LoopbackServer) -> None:
    """As in a notebook."""
    server.responder = Model()
    models: dict[str, Any] = {"model": server.chat_model(), "embeddings": server.embedder()}
    found = cross_validate(CRITERION, GIVEN, folds=2, resamples=0, progress=False, **models)
    assert len(found.cases) == 8


async def test_two_awaited_side_by_side(server: LoopbackServer) -> None:
    import asyncio

    server.responder = Model(judge=lambda chat: judged(chat) % 2 > 0)
    models: dict[str, Any] = {"model": server.chat_model(), "embeddings": server.embedder()}
    runs = [
        aevaluate(CRITERION, GIVEN, folds=2, resamples=0, progress=False, **models)
        for _ in range(2)
    ]
    one, other = await asyncio.gather(*runs)
    assert plain(one) == plain(other)


class State(TypedDict, total=False):
    agreement: float | None


async def inside(call: Caller, **options: Any) -> tuple[list[Any], Any]:
    """Cross-validate in a node of another graph, as an agent does that looks at its judge."""
    found: list[Any] = []

    async def measure(_: State) -> State:
        found.append(await call.cross_validate(CRITERION, GIVEN, folds=2))
        return {"agreement": found[0].metric("aligned", "agreement").value}

    builder: Any = StateGraph(State)
    builder.add_node("measure", measure)
    builder.add_edge(START, "measure")
    builder.add_edge("measure", END)
    graph = builder.compile(**options)
    config: Any = {"configurable": {"thread_id": "t"}}
    modes = ["messages", "updates", "custom"]
    return [one async for one in graph.astream({}, config, stream_mode=modes)], found[0]


async def test_inside_a_graph_with_a_checkpointer(call: Caller, server: LoopbackServer) -> None:
    """The evaluation's own graphs leave no trace, neither in its stream nor in its threads."""
    saver = InMemorySaver()
    events, _ = await inside(call, checkpointer=saver)
    assert events == [("updates", {"measure": {"agreement": 5 / 8}})]
    spaces = {one.config["configurable"]["checkpoint_ns"] for one in saver.list(None)}
    assert spaces == {""}


async def test_inside_a_graph_with_a_store(call: Caller, server: LoopbackServer) -> None:
    """Nothing is learned into the agent's own memory, and nothing is judged with it."""
    store = InMemoryStore()
    _, found = await inside(call, store=store)
    assert store.list_namespaces() == []
    for chat in judgings(server):
        assert judged(chat) not in shown(chat)
    assert [one.episodes for one in found.memories] == [4, 4]
    alone = await call.cross_validate(CRITERION, GIVEN, folds=2)
    assert plain(found) == plain(alone)


async def test_whole_evaluation_as_json(call: Caller, server: LoopbackServer) -> None:
    from memalign_graph.evaluation import Evaluation

    found = await call.cross_validate(CRITERION, GIVEN, resamples=20)
    assert Evaluation.model_validate(found.to_json()) == found
    assert Evaluation.model_validate_json(found.model_dump_json()) == found
    with pytest.raises(KeyError, match="was not measured"):
        found.metric("nobody", "kappa")
    assert found.metric("base", "no such metric").value is None
