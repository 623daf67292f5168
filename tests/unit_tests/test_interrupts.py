"""Replies to every form, and the review's description, without a graph."""

import json
import re
import time
from datetime import UTC, datetime
from typing import Any, get_args

import pytest
from markdown_it import MarkdownIt
from pydantic import ValidationError

from memalign_graph import (
    Boolean,
    Categorical,
    Criterion,
    Episode,
    Example,
    Feedback,
    Guideline,
    Judgment,
    Numeric,
    Pairwise,
)
from memalign_graph.alignment.report import Conflict, ConflictSide
from memalign_graph.identity import check_json
from memalign_graph.interrupts import (
    REASONS,
    Form,
    clarify_form,
    conflict_form,
    escape,
    review_form,
)
from memalign_graph.panel_form import panel_form
from memalign_graph.records import Worth
from memalign_graph.scales import Scale
from memalign_graph.types import ReviewReason

EXAMPLE = Example(inputs={"q": "Why?"}, outputs="Because.")
SEEN = "It answers."
WORDS = "Too short."
SCALES: dict[str, tuple[Scale, Any]] = {
    "tone": (Boolean(), True),
    "grade": (Categorical(choices=("Poor", "Good")), "Good"),
    "share": (Numeric(minimum=0, maximum=1), 1.0),
    "level": (Numeric(minimum=1, maximum=5, integer=True), 3),
    "pair": (Pairwise(), "A"),
}
CRITERIA = {
    name: Criterion(name=name, instructions="How good?", scale=scale)
    for name, (scale, _) in SCALES.items()
}
JUDGED = {name: value for name, (_, value) in SCALES.items()}
JUDGMENTS = {
    name: Judgment(
        id=f"judgment of {name}",  # stable test ids
        criterion=name,
        example_id=EXAMPLE.id,
        value=value,
        rationale=SEEN,
        memory_version="0",
        warnings=["The case was cut."],
    )
    for name, value in JUDGED.items()
}
CRITERION, JUDGMENT = CRITERIA["grade"], JUDGMENTS["grade"]


def panel_without(*names: str) -> Form[Any]:
    judgments = {name: item for name, item in JUDGMENTS.items() if name not in names}
    return panel_form(CRITERIA, EXAMPLE, judgments, errors={}, guidelines={})


def conflict(number: int, newer: Any) -> Conflict:
    first, second = (
        ConflictSide(guideline_id=name, text=f"Rule {name}.", episode_ids=["e"])
        for name in ("a", "b")
    )
    return Conflict(id=f"C{number}", first=first, second=second, newer=newer)


CONFLICTS = [conflict(1, "second"), conflict(2, "first")]
QUESTION = "What makes it short?"
FEEDBACK = Feedback(example=EXAMPLE, rationale="Bad.")
BY_ANN = Feedback(example=EXAMPLE, rationale="Bad.", author="ann")

FORMS: dict[str, Form[Any]] = {
    "review": review_form(CRITERION, EXAMPLE, JUDGMENT),
    "clarify": clarify_form(CRITERIA["level"], FEEDBACK, QUESTION),
    "clarify of ann": clarify_form(CRITERIA["level"], BY_ANN, QUESTION),
    "panel": panel_without(),
    "panel without grade": panel_without("grade"),
    "conflicts": conflict_form(CRITERION, CONFLICTS),
    "conflict": conflict_form(CRITERION, CONFLICTS[:1]),
}
SAID = {"value": "Poor", "rationale": WORDS}
NAMED = {"judgment_id": JUDGMENT.id}
OTHER = {"judgment_id": JUDGMENTS["tone"].id}
ONLY_WORDS = {"rationale": WORDS}
APPROVE = {"type": "approve"}
IGNORE = {"type": "ignore", "args": None}


def edit(**args: Any) -> dict[str, Any]:
    """An edit as langchain and Agent Chat UI have it."""
    return {"type": "edit", "edited_action": {"name": "any", "args": args}}


def inbox_edit(**args: Any) -> dict[str, Any]:
    """An edit as Agent Inbox has it."""
    return {"type": "edit", "args": {"action": "any", "args": args}}


def respond(words: Any, kind: str = "respond") -> dict[str, Any]:
    return {"type": kind, "message": words}


