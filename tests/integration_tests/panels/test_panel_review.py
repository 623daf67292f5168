"""When a panel interrupts, nested panels, and learning from replies."""

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest
from langgraph.graph import START, StateGraph

from memalign_graph import (
    Aggregate,
    ChatModelError,
    InvalidInputError,
    Judgment,
    MemAlignWarning,
    StoreError,
    create_feedback_graph,
    create_panel_graph,
)
from memalign_graph.nodes import judge as judging
from tests.conftest import CASE, COLD, DOWN, OTHER, Bench, Graph, distillings
from tests.integration_tests.gates.support import models
from tests.integration_tests.panels.support import (
    FACTS,
    NAMES,
    THREE,
    TONE,
    Parent,
    fails,
    fails_to_distil,
    form_of,
    judged,
    judged_names,
    learned_texts,
    panel,
    reviewed,
    store_feedback,
)
from tests.loopback import ChatRequest, Rule

DAY = timedelta(days=1)


@dataclass
class ParentContext:
    user: str
    memalign: Any = None


def parent(bench: Bench, **options: Any) -> Graph:
    """A graph with a panel for a node."""
    builder: Any = StateGraph(Parent, context_schema=ParentContext)
    builder.add_node("panel", create_panel_graph(THREE, **models(bench), **options).compile())
    builder.add_edge(START, "panel")
    return bench.compile(builder)


async def test_function_of_the_judgments_decides_once(bench: Bench) -> None:
    seen: list[dict[str, Judgment]] = []

    def asks(judgments: dict[str, Judgment]) -> bool:
        seen.append(judgments)
        return judgments["facts"].value is False or judgments["tone"].value is False

    graph = panel(bench, review=asks)
    assert "__interrupt__" not in await bench.invoke(graph, CASE, "a")
    bench.server.rules = judged(facts=False)
    result = await bench.review(graph, {"type": "ignore"}, OTHER, "b")
    assert [sorted(item) for item in seen] == [sorted(NAMES)] * 2
    assert seen[1]["tone"].id == result["judgments"]["tone"]["id"]
    bench.server.rules = [fails("facts")]  # it depends on the errors
    interrupted = await bench.invoke(graph, CASE, "c")
    assert "### facts: not judged" in form_of(interrupted)["description"]
    careful = panel(bench, review=lambda judgments: judgments.get("facts") is not None)
    assert "__interrupt__" not in await bench.invoke(careful, CASE, "d")


class Later:
    async def __call__(self, judgments: Any) -> bool:
        return bool(judgments)


WRONG: list[tuple[Any, type[Exception], str]] = [
    (lambda judgments: judgments["mood"].value is False, KeyError, "mood"),
    (lambda judgments: {**judgments, "tone": {}}["tone"]["facts"], KeyError, "facts"),
    (Later(), InvalidInputError, "review: give a plain function"),
    (lambda _: "no", InvalidInputError, "review: the function returned 'no'"),
]


@pytest.mark.parametrize(("review", "kind", "sentence"), WRONG)
async def test_failing_review_function(bench: Bench, review: Any, kind: Any, sentence: str) -> None:
    bench.server.rules = [fails("length")]
    with pytest.raises(kind, match=sentence):
        await bench.invoke(panel(bench, review=review), CASE)


async def test_context_overrides_default_settings_and_is_validated(bench: Bench) -> None:
    for number, (built, pair, asks) in enumerate(
        [("always", "never", False), ("never", "always", True), ("always", None, True)]
    ):
        graph, context = panel(bench, review=built), {"review": pair, "k": 2}
        result = await bench.invoke(graph, CASE, str(number), context=context)
        assert ("__interrupt__" in result) is asks
    bench.server.chats.clear()
    for graph in (panel(bench), parent(bench)):
        context = {"review": "uncertain"}
        own = ParentContext("ann", context) if "panel" in graph.nodes else context
        with pytest.raises(InvalidInputError, match="'uncertain' is not known: give 'always'"):
            await bench.invoke(graph, CASE, context=own)
    assert bench.server.chats == []
    graph = reviewed(bench)
    graph.checkpointer = None
    with pytest.warns(MemAlignWarning, match="panel graph runs without a checkpointer"):
        await bench.invoke(graph, CASE, None)


@pytest.mark.parametrize("settings", [None, {"namespace": ["team"]}])
async def test_panel_in_a_parent_graph_with_its_own_context(bench: Bench, settings: Any) -> None:
    graph = parent(bench, review="always")
    context = ParentContext(user="ann", memalign=settings)
    interrupted = await bench.invoke(graph, CASE, context=context)
    assert set(form_of(interrupted)["args"]) >= set(NAMES)
    assert "has no feedback" in await bench.refuse(graph, {"author": "ann"})
    result = await bench.resume(graph, {"tone": COLD})
    assert result["learned"].keys() == result["feedback"].keys() == {"tone"}
    namespace = ("team",) if settings else ("memalign",)
    [episode] = await bench.episodes(criterion=TONE, namespace=namespace)
    assert episode.thread_ids == ["t"]
    assert judged_names(bench.server) == sorted(NAMES)
    bench.server.rules = [fails("facts")]
    result = await bench.review(graph, {"length": False}, OTHER)
    assert result["learned"].keys() == {"length"}
    assert (result["errors"].keys(), result["judgments"].keys()) == ({"facts"}, {"tone", "length"})


