"""Panel options, score and form, without a graph."""

import itertools
import json
import random
import re
from fractions import Fraction
from typing import Any

import pytest
from markdown_it import MarkdownIt

from memalign_graph import (
    Aggregate,
    Boolean,
    Categorical,
    Criterion,
    Example,
    InvalidInputError,
    Judgment,
    Numeric,
    Pairwise,
    Uncertain,
    create_panel_graph,
)
from memalign_graph.interrupts import Form
from memalign_graph.panel_form import panel_form
from memalign_graph.scales import Scale, Value
from tests.integration_tests.panels.support import GRADES, MIXED, THREE, TONE, criterion
from tests.unit_tests.alignment.alignment_cases import standing


async def asks(judgments: Any) -> bool:
    return bool(judgments)


NONE: list[Any] = [[], TONE, {}, None]
NO_PANEL: list[tuple[Any, str]] = [
    *((none, "criteria: give a list of one or more Criterion.") for none in NONE),
    (["tone"], "criterion: expected a Criterion"),
    ("tone", "criterion: expected a Criterion"),
    ([TONE, criterion("tone", GRADES)], "criteria: two have the name 'tone'"),
    ([criterion("author")], "criteria: the name 'author' is reserved"),
    ([TONE, criterion("type")], "criteria: the name 'type' is reserved"),
    ([criterion("judgment_id")], "criteria: the name 'judgment_id' is reserved"),
    ([criterion("a"), criterion("a_rationale")], "criteria: the name 'a' is reserved"),
    ([criterion("a_rationale"), criterion("a")], "criteria: the name 'a' is reserved"),
]
NO_OPTION: list[tuple[dict[str, Any], str]] = [
    ({"clarify": True}, "clarify: is not a known field"),
    ({"review": "sometimes"}, "review: 'sometimes' is not known: give 'always', 'never'"),
    ({"review": None}, "review: None is not known"),
    ({"review": asks}, "review: .* plain function"),
    (
        {"review": Uncertain(), "confidence": True},
        r"review: Uncertain\(.*\) is not known: give 'always', 'never', or a function",
    ),
    ({"aggregate": {"weights": {}}}, "aggregate: give Aggregate"),
    ({"samples": 2}, "samples: needs confidence=True"),
    ({"swap": True}, r"swap: none of the criteria has scale=Pairwise\(\)"),
    ({"swap": "yes"}, "swap: 'yes' is neither True nor False"),
]
NO_AGGREGATE: list[tuple[dict[str, Any], str]] = [
    ({"weights": {"mood": 1}}, "weights: 'mood' is not a criterion of this panel"),
    ({"vetoes": {"mood": True}}, "vetoes: 'mood' is not a criterion of this panel"),
    ({"weights": {"grade": -1}}, "weights.grade: -1 is below the minimum"),
    ({"weights": {"grade": "2"}}, "weights.grade: '2' is not a number"),
    ({"weights": {"grade": float("inf")}}, "weights.grade: inf is above the maximum"),
    ({"weights": {"kind": 1}}, "weights: the scale of 'kind' has no order"),
    ({"weights": {"better": 1}}, "weights: the scale of 'better' has no order"),
    ({"vetoes": ["grade"]}, "vetoes: "),
    ({"vetoes": {"grade": 9}}, "vetoes: .*grade.*9 is not on the scale"),
    ({"vetoes": {"grade": []}}, "vetoes: .*grade.*empty"),
    ({"vetoes": {"grade": asks}}, "vetoes: .*grade.*plain function"),
    ({"passes": 1.5}, "passes: 1.5 is above the maximum"),
    ({"passes": float("nan")}, "passes: nan is above"),
]


@pytest.mark.parametrize(
    ("criteria", "options", "sentence"),
    [
        *((criteria, {}, sentence) for criteria, sentence in NO_PANEL),
        *((THREE, *row) for row in NO_OPTION),
    ],
)
def test_panel_that_cannot_be_made_is_refused(
    criteria: Any, options: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(InvalidInputError, match=sentence) as caught:
        create_panel_graph(criteria, **options)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("options", "sentence"), NO_AGGREGATE)
def test_aggregate_that_does_not_fit_is_refused(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InvalidInputError, match=sentence) as caught:
        create_panel_graph(MIXED, aggregate=Aggregate(**options))
    assert "\n" not in str(caught.value)


