"""An evaluator called as openevals' own are, and what it says of what it can't judge."""

import inspect
import uuid
from datetime import UTC, datetime
from functools import partial
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.runnables import RunnableLambda
from langgraph.graph import END, START, MessagesState, StateGraph
from langsmith.evaluation.evaluator import comparison_evaluator
from langsmith.schemas import Run
from openevals.llm import create_async_llm_as_judge, create_llm_as_judge

from memalign_graph import (
    Criterion,
    InvalidInputError,
    Pairwise,
    create_judge_graph,
    create_panel_graph,
)
from memalign_graph.integrations import (
    as_async_evaluator,
    as_comparative_evaluator,
    as_evaluator,
)
from tests.conftest import CASE, CRITERION, Bench
from tests.loopback import Rule

BETTER = Criterion(name="better", instructions="Which is better?", scale=Pairwise())


async def call(bench: Bench, graph: Any, options: Any = None, **given: Any) -> Any:
    if bench.awaits:
        return await as_async_evaluator(graph, **(options or {}))(**given)
    return as_evaluator(graph, **(options or {}))(**given)


async def test_it_answers_in_the_shape_of_openevals(bench: Bench) -> None:
    ours = await call(bench, bench.judge_graph(), **CASE)
    bench.server.script('{"reasoning": "Fine.", "score": true}')
    options: Any = {"prompt": "Is it kind? {outputs}", "judge": bench.server.chat_model()}
    given: Any = {"outputs": CASE["outputs"]}
    if bench.awaits:
        theirs: Any = await create_async_llm_as_judge(**options)(**given)
    else:
        theirs = create_llm_as_judge(**options)(**given)
    assert set(theirs) <= set(ours)
    assert {name: type(ours[name]) for name in ("key", "score", "comment")} == {
        name: type(theirs[name]) for name in ("key", "score", "comment")
    }


def test_its_signature_is_the_one_that_langsmith_looks_for(bench: Bench) -> None:
    evaluator, awaited = (
        make(bench.judge_graph(), key="kind") for make in (as_evaluator, as_async_evaluator)
    )
    for one in (evaluator, awaited):
        names = list(inspect.signature(one).parameters)
        assert names == ["inputs", "outputs", "reference_outputs", "kwargs"]
        assert getattr(one, "__name__", None) == "kind"
    assert inspect.iscoroutinefunction(awaited)
    assert not inspect.iscoroutinefunction(evaluator)


async def test_what_it_does_not_use_is_named(bench: Bench) -> None:
    result = await call(bench, bench.judge_graph(), **CASE, rubric="strict", attachments={})
    assert result["metadata"]["unused"] == ["attachments", "rubric"]


async def test_a_trajectory_is_judged(bench: Bench) -> None:
    steps = [HumanMessage("Where is it?"), AIMessage("On its way.", id="m1")]
    result = await call(bench, bench.judge_graph(), inputs="Where is it?", outputs=steps)
    assert result["score"] is True
    assert '"content": "On its way."' in bench.server.chats[0].text


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"outputs": "x"}, "inputs"),
        ({"inputs": "x", "outputs": {}}, "outputs"),
        ({"inputs": "x", "outputs": {"output": None}}, "outputs"),
        ({"inputs": "x", "outputs": ""}, "outputs"),
        ({"inputs": "x", "outputs": {"at": object()}}, "outputs"),
        ({"inputs": "x", "outputs": float("nan")}, "outputs"),
    ],
    ids=["no-inputs", "empty", "failed-target", "blank", "no-json", "nan"],
)
async def test_what_can_t_be_judged_is_one_sentence(
    bench: Bench, given: dict[str, Any], field: str
) -> None:
    graph = bench.judge_graph()
    graph.checkpointer = None  # a checkpointer would refuse to keep some of these first
    with pytest.raises(InvalidInputError) as caught:
        await call(bench, graph, **given)
    assert str(caught.value).startswith(field)
    assert bench.server.chats == []


async def test_a_graph_that_waits_for_an_expert_says_how_to_have_it_not_wait(bench: Bench) -> None:
    with pytest.raises(InvalidInputError, match='review="never"'):
        await call(bench, bench.review_graph(review="always"), **CASE)


