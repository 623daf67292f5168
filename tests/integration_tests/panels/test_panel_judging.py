"""Many criteria judged side by side, each once, each with a memory of its own."""

from typing import Any

import pytest

from memalign_graph import InvalidInputError
from tests.conftest import CASE, OTHER, Bench, judgings, thread
from tests.integration_tests.panels.support import (
    ASPECTS,
    COLD,
    MIXED,
    NINE,
    PAIR,
    THREE,
    TONE,
    asks_about,
    judged,
    judged_names,
    panel,
    teach,
    values_of,
)
from tests.loopback import Rule, Together

RESULT = {"judgments", "errors", "aggregate", "feedback", "learned"}


async def test_nine_criteria_are_in_the_judges_hands_at_once(bench: Bench) -> None:
    bench.server.rules = judged(metrics=1, plots=2)
    bench.server.responder = Together(len(NINE), bench.server.judge, "judgment")
    given = await bench.invoke(panel(bench, NINE), CASE)
    assert values_of(given) == {**dict.fromkeys(ASPECTS, 3), "metrics": 1, "plots": 2}
    assert judged_names(bench.server) == sorted(ASPECTS)
    assert bench.server.embeddings == []
    assert set(given) == RESULT
    assert given["errors"] == given["learned"] == {}
    assert given["aggregate"] is given["feedback"] is None


async def test_max_concurrency_of_the_run_holds(bench: Bench) -> None:
    config: Any = {**thread("t"), "max_concurrency": 1}
    graph = panel(bench, NINE)
    given = await graph.ainvoke(CASE, config) if bench.awaits else graph.invoke(CASE, config)
    assert len(given["judgments"]) == len(NINE)
    assert bench.server.peak_chats == 1


async def test_mixed_scales_are_each_judged_on_their_own(bench: Bench) -> None:
    values = {
        "polite": False,
        "grade": 2,
        "share": 0.25,
        "level": "Fair",
        "kind": "Complaint",
        "better": "tie",
    }
    bench.server.rules = judged(**values)
    given = await bench.invoke(panel(bench, MIXED), PAIR)
    assert values_of(given) == values
    assert {type(one) for one in values_of(given).values()} == {bool, int, float, str}
    for one in MIXED:
        [request] = [chat for chat in judgings(bench.server) if asks_about(one.name)(chat)]
        assert one.instructions in request.text
        assert not any(other.instructions in request.text for other in MIXED if other is not one)


async def test_judgments_are_those_of_the_criteria(bench: Bench) -> None:
    given = await bench.invoke(panel(bench), CASE)
    assert {name: one["criterion"] for name, one in given["judgments"].items()} == {
        one.name: one.name for one in THREE
    }
    assert {one["thread_id"] for one in given["judgments"].values()} == {"t"}
    assert len({one["example_id"] for one in given["judgments"].values()}) == 1
    assert len({one["id"] for one in given["judgments"].values()}) == len(THREE)


async def test_one_criterion_is_a_panel_too(bench: Bench) -> None:
    given = await bench.invoke(panel(bench, [TONE]), CASE)
    assert values_of(given) == {"tone": True}


async def test_each_judge_sees_its_own_memory_alone(bench: Bench) -> None:
    for one in THREE:
        await teach(bench, one, OTHER, value=False, rationale=f"Said of {one.name} alone.")
        await bench.add_guideline(f"A rule of {one.name} alone.", criterion=one)
    given = await bench.invoke(panel(bench), CASE)
    for one in THREE:
        [request] = [chat for chat in judgings(bench.server) if asks_about(one.name)(chat)]
        for other in THREE:
            stands = other is one
            assert (f"Said of {other.name} alone." in request.text) is stands
            assert (f"A rule of {other.name} alone." in request.text) is stands
        judgment = given["judgments"][one.name]
        assert len(judgment["guideline_ids"]) == len(judgment["episode_ids"]) == 1


async def test_memories_can_be_switched_off(bench: Bench) -> None:
    await teach(bench, TONE, OTHER)
    await bench.add_guideline("Say sorry.", criterion=TONE)
    graph = panel(bench, use_guidelines=False, use_episodes=False)
    given = await bench.invoke(graph, CASE)
    assert given["judgments"]["tone"]["guideline_ids"] == []
    assert given["judgments"]["tone"]["episode_ids"] == []
    assert bench.server.embeddings == []