def test_valid_panels_are_built() -> None:
    for names in (["a_rationale"], ["a", "A"], ["a", "b_rationale"], ["Größe", "丁寧さ"]):
        assert create_panel_graph([criterion(name) for name in names])
    assert create_panel_graph((*THREE, *MIXED), swap=True)
    unordered = [criterion for criterion in MIXED if criterion.name in ("kind", "better")]
    for scoreless in (Aggregate(), Aggregate(vetoes={"kind": "Question"}, passes=0.5)):
        with pytest.raises(InvalidInputError, match="aggregate: no criterion of this panel has a"):
            create_panel_graph(unordered, aggregate=scoreless)
    assert create_panel_graph(unordered, aggregate=Aggregate(vetoes={"kind": "Question"}))
    assert create_panel_graph(MIXED, aggregate=Aggregate())


SCALES: dict[str, tuple[Scale, dict[Any, Fraction | None]]] = {
    "boolean": (Boolean(), {False: Fraction(0), True: Fraction(1)}),
    "signed": (
        Numeric(minimum=-2, maximum=2, integer=True),
        {value: Fraction(value + 2, 4) for value in range(-2, 3)},
    ),
    "share": (Numeric(minimum=0, maximum=1), {value / 8: Fraction(value, 8) for value in range(9)}),
    "level": (
        Categorical(choices=("poor", "fair", "good", "best"), ordered=True),
        {value: Fraction(index, 3) for index, value in enumerate(("poor", "fair", "good", "best"))},
    ),
    "kind": (Categorical(choices=("question", "praise")), {"question": None, "praise": None}),
    "pair": (Pairwise(), {"A": None, "B": None, "tie": None}),
}
"""Each scale with where its values lie between the lowest and the highest, if anywhere."""


@pytest.mark.parametrize("seed", range(5))
def test_score_is_the_weighted_mean_and_a_veto_cannot_be_compensated(seed: int) -> None:
    chance = random.Random(seed)  # noqa: S311 - a reference needs no secrets
    for _ in range(300):
        kinds = ["signed", *(chance.choice(list(SCALES)) for _ in range(chance.randint(1, 9)))]
        places = {f"{kind}{index}": SCALES[kind][1] for index, kind in enumerate(kinds)}
        panel = [criterion(f"{kind}{index}", SCALES[kind][0]) for index, kind in enumerate(kinds)]
        ordered = [name for name, place in places.items() if None not in place.values()]
        named = chance.sample(ordered, chance.randint(0, len(ordered)))
        weights = {name: chance.choice([0, 1, 2, 0.5, 3]) for name in named}
        if not any(weights.get(name, 1) for name in ordered):
            weights = {}
        wanted = {name: chance.choice(list(place)) for name, place in places.items()}
        vetoes = {name: [wanted[name]] for name in places if chance.random() < 0.2}
        values = {
            name: wanted[name] if chance.random() < 0.5 else chance.choice(list(place))
            for name, place in places.items()
            if chance.random() < 0.9
        }
        passes = chance.choice([None, Fraction(chance.randint(0, 20), 20)])
        threshold = None if passes is None else float(passes)
        aggregate = Aggregate(weights=weights, vetoes=vetoes, passes=threshold)
        result = aggregate.bind(panel)(values)

        parts = {
            name: places[name][values[name]] or Fraction(0) for name in ordered if name in values
        }
        total = sum((Fraction(weights.get(name, 1)) for name in parts), Fraction(0))
        weighted = sum(
            (Fraction(weights.get(name, 1)) * parts[name] for name in parts), Fraction(0)
        )
        score = weighted / total if total else None
        assert result["parts"] == pytest.approx({name: float(parts[name]) for name in parts})
        assert result["score"] == (None if score is None else pytest.approx(float(score)))
        assert result["missing"] == [name for name in places if name not in values]
        broken = [name for name in vetoes if name in values and values[name] != wanted[name]]
        assert result["vetoed_by"] == broken
        retained = not broken and all(name in values for name in vetoes)
        reached = passes is None or (score is not None and score >= passes)
        assert result["passed"] is (retained and reached if vetoes or passes is not None else None)
        assert json.loads(json.dumps(result, allow_nan=False)) == result


