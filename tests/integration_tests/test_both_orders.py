"""Pairs judged in both orders: prompts, verdicts and failures."""

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
    create_panel_graph,
)
from memalign_graph.memory.feedback import parse_record
from tests.conftest import CRITERION, DOWN, EVERY_WAY, Bench, distillings, judgings
from tests.integration_tests.evidence.judging_support import learn
from tests.integration_tests.gates.support import models, verdict, writing
from tests.integration_tests.later_feedback.support import DAY, give_feedback
from tests.loopback import ChatRequest, Rule, Together, error

PAIR = Criterion(name="better", instructions="Which reply is kinder?", scale=Pairwise())
NO_TIE = PAIR.model_copy(update={"scale": Pairwise(allow_tie=False)})
KIND, COLD = "So sorry, a new one comes.", "Check the tracking page."
CASE: dict[str, Any] = {"inputs": "My order never came.", "outputs": [KIND, COLD]}


def kind_first(chat: ChatRequest) -> bool:
    displayed = chat.text.rpartition("<outputs>")[2]
    return chat.schema_name == "judgment" and displayed.index(KIND) < displayed.index(COLD)


def judge_by_first(straight: Any, swapped: Any, **more: Any) -> list[Rule]:
    """A judge that answers by which output comes first; raises for anything but a value."""
    return [
        Rule(when, reply=DOWN if value is DOWN else verdict(value, rationale, **more))
        for when, value, rationale in (
            (kind_first, straight, "Kind first."),
            (lambda chat: chat.schema_name == "judgment", swapped, "Cold first."),
        )
    ]


async def judge(bench: Bench, case: Any = CASE, criterion: Criterion = PAIR, **more: Any) -> Any:
    graph = bench.judge_graph(criterion, swap=True, **more)
    return (await bench.invoke(graph, case))["judgment"]


async def test_orders_that_disagree_are_a_tie_with_a_reason(bench: Bench) -> None:
    bench.server.rules = judge_by_first("A", "B")
    judgment = await judge(bench)
    assert (judgment["value"], judgment["warnings"]) == ("A", [])
    bench.server.rules = judge_by_first("A", "A")
    judgment = await judge(bench)
    assert judgment["value"] == "tie"
    assert "Kind first." in judgment["rationale"]
    assert "Cold first." in judgment["rationale"]
    [warning] = judgment["warnings"]
    assert "A as they were given, B when they were swapped, so that it is a tie" in warning
    assert (await judge(bench, criterion=NO_TIE))["value"] == "A"
    # Cases in memory are judged in both orders, too.
    bench.server.rules = judge_by_first("A", "B")
    await learn(bench, [{**CASE, "value": "B", "author": "x"}], criterion=PAIR, swap=True)
    [episode] = await bench.episodes(criterion=PAIR)
    assert (episode.value, episode.judgment and episode.judgment.value) == ("B", "A")
    assert len(judgings(bench.server)) == 8


