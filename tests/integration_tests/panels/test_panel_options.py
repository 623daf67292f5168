"""What a panel is built with: what can't be used is said in one sentence, before any call."""

from datetime import timedelta
from typing import Any

import pytest

from memalign_graph import (
    Aggregate,
    Criterion,
    InvalidInputError,
    JudgeOptions,
    Uncertain,
    create_panel_graph,
    models,
)
from tests.conftest import CASE, Bench, judgings
from tests.integration_tests.panels.support import (
    COLD,
    GRADES,
    MIXED,
    NINE,
    PAIR,
    THREE,
    TONE,
    criterion,
    panel,
    teach,
)
from tests.loopback import ChatRequest, LoopbackServer, Rule


async def asks(judgments: Any) -> bool:
    return bool(judgments)


NO_PANEL: dict[str, tuple[Any, str]] = {
    "none": ([], "criteria: give a list of Criterion, one or more."),
    "one": (TONE, "criteria: give a list of Criterion, one or more."),
    "set": ({"tone": TONE}, "criteria: give a list of Criterion, one or more."),
    "nothing": (None, "criteria: give a list of Criterion, one or more."),
    "names": (["tone"], "criterion: give a Criterion"),
    "text": ("tone", "criterion: give a Criterion"),
    "duplicate": ([TONE, criterion("tone", GRADES)], "criteria: two are named 'tone'"),
    "author": ([criterion("author")], "criteria: 'author' is a name that the review form needs"),
    "type": ([TONE, criterion("type")], "criteria: 'type' is a name that the review form needs"),
    "decisions": ([criterion("decisions")], "criteria: 'decisions' is a name"),
    "rationale": ([criterion("a"), criterion("a_rationale")], "criteria: 'a' is a name"),
    "rationale-first": ([criterion("a_rationale"), criterion("a")], "criteria: 'a' is a name"),
}
NO_OPTION: dict[str, tuple[dict[str, Any], str]] = {
    "unknown": ({"guidelines": True}, "guidelines: is not a field that is known here"),
    "clarify": ({"clarify": True}, "clarify: is not a field that is known here"),
    "target": ({"target_agreement": 0.8}, "target_agreement: is not a field that is known here"),
    "review": ({"review": "sometimes"}, "review: 'sometimes' is not known: give 'always', 'never'"),
    "review-none": ({"review": None}, "review: None is not known"),
    "review-async": ({"review": asks}, "review: .* plain function"),
    "uncertain": ({"review": "uncertain"}, "review: 'uncertain' is not known: give 'always', 'n"),
    "uncertain-options": (
        {"review": Uncertain(), "confidence": True},
        r"review: Uncertain\(.*\) is not known: give 'always', 'never', or a function",
    ),
    "aggregate": ({"aggregate": {"weights": {}}}, "aggregate: give Aggregate"),
    "model": ({"model": 3}, "model: give a chat model or a string"),
    "k": ({"k": 101}, "k: 101 is too much"),
    "use-episodes": ({"use_episodes": None}, "use_episodes: None is neither True nor False"),
    "citing": ({"cite_guidelines": "all"}, "cite_guidelines: 'all' is neither True nor False"),
    "samples": ({"samples": 2}, "samples: they measure the confidence"),
    "swap": ({"swap": True}, r"swap: none of the criteria has scale=Pairwise\(\)"),
    "swap-text": ({"swap": "yes"}, "swap: 'yes' is neither True nor False"),
}
NO_AGGREGATE: dict[str, tuple[dict[str, Any], str]] = {
    "unknown-weight": ({"weights": {"mood": 1}}, "weights: 'mood' is no criterion of this panel"),
    "unknown-veto": ({"vetoes": {"mood": True}}, "vetoes: 'mood' is no criterion of this panel"),
    "negative": ({"weights": {"grade": -1}}, "weights: -1 for 'grade' is not a number from 0 on"),
    "truth": ({"weights": {"grade": True}}, "weights: True for 'grade' is not a number"),
    "text": ({"weights": {"grade": "2"}}, "weights: '2' for 'grade' is not a number"),
    "endless": ({"weights": {"grade": float("inf")}}, "weights: inf for 'grade' is not a number"),
    "nan": ({"weights": {"grade": float("nan")}}, "weights: nan for 'grade' is not a number"),
    "no-order": ({"weights": {"kind": 1}}, "weights: the scale of 'kind' has no order"),
    "pairwise": ({"weights": {"better": 1}}, "weights: the scale of 'better' has no order"),
    "weights-none": ({"weights": None}, "weights: "),
    "weights-list": ({"weights": ["grade"]}, "weights: "),
    "vetoes-list": ({"vetoes": ["grade"]}, "vetoes: "),
    "veto-off-scale": ({"vetoes": {"grade": 9}}, "vetoes: .*grade.*9 is not on the scale"),
    "veto-nothing": ({"vetoes": {"grade": None}}, "vetoes: .*grade"),
    "veto-empty": ({"vetoes": {"grade": []}}, "vetoes: .*grade.*empty"),
    "veto-async": ({"vetoes": {"grade": asks}}, "vetoes: .*grade.*plain function"),
    "passes": ({"passes": 1.5}, "passes: 1.5 is not a number from 0 to 1"),
    "passes-nan": ({"passes": float("nan")}, "passes: nan is not a number from 0 to 1"),
    "passes-true": ({"passes": True}, "passes: True is not a number from 0 to 1"),
    "passes-text": ({"passes": "0.5"}, "passes: '0.5' is not a number from 0 to 1"),
}