async def test_bad_functions_are_named(bench: Bench) -> None:
    with pytest.raises(InvalidInputError, match=r"^example: the function has to return an Example"):
        await call(bench, bench.judge_graph(), {"example": lambda _: "text"}, **CASE)
    with pytest.raises(InvalidInputError, match=r"^score: the function has to return"):
        await call(bench, bench.judge_graph(), {"score": lambda _: "good"}, **CASE)


@pytest.mark.parametrize("make", [as_evaluator, as_async_evaluator, as_comparative_evaluator])
def test_options_that_can_t_be_used_are_named(bench: Bench, make: Any) -> None:
    graph = bench.judge_graph()
    with pytest.raises(InvalidInputError, match=r"^graph: it is not compiled yet"):
        make(create_judge_graph(CRITERION))
    with pytest.raises(InvalidInputError, match=r"^graph: give a compiled graph"):
        make(lambda _: {"judgment": None})
    with pytest.raises(InvalidInputError, match=r"^key: ' ' is no name"):
        make(graph, key=" ")
    with pytest.raises(InvalidInputError, match=r"^example: give a function"):
        make(graph, example={"inputs": "x"})
    with pytest.raises(InvalidInputError, match=r"^context: give a dict"):
        make(graph, context="emea")
    other = StateGraph(MessagesState)
    other.add_node("n", lambda state: state)
    other.add_edge(START, "n")
    other.add_edge("n", END)
    with pytest.raises(InvalidInputError, match=r"^graph: it returns no judgment"):
        make(other.compile())
    panel = create_panel_graph([CRITERION], model="openai:x", embeddings=bench.server.embedder())
    with pytest.raises(InvalidInputError, match=r"^key: a panel's results are called as"):
        make(panel.compile(store=bench.store), key="all")


async def test_a_runnable_without_a_judgment_is_found_out_when_it_runs(bench: Bench) -> None:
    for nothing in ({"answer": 1}, None):
        graph: Any = RunnableLambda(partial(_return, nothing))
        with pytest.raises(InvalidInputError, match=r"^graph: it returns no judgment"):
            await call(bench, graph, **CASE)


def _return(nothing: Any, _: Any) -> Any:
    return nothing


def run_of(answer: Any) -> Run:
    now = datetime.now(UTC)
    return Run(
        id=uuid.uuid4(),
        name="app",
        start_time=now,
        end_time=now,
        run_type="chain",
        inputs={"question": "Where is it?"},
        outputs={"answer": answer},
        trace_id=uuid.uuid4(),
    )


@pytest.mark.parametrize(
    ("verdict", "scores"), [("A", [1.0, 0.0]), ("B", [0.0, 1.0]), ("tie", [0.5, 0.5])]
)
def test_langsmith_compares_two_runs(bench: Bench, verdict: str, scores: list[float]) -> None:
    bench.server.rules = [Rule(lambda _: True, value=verdict, rationale="It helps.")]
    # LangSmith's types know the older way alone: a function of runs and example.
    evaluator: Any = as_comparative_evaluator(bench.judge_graph(BETTER), example=_asked)
    runs = [run_of("Look it up."), run_of("We are sorry.")]
    result = comparison_evaluator(evaluator).compare_runs(runs)
    assert result.key == "better"
    assert [result.scores[str(run.id)] for run in runs] == scores
    assert result.comment == "It helps."
    [chat] = bench.server.chats
    assert chat.text.index("Look it up.") < chat.text.index("We are sorry.")


def _asked(given: dict[str, Any]) -> dict[str, Any]:
    return {**given, "inputs": "Where is it?"}


def test_comparing_needs_two_runs_and_a_pairwise_judge(bench: Bench) -> None:
    two = [run_of("one"), run_of("two")]
    given: Any = {"inputs": "x", "outputs": [run.outputs for run in two]}
    with pytest.raises(InvalidInputError, match="scale=Pairwise"):
        as_comparative_evaluator(bench.judge_graph())(runs=two, **given)
    with pytest.raises(InvalidInputError, match="compares two runs, not 3"):
        as_comparative_evaluator(bench.judge_graph(BETTER))(runs=[*two, two[0]], **given)
    with pytest.raises(InvalidInputError, match="each needs an `id`"):
        as_comparative_evaluator(bench.judge_graph(BETTER))(runs=[{}, {}], **given)