async def test_each_warning_of_a_judgment_is_logged_once(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    await bench.remember({**CASE, "inputs": "Earlier.", "value": "A"}, criterion=PAIR)

    def swapped_with_similar(chat: ChatRequest) -> bool:
        return not kind_first(chat) and "Earlier." in chat.text

    filtered = error(400, "The prompt triggered the content management policy.")
    bench.server.rules = [Rule(swapped_with_similar, reply=filtered), *judge_by_first("A", "A")]
    small = bench.server.chat_model(profile={"max_input_tokens": 9_000})
    judgment = await judge(bench, {**CASE, "inputs": "word " * 20_000}, model=small)
    assert len(judgment["warnings"]) == 4
    assert caplog.messages == [f"Judging 'better': {text}" for text in judgment["warnings"]]


async def test_second_prompt_shows_the_outputs_swapped_and_nothing_else(bench: Bench) -> None:
    outputs, swapped = {"x": {"text": KIND}, "y": COLD}, {"x": COLD, "y": {"text": KIND}}
    earlier = {"inputs": "The cup is broken.", "value": "A", "rationale": "Kind.", "author": "x"}
    await bench.remember({**CASE, **earlier}, criterion=PAIR)
    await bench.add_guideline("Sorry comes first.", criterion=PAIR)
    case = {"inputs": "Where is it?", "outputs": outputs, "reference_outputs": "A kind word."}
    judgment = await judge(bench, case)
    first, second = sorted(map(parts, judgings(bench.server)), key=lambda item: item[0] != outputs)
    assert (first[0], second[0]) == (outputs, swapped)
    assert first[1] == second[1]
    assert "Sorry comes first." in first[1]
    assert "A kind word." in first[1]
    assert len(judgment["episode_ids"]) == len(judgment["guideline_ids"]) == 1


def parts(chat: ChatRequest) -> tuple[Any, str]:
    """The outputs in a prompt, and the rest of the prompt."""
    head, _, rest = chat.text.rpartition("<outputs>\n")
    outputs, _, tail = rest.partition("\n</outputs>")
    return json.loads(outputs), head + tail


async def test_outputs_other_than_a_pair_raise_before_any_model_call(bench: Bench) -> None:
    await bench.remember({**CASE, "value": "A", "author": "x"}, criterion=PAIR)
    del bench.server.embeddings[:]
    with pytest.raises(InvalidInputError, match=r"^outputs: .* they have to be two"):
        await judge(bench, {**CASE, "outputs": [KIND]})
    assert (bench.server.chats, bench.server.embeddings) == ([], [])


@EVERY_WAY
async def test_both_orders_are_judged_concurrently_unless_the_run_limits_it(bench: Bench) -> None:
    bench.server.responder = Together(2, lambda _: verdict("tie"))
    assert (await judge(bench))["value"] == "tie"
    assert bench.server.peak_chats == 2
    bench.server.reset()
    graph = bench.judge_graph(PAIR, swap=True).with_config(max_concurrency=1)
    await bench.invoke(graph, CASE, "one")
    assert (len(judgings(bench.server)), bench.server.peak_chats) == (2, 1)


@pytest.mark.parametrize(("straight", "swapped"), [(DOWN, "B"), ("A", DOWN)])
async def test_a_failed_call_fails_the_judgment(bench: Bench, straight: Any, swapped: Any) -> None:
    bench.server.rules = judge_by_first(straight, swapped)
    with pytest.raises(ChatModelError, match="It broke"):
        await judge(bench, model=bench.server.chat_model(max_retries=0), keep_judgments=DAY)
    assert bench.memory(criterion=PAIR).judgments() == []
    verdict = await gated(bench)
    assert (verdict["status"], verdict["let_through"]) == ("judge_error", False)


@pytest.mark.parametrize("names", ["old new", "B A", "new baseline"])
async def test_pair_that_experts_would_see_exchanged_is_refused(bench: Bench, names: str) -> None:
    case = {**CASE, "outputs": dict.fromkeys(names.split(), KIND)}
    panel = bench.compile(create_panel_graph([CRITERION, PAIR], **bench.models()))
    for graph in (bench.judge_graph(PAIR), panel):
        with pytest.raises(InvalidInputError, match="outputs: the fields"):
            await bench.invoke(graph, case)
    with pytest.raises(InvalidInputError, match="outputs: the fields"):
        parse_record({**case, "value": "A"}, PAIR)
    assert not bench.server.chats
    assert not bench.server.embeddings
    await bench.invoke(bench.judge_graph(), case)
    graph, ordered = bench.review_graph(PAIR), sorted(names.split())
    await bench.invoke(graph, {**CASE, "outputs": dict.fromkeys(ordered, KIND)}, "sorted")
    schema: Any = (await bench.state(graph, "sorted")).interrupts[0].response_schema
    assert [*schema["x-case"]["example"]["outputs"]] == ordered


async def test_pair_of_an_older_memory_takes_feedback(bench: Bench) -> None:
    old = {**CASE, "outputs": {"old": KIND, "new": COLD}, "author": "ann"}
    [episode] = await bench.remember({**old, "value": "A"}, criterion=PAIR)
    await bench.call(bench.memory(PAIR), "revise", episode.id, {"value": "B"})
    [revised] = await bench.episodes(criterion=PAIR)
    assert (revised.value, [*revised.example.outputs]) == ("B", ["old", "new"])


async def test_expert_reviews_the_combined_verdict_and_memory_learns(bench: Bench) -> None:
    bench.server.rules = judge_by_first("A", "A")
    graph = bench.review_graph(PAIR, swap=True)
    [interrupt] = (await bench.invoke(graph, CASE))["__interrupt__"]
    [action] = interrupt.value["action_requests"]
    assert action["args"]["value"] == "tie"
    assert "depends on the order" in action["description"]
    result = await bench.resume(graph, {"value": "A", "rationale": "It says sorry."})
    assert result["judgment"]["value"] == "tie"
    [distilling] = distillings(bench.server)
    assert distilling.text.index(KIND) < distilling.text.index(COLD)
    # Later feedback, too, applies to the given order.
    judgment = await judge(bench, {**CASE, "inputs": "Later."}, keep_judgments=DAY)
    [waiting] = bench.memory(criterion=PAIR).judgments()
    assert waiting.example.outputs == CASE["outputs"]
    await give_feedback(bench, judgment["id"], {"value": "B"}, criterion=PAIR)
    first, second = await bench.episodes(criterion=PAIR)
    assert (first.value, second.value) == ("A", "B")
    assert first.example.outputs == second.example.outputs == CASE["outputs"]


async def test_guideline_is_broken_only_if_both_orders_agree(bench: Bench) -> None:
    await bench.add_guideline("Sorry comes first.", criterion=PAIR)
    graph = bench.judge_graph(PAIR, swap=True, cite_guidelines=True)
    for swapped, broken in (("B", 1), ("A", 0)):
        bench.server.rules = judge_by_first("A", swapped, broken_guidelines=[1])
        result = await bench.invoke(graph, CASE, swapped)
        assert len(result["broken_guidelines"]) == broken


async def gated(bench: Bench) -> Any:
    """The verdict of a gate that passes answers better than a standard one."""

    def example(state: Any) -> dict[str, Any]:
        return {"inputs": "My order never came.", "outputs": [state["messages"][-1].text, COLD]}

    builder = writing(lambda _: {"messages": [AIMessage(KIND)]})
    options = {"passes": {"A", "tie"}, "swap": True, "example": example}
    add_quality_gate(builder, PAIR, after="write", **models(bench, **options))
    result = await bench.invoke(bench.compile(builder), {"messages": [("human", "?")]}, "gate")
    return result["quality_gate"]