def refused(criteria: Any, sentence: str, **options: Any) -> None:
    with pytest.raises(InvalidInputError, match=sentence) as caught:
        create_panel_graph(criteria, **options)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("case", list(NO_PANEL))
def test_criteria_that_make_no_panel_are_refused(case: str) -> None:
    refused(*NO_PANEL[case])


@pytest.mark.parametrize("case", list(NO_OPTION))
def test_option_that_can_not_be_used_is_refused(case: str) -> None:
    options, sentence = NO_OPTION[case]
    refused(THREE, sentence, **options)


@pytest.mark.parametrize("case", list(NO_AGGREGATE))
def test_aggregate_that_does_not_fit_is_refused(case: str) -> None:
    options, sentence = NO_AGGREGATE[case]
    refused(MIXED, sentence, aggregate=Aggregate(**options))


def test_nothing_with_a_weight_needs_a_veto() -> None:
    kinds = [one for one in MIXED if one.name in ("kind", "better")]
    refused(kinds, "aggregate: no criterion of this panel has a weight", aggregate=Aggregate())
    rule = Aggregate(vetoes={"kind": "Question"})
    assert create_panel_graph(kinds, aggregate=rule) is not None
    assert create_panel_graph(MIXED, aggregate=Aggregate()) is not None


@pytest.mark.parametrize(
    "names", [["a_rationale"], ["a", "A"], ["a", "b_rationale"], ["Größe", "丁寧さ"], ["x" * 100]]
)
def test_names_that_can_be_told_apart_make_a_panel(names: list[str]) -> None:
    assert create_panel_graph([criterion(name) for name in names]) is not None


def test_tuple_of_criteria_makes_a_panel(server: LoopbackServer) -> None:
    criteria: tuple[Criterion, ...] = (*THREE, *MIXED)
    assert create_panel_graph(criteria, model=server.chat_model(), swap=True) is not None