@pytest.mark.parametrize("reply", [DOWN, "Well."])
async def test_failed_distillation_is_repeated_later(bench: Bench, reply: Any) -> None:
    graph = reviewed(bench)
    await bench.invoke(graph, CASE)
    bench.server.rules = [fails_to_distil("facts", reply)]
    result = await bench.resume(graph, {**dict.fromkeys(NAMES, COLD), "facts": "The old word."})
    assert result["learned"].keys() == {"tone", "length"}
    assert result["errors"].keys() == {"facts"}
    assert result["errors"]["facts"].startswith("The feedback is stored, and the next review or ")
    assert "\n" not in result["errors"]["facts"]
    statuses = {
        criterion.name: (await bench.episodes(criterion=criterion))[0].status for criterion in THREE
    }
    assert statuses == {"tone": "distilled", "facts": "pending", "length": "distilled"}
    bench.server.rules = []
    bench.server.chats.clear()
    result = await bench.review(graph, {"facts": "The new word."}, OTHER, "u")
    [request] = distillings(bench.server)
    assert "The old word." in request.text
    assert "The new word." in request.text
    assert result["errors"] == {}
    assert {episode.status for episode in await bench.episodes(criterion=FACTS)} == {"distilled"}


async def test_expert_can_rate_a_criterion_whose_judge_failed(bench: Bench) -> None:
    bench.server.rules = [fails("facts", {"rationale": "No.", "value": "?"})]
    aggregate = Aggregate(weights={"tone": 3, "length": 0}, vetoes={"facts": True}, passes=0.5)
    graph = reviewed(bench, aggregate=aggregate)
    interrupted = await bench.invoke(graph, CASE)
    assert interrupted["aggregate"]["missing"] == ["facts"]
    why = await bench.refuse(graph, {"facts": {"type": "approve"}})
    assert "facts: there is no judgment to decide on" in why
    resumed = await bench.resume(graph, {"facts": {"value": False, "rationale": "Wrong."}})
    assert resumed["feedback"]["facts"]["judgment"] is None
    [episode] = await bench.episodes(criterion=FACTS)
    assert (episode.value, episode.rationale) == (False, "Wrong.")
    result = resumed["aggregate"]
    assert (result["missing"], result["vetoed_by"], result["passed"]) == ([], ["facts"], False)
    ignored = await bench.review(graph, {"type": "ignore"}, CASE, "u")
    assert ignored["aggregate"] == interrupted["aggregate"]


async def test_interrupted_run_continues_without_judging_or_learning_again(bench: Bench) -> None:
    graph = reviewed(bench)
    graph.interrupt_before_nodes = ["collect_feedback", "learn_criteria"]
    await bench.invoke(graph, CASE)
    assert (await bench.state(graph)).next == ("collect_feedback",)
    assert form_of(await bench.invoke(reviewed(bench), None))["args"]["tone"] is True
    await bench.resume(graph, {"tone": COLD, "facts": False})
    state = await bench.state(graph)
    assert state.next == ("learn_criteria",)
    result = await bench.invoke(reviewed(bench), None)
    assert result["learned"].keys() == {"tone", "facts"}
    texts, count = await learned_texts(bench, THREE), len(distillings(bench.server))
    # Repeated from the earlier checkpoint: stored feedback is not learned twice.
    replayed = reviewed(bench).invoke(None, state.config)
    assert replayed["learned"].keys() == {"tone", "facts"}
    assert await learned_texts(bench, THREE) == texts
    assert len(await bench.episodes(criterion=TONE)) == 1
    assert (len(distillings(bench.server)), judged_names(bench.server)) == (count, sorted(NAMES))


