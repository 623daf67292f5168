"""When a panel asks, what a run can change, and going on in another process."""

from pathlib import Path
from typing import Any

import pytest
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.store.sqlite import SqliteStore
from langgraph.types import Command

from memalign_graph import (
    Aggregate,
    InvalidInputError,
    Judgment,
    MemAlignWarning,
    create_panel_graph,
)
from tests.conftest import CASE, EVERY_WAY, OTHER, Bench, distillings, judgings, thread
from tests.integration_tests.panels.support import (
    ASPECTS,
    COLD,
    NINE,
    THREE,
    TONE,
    approved,
    fails,
    form_of,
    judged,
    judged_names,
    learned_texts,
    models,
    panel,
    reviewed,
)

pytestmark = EVERY_WAY

NAMES = [one.name for one in THREE]


async def test_one_question_is_one_form_for_all(bench: Bench) -> None:
    bench.server.rules = judged(metrics=1)
    asked = await bench.invoke(reviewed(bench, NINE), CASE)
    form = form_of(asked)
    assert form["name"] == "review_panel"
    fields = [field for name in ASPECTS for field in (name, f"{name}_rationale")]
    assert list(form["args"]) == fields
    assert form["args"]["metrics"] == 1
    assert None not in form["args"].values()
    for one in NINE:
        assert f"### {one.name}: {1 if one.name == 'metrics' else 3}" in form["description"]
        assert one.instructions in form["description"]
    [config] = asked["__interrupt__"][0].value["review_configs"]
    assert config["allowed_decisions"] == ["approve", "edit"]
    assert list(config["args_schema"]["properties"]) == fields


async def test_form_shows_references_and_what_each_judge_was_given(bench: Bench) -> None:
    rules = [f"Rule number {number} of tone." for number in range(7)]
    for rule in rules:
        await bench.add_guideline(rule, criterion=TONE)
    case = {**CASE, "reference_outputs": "We are sorry."}
    description = form_of(await bench.invoke(reviewed(bench), case))["description"]
    assert "We are sorry." in description
    shown = [rule for rule in rules if rule in description]
    assert shown == rules[:5]
    assert "and 2 more" in description
    assert description.index("### tone") < description.index(rules[0])
    assert description.index(rules[0]) < description.index("### facts")


async def test_never_asks_nobody(bench: Bench) -> None:
    given = await bench.invoke(panel(bench), CASE)
    assert "__interrupt__" not in given
    assert given["feedback"] is None


async def test_function_of_the_judgments_decides_once(bench: Bench) -> None:
    seen: list[dict[str, Judgment]] = []

    def asks(judgments: dict[str, Judgment]) -> bool:
        seen.append(judgments)
        return any(one.value is False for one in judgments.values())

    graph = panel(bench, review=asks)
    assert "__interrupt__" not in await bench.invoke(graph, CASE, "a")
    bench.server.rules = [*judged(tone=False), fails("length")]
    given = await bench.review(graph, approved(), OTHER, "b")
    assert [sorted(one) for one in seen] == [sorted(NAMES), ["facts", "tone"]]
    assert seen[1]["tone"].id == given["judgments"]["tone"]["id"]


async def test_expert_is_asked_where_the_function_goes_by_what_was_not_judged(bench: Bench) -> None:
    def asks(judgments: dict[str, Judgment]) -> bool:
        return judgments["facts"].value is False

    graph = panel(bench, review=asks)
    assert "__interrupt__" not in await bench.invoke(graph, CASE, "a")
    bench.server.rules = [fails("facts")]
    asked = await bench.invoke(graph, CASE, "b")
    assert "### facts: not judged" in form_of(asked)["description"]
    careful = panel(bench, review=lambda judgments: judgments.get("facts") is not None)
    assert "__interrupt__" not in await bench.invoke(careful, CASE, "c")


async def test_function_that_goes_by_a_criterion_of_no_panel_fails(bench: Bench) -> None:
    bench.server.rules = [fails("facts")]
    graph = panel(bench, review=lambda judgments: judgments["mood"].value is False)
    with pytest.raises(KeyError, match="mood"):
        await bench.invoke(graph, CASE)


