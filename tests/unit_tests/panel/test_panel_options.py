"""What a panel is built with: what can't be used is said in one sentence, before any call."""

from typing import Any

import pytest

from memalign_graph import Aggregate, InvalidInputError, Uncertain, create_panel_graph
from tests.integration_tests.panels.support import GRADES, MIXED, THREE, TONE, criterion


async def asks(judgments: Any) -> bool:
    return bool(judgments)


NO_PANEL: list[tuple[Any, str]] = [
    ([], "criteria: give a list of one or more Criterion."),
    (TONE, "criteria: give a list of one or more Criterion."),
    ({"tone": TONE}, "criteria: give a list of one or more Criterion."),
    (None, "criteria: give a list of one or more Criterion."),
    (["tone"], "criterion: expected a Criterion"),
    ("tone", "criterion: expected a Criterion"),
    ([TONE, criterion("tone", GRADES)], "criteria: two have the name 'tone'"),
    ([criterion("author")], "criteria: the name 'author' is reserved"),
    ([TONE, criterion("type")], "criteria: the name 'type' is reserved"),
    ([criterion("a"), criterion("a_rationale")], "criteria: the name 'a' is reserved"),
    ([criterion("a_rationale"), criterion("a")], "criteria: the name 'a' is reserved"),
]
NO_OPTION: list[tuple[dict[str, Any], str]] = [
    ({"guidelines": True}, "guidelines: is not a field that is known here"),
    ({"clarify": True}, "clarify: is not a field that is known here"),
    ({"review": "sometimes"}, "review: 'sometimes' is not known: give 'always', 'never'"),
    ({"review": None}, "review: None is not known"),
    ({"review": asks}, "review: .* plain function"),
    ({"review": "uncertain"}, "review: 'uncertain' is not known: give 'always', 'n"),
    (
        {"review": Uncertain(), "confidence": True},
        r"review: Uncertain\(.*\) is not known: give 'always', 'never', or a function",
    ),
    ({"aggregate": {"weights": {}}}, "aggregate: give Aggregate"),
    ({"k": 101}, "k: 101 is too much"),
    ({"samples": 2}, "samples: needs confidence=True"),
    ({"swap": True}, r"swap: none of the criteria has scale=Pairwise\(\)"),
    ({"swap": "yes"}, "swap: 'yes' is neither True nor False"),
]
NO_AGGREGATE: list[tuple[dict[str, Any], str]] = [
    ({"weights": {"mood": 1}}, "weights: 'mood' is not a criterion of this panel"),
    ({"vetoes": {"mood": True}}, "vetoes: 'mood' is not a criterion of this panel"),
    ({"weights": {"grade": -1}}, "weights.grade: -1 is too little"),
    ({"weights": {"grade": True}}, "weights.grade: True is not a number"),
    ({"weights": {"grade": "2"}}, "weights.grade: '2' is not a number"),
    ({"weights": {"grade": float("inf")}}, "weights.grade: .*finite number"),
    ({"weights": {"kind": 1}}, "weights: the scale of 'kind' has no order"),
    ({"weights": {"better": 1}}, "weights: the scale of 'better' has no order"),
    ({"weights": None}, "weights: "),
    ({"vetoes": ["grade"]}, "vetoes: "),
    ({"vetoes": {"grade": 9}}, "vetoes: .*grade.*9 is not on the scale"),
    ({"vetoes": {"grade": []}}, "vetoes: .*grade.*empty"),
    ({"vetoes": {"grade": asks}}, "vetoes: .*grade.*plain function"),
    ({"passes": 1.5}, "passes: 1.5 is too much"),
    ({"passes": float("nan")}, "passes: nan is too"),
    ({"passes": True}, "passes: True is not a number"),
]


def refused(criteria: Any, sentence: str, **options: Any) -> None:
    with pytest.raises(InvalidInputError, match=sentence) as caught:
        create_panel_graph(criteria, **options)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("criteria", "sentence"), NO_PANEL)
def test_criteria_that_make_no_panel_are_refused(criteria: Any, sentence: str) -> None:
    refused(criteria, sentence)


@pytest.mark.parametrize(("options", "sentence"), NO_OPTION)
def test_option_that_can_not_be_used_is_refused(options: dict[str, Any], sentence: str) -> None:
    refused(THREE, sentence, **options)


@pytest.mark.parametrize(("options", "sentence"), NO_AGGREGATE)
def test_aggregate_that_does_not_fit_is_refused(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InvalidInputError, match=sentence) as caught:
        create_panel_graph(MIXED, aggregate=Aggregate(**options))
    assert "\n" not in str(caught.value)


def test_what_makes_a_panel() -> None:
    for names in (
        ["a_rationale"],
        ["a", "A"],
        ["a", "b_rationale"],
        ["Größe", "丁寧さ"],
        ["x" * 100],
    ):
        assert create_panel_graph([criterion(name) for name in names])
    assert create_panel_graph((*THREE, *MIXED), swap=True)
    unordered = [one for one in MIXED if one.name in ("kind", "better")]
    refused(unordered, "aggregate: no criterion of this panel has a weight", aggregate=Aggregate())
    assert create_panel_graph(unordered, aggregate=Aggregate(vetoes={"kind": "Question"}))
    assert create_panel_graph(MIXED, aggregate=Aggregate())
