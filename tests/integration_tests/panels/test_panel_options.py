"""What a panel is built with: what can't be used is said in one sentence, before any call."""

from datetime import timedelta
from typing import Any

import pytest

from memalign_graph import Aggregate, Criterion, InvalidInputError, create_panel_graph
from tests.integration_tests.panels.support import GRADES, MIXED, THREE, TONE, criterion
from tests.loopback import LoopbackServer


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
    "unknown": ({"guidelines": True}, "guidelines: a panel has no such option"),
    "citing": ({"cite_guidelines": True}, "cite_guidelines: a panel has no such option"),
    "review": ({"review": "sometimes"}, "review: 'sometimes' is not known"),
    "review-none": ({"review": None}, "review: None is not known"),
    "review-async": ({"review": asks}, "review: .* plain function"),
    "aggregate": ({"aggregate": {"weights": {}}}, "aggregate: give Aggregate"),
    "model": ({"model": 3}, "model: give a chat model or a string"),
    "distill-model": ({"distill_model": 3}, "distill_model: give a chat model or a string"),
    "embeddings": ({"embeddings": 3}, "embeddings: give LangChain embeddings"),
    "k": ({"k": 101}, "k: 101 is not a whole number from 0 to 100"),
    "k-true": ({"k": True}, "k: True is not a whole number"),
    "tokens": ({"max_guideline_tokens": -1}, "max_guideline_tokens: -1 is not"),
    "use-guidelines": ({"use_guidelines": "no"}, "use_guidelines: 'no' is neither True nor False"),
    "use-episodes": ({"use_episodes": None}, "use_episodes: None is neither True nor False"),
    "on-error": ({"on_embedding_error": "skip"}, "on_embedding_error: 'skip' is not known"),
    "swap": ({"swap": True}, r"swap: none of the criteria has scale=Pairwise\(\)"),
    "swap-text": ({"swap": "yes"}, "swap: 'yes' is neither True nor False"),
    "keep": ({"keep_judgments": 30}, "keep_judgments: 30 is no length of time"),
    "keep-zero": ({"keep_judgments": timedelta(0)}, "keep_judgments: .* is no length of time"),
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
