"""Two outputs judged in both orders: what the models see, what comes of it, and what goes wrong."""

import asyncio
import json
from typing import Any

import pytest
from langchain_core.messages import AIMessage

from memalign_graph import (
    ChatModelError,
    Criterion,
    InvalidInputError,
    Pairwise,
    add_quality_gate,
    create_judge_graph,
    create_review_graph,
)
from tests.conftest import (
    CRITERION,
    Bench,
    distillings,
    judgings,
    operations,
    thread,
)
from tests.integration_tests.gates.support import DOWN, models, verdict, writing
from tests.integration_tests.later_feedback.support import DAY, kept, tell
from tests.loopback import ChatRequest, Reply, Rule, Together
from tests.loopback.replies import as_reply

PAIR = Criterion(name="better", instructions="Which reply is kinder?", scale=Pairwise())
NO_TIE = PAIR.model_copy(update={"scale": Pairwise(allow_tie=False)})
KIND, COLD = "So sorry, a new one comes.", "Check the tracking page."
CASE: dict[str, Any] = {"inputs": "My order never came.", "outputs": [KIND, COLD]}


def says(straight: Any, swapped: Any) -> list[Rule]:
    """A judge that looks at which of the outputs comes first."""

    def kind_first(chat: ChatRequest) -> bool:
        shown = chat.text.rpartition("<outputs>")[2]
        return shown.index(KIND) < shown.index(COLD)

    return [
        Rule(kind_first, value=straight, rationale="Kind first."),
        Rule(lambda _: True, value=swapped, rationale="Cold first."),
    ]


async def judge(bench: Bench, case: Any = CASE, criterion: Criterion = PAIR, **more: Any) -> Any:
    graph = bench.judge_graph(criterion, swap=True, **more)
    return (await bench.invoke(graph, case))["judgment"]


async def test_verdict_on_which_both_orders_agree(bench: Bench) -> None:
    bench.server.rules = says("A", "B")
    judgment = await judge(bench)
    assert judgment["value"] == "A"
    assert judgment["rationale"] == "Kind first."
    assert judgment["warnings"] == []
    assert len(judgings(bench.server)) == 2


@pytest.mark.parametrize(("straight", "swapped"), [("A", "A"), ("B", "B"), ("tie", "A")])
async def test_orders_that_disagree_make_a_tie_and_say_so(
    bench: Bench, straight: str, swapped: str
) -> None:
    bench.server.rules = says(straight, swapped)
    judgment = await judge(bench)
    assert judgment["value"] == "tie"
    [warning] = judgment["warnings"]
    other = {"A": "B", "B": "A"}[swapped]
    assert f"{straight} as they were given, {other} when they were swapped" in warning
    assert "so that it is a tie" in warning
    assert "Kind first." in judgment["rationale"]
    assert "Cold first." in judgment["rationale"]


async def test_tie_in_both_orders_is_a_tie_without_a_warning(bench: Bench) -> None:
    bench.server.rules = says("tie", "tie")
    judgment = await judge(bench)
    assert (judgment["value"], judgment["warnings"]) == ("tie", [])


@pytest.mark.parametrize("first", ["A", "B"])
async def test_first_verdict_stands_where_the_scale_has_no_tie(bench: Bench, first: str) -> None:
    bench.server.rules = says(first, first)
    judgment = await judge(bench, criterion=NO_TIE)
    assert judgment["value"] == first
    [warning] = judgment["warnings"]
    assert "the scale has no tie: the first stands" in warning


@pytest.mark.parametrize(
    ("outputs", "swapped"),
    [
        ([KIND, COLD], [COLD, KIND]),
        ({"A": KIND, "B": COLD}, {"A": COLD, "B": KIND}),
        (
            {"model_x": {"text": KIND}, "model_y": COLD},
            {"model_x": COLD, "model_y": {"text": KIND}},
        ),
        ([{"text": KIND, "n": 1}, [COLD]], [[COLD], {"text": KIND, "n": 1}]),
    ],
    ids=["list", "object", "named", "nested"],
)
async def test_second_prompt_shows_the_outputs_swapped_and_nothing_else(
    bench: Bench, outputs: Any, swapped: Any
) -> None:
    await bench.remember(
        {**CASE, "inputs": "The cup is broken.", "value": "A", "rationale": "Kind.", "author": "x"},
        criterion=PAIR,
    )
    await bench.add_guideline("Sorry comes first.", criterion=PAIR)
    case = {"inputs": "Where is it?", "outputs": outputs, "reference_outputs": "A kind word."}
    judgment = await judge(bench, case)
    first, second = sorted(judgings(bench.server), key=lambda one: shown(one) != outputs)
    assert (shown(first), shown(second)) == (outputs, swapped)
    assert without_outputs(first) == without_outputs(second)
    assert "Sorry comes first." in first.text
    assert "A kind word." in second.text
    assert len(judgment["episode_ids"]) == len(judgment["guideline_ids"]) == 1