async def test_function_that_raises_is_not_swallowed(bench: Bench) -> None:
    def asks(judgments: dict[str, Judgment]) -> bool:
        raise LookupError(min(judgments))

    with pytest.raises(LookupError, match="facts"):
        await bench.invoke(panel(bench, review=asks), CASE)


async def test_function_that_turns_out_async_is_refused(bench: Bench) -> None:
    class Asks:
        async def __call__(self, judgments: dict[str, Judgment]) -> bool:
            return bool(judgments)

    review: Any = Asks()
    with pytest.raises(InvalidInputError, match="review: give a plain function"):
        await bench.invoke(panel(bench, review=review), CASE)


@pytest.mark.parametrize(("built", "told"), [("always", "never"), ("never", "always")])
async def test_context_goes_before_what_was_built(bench: Bench, built: str, told: str) -> None:
    graph = panel(bench, review=built)
    given = await bench.invoke(graph, CASE, context={"review": told})
    assert ("__interrupt__" in given) == (told == "always")
    given = await bench.invoke(graph, CASE, "u", context={"k": 2})
    assert ("__interrupt__" in given) == (built == "always")


async def test_namespace_of_the_context_holds_after_the_interrupt(bench: Bench) -> None:
    graph = reviewed(bench)
    await bench.invoke(graph, CASE, context={"namespace": ["shop", "emea"]})
    await bench.resume(graph, {"tone": COLD})
    assert await bench.episodes(criterion=TONE) == []
    assert len(await bench.episodes(criterion=TONE, namespace=("shop", "emea"))) == 1
    there = await bench.invoke(graph, OTHER, "u", context={"namespace": ["shop", "emea"]})
    elsewhere = await bench.invoke(graph, OTHER, "v")
    assert len(there["judgments"]["tone"]["guideline_ids"]) == 1
    assert elsewhere["judgments"]["tone"]["guideline_ids"] == []


