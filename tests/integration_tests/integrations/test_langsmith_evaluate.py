"""The real `langsmith.evaluate` with our evaluators: offline, without a key."""

import inspect
import uuid
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Protocol, cast

import langsmith
import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.tracers.langchain import wait_for_all_tracers
from langsmith.schemas import Example

from memalign_graph import Categorical, Criterion, Numeric, Pairwise, create_panel_graph
from memalign_graph.integrations import as_async_evaluator, as_evaluator
from tests.conftest import CASE, COLD, CRITERION, Bench
from tests.integration_tests.integrations.offline import noting_langsmith
from tests.loopback import Rule, error

pytestmark = pytest.mark.filterwarnings(
    # LangSmith says so once a process, of the option that keeps an evaluation offline.
    "ignore:'upload_results' parameter is in beta"
)

CHOICES = ("cold", "fair", "warm")
TONE = Criterion(
    name="tone",
    instructions="How warm is it?",
    scale=Categorical(choices=CHOICES, ordered=True),
)
GRADE = Criterion(
    name="grade", instructions="Which grade?", scale=Numeric(minimum=1, maximum=5, integer=True)
)


TARGETS = {"AsyncTarget"}
"""What `aevaluate` uploads by itself, also where it is told not to: the runs of its target."""


@pytest.fixture(scope="module")
def langsmith_server() -> Iterator[tuple[str, list[str]]]:
    with noting_langsmith() as served:
        yield served


@pytest.fixture
def client(
    langsmith_server: tuple[str, list[str]], monkeypatch: pytest.MonkeyPatch
) -> Iterator[langsmith.Client]:
    """A client without a key, and nothing of the judge's arrives at its server."""
    for name in ("API_KEY", "TRACING", "TRACING_V2", "PROJECT", "WORKSPACE_ID", "ENDPOINT"):
        for prefix in ("LANGSMITH_", "LANGCHAIN_"):
            monkeypatch.delenv(prefix + name, raising=False)
    # LangSmith remembers what the environment said; its types do not show that it does.
    forget: Callable[[], None] = cast(Any, langsmith.utils.get_env_var).cache_clear
    forget()
    address, names = langsmith_server
    names.clear()
    made = langsmith.Client(api_url=address)
    yield made
    wait_for_all_tracers()
    made.flush()
    made.close()
    assert set(names) <= TARGETS
    forget()


def dataset(*cases: tuple[Any, Any]) -> list[Example]:
    return [
        Example(id=uuid.uuid4(), dataset_id=uuid.uuid4(), inputs={"question": given}, outputs=known)
        for given, known in cases
    ]


QUESTIONS = dataset(
    ("My order never came.", {"answer": "We are sorry."}), ("The cup is broken.", None)
)


def answer(inputs: dict[str, Any]) -> dict[str, Any]:
    return {"answer": f"Look it up: {inputs['question']}"}


class Evaluated(Protocol):
    async def __call__(self, evaluator: Any, target: Any = answer) -> list[Any]: ...


@pytest.fixture
def evaluated(client: langsmith.Client) -> Evaluated:
    """Evaluates as LangSmith's documentation does; returns the rows."""
    options: dict[str, Any] = {"data": QUESTIONS, "upload_results": False, "client": client}

    async def run(evaluator: Any, target: Any = answer) -> list[Any]:
        if not inspect.iscoroutinefunction(evaluator):
            return list(langsmith.evaluate(target, evaluators=[evaluator], **options))

        async def atarget(inputs: dict[str, Any]) -> Any:
            return target(inputs)

        done = await langsmith.aevaluate(atarget, evaluators=[evaluator], **options)
        return [row async for row in done]

    return run


def evaluator_of(bench: Bench, graph: Any, **options: Any) -> Any:
    return (as_async_evaluator if bench.awaits else as_evaluator)(graph, **options)


def results(rows: list[Any]) -> list[Any]:
    return [one for row in rows for one in row["evaluation_results"]["results"]]


async def test_evaluates_offline_with_what_memory_holds(bench: Bench, evaluated: Evaluated) -> None:
    bench.server.rules = [Rule(lambda chat: "cup" in chat.messages[-1]["content"], value=False)]
    await bench.remember({**CASE, **COLD, "author": "ann"})
    await bench.add_guideline("Begin with a word of regret.")
    rows = await evaluated(evaluator_of(bench, bench.judge_graph()))
    by_question = {
        row["example"].inputs["question"]: row["evaluation_results"]["results"] for row in rows
    }
    [first], [second] = by_question["My order never came."], by_question["The cup is broken."]
    assert (first.key, first.score, second.score) == ("support_tone", True, False)
    assert type(first.score) is bool
    assert first.value is None
    assert first.comment.startswith("The loopback judge")
    [guideline], [episode] = await bench.guidelines(), await bench.episodes()
    assert first.metadata["guideline_ids"] == [guideline.id]
    assert first.metadata["episode_ids"] == [episode.id]
    assert first.metadata["memory_version"]
    assert {"judgment_id", "confidence", "warnings", "model"} <= set(first.metadata)
    asked = [chat.messages[-1]["content"] for chat in bench.server.chats]
    [about_the_cup] = [text for text in asked if "cup" in text]
    assert "reference" not in about_the_cup, "the data set has none for this one"
    assert sum("We are sorry." in text for text in asked) == 1