async def test_earlier_judgments_are_kept(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    judge_example = judging.judge_example

    async def breaks_off(step: Any) -> Any:
        if step.resources.criterion.name == "facts":
            raise StoreError("The store is down.")
        return await judge_example(step)

    graph = panel(bench).with_config(max_concurrency=1)
    with monkeypatch.context() as patched:
        patched.setattr(judging, "judge_example", breaks_off)
        with pytest.raises(StoreError, match="down"):
            await bench.invoke(graph, CASE)
    before = judged_names(bench.server)
    result = await bench.invoke(graph, None)
    assert result["judgments"].keys() == set(NAMES)
    assert "facts" not in before
    assert judged_names(bench.server) == sorted(NAMES)
    result = await bench.invoke(panel(bench, [TONE]), OTHER)
    assert result["judgments"].keys() == {"tone"}


async def test_cited_guidelines_are_returned_by_criterion(bench: Bench) -> None:
    guideline = await bench.add_guideline("Say sorry.", criterion=TONE)

    def names_rules(chat: ChatRequest) -> bool:
        return "broken_guidelines" in str(chat.schema)

    answer = {"rationale": "No.", "value": False, "broken_guidelines": [1]}
    bench.server.rules = [Rule(names_rules, reply=answer)]
    result = await bench.invoke(panel(bench, cite_guidelines=True), CASE)
    assert result["judgments"]["tone"]["broken_guideline_ids"] == [guideline.id]
    assert result["broken_guidelines"] == {"tone": [guideline.to_json()], "facts": [], "length": []}
    assert "broken_guidelines" not in await bench.invoke(panel(bench), CASE, "u")


async def test_checkpoints_contain_only_what_the_judges_are_shown(bench: Bench) -> None:
    for criterion in THREE:
        await store_feedback(bench, criterion)
        for number in range(30):
            text = f"Rule {number} of {criterion.name}: say sorry."
            await bench.add_guideline(text, criterion=criterion)
    graph = panel(bench, max_guideline_tokens=60)
    await bench.invoke(graph, CASE)
    state = (await bench.state(graph)).values
    for criterion in THREE:
        memory = state["judge_memories"][criterion.name]
        guidelines_in_prompt = [*memory.get("guidelines", []), *memory.get("relevant", [])]
        judgment = state["judgments"][criterion.name]
        assert set(guidelines_in_prompt) == set(judgment["guideline_ids"])
        assert 0 < len(guidelines_in_prompt) < 30
        assert "vector" not in memory
    assert str(state).count(state["judge_run"]["vector"]) == 1


async def test_replies_are_stored_with_the_vector_of_the_embeddings_in_use(bench: Bench) -> None:
    await store_feedback(bench, TONE, OTHER)
    await bench.invoke(reviewed(bench), CASE)
    embedder = bench.server.embedder(model="text-embedding-3-large", dimensions=32)
    bench.server.embeddings.clear()
    await bench.resume(reviewed(bench, embeddings=embedder), {"tone": COLD, "facts": COLD})
    assert len(bench.server.embeddings) == 1
    for criterion, count in ((TONE, 2), (FACTS, 1)):
        assert len(bench.memory(criterion, embeddings=embedder).recall(CASE, 2)) == count


async def test_run_can_be_resumed_with_other_embeddings(bench: Bench) -> None:
    await store_feedback(bench, TONE, OTHER)
    bench.server.script(*[DOWN] * len(THREE))
    with pytest.raises(ChatModelError, match="None of the 3 criteria could be judged"):
        await bench.invoke(panel(bench), CASE)
    embedder = bench.server.embedder(model="text-embedding-3-large", dimensions=32)
    result = await bench.invoke(panel(bench, embeddings=embedder), None)
    assert (result["errors"], len(result["judgments"]["tone"]["episode_ids"])) == ({}, 1)


async def test_each_kept_judgment_accepts_later_feedback(bench: Bench) -> None:
    await store_feedback(bench, TONE, OTHER)
    result = await bench.invoke(panel(bench, keep_judgments=DAY), CASE)
    ids = {name: item["id"] for name, item in result["judgments"].items()}
    for criterion in THREE:
        judgments = bench.memory(criterion).judgments()
        assert [kept.judgment.id for kept in judgments] == [ids[criterion.name]]
    graphs = [bench.compile(create_feedback_graph(each, **models(bench))) for each in (FACTS, TONE)]
    reply = {**COLD, "author": "ann"}
    answer = {"judgment_id": ids["facts"], "reply": reply}
    assert (await bench.invoke(graphs[0], answer, "a"))["judgment"]["id"] == ids["facts"]
    [episode] = await bench.episodes(criterion=FACTS)
    assert (episode.author, episode.example.outputs) == ("ann", CASE["outputs"])
    assert len(bench.server.embeddings) == 1
    with pytest.raises(InvalidInputError, match="judgment_id: no judgment"):
        await bench.invoke(graphs[1], {"judgment_id": ids["length"], "reply": reply}, "b")


async def test_dated_reply_that_was_taken_back_is_not_learned(bench: Bench) -> None:
    graph = reviewed(bench, [TONE, FACTS])
    await bench.invoke(graph, CASE)
    dated = {"value": False, "author": "ann", "given_at": "2026-01-02T03:04:05+00:00"}
    bench.memory(TONE).remember({**CASE, **dated})
    bench.memory(TONE).forget(author="ann")
    done = await bench.resume(graph, {"tone": dated, "facts": dated})
    assert done["feedback"].keys() == done["learned"].keys() == {"facts"}
    assert await bench.episodes(criterion=TONE) == []
    assert [episode.value for episode in await bench.episodes(criterion=FACTS)] == [False]