async def test_every_option_of_a_judge_is_taken(bench: Bench) -> None:
    options: JudgeOptions = {
        "model": bench.server.chat_model(),
        "distill_model": bench.server.chat_model(),
        "embeddings": bench.server.embedder(),
        "k": 1,
        "use_guidelines": False,
        "use_episodes": False,
        "max_guideline_tokens": 100,
        "on_embedding_error": "guidelines",
        "swap": True,
        "cite_guidelines": True,
        "keep_judgments": timedelta(days=1),
        "confidence": True,
        "samples": 2,
        "decide": "evidence",
    }
    assert options.keys() == JudgeOptions.__annotations__.keys()
    given = await bench.invoke(bench.compile(create_panel_graph(MIXED, **options)), PAIR)
    assert given["judgments"].keys() == {one.name for one in MIXED}


async def test_cited_guidelines_are_returned_by_criterion(bench: Bench) -> None:
    rule = await bench.add_guideline("Say sorry.", criterion=TONE)

    def names_rules(chat: ChatRequest) -> bool:
        return "broken_guidelines" in str(chat.schema)

    bench.server.rules = [
        Rule(names_rules, reply={"rationale": "No.", "value": False, "broken_guidelines": [1]})
    ]
    given = await bench.invoke(panel(bench, cite_guidelines=True), CASE)
    assert given["judgments"]["tone"]["broken_guideline_ids"] == [rule.id]
    assert given["broken_guidelines"] == {"tone": [rule.to_json()], "facts": [], "length": []}
    assert "broken_guidelines" not in await bench.invoke(panel(bench), CASE, "u")


@pytest.mark.parametrize("context", [None, {"model": "openai:gpt-4.1-mini"}])
async def test_nine_criteria_have_one_chat_model_and_one_embedder(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, context: Any
) -> None:
    for name, value in bench.server.environment.items():
        monkeypatch.setenv(name, value)
    made: list[str] = []
    resolve_chat_model, resolve_embeddings = models.resolve_chat_model, models.resolve_embeddings

    def chat_model(model: Any) -> Any:
        made.append("chat")
        return resolve_chat_model(model)

    def embeddings(given: Any) -> Any:
        made.append("embeddings")
        return resolve_embeddings(given)

    monkeypatch.setattr("memalign_graph.runtime.resolve_chat_model", chat_model)
    monkeypatch.setattr("memalign_graph.models.resolve_embeddings", embeddings)
    bench.server.keep_alive = False
    try:
        graph = bench.compile(create_panel_graph(NINE, review="always"))
        await bench.invoke(graph, CASE, context=context)
        given = await bench.resume(graph, {one.name: "Look closer." for one in NINE})
    finally:
        bench.server.keep_alive = True
    assert given["learned"].keys() == {one.name for one in NINE}
    assert sorted(made) == ["chat", "embeddings"]


async def test_form_of_a_run_offers_what_a_panel_has(bench: Bench) -> None:
    graph = panel(bench)
    schema = graph.get_context_jsonschema() or {}
    fields = schema["properties"]
    assert fields.keys() == {"namespace", "k", "model", "review"}
    assert "uncertain" not in str(fields["review"])
    sentence = "context: review: 'uncertain' is not known: give 'always' or 'never'"
    with pytest.raises(InvalidInputError, match=sentence):
        await bench.invoke(graph, CASE, context={"review": "uncertain"})
    assert bench.server.chats == []


async def test_only_what_the_judges_are_shown_goes_through_checkpoints(bench: Bench) -> None:
    for one in THREE:
        await teach(bench, one, **COLD)
        for number in range(30):
            await bench.add_guideline(f"Rule {number} of {one.name}: say sorry.", criterion=one)
    graph = panel(bench, max_guideline_tokens=60)
    await bench.invoke(graph, CASE)
    assert len(judgings(bench.server)) == len(THREE)
    state = (await bench.state(graph)).values
    for one in THREE:
        memory = state["judge_memories"][one.name]
        shown = [*memory.get("guidelines", []), *memory.get("relevant", [])]
        judgment = state["judgments"][one.name]
        assert {rule["id"] for rule in shown} == set(judgment["guideline_ids"])
        assert 0 < len(shown) < 30
        assert "vector" not in memory
    assert str(state).count(state["judge_run"]["vector"]) == 1