TAKEN: list[tuple[str, Any, Any]] = [
    ("review", {"value": "poor"}, {"value": "Poor"}),
    ("review", {"value": None, "rationale": WORDS}, ONLY_WORDS),
    ("review", {**SAID, "author": " ann "}, {**SAID, "author": "ann"}),
    ("review", f"  {WORDS}\n", ONLY_WORDS),
    ("review", SAID, SAID),
    ("review", APPROVE, {"value": "Good"}),
    ("review", {"type": "accept", "args": None}, {"value": "Good"}),
    ("review", {"type": "accept", "args": {"action": "any", "args": SAID}}, {"value": "Good"}),
    ("review", IGNORE, None),
    ("review", edit(**SAID), SAID),
    ("review", edit(value="Poor", rationale=f"{SEEN} "), {"value": "Poor"}),
    ("review", edit(rationale=WORDS), {"value": "Good", "rationale": WORDS}),
    ("review", inbox_edit(**SAID), SAID),
    ("review", {"type": "edit", "args": SAID}, SAID),
    ("review", respond(WORDS), ONLY_WORDS),
    ("review", {"type": "response", "args": WORDS}, ONLY_WORDS),
    ("review", {**SAID, **NAMED}, SAID),
    ("review", {**APPROVE, **NAMED}, {"value": "Good"}),
    ("review", {"decisions": [APPROVE], **NAMED}, {"value": "Good"}),
    ("review", {"type": "accept", "args": {"action": "x", "args": NAMED}}, {"value": "Good"}),
    ("review", edit(**SAID, **NAMED), SAID),
    ("review", inbox_edit(**SAID, **NAMED), SAID),
    ("review", {**respond(WORDS), **NAMED}, ONLY_WORDS),
    ("panel", {"grade": {**SAID, **NAMED}, "tone": {"value": "", **NAMED}}, {"grade": SAID}),
    ("clarify", f" {WORDS}\n", ONLY_WORDS),
    ("clarify", {**ONLY_WORDS, "author": " ann "}, {**ONLY_WORDS, "author": "ann"}),
    ("clarify", APPROVE, {}),
    ("clarify", {**APPROVE, "message": WORDS}, ONLY_WORDS),
    ("clarify", {"type": "accept", "args": {"action": "x", "args": {"rationale": ""}}}, {}),
    ("clarify", IGNORE, {}),
    ("clarify", edit(rationale=WORDS, value="2"), {"value": 2, "rationale": WORDS}),
    (
        "panel",
        {"tone": "no", "grade": "poor", "share": 0, "level": "2"},
        {
            "tone": {"value": False},
            "grade": {"value": "Poor"},
            "share": {"value": 0.0},
            "level": {"value": 2},
        },
    ),
    ("panel", {"tone": "", "level": None, "share": " ", "pair": "B"}, {"pair": {"value": "B"}}),
    (
        "panel",
        {"tone": {}, "pair": {"value": None, "rationale": ""}, "level": {"value": 1}},
        {"level": {"value": 1}},
    ),
    (
        "panel",
        {"tone": False, "grade": {"value": "Poor", "author": "bob"}, "author": "ann"},
        {"tone": {"author": "ann", "value": False}, "grade": {"author": "bob", "value": "Poor"}},
    ),
    (
        "panel",
        {
            "tone": APPROVE,
            "grade": {"decisions": [respond(WORDS, "reject")]},
            "share": [{"type": "edit", "args": {"args": {"value": "0.25"}}}],
            "level": {"type": "ignore"},
        },
        {"tone": {"value": True}, "grade": ONLY_WORDS, "share": {"value": 0.25}},
    ),
    (
        "panel",
        {"type": "accept", "args": {"action": "review_panel", "args": {"grade": "Poor"}}},
        {name: {"value": value} for name, value in JUDGED.items()},
    ),
    (
        "panel without grade",
        APPROVE,
        {name: {"value": value} for name, value in JUDGED.items() if name != "grade"},
    ),
    ("panel", IGNORE, None),
    (
        "panel without grade",
        edit(tone=True, tone_rationale=SEEN, grade="poor", grade_rationale=WORDS),
        {"grade": SAID},
    ),
    ("panel", edit(grade="", grade_rationale=WORDS), {"grade": ONLY_WORDS}),
    ("panel", edit(grade_rationale=WORDS), {"grade": {"value": "Good", "rationale": WORDS}}),
    ("conflicts", {"C1": " FIRST ", "C2": "Both"}, {"C1": "first", "C2": "both"}),
    ("conflicts", "newer", {"C1": "second", "C2": "first"}),
    ("conflicts", [APPROVE, {"type": "accept", "args": None}], {"C1": "second", "C2": "first"}),
    ("conflicts", [{"type": "reject"}, respond("No.", "reject")], {"C1": "both", "C2": "both"}),
    (
        "conflicts",
        [edit(keep="first"), inbox_edit(conflict="C2", keep="newer")],
        {"C1": "first", "C2": "first"},
    ),
    ("conflicts", [IGNORE, {"type": "ignore"}], {"C1": "both", "C2": "both"}),
    ("conflict", APPROVE, {"C1": "second"}),
    ("conflict", {"type": "reject"}, {"C1": "both"}),
]