async def test_a_graph_keeps_a_thread_for_each_row(bench: Bench, evaluated: Evaluated) -> None:
    rows = await evaluated(evaluator_of(bench, bench.judge_graph()))
    threads = {one.metadata["thread_id"] for one in results(rows)}
    assert len(threads) == len(QUESTIONS)
    named = evaluator_of(bench, bench.judge_graph(), config={"configurable": {"thread_id": "mine"}})
    assert {one.metadata["thread_id"] for one in results(await evaluated(named))} == {"mine"}


class Verdict(NamedTuple):
    criterion: Criterion
    said: Any
    score: Any
    value: Any


@pytest.mark.parametrize(
    "verdict",
    [
        Verdict(CRITERION, said=False, score=False, value=None),
        Verdict(GRADE, said=3, score=3.0, value=None),
        Verdict(TONE, said="fair", score=None, value="fair"),
        Verdict(
            Criterion(name="better", instructions="Which?", scale=Pairwise()),
            said="B",
            score=None,
            value="B",
        ),
    ],
    ids=["boolean", "numeric", "categorical", "pairwise"],
)
async def test_each_scale_has_its_score_or_value(
    bench: Bench, evaluated: Evaluated, verdict: Verdict
) -> None:
    bench.server.rules = [Rule(lambda _: True, value=verdict.said)]
    evaluator = evaluator_of(bench, bench.judge_graph(verdict.criterion))
    first = results(await evaluated(evaluator, lambda _: {"both": ["one", "two"]}))[0]
    expected = (verdict.criterion.name, verdict.score, verdict.value)
    assert (first.key, first.score, first.value) == expected
    assert type(first.score) is type(verdict.score)


async def test_an_ordered_choice_can_be_given_a_score(bench: Bench, evaluated: Evaluated) -> None:
    bench.server.rules = [Rule(lambda _: True, value="fair")]
    evaluator = evaluator_of(
        bench,
        bench.judge_graph(TONE),
        key="warmth",
        score=lambda judgment: CHOICES.index(judgment.value) / (len(CHOICES) - 1),
    )
    first = results(await evaluated(evaluator))[0]
    assert (first.key, first.score, first.value) == ("warmth", 0.5, "fair")


async def test_messages_are_judged_as_json(bench: Bench, evaluated: Evaluated) -> None:
    def agent(inputs: dict[str, Any]) -> dict[str, Any]:
        return {"messages": [HumanMessage(inputs["question"]), AIMessage("It is on its way.")]}

    rows = await evaluated(evaluator_of(bench, bench.judge_graph()), agent)
    assert [one.score for one in results(rows)] == [True, True]
    assert '"role": "assistant"' in bench.server.chats[0].text


async def test_the_example_can_be_made_of_some_fields(bench: Bench, evaluated: Evaluated) -> None:
    evaluator = evaluator_of(
        bench,
        bench.judge_graph(),
        example=lambda given: {
            "inputs": given["inputs"]["question"],
            "outputs": given["outputs"]["answer"],
        },
    )
    await evaluated(evaluator, lambda _: {"answer": "Sorry.", "secret": "4711"})
    assert "4711" not in bench.server.chats[0].text
    assert "We are sorry." not in bench.server.chats[0].text


async def test_a_panel_has_a_result_a_criterion(bench: Bench, evaluated: Evaluated) -> None:
    bench.server.rules = [
        Rule(lambda chat: "How warm" in chat.text, value="warm"),
        Rule(lambda chat: "Which grade" in chat.text, reply=error(400, "no")),
    ]
    panel = bench.compile(
        create_panel_graph(
            [CRITERION, TONE, GRADE],
            model=bench.server.chat_model(),
            embeddings=bench.server.embedder(),
        )
    )
    rows = await evaluated(evaluator_of(bench, panel))
    for row in rows:
        by_key = {one.key: one for one in row["evaluation_results"]["results"]}
        assert set(by_key) == {"support_tone", "tone", "grade"}
        assert by_key["support_tone"].score is True
        assert by_key["tone"].value == "warm"
        assert by_key["grade"].score is None
        assert by_key["grade"].extra == {"error": True}
        assert by_key["grade"].comment


async def test_a_review_graph_judges_if_it_asks_nobody(bench: Bench, evaluated: Evaluated) -> None:
    graph = bench.review_graph(review="never")
    assert [one.score for one in results(await evaluated(evaluator_of(bench, graph)))] == [True] * 2
    asks = bench.review_graph(review="always")
    quiet = evaluator_of(bench, asks, context={"review": "never"})
    assert [one.score for one in results(await evaluated(quiet))] == [True] * 2


async def test_a_context_chooses_the_memory(bench: Bench, evaluated: Evaluated) -> None:
    await bench.remember({**CASE, **COLD}, namespace=("shop", "emea"))
    evaluator = evaluator_of(bench, bench.judge_graph(), context={"namespace": ["shop", "emea"]})
    [episode] = await bench.episodes(namespace=("shop", "emea"))
    for one in results(await evaluated(evaluator)):
        assert one.metadata["episode_ids"] == [episode.id]


async def test_a_target_that_failed_is_an_error_and_no_verdict(
    bench: Bench, evaluated: Evaluated
) -> None:
    def broken(_: dict[str, Any]) -> dict[str, Any]:
        raise RuntimeError("no answer today")

    rows = await evaluated(evaluator_of(bench, bench.judge_graph()), broken)
    failed = results(rows)
    assert [(one.key, one.score) for one in failed] == [("memalign_judge", None)] * 2
    assert all(one.extra == {"error": True} for one in failed)
    assert "outputs: there are none to judge" in failed[0].comment
    assert bench.server.chats == []