def shown(chat: ChatRequest) -> Any:
    text = str(chat.messages[-1]["content"]).rpartition("<outputs>\n")[2]
    return json.loads(text.partition("\n</outputs>")[0])


def without_outputs(chat: ChatRequest) -> list[str]:
    texts = [str(one["content"]) for one in chat.messages]
    head, _, rest = texts[-1].rpartition("<outputs>\n")
    return [*texts[:-1], head, rest.partition("\n</outputs>")[2]]


@pytest.mark.parametrize(
    "outputs",
    ["Only one.", [KIND], [KIND, COLD, "?"], {"A": KIND}, {"A": 1, "B": 2, "C": 3}, 7, True],
    ids=str,
)
async def test_outputs_that_are_not_two_are_told_before_a_model_is_called(
    bench: Bench, outputs: Any
) -> None:
    await bench.remember({**CASE, "value": "A", "author": "x"}, criterion=PAIR)
    del bench.server.embeddings[:]
    with pytest.raises(InvalidInputError, match=r"^outputs: .* they have to be two") as caught:
        await judge(bench, {**CASE, "outputs": outputs})
    assert "\n" not in str(caught.value)
    assert (bench.server.chats, bench.server.embeddings) == ([], [])


async def test_outputs_of_any_shape_are_judged_once_without_swap(bench: Bench) -> None:
    graph = bench.judge_graph(PAIR)
    given = await bench.invoke(graph, {**CASE, "outputs": f"A: {KIND} B: {COLD}"})
    assert given["judgment"]["value"] == "A"
    assert len(judgings(bench.server)) == 1


async def test_both_calls_are_under_way_at_once(bench: Bench) -> None:
    bench.server.responder = Together(2, lambda _: verdict("tie"))
    assert (await judge(bench))["value"] == "tie"
    assert bench.server.peak_chats == 2


async def test_one_call_at_a_time_where_the_run_says_so(bench: Bench) -> None:
    bench.server.latency_s = 0.05
    graph = bench.judge_graph(PAIR, swap=True)
    config: Any = {**thread("t"), "max_concurrency": 1}
    if bench.awaits:
        await graph.ainvoke(CASE, config)
    else:
        await asyncio.to_thread(graph.invoke, CASE, config)
    assert len(judgings(bench.server)) == 2
    assert bench.server.peak_chats == 1


@pytest.mark.parametrize("fails", ["straight", "swapped", "both"])
async def test_one_call_that_fails_fails_the_judging(bench: Bench, fails: str) -> None:
    good = says("A", "B")
    bench.server.rules = [
        Rule(good[0].when, reply=DOWN if fails != "swapped" else verdict("A")),
        Rule(lambda _: True, reply=DOWN if fails != "straight" else verdict("B")),
    ]
    with pytest.raises(ChatModelError, match="It broke"):
        await judge(bench, model=bench.server.chat_model(max_retries=0), keep_judgments=DAY)
    assert kept(bench, criterion=PAIR) == []


async def test_answer_off_the_scale_is_asked_for_again_in_its_own_order(bench: Bench) -> None:
    answers = iter([{"rationale": "?", "value": "C"}])

    def respond(request: ChatRequest) -> Reply:
        text = request.text.rpartition("<outputs>")[2]
        if text.index(KIND) < text.index(COLD):
            return as_reply(verdict("A"))
        return as_reply(next(answers, verdict("B")))

    bench.server.responder = respond
    judgment = await judge(bench)
    assert (judgment["value"], judgment["warnings"]) == ("A", [])
    assert len(judgings(bench.server)) == 3