@pytest.mark.parametrize(("form", "reply", "expected"), TAKEN, ids=repr)
def test_reply_is_parsed(form: str, reply: Any, expected: Any) -> None:
    replies = [reply]
    if not isinstance(reply, list) and "decisions" not in reply:
        replies += [[reply], {"decisions": [reply]}]
    if "type" in reply:
        replies += [{"decisions": reply}]
    for values in replies:
        assert FORMS[form].read(values) == expected
        assert FORMS[form].schema.model_validate(values).root == expected


@pytest.mark.parametrize(
    ("form", "text", "expected"),
    [
        ("review", json.dumps({"decisions": [APPROVE]}), {"value": "Good"}),
        ("review", json.dumps([APPROVE]), {"value": "Good"}),
        ("review", f" {json.dumps({**SAID, **NAMED})}", SAID),
        ("panel", json.dumps({"grade": SAID}), {"grade": SAID}),
        ("clarify", json.dumps(APPROVE), {}),
        ("conflict", json.dumps({"C1": "both"}), {"C1": "both"}),
        ("review", "{not JSON}", {"rationale": "{not JSON}"}),
        ("review", "[1]", {"rationale": "[1]"}),
        ("review", 9_999 * "[", {"rationale": 9_999 * "["}),
    ],
)
def test_json_in_text_is_not_a_comment(form: str, text: str, expected: Any) -> None:
    assert FORMS[form].read(text) == expected


