"""Panels: criteria judged concurrently, each with its own memory."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest
from langgraph.graph import START, StateGraph
from langgraph.types import RetryPolicy

from memalign_graph import (
    Aggregate,
    Categorical,
    ChatModelError,
    Criterion,
    EmbeddingError,
    Feedback,
    InvalidInputError,
    JudgeMemory,
    ModelAnswerError,
    StoreError,
    create_panel_graph,
    models,
)
from memalign_graph import panel as panel_module
from memalign_graph.runtime import NodeCall
from tests.conftest import CASE, COLD, DOWN, EVERY_WAY, OTHER, Bench, Graph, distillings, judgings
from tests.integration_tests.gates.support import models as bench_models
from tests.integration_tests.panels.support import (
    ASPECTS,
    FACTS,
    LENGTH,
    MIXED,
    NAMES,
    NINE,
    PAIR,
    THREE,
    TONE,
    Parent,
    approved,
    asks_about,
    fails,
    form_of,
    judged,
    judged_names,
    learned_texts,
    panel,
    reviewed,
    store_feedback,
    values_of,
)
from tests.loopback import Rule, Together

HEED = "When judging, heed the expert: "
WHERE = {"namespace": ["shop", "emea"]}
RULE = Aggregate(weights={"tone": 2}, vetoes={"facts": True}, passes=0.5)


@EVERY_WAY
async def test_panel(bench: Bench) -> None:
    def graph() -> Graph:
        return reviewed(bench, aggregate=RULE)

    modes = ["custom", "updates"]
    parts = await bench.stream(graph(), CASE, stream_mode=modes, context=WHERE)
    events = [part for mode, part in parts if mode == "custom"]
    assert sorted(event["criterion"] for event in events) == sorted(NAMES)
    assert {(event["type"], event["value"]) for event in events} == {("panel_judgment", True)}
    nodes = [next(iter(part)) for mode, part in parts if mode == "updates"]
    judges = ["judge_1", "judge_2", "judge_3"]
    assert (nodes[0], sorted(nodes[1:4])) == ("retrieve_episodes", judges)
    assert nodes[4:] == ["judge_criteria", "__interrupt__"]
    state = await bench.state(graph())
    assert state.values["aggregate"]["score"] == 1.0
    form = form_of({"__interrupt__": state.interrupts})
    same = {"type": "edit", "edited_action": {"name": form["name"], "args": form["args"]}}
    replies: list[tuple[Any, str]] = [
        ("Too cold.", "a reply of type str is not understood"),
        ({"mood": 1}, "which is not a criterion"),
        ({"tone": 7}, "tone: 7 is not on the scale"),
        ({"decisions": [same]}, "nothing in the form was changed"),
        ({"tone": False, "author": "a\x00b"}, "`author` has a NUL character"),
    ]
    for reply, problem in replies:
        assert problem in await bench.refuse(graph(), reply)
        assert (await bench.state(graph())).interrupts[0].id == state.interrupts[0].id
    reply = {"tone": COLD, "facts": "Name the order.", "author": "ann"}
    result = await bench.resume(graph(), reply)
    keys = {"judgments", "errors", "aggregate", "feedback", "learned"}
    assert set(result) - {*CASE, "__interrupt__"} == keys
    assert result["learned"].keys() == result["feedback"].keys() == {"tone", "facts"}
    assert result["judgments"] == state.values["judgments"]
    assert result["errors"] == {}
    assert result["aggregate"] == {
        "score": 0.5,
        "passed": True,
        "parts": {"tone": 0.0, "facts": 1.0, "length": 1.0},
        "vetoed_by": [],
        "missing": [],
    }
    assert judged_names(bench.server) == sorted(NAMES)
    assert len(distillings(bench.server)) == 2
    assert await learned_texts(bench, THREE, namespace=("shop", "emea")) == {
        "tone": [f"{HEED}{COLD['rationale']}"],
        "facts": [f"{HEED}Name the order."],
        "length": [],
    }
    for criterion in (TONE, FACTS):
        assert await bench.episodes(criterion=criterion) == []
        [episode] = await bench.episodes(criterion=criterion, namespace=("shop", "emea"))
        assert result["learned"][criterion.name]["episode_ids"] == [episode.id]
        assert (episode.author, episode.thread_ids) == ("ann", ["t"])
        assert episode.judgment is not None
        assert episode.judgment.id == result["judgments"][criterion.name]["id"]

    bench.server.rules = [fails("length")]
    result = await bench.invoke(graph(), OTHER, context=WHERE)
    assert len(result["judgments"]["tone"]["guideline_ids"]) == 1
    assert result["errors"].keys() == {"length"}
    assert result["aggregate"]["missing"] == ["length"]
    assert (result["feedback"], result["learned"]) == (None, {})
    assert "### length: not judged" in form_of(result)["description"]
    result = await bench.resume(graph(), approved())
    assert result["feedback"].keys() == result["learned"].keys() == {"tone", "facts"}
    assert len(distillings(bench.server)) == 2
    assert await bench.episodes(criterion=LENGTH, namespace=("shop", "emea")) == []


@pytest.mark.parametrize("context", [None, {"model": "openai:gpt-4.1"}])
async def test_nine_criteria_are_judged_and_distilled_concurrently(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, context: Any
) -> None:
    for name, value in bench.server.environment.items():
        monkeypatch.setenv(name, value)
    made: list[str] = []

    def counted(name: str, resolve: Any, context: Any) -> Any:
        made.append(name)
        return resolve(context)

    for name in ("resolve_chat_model", "resolve_embeddings"):
        wrapped = partial(counted, name, getattr(models, name))
        monkeypatch.setattr(models, name, wrapped)
    monkeypatch.setattr(bench.server, "keep_alive", False)
    builder: Any = StateGraph(Parent)
    builder.add_node("panel", create_panel_graph(NINE, review="always").compile())
    builder.add_edge(START, "panel")
    graph = bench.compile(builder)
    bench.server.rules = judged(metrics=1, plots=2)
    bench.server.responder = Together(len(NINE), bench.server.judge, "judgment")
    result = await bench.invoke(graph, CASE, context=context and {"memalign": context})
    assert judged_names(bench.server, ASPECTS) == sorted(ASPECTS)
    bench.server.responder = Together(len(NINE), bench.server.judge, "guideline_operations")
    result = await bench.resume(graph, {name: f"Look at the {name}." for name in ASPECTS})
    assert values_of(result) == {**dict.fromkeys(ASPECTS, 3), "metrics": 1, "plots": 2}
    assert result["learned"].keys() == set(ASPECTS)
    assert sorted(made) == ["resolve_chat_model", "resolve_embeddings"]
    assert {chat.model for chat in bench.server.chats} == {"gpt-4.1" if context else "gpt-6-luna"}


async def test_mixed_scales_and_pairs_in_both_orders(bench: Bench) -> None:
    values = {"polite": False, "grade": 2, "share": 0.25, "level": "Fair", "kind": "Complaint"}
    bench.server.rules = judged(**values, better="A")
    result = await bench.invoke(panel(bench, MIXED, swap=True), PAIR)
    # The same letter in both orders is position bias, and so a tie.
    assert values_of(result) == {**values, "better": "tie"}
    kinds = [type(value) for value in values_of(result).values()]
    assert kinds == [bool, int, float, str, str, str]
    names = [criterion.name for criterion in MIXED]
    assert judged_names(bench.server, names) == sorted([*names, "better"])
    for criterion in MIXED:
        for chat in filter(asks_about(criterion.name), judgings(bench.server)):
            assert [other for other in MIXED if other.instructions in chat.text] == [criterion]
        warnings = result["judgments"][criterion.name]["warnings"]
        assert ("depends on the order" in str(warnings)) is (criterion.name == "better")


async def test_each_judge_sees_only_its_own_memory(bench: Bench) -> None:
    for criterion in THREE:
        rationale = f"Said of {criterion.name} alone."
        await store_feedback(bench, criterion, OTHER, value=False, rationale=rationale)
        await bench.add_guideline(f"A rule of {criterion.name} alone.", criterion=criterion)
    case = {**CASE, "reference_outputs": "We are sorry: a new one is sent."}
    result = await bench.invoke(panel(bench), case)
    for criterion in THREE:
        [chat] = filter(asks_about(criterion.name), judgings(bench.server))
        assert "a new one is sent" in chat.text
        for other in THREE:
            assert (f"Said of {other.name} alone." in chat.text) is (other is criterion)
            assert (f"A rule of {other.name} alone." in chat.text) is (other is criterion)
        judgment = result["judgments"][criterion.name]
        assert len(judgment["guideline_ids"]) == len(judgment["episode_ids"]) == 1
        assert (judgment["criterion"], judgment["thread_id"]) == (criterion.name, "t")


async def test_invalid_example_causes_no_model_call(bench: Bench) -> None:
    with pytest.raises(InvalidInputError, match="outputs: to be judged in both orders"):
        await bench.invoke(panel(bench, MIXED, swap=True), CASE)
    assert bench.server.chats == []
    assert bench.server.embeddings == []


FAILURES: list[tuple[Any, str]] = [
    (DOWN, "It broke"),
    ({"rationale": "So.", "value": "maybe"}, "'maybe' is not on the scale"),
]


@pytest.mark.parametrize(("reply", "message"), FAILURES)
async def test_failing_judge_is_named_and_the_others_judge(
    bench: Bench, reply: Any, message: str
) -> None:
    bench.server.rules = [fails("facts", reply)]
    result = await bench.invoke(panel(bench), CASE)
    assert values_of(result) == {"tone": True, "length": True}
    assert result["errors"].keys() == {"facts"}
    assert message in result["errors"]["facts"]


BROKEN: dict[str, tuple[str, dict[str, Any]]] = {
    "facts": ("9", {"id": "9", "kind": "fact", "at_us": 9e18}),
    "words": ("x", {"key": "x"}),
}


@pytest.mark.parametrize("label", list(BROKEN))
async def test_unreadable_memory_is_named_and_the_others_judge(bench: Bench, label: str) -> None:
    graph = reviewed(bench)
    await bench.invoke(graph, CASE, "waiting")
    await store_feedback(bench, FACTS, OTHER)
    bench.store.put(("memalign", "facts", label), *BROKEN[label])
    result = await bench.invoke(graph, CASE)
    assert result["judgments"].keys() >= {"tone", "length"}
    assert result["judgments"].keys() | result["errors"].keys() == set(NAMES)
    for on in ("t", "waiting"):  # the failure is before and during the interrupt
        result = await bench.resume(graph, dict.fromkeys(NAMES, COLD), on)
        assert result["learned"].keys() >= {"tone", "length"}
        if label == "facts":
            assert result["errors"].keys() == {"facts"}


@pytest.mark.parametrize(("reply", "kind"), [(DOWN, ChatModelError), ("Well.", ModelAnswerError)])
async def test_failure_of_all_judges_is_one_error(bench: Bench, reply: Any, kind: Any) -> None:
    graph = panel(bench)
    bench.server.rules = [Rule(lambda _: True, reply=reply)]
    for on in ("again", "second"):
        with pytest.raises(kind, match="None of the 3 criteria could be judged") as caught:
            await bench.invoke(graph, CASE, on)
        assert "\n" not in str(caught.value)
    bench.server.rules = [fails("facts")]
    result = await bench.invoke(graph, None, "again")
    assert result["judgments"].keys() == {"tone", "length"}
    bench.server.rules = []
    result = await bench.invoke(graph, CASE, "second")
    assert (result["judgments"].keys(), result["errors"]) == (set(NAMES), {})


def embedded(bench: Bench) -> int:
    return sum(len(request.texts) for request in bench.server.embeddings)


FILLED: list[tuple[Sequence[Criterion], Any, int]] = [
    ([], {"tone": COLD, "facts": COLD}, 1),
    ([], approved(), 1),
    ([TONE], {"facts": COLD, "length": False}, 1),
    ([FACTS], {"tone": COLD}, 1),
    (THREE, {"tone": False, "facts": COLD, "length": True}, 1),
]


@pytest.mark.parametrize(("filled", "reply", "texts"), FILLED)
async def test_example_is_embedded_at_most_once_for_all_memories(
    bench: Bench, filled: Sequence[Criterion], reply: Any, texts: int
) -> None:
    for item in filled:
        await store_feedback(bench, item, OTHER)
    graph = reviewed(bench, decide="verdict")
    result = await bench.invoke(graph, CASE)
    assert embedded(bench) == bool(filled)
    judged = result["judgments"].items()
    names_with_episodes = {name for name, item in judged if item["episode_ids"]}
    assert names_with_episodes == {item.name for item in filled}
    await bench.resume(graph, reply)
    assert embedded(bench) == texts
    bench.server.embeddings.clear()
    await bench.invoke(graph, CASE, "u")  # one of the memories has it
    await bench.invoke(graph, OTHER, "v", context={"k": 0})
    assert embedded(bench) == 0


async def test_case_that_the_embeddings_refuse_is_learned_without_a_vector(bench: Bench) -> None:
    bench.server.refused_text = "never came"
    graph = reviewed(bench)
    await bench.invoke(graph, CASE)
    result = await bench.resume(graph, {"tone": COLD})
    [warning] = result["learned"]["tone"]["warnings"]
    assert warning.startswith("1 piece(s) of feedback have no vector")
    assert len(await bench.guidelines(criterion=TONE)) == 1


async def test_failing_embedding(bench: Bench) -> None:
    await store_feedback(bench, TONE, OTHER)
    await bench.add_guideline("Say sorry.", criterion=TONE)
    bench.server.script_embeddings(DOWN)
    result = await bench.invoke(panel(bench, on_embedding_error="guidelines"), CASE, "borne")
    tone = result["judgments"]["tone"]
    assert "Judged by the guidelines alone" in tone["warnings"][0]
    assert (tone["episode_ids"], len(tone["guideline_ids"])) == ([], 1)
    assert (len(bench.server.embeddings), len(result["judgments"])) == (1, len(THREE))
    bench.server.chats.clear()
    with pytest.raises(InvalidInputError, match="embeddings"):  # before an expert is asked
        await bench.invoke(reviewed(bench, [FACTS], embeddings="nosuch:model"), CASE, "v")
    graph = reviewed(bench)
    bench.server.script_embeddings(DOWN)
    with pytest.raises(EmbeddingError, match="It broke"):
        await bench.invoke(graph, CASE)
    assert bench.server.chats == []
    assert "__interrupt__" in await bench.invoke(graph, None)
    fresh = reviewed(bench, [FACTS])
    await bench.invoke(fresh, CASE, "u")
    bench.server.script_embeddings(DOWN)
    with pytest.raises(EmbeddingError):
        await bench.resume(fresh, {"facts": COLD}, "u")
    assert (await bench.state(fresh, "u")).values["feedback"].keys() == {"facts"}
    result = await bench.invoke(fresh, None, "u")
    assert len(result["learned"]["facts"]["guidelines"]) == 1


async def test_retried_failure_of_all_judges_is_bounded(bench: Bench) -> None:
    builder = create_panel_graph(THREE, **bench_models(bench))
    builder.set_node_defaults(retry_policy=RetryPolicy(0, max_attempts=3, jitter=False))
    graph = bench.compile(builder)
    bench.server.rules = [Rule(lambda _: True, reply=DOWN)]
    with pytest.raises(ChatModelError, match="None of the 3 criteria"):
        await bench.invoke(graph, CASE)
    assert len(judgings(bench.server)) == len(THREE)
    bench.server.rules = []
    assert (await bench.invoke(graph, None))["judgments"].keys() == set(NAMES)


def failing_once(monkeypatch: pytest.MonkeyPatch, operation: str, name: str) -> None:
    """Let the operation on one criterion fail as if the store failed, once."""
    operate, failures = getattr(panel_module, operation), [StoreError("The disk is full")]

    async def fail(call: NodeCall, *more: Any) -> Any:
        if call.resources.criterion.name == name and failures:
            raise failures.pop()
        return await operate(call, *more)

    monkeypatch.setattr(panel_module, operation, fail)


CHANGED: list[tuple[Sequence[Criterion], set[str]]] = [
    ([FACTS, TONE], set()),
    ([LENGTH, FACTS, TONE], set()),
    ([TONE, LENGTH], {"facts"}),
]


@pytest.mark.parametrize(("changed", "lost"), CHANGED)
async def test_stopped_run_goes_on_in_a_changed_panel(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, changed: Sequence[Criterion], lost: set[str]
) -> None:
    options: Any = {"aggregate": Aggregate(passes=0.5)}
    failing_once(monkeypatch, "recall_similar", "facts")
    with pytest.raises(StoreError):
        await bench.invoke(panel(bench, [TONE, FACTS], **options), CASE, "judging")
    result = await bench.invoke(panel(bench, changed, **options), None, "judging")
    assert result["judgments"].keys() >= {criterion.name for criterion in changed}
    assert result["aggregate"]["missing"] == []

    graph = reviewed(bench, [TONE, FACTS])
    await bench.invoke(graph, CASE)
    failing_once(monkeypatch, "commit_memory", "facts")
    with pytest.raises(StoreError):
        await bench.resume(graph, {"tone": COLD, "facts": COLD})
    result = await bench.invoke(reviewed(bench, changed), None)
    assert result["learned"].keys() == {"tone", "facts"} - lost
    assert result["errors"].keys() == lost


def of_level(scale: Categorical) -> Criterion:
    return TONE.model_copy(update={"name": "level", "scale": scale})


async def test_value_of_a_former_scale_is_missing_in_the_score(bench: Bench) -> None:
    former = [of_level(Categorical(choices=("Poor", "Fair"), ordered=True)), TONE]
    scale = Categorical(choices=("Poor", "Good"), ordered=True)
    rule = Aggregate(vetoes={"level": "Good"})
    bench.server.rules = judged(level="Fair")
    await bench.invoke(reviewed(bench, former), CASE)
    graph = reviewed(bench, [of_level(scale), TONE], aggregate=rule)
    aggregate = (await bench.resume(graph, {"tone": True}))["aggregate"]
    assert (aggregate["missing"], aggregate["passed"], aggregate["score"]) == (["level"], False, 1)


async def test_memory_with_other_vectors_fails_alone(bench: Bench) -> None:
    def embedder(size: int) -> Any:
        embed = lambda texts: [[1.0] * size for _ in texts]  # noqa: E731 - named below
        embed.name = "embedder-v1"  # type: ignore[attr-defined] # its name in the memory
        return embed

    for item, size in ((TONE, 3), (FACTS, 5)):
        memory = JudgeMemory(bench.store, item, embeddings=embedder(size))
        memory.remember([Feedback.model_validate({**OTHER, **COLD})])
    graph = reviewed(bench, embeddings=embedder(5))
    result = await bench.invoke(graph, CASE)
    assert result["judgments"].keys() == {"facts", "length"}
    assert "vectors of 5 dimensions" in result["errors"]["tone"]
    result = await bench.resume(graph, dict.fromkeys(NAMES, COLD))
    assert (result["learned"].keys(), result["errors"].keys()) == ({"facts", "length"}, {"tone"})
    with pytest.raises(EmbeddingError, match="None of the 1 criteria could be judged"):
        await bench.invoke(panel(bench, [TONE], embeddings=embedder(5)), CASE, "alone")