async def test_expert_is_asked_about_the_verdict_of_both_and_memory_learns(bench: Bench) -> None:
    bench.server.rules = says("A", "A")
    graph = bench.review_graph(PAIR, swap=True)
    given = await bench.invoke(graph, CASE)
    [asked] = given["__interrupt__"]
    [action] = asked.value["action_requests"]
    assert action["args"]["value"] == "tie"
    assert "depends on the order" in action["description"]
    given = await bench.resume(graph, {"value": "A", "rationale": "It says sorry."})
    assert given["judgment"]["value"] == "tie"
    assert given["learned"]["guidelines"]
    assert (len(judgings(bench.server)), len(distillings(bench.server))) == (2, 1)
    [episode] = await bench.episodes(criterion=PAIR)
    assert (episode.value, episode.example.outputs) == ("A", CASE["outputs"])


async def test_later_word_is_on_the_order_that_was_given(bench: Bench) -> None:
    bench.server.rules = says("A", "A")
    judgment = await judge(bench, keep_judgments=DAY)
    [waiting] = kept(bench, criterion=PAIR)
    assert waiting.example.outputs == CASE["outputs"]
    given = await tell(bench, judgment["id"], {"value": "B"}, criterion=PAIR)
    assert given["feedback"]["value"] == "B"
    [episode] = await bench.episodes(criterion=PAIR)
    assert (episode.value, episode.example.outputs) == ("B", CASE["outputs"])


async def test_guidelines_broken_hold_only_where_both_orders_agree(bench: Bench) -> None:
    await bench.add_guideline("Sorry comes first.", criterion=PAIR)
    for swapped, broken in (("B", 1), ("A", 0)):
        rules = says("A", swapped)
        bench.server.rules = [
            Rule(one.when, reply={**verdict(value), "broken_guidelines": [1]})
            for one, value in zip(rules, ("A", swapped), strict=True)
        ]
        graph = bench.judge_graph(PAIR, swap=True, cite_guidelines=True)
        given = await bench.invoke(graph, CASE, swapped)
        assert len(given["broken_guidelines"]) == broken


def pair_gate(bench: Bench, draft: str, **options: Any) -> Any:
    """A gate that lets an answer pass which is better than the shop's standard one."""

    def example(state: Any) -> dict[str, Any]:
        return {"inputs": "My order never came.", "outputs": [state["messages"][-1].text, COLD]}

    builder = writing(lambda _: {"messages": [AIMessage(draft)]})
    add_quality_gate(
        builder,
        PAIR,
        after="write",
        passes={"A", "tie"},
        swap=True,
        example=example,
        **models(bench, **options),
    )
    return bench.compile(builder)


@pytest.mark.parametrize(
    ("straight", "swapped", "passed"), [("A", "B", True), ("A", "A", True), ("B", "A", False)]
)
async def test_gate_goes_by_both_orders(
    bench: Bench, *, straight: str, swapped: str, passed: bool
) -> None:
    bench.server.rules = says(straight, swapped)
    given = await bench.invoke(pair_gate(bench, KIND), {"messages": [("human", "?")]})
    assert given["quality_gate"]["passed"] is passed
    assert len(judgings(bench.server)) == 2


async def test_gate_whose_judge_fails_in_one_order_is_closed(bench: Bench) -> None:
    bench.server.rules = [Rule(says("A", "B")[0].when, value="A"), Rule(lambda _: True, reply=DOWN)]
    given = await bench.invoke(pair_gate(bench, KIND), {"messages": [("human", "?")]})
    assert given["quality_gate"]["status"] == "judge_error"
    assert given["quality_gate"]["let_through"] is False


@pytest.mark.parametrize("create", [create_judge_graph, create_review_graph])
def test_swap_is_for_pairs_alone(bench: Bench, create: Any) -> None:
    with pytest.raises(InvalidInputError, match=r"^swap: only a criterion with scale=Pairwise"):
        create(CRITERION, swap=True)
    with pytest.raises(InvalidInputError, match=r"^swap: 'yes' is neither True nor False"):
        create(PAIR, swap="yes")


async def test_learning_from_a_pair_reads_the_order_that_was_given(bench: Bench) -> None:
    bench.server.script(verdict("A"), verdict("B"), operations())
    graph = bench.review_graph(PAIR, swap=True)
    await bench.review(graph, "The first one is kind.", CASE)
    [chat] = distillings(bench.server)
    assert chat.text.index(KIND) < chat.text.index(COLD)