EMPTY = "neither a value nor a rationale"
REFUSED: list[tuple[str, Any, str]] = [
    *(
        (form, reply, problem)
        for form in ("review", "clarify")
        for reply, problem in (
            (None, "of type NoneType"),
            (" \n", "the reply is empty: reply with text"),
            ({}, EMPTY),
            ({"value": 9}, "`value`: 9 is not on the scale"),
            ({"rationale": [WORDS]}, "`rationale` must be text"),
            ({**ONLY_WORDS, "author": 3}, "`author` must be text, not int"),
            ({"why": "x", "who": "y"}, "unknown fields ('why', 'who'): reply with text"),
            ({"decisions": "approve"}, "`decisions` is a list"),
            ([SAID, SAID], "2 decisions: send one."),
            ({"type": "yes"}, "'yes' is not known"),
            ({"type": "reject"}, "the message of 'reject' is empty"),
            ({"type": "response", "args": None}, "the response is empty"),
            (edit(value="awful"), "'awful' is not on the scale"),
            (edit(verdict="Poor"), "'verdict'"),
            ({"type": "edit", "args": "Poor"}, "an edit needs the edited arguments"),
            ("a\x00b", "NUL"),
        )
    ),
    ("review", edit(value=None, rationale=SEEN), EMPTY),
    *(
        (
            "review",
            reply,
            f"the answer is to the judgment {OTHER['judgment_id']!r}, but the pending",
        )
        for reply in (
            {**SAID, **OTHER},
            {**APPROVE, **OTHER},
            {"decisions": [APPROVE], **OTHER},
            [{**APPROVE, **OTHER}],
            {"type": "accept", "args": {"action": "x", "args": OTHER}},
            {**edit(**SAID, **OTHER), **NAMED},
            inbox_edit(**SAID, **OTHER),
            {"type": "ignore", **OTHER},
        )
    ),
    ("review", {**SAID, "judgment_id": 3}, "the answer is to the judgment 3, but the pending"),
    ("panel", {"grade": {**SAID, **OTHER}}, "grade: `judgment_id`: the answer is to the"),
    ("panel without grade", {"grade": {**SAID, **NAMED}}, "but the pending one is none"),
    *(
        ("panel", reply, f"the answer is to the judgment {OTHER['judgment_id']!r}, but the pending")
        for reply in (
            edit(grade="Poor", **OTHER),
            inbox_edit(grade="Poor", **OTHER),
            {"type": "accept", "args": {"action": "x", "args": OTHER}},
            {"grade": SAID, **OTHER},
        )
    ),
    ("review", {"type": "reject", "args": ""}, "the message of 'reject' is empty: reply with text"),
    ("clarify", respond(" "), "or approve to continue without an answer"),
    ("clarify of ann", {**ONLY_WORDS, "author": "bob"}, "'ann' wrote this comment and is asked"),
    *(
        ("panel", reply, problem)
        for reply, problem in (
            (WORDS, "a reply of type str is not understood"),
            (respond(WORDS, "reject"), "a comment alone does not say"),
            ({**APPROVE, "message": WORDS}, "a comment alone does not say"),
            ({"mood": False}, "'mood', which is not a criterion"),
            ({"level": 7}, "level: 7 is not on the scale: the value is a whole number"),
            (edit(level="high"), "level: `value`: 'high' is not on"),
            (dict.fromkeys(SCALES, ""), "has no feedback on any criterion"),
            ({"author": "ann"}, "has no feedback on any criterion"),
            ({"tone": []}, "tone: the reply has 0 decisions"),
            (edit(**JUDGED), "nothing in the form was changed"),
            (edit(tone_rationale=f"{SEEN} "), "nothing in the form was changed"),
            ([APPROVE] * 2, "the reply has 2 decisions: send one"),
            ({"tone": False, "author": 3}, "`author` must be text, not int"),
            ({"tone": {"rationale": 3}}, "tone: `rationale` must be text"),
            ({"tone": {"valeu": False}}, "tone: the reply has unknown fields ('valeu')"),
        )
    ),
    ("panel without grade", edit(grade="x"), "grade: `value`: 'x' is not on the scale"),
    ("panel without grade", {"grade": APPROVE}, "grade: there is no judgment to decide on"),
    *(
        ("conflicts", reply, problem)
        for reply, problem in (
            (None, "type NoneType"),
            ("neither", "'neither'"),
            ([APPROVE], "has 1 decisions"),
            (APPROVE, "there are 2 conflicts"),
            (["first", "second"], "the decision on C1"),
            ([APPROVE, {"type": "edit", "edited_action": None}], "the decision on C2"),
            ([edit(keep="third"), APPROVE], "'third' for C1"),
            ([edit(conflict="C2", keep="first"), APPROVE], "'C2' in place of C1"),
            ({"C1": "first"}, "leaves C2 open"),
            (
                {"C1": "first", "C2": "first", "c3": "first"},
                "names 'c3', but the question is about C1, C2: reply with an object",
            ),
        )
    ),
]


@pytest.mark.parametrize(("form", "reply", "problem"), REFUSED, ids=repr)
def test_invalid_reply_raises_with_the_reason(form: str, reply: Any, problem: str) -> None:
    with pytest.raises(ValueError) as caught:
        FORMS[form].read(reply)
    assert problem in str(caught.value)
    assert "\n" not in str(caught.value)
    assert form != "conflicts" or "for each conflict" in str(caught.value)
    with pytest.raises(ValidationError) as checked:
        FORMS[form].schema.model_validate(reply)
    assert problem in str(checked.value)
    assert "input_value" not in str(checked.value)


def test_schema_describes_the_plain_reply_and_is_json() -> None:
    schemas = {name: form.schema.model_json_schema() for name, form in FORMS.items()}
    for value in (*schemas.values(), *(form.payload for form in FORMS.values())):
        check_json(value, "shown")
        assert json.loads(json.dumps(value, allow_nan=False)) == value
    assert {schema["type"] for schema in schemas.values()} == {"object"}
    names = ("review", "clarify", "panel")
    review, clarify, panel = (schemas[name]["properties"] for name in names)
    assert review["value"]["enum"] == ["Poor", "Good"]
    assert all("description" in value for value in review.values())
    assert list(clarify) == ["rationale", "value", "author"]
    assert list(panel) == [*SCALES, "author"]
    assert panel["level"]["properties"]["value"]["maximum"] == 5
    one, two = schemas["conflict"], schemas["conflicts"]
    assert list(one["properties"]) == one["required"] == ["C1"]
    assert [value["default"] for value in two["properties"].values()] == ["second", "first"]