async def test_reference_outputs_reach_every_judge_and_not_the_next_run(bench: Bench) -> None:
    graph = panel(bench)
    await bench.invoke(graph, {**CASE, "reference_outputs": "We are sorry: a new one is sent."})
    assert all("a new one is sent" in chat.text for chat in judgings(bench.server))
    bench.server.chats.clear()
    await bench.invoke(graph, CASE)
    assert len(judgings(bench.server)) == len(THREE)
    assert not any("a new one is sent" in chat.text for chat in judgings(bench.server))


async def test_swap_judges_the_pairwise_ones_in_both_orders(bench: Bench) -> None:
    bench.server.rules = judged(better="A", grade=2)
    given = await bench.invoke(panel(bench, MIXED, swap=True), PAIR)
    names = judged_names(bench.server, [one.name for one in MIXED])
    assert names == sorted([*(one.name for one in MIXED), "better"])
    # The same letter in both orders is a lean to the place, and so a tie.
    assert given["judgments"]["better"]["value"] == "tie"
    assert "depends on the order" in given["judgments"]["better"]["warnings"][0]
    assert given["judgments"]["grade"] == {**given["judgments"]["grade"], "value": 2}
    assert given["judgments"]["grade"]["warnings"] == []


async def test_swap_wants_two_outputs_before_any_model_is_called(bench: Bench) -> None:
    with pytest.raises(InvalidInputError, match="outputs: to be judged in both orders"):
        await bench.invoke(panel(bench, MIXED, swap=True), CASE)
    assert bench.server.chats == []


@pytest.mark.parametrize(
    ("case", "sentence"),
    [
        ({"inputs": "x"}, "outputs"),
        ({"inputs": "", "outputs": "x"}, "inputs"),
        ({"inputs": "x", "outputs": "a\x00b"}, "NUL"),
        ({"inputs": "x", "outputs": {"n": float("nan")}}, "no JSON"),
    ],
    ids=["missing", "empty", "nul", "nan"],
)
async def test_example_that_can_not_be_judged_costs_nothing(
    bench: Bench, case: Any, sentence: str
) -> None:
    with pytest.raises(InvalidInputError, match=sentence) as caught:
        await bench.invoke(panel(bench), case)
    assert "\n" not in str(caught.value)
    assert bench.server.chats == []
    assert bench.server.embeddings == []


async def test_megabyte_of_text_is_judged_and_said_to_be_cut(bench: Bench) -> None:
    await teach(bench, TONE)
    case = {"inputs": "A word. " * 65_000, "outputs": "An answer. " * 50_000}
    given = await bench.invoke(panel(bench, review="always"), case)
    assert len(given["judgments"]) == len(THREE)
    assert len(bench.server.embeddings) == 1
    assert any("embedded" in one for one in given["judgments"]["tone"]["warnings"])
    [asked] = given["__interrupt__"]
    assert len(str(asked.value)) < 20_000


async def test_second_run_on_a_thread_shows_nothing_of_the_first(bench: Bench) -> None:
    graph = panel(bench, review="always")
    first = await bench.review(graph, {"tone": COLD})
    assert first["learned"].keys() == {"tone"}
    bench.server.rules = [Rule(asks_about("facts"), reply={"rationale": "No.", "value": "?"})]
    second = await bench.invoke(graph, OTHER)
    assert second["judgments"].keys() == {"tone", "length"}
    assert second["errors"].keys() == {"facts"}
    assert second["learned"] == {}
    assert second["feedback"] is None
    assert {one["id"] for one in second["judgments"].values()}.isdisjoint(
        one["id"] for one in first["judgments"].values()
    )
    bench.server.rules = []
    third = await bench.invoke(graph, CASE)
    assert third["errors"] == {}


async def test_second_run_leaves_the_first_question_behind(bench: Bench) -> None:
    graph = panel(bench, review="always")
    await bench.invoke(graph, CASE)
    asked = await bench.invoke(graph, OTHER)
    assert len(asked["__interrupt__"]) == 1
    given = await bench.resume(graph, {"facts": False})
    assert given["feedback"]["facts"]["example"]["outputs"] == OTHER["outputs"]
    assert given["learned"].keys() == {"facts"}