async def test_model_of_the_context_judges_and_distils(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in bench.server.environment.items():
        monkeypatch.setenv(name, value)
    bench.server.keep_alive = False
    try:
        graph = reviewed(bench)
        await bench.invoke(graph, CASE, context={"model": "openai:gpt-4.1"})
        await bench.resume(graph, {"tone": COLD})
    finally:
        bench.server.keep_alive = True
    assert {chat.model for chat in judgings(bench.server)} == {"gpt-4.1"}
    assert {chat.model for chat in distillings(bench.server)} == {"gpt-4.1"}
    assert len(judgings(bench.server)) == len(THREE)


async def test_distill_model_distils_for_all(bench: Bench) -> None:
    graph = reviewed(bench, distill_model=bench.server.chat_model(model="gpt-4.1"))
    await bench.review(graph, {"tone": COLD, "facts": COLD})
    assert {chat.model for chat in judgings(bench.server)} == {"gpt-4.1-mini"}
    assert [chat.model for chat in distillings(bench.server)] == ["gpt-4.1", "gpt-4.1"]


@pytest.mark.parametrize(
    ("context", "sentence"),
    [({"k": -1}, "context: k"), ({"criterion": "tone"}, "context: criterion")],
    ids=["k", "unknown"],
)
async def test_context_that_can_not_be_used_is_one_sentence(
    bench: Bench, context: Any, sentence: str
) -> None:
    with pytest.raises(InvalidInputError, match=sentence) as caught:
        await bench.invoke(panel(bench), CASE, context=context)
    assert "\n" not in str(caught.value)
    assert bench.server.chats == []


async def test_experts_values_replace_the_judges_in_the_aggregate(bench: Bench) -> None:
    rule = Aggregate(weights={"tone": 2}, vetoes={"facts": True}, passes=0.5)
    graph = reviewed(bench, aggregate=rule)
    asked = await bench.invoke(graph, CASE)
    assert asked["aggregate"]["score"] == 1.0
    assert asked["aggregate"]["passed"] is True
    given = await bench.resume(graph, {"tone": False, "facts": "Wrong.", "length": True})
    assert given["aggregate"] == {
        "score": 0.5,
        "passed": True,
        "parts": {"tone": 0.0, "facts": 1.0, "length": 1.0},
        "vetoed_by": [],
        "missing": [],
    }
    vetoed = await bench.review(graph, {"facts": False}, OTHER, "u")
    assert vetoed["aggregate"]["vetoed_by"] == ["facts"]
    assert vetoed["aggregate"]["passed"] is False
    ignored = await bench.review(graph, {"type": "ignore"}, CASE, "v")
    assert ignored["aggregate"] == asked["aggregate"]


async def test_without_a_checkpointer_it_warns(bench: Bench) -> None:
    graph = reviewed(bench)
    graph.checkpointer = None
    with pytest.warns(MemAlignWarning, match="panel graph runs without a checkpointer"):
        given = await bench.invoke(graph, CASE, None)
    assert given["judgments"].keys() == set(NAMES)


async def test_without_a_store_it_says_so(bench: Bench) -> None:
    graph = create_panel_graph(THREE, **models(bench)).compile()
    with pytest.raises(InvalidInputError, match=r"store: .*none"):
        await bench.invoke(graph, CASE, None)


async def test_threads_wait_for_their_own_replies(bench: Bench) -> None:
    graph = reviewed(bench)
    for name, case in (("a", CASE), ("b", OTHER)):
        await bench.invoke(graph, case, name)
    later = await bench.resume(graph, {"tone": COLD}, "b")
    assert later["feedback"]["tone"]["example"]["outputs"] == OTHER["outputs"]
    assert len((await bench.state(graph, "a")).interrupts) == 1
    sooner = await bench.resume(graph, {"facts": COLD}, "a")
    assert sooner["feedback"]["facts"]["example"]["outputs"] == CASE["outputs"]


@pytest.mark.parametrize("bench", ["sqlite-sync", "sqlite-async"], indirect=True)
async def test_another_process_goes_on_with_what_the_files_hold(
    bench: Bench, tmp_path: Path
) -> None:
    asked = await bench.invoke(reviewed(bench), CASE)
    judged_before = len(judgings(bench.server))
    with (
        SqliteStore.from_conn_string(str(tmp_path / "store.db")) as store,
        SqliteSaver.from_conn_string(str(tmp_path / "threads.db")) as saver,
    ):
        builder = create_panel_graph(THREE, review="always", **models(bench))
        other: Any = builder.compile(store=store, checkpointer=saver)
        [interrupt] = other.get_state(thread("t")).interrupts
        assert interrupt.id == asked["__interrupt__"][0].id
        given = other.invoke(Command(resume={"tone": COLD}), thread("t"))
    assert given["learned"].keys() == {"tone"}
    assert judged_names(bench.server, NAMES) == sorted(NAMES)
    assert len(judgings(bench.server)) == judged_before
    assert len((await learned_texts(bench, [TONE]))["tone"]) == 1


@pytest.mark.parametrize("bench", ["sqlite-sync", "sqlite-async"], indirect=True)
async def test_run_broken_off_before_the_question_goes_on_without_judging_again(
    bench: Bench,
) -> None:
    graph = reviewed(bench)
    graph.interrupt_before_nodes = ["collect_feedback"]
    await bench.invoke(graph, CASE)
    assert (await bench.state(graph)).next == ("collect_feedback",)
    asked = await bench.invoke(reviewed(bench), None)
    assert form_of(asked)["args"]["tone"] is True
    assert judged_names(bench.server, NAMES) == sorted(NAMES)


async def test_run_broken_off_before_learning_learns_once(bench: Bench) -> None:
    graph = reviewed(bench)
    graph.interrupt_before_nodes = ["learn_criteria"]
    await bench.review(graph, {"tone": COLD, "facts": False})
    state = await bench.state(graph)
    assert set(state.next) == {"learn_criteria"}
    given = await bench.invoke(reviewed(bench), None)
    assert given["learned"].keys() == {"tone", "facts"}
    texts = await learned_texts(bench, THREE)
    # The same again, from the checkpoint before: what is there already is not learned twice.
    asked = len(distillings(bench.server))
    again = reviewed(bench)
    if bench.awaits:
        replayed = await again.ainvoke(None, state.config)
    else:
        replayed = again.invoke(None, state.config)
    assert replayed["learned"].keys() == {"tone", "facts"}
    assert await learned_texts(bench, THREE) == texts
    assert len(await bench.episodes(criterion=TONE)) == 1
    assert len(distillings(bench.server)) == asked