def described(example: Example = EXAMPLE, **shown: Any) -> str:
    form = review_form(CRITERION, example, JUDGMENT, **shown)
    [action] = form.payload["action_requests"]
    return str(action["description"])


def test_description_has_no_empty_sections() -> None:
    text = described()
    assert text.startswith("## grade\n\nHow good?\n\n### Inputs\n\n```\nWhy?\n```\n\n### Outputs")
    assert "### The judge says: Good\n\nIt answers." in text
    assert "### Note\n\n- The case was cut." in text
    for heading in ("Reference outputs", "Guidelines", "Earlier cases"):
        assert heading not in text


def test_guidelines_are_shown_with_their_measurement() -> None:
    now = datetime.now(UTC)
    plain = Guideline(id="1", text="Be brief.", position=1, created_at=now, updated_at=now)
    measured = plain.model_copy(update={"text": "Say why.", "worth": Worth(auc=5 / 6, cases=12)})
    text = described(guidelines=[plain, measured])
    assert "- Be brief.\n- Say why. (tells good from bad 83 % of the time, on 12 cases)" in text


@pytest.mark.parametrize("ticks", [0, 2, 3, 7])
def test_text_cannot_end_its_code_block(ticks: int) -> None:
    outputs = f"{'`' * ticks}\n# Not a heading"
    text = described(Example(inputs="x", outputs=outputs))
    fence = "`" * max(3, ticks + 1)
    assert f"### Outputs\n\n{fence}\n{outputs}\n{fence}\n" in text


@pytest.mark.parametrize(
    "text",
    [
        *(" # H", "a\n   # H", "a\r# H", "a\n  ===", "a\n ---", "a\n- ", "- # H", "* 1) ># H"),
        *("a\n~~~\nb", "> - ~~~", "![a](http://b)", "\\[a](http://b)", "!\\\\[a](http://b)"),
        *("<b>", "<http://a>", "`a`", "\\`a`"),
    ],
)
def test_text_adds_no_markup(text: str) -> None:
    displayed = MarkdownIt("commonmark").render(escape(text))
    assert re.findall("<(?!/?(?:p|ul|ol|li|blockquote)>)", displayed) == []


@pytest.mark.parametrize("part", ["-", "- ", "> ", "1. ", " ", "=", "\n", "\\"])
def test_time_to_escape_is_linear(part: str) -> None:
    begun = time.process_time()
    escape(200_000 * part + "x")
    assert time.process_time() - begun < 2


def test_long_text_is_cut_in_the_description() -> None:
    text = described(Example(inputs="x", outputs="y" * 10_000))
    assert "[... 6,000 more characters]" in text
    assert len(text) < 5_000


def test_each_episode_is_one_line_without_images_or_links() -> None:
    feedback = [
        Feedback(example=Example(inputs="x", outputs={"a": "one\n- two"}), rationale="A\n\nb" * 99),
        Feedback(
            example=Example(inputs="x", outputs="![p](http://evil/x.png) `a`"),
            rationale="[see](http://evil)",
        ),
    ]
    text = described(episodes=[Episode.from_feedback(interrupt) for interrupt in feedback])
    [line] = [line for line in text.splitlines() if "expert: no value: A b" in line]
    assert line.startswith("- ` one - two ` (expert")
    assert len(line) < 400
    assert "`` ![p](http://evil/x.png) `a` `` (expert" in text
    assert "\\[see](http://evil)" in text


@pytest.mark.parametrize("name", SCALES)
@pytest.mark.parametrize("decision", ["reject", "respond", "response"])
def test_comment_never_sets_the_opposite_value(name: str, decision: str) -> None:
    form = review_form(CRITERIA[name], EXAMPLE, JUDGMENTS[name])
    assert form.read(respond(WORDS, decision)) == {"rationale": WORDS}


def test_every_reason_to_ask_is_said_in_words() -> None:
    assert REASONS.keys() == {*get_args(ReviewReason)}