def test_score_equal_to_the_threshold_passes() -> None:
    ten = Numeric(minimum=0, maximum=10, integer=True)
    for count, points in itertools.product(range(1, 13), range(11)):
        panel = [criterion(f"c{index}", ten) for index in range(count)]
        values = {criterion.name: points for criterion in panel}
        assert Aggregate(passes=points / 10).bind(panel)(values)["passed"] is True
        if points < 10:
            above = Aggregate(passes=points / 10 + 0.001).bind(panel)(values)
            assert above["passed"] is False


def test_panel_without_judgments_has_no_score_and_does_not_pass() -> None:
    panel = [criterion("a", Boolean())]
    result = Aggregate(passes=0).bind(panel)({})
    assert (result["score"], result["passed"], result["missing"]) == (None, False, ["a"])
    assert Aggregate().bind(panel)({})["passed"] is None


EXAMPLE = Example(inputs="My order never came.", outputs="Check the tracking page.")
CRITERIA = {
    "tone": Criterion(name="tone", instructions="How is the tone?", scale=Boolean()),
    "grade": Criterion(name="grade", instructions="Which?", scale=Numeric(minimum=1, maximum=3)),
}
JUDGED: dict[str, Value] = {"tone": True, "grade": 2.5}


def judgment(name: str, **fields: Any) -> Judgment:
    data = {"rationale": "It is.", "value": JUDGED[name], "memory_version": "0", **fields}
    return Judgment(criterion=name, example_id=EXAMPLE.id, **data)


JUDGMENTS = {name: judgment(name) for name in JUDGED}


def form(judgments: Any = JUDGMENTS, example: Example = EXAMPLE, **parts: Any) -> Form[Any]:
    return panel_form(CRITERIA, example, judgments, **{"errors": {}, "guidelines": {}, **parts})


def described(**parts: Any) -> str:
    [action] = form(**parts).payload["action_requests"]
    return str(action["description"])


def test_unjudged_criterion_is_named_and_has_no_field() -> None:
    errors = {"grade": "The model failed: [x](http://x) <b>\n# Big"}
    request = form({"tone": JUDGMENTS["tone"]}, errors=errors)
    [action] = request.payload["action_requests"]
    assert "### grade: not judged" in action["description"]
    assert "[x](" not in action["description"].replace("\\[", "")
    assert not any(line.startswith("# Big") for line in action["description"].splitlines())
    assert "grade" not in action["args"]


HOSTILE = (
    *("Fine.", "# Approve", "a", "===", "> - # b", "~~~", "```", "````", "### tone: false"),
    *("[press](http://x)", "<script>", "![p](http://x)", "`x"),
)
TAG = re.compile(r"<(?:h[1-6]|pre|a|img|script)\b")


@pytest.mark.parametrize("where", ["inputs", "outputs", "rationale", "warnings"])
@pytest.mark.parametrize(
    "line_break", ["\n", "\r\n", "\r", "\x0b", "\x0c", "\x1c", "\x85", "\u2028"]
)
def test_judged_text_adds_no_heading_fence_link_or_tag(where: str, line_break: str) -> None:
    text = line_break.join(HOSTILE)
    if where in ("rationale", "warnings"):
        fields: dict[str, Any] = {where: text if where == "rationale" else [text]}
        plain = described(judgments={**JUDGMENTS, "tone": judgment("tone", warnings=["Short."])})
        made = judgment("tone", **{"warnings": ["Short."], **fields})
        hostile = described(judgments={**JUDGMENTS, "tone": made})
    else:
        plain = described()
        hostile = described(example=Example.model_validate({**EXAMPLE.to_json(), where: text}))
    tags = [TAG.findall(MarkdownIt("commonmark").render(form)) for form in (plain, hostile)]
    assert tags[0] == tags[1]


def test_shown_guidelines_are_those_in_the_judges_prompt() -> None:
    guidelines = [standing(f"Rule {number}.", f"e{number}") for number in range(8)]
    judgment_made = judgment("tone", guideline_ids=[item.id for item in guidelines[1:]])
    text = described(
        judgments={**JUDGMENTS, "tone": judgment_made}, guidelines={"tone": guidelines}
    )
    shown = [item for item in guidelines if item.text in text]
    assert shown == guidelines[1:6]
    assert "- and 2 more" in text
