"""Replies to every form, as clients send them, and the review's description, without a graph.

Facts about two published inboxes, from public sources (repository, commit, path):

- langchain-ai/agent-chat-ui 254cd6f, `src/components/thread/agent-inbox/` and
  `src/lib/agent-inbox-interrupt.ts`: it shows langchain's `HITLRequest` as a form, and sends an
  edit as `edited_action`.
- langchain-ai/agent-inbox 1141fd0, `src/components/agent-inbox/`: it sends an edit as `args`, and
  what is edited as text, as JavaScript writes it.
"""

import json
import re
from datetime import UTC, datetime
from typing import Any, get_args

import pytest
from markdown_it import MarkdownIt
from pydantic import TypeAdapter, ValidationError

from memalign_graph import (
    Boolean,
    Categorical,
    Criterion,
    Episode,
    Example,
    Feedback,
    Guideline,
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
from tests.builders import make_judgment

EXAMPLE = Example(inputs={"q": "Why?"}, outputs="Because.")
SEEN = "It `answers`."
WORDS = "Too short."
SCALES: dict[str, tuple[Scale, Any, Any, str]] = {
    "tone": (Boolean(), True, False, "false"),
    "grade": (Categorical(choices=("Poor", "Good")), "Good", "Poor", "poor"),
    "share": (Numeric(minimum=0, maximum=1), 1.0, 0.5, "0.5"),
    "level": (Numeric(minimum=1, maximum=5, integer=True), 3, 2, "2"),
    "pair": (Pairwise(), "A", "tie", "tie"),
}
"""The judge's value on each scale, an expert's, and the latter as text."""
CRITERIA = {
    name: Criterion(name=name, instructions="How good?", scale=scale)
    for name, (scale, *_) in SCALES.items()
}
JUDGED = {name: value for name, (_, value, *_) in SCALES.items()}
JUDGMENTS = {
    name: make_judgment(
        EXAMPLE.id,
        id=f"judgment of {name}",  # stable test ids
        criterion=name,
        value=value,
        rationale=SEEN,
        warnings=["The case [was] cut."],
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
FEEDBACK = Feedback(example=EXAMPLE, rationale="Bad.")
BY_ANN = FEEDBACK.model_copy(update={"author": "ann"})

FORMS: dict[str, Form[Any]] = {
    "review": review_form(CRITERION, EXAMPLE, JUDGMENT),
    "clarify": clarify_form(CRITERIA["level"], FEEDBACK, "What makes it short?"),
    "clarify of ann": clarify_form(CRITERIA["level"], BY_ANN, "What makes it short?"),
    "panel": panel_without(),
    "panel without grade": panel_without("grade"),
    "conflicts": conflict_form(CRITERION, CONFLICTS),
    "conflict": conflict_form(CRITERION, CONFLICTS[:1]),
}
SAID = {"value": "Poor", "rationale": WORDS}
NAMED = {"judgment_id": JUDGMENT.id}
OTHER = {"judgment_id": JUDGMENTS["tone"].id}
ANN = {"author": "ann"}
ONLY_WORDS = {"rationale": WORDS}
APPROVE = {"type": "approve"}
ACCEPT = {"type": "accept", "args": None}
IGNORE = {"type": "ignore", "args": None}


def accept(**args: Any) -> dict[str, Any]:
    return {"type": "accept", "args": {"action": "any", "args": args}}


def edit(**args: Any) -> dict[str, Any]:
    """An edit as langchain and Agent Chat UI have it."""
    return {"type": "edit", "edited_action": {"name": "any", "args": args}}


def inbox_edit(**args: Any) -> dict[str, Any]:
    """An edit as Agent Inbox has it."""
    return {"type": "edit", "args": {"action": "any", "args": args}}


def respond(words: Any, kind: str = "respond") -> dict[str, Any]:
    return {"type": kind, "message": words}


TAKEN: list[tuple[str, Any, list[Any]]] = [
    ("review", {"value": "Poor"}, [{"value": "poor"}, edit(value="Poor", rationale=f"{SEEN} ")]),
    ("review", {"value": "Poor"}, [edit(value="Poor", rationale=SEEN.replace(" ", "\r\n"))]),
    ("review", {**SAID, "author": "ann"}, [{**SAID, "author": " ann "}, edit(**SAID, **ANN)]),
    ("review", {**SAID, "author": "ann"}, [{**edit(**SAID, author=""), **ANN}]),
    ("review", {**ONLY_WORDS, **ANN}, [{**respond(WORDS), **ANN}, {"decisions": [WORDS], **ANN}]),
    ("review", {"value": "Good", **ANN}, [{**APPROVE, **ANN}, {"decisions": [APPROVE], **ANN}]),
    ("review", {"value": "Good", "rationale": WORDS}, [edit(rationale=WORDS)]),
    ("review", None, [IGNORE]),
    (
        "review",
        ONLY_WORDS,
        [
            *(f"  {WORDS}\n", {"value": None, "rationale": WORDS}, respond(WORDS)),
            *({"type": "response", "args": WORDS}, {**respond(WORDS), **NAMED}),
        ],
    ),
    (
        "review",
        {"value": "Good"},
        [
            *(APPROVE, ACCEPT, accept(**SAID), accept(**NAMED), {**APPROVE, **NAMED}),
            {"decisions": [APPROVE], **NAMED},
        ],
    ),
    (
        "review",
        SAID,
        [
            *(SAID, edit(**SAID), inbox_edit(**SAID), {"type": "edit", "args": SAID}),
            *({**SAID, **NAMED}, edit(**SAID, **NAMED), inbox_edit(**SAID, **NAMED)),
        ],
    ),
    ("clarify", ONLY_WORDS, [f" {WORDS}\n", {**APPROVE, "message": WORDS}]),
    ("clarify", {**ONLY_WORDS, "author": "ann"}, [{**ONLY_WORDS, "author": " ann "}]),
    ("clarify", {}, [APPROVE, IGNORE, accept(rationale="")]),
    ("clarify", {"value": 2, "rationale": WORDS}, [edit(rationale=WORDS, value="2")]),
    (
        "panel",
        {name: {"value": said} for name, (_, _, said, _) in SCALES.items() if name != "pair"},
        [{"tone": "no", "grade": "poor", "share": 0.5, "level": "2", "pair": ""}],
    ),
    ("panel", {"pair": {"value": "B"}}, [{"tone": "", "level": None, "share": " ", "pair": "B"}]),
    (
        "panel",
        {"level": {"value": 1}},
        [{"tone": {}, "pair": {"value": None, "rationale": ""}, "level": {"value": 1}}],
    ),
    ("panel", {"grade": SAID}, [{"grade": {**SAID, **NAMED}, "tone": {"value": "", **NAMED}}]),
    (
        "panel",
        {"tone": {"author": "ann", "value": False}, "grade": {"author": "bob", "value": "Poor"}},
        [{"tone": False, "grade": {"value": "Poor", "author": "bob"}, "author": "ann"}],
    ),
    (
        "panel",
        {"tone": {"value": True}, "grade": ONLY_WORDS, "share": {"value": 0.25}},
        [
            {
                "tone": APPROVE,
                "grade": {"decisions": [respond(WORDS, "reject")]},
                "share": [{"type": "edit", "args": {"args": {"value": "0.25"}}}],
                "level": {"type": "ignore"},
            }
        ],
    ),
    ("panel", {name: {"value": value} for name, value in JUDGED.items()}, [accept(grade="Poor")]),
    (
        "panel without grade",
        {name: {"value": value} for name, value in JUDGED.items() if name != "grade"},
        [APPROVE],
    ),
    ("panel", {name: {"value": value, **ANN} for name, value in JUDGED.items()}, [APPROVE | ANN]),
    ("panel", None, [IGNORE]),
    (
        "panel without grade",
        {"grade": SAID},
        [edit(tone=True, tone_rationale=SEEN, grade="poor", grade_rationale=WORDS)],
    ),
    ("panel", {"grade": ONLY_WORDS}, [edit(grade="", grade_rationale=WORDS)]),
    ("panel", {"grade": {"value": "Good", "rationale": WORDS}}, [edit(grade_rationale=WORDS)]),
    ("conflicts", {"C1": "first", "C2": "both"}, [{"C1": " FIRST ", "C2": "Both"}]),
    ("conflicts", {"C1": "second", "C2": "first"}, ["newer", [APPROVE, ACCEPT]]),
    (
        "conflicts",
        {"C1": "both", "C2": "both"},
        [[{"type": "reject"}, respond("No.", "reject")], [IGNORE, {"type": "ignore"}]],
    ),
    (
        "conflicts",
        {"C1": "first", "C2": "first"},
        [[edit(keep="first"), inbox_edit(conflict="C2", keep="newer")]],
    ),
    ("conflict", {"C1": "second"}, [APPROVE]),
    ("conflict", {"C1": "both"}, [{"type": "reject"}]),
]


@pytest.mark.parametrize(("form", "expected", "replies"), TAKEN)
def test_reply_is_parsed_in_every_shape(form: str, expected: Any, replies: list[Any]) -> None:
    for reply in replies:
        shapes = [reply] if isinstance(reply, str) else [reply, f" {json.dumps(reply)}"]
        if not isinstance(reply, list) and "decisions" not in reply:
            shapes += [[reply], {"decisions": [reply]}]
        if "type" in reply:
            shapes += [{"decisions": reply}]
        for shape in shapes:
            assert FORMS[form].read(shape) == expected
            assert FORMS[form].schema.model_validate(shape).root == expected


@pytest.mark.parametrize("text", ["{not JSON}", "[1]", 9_999 * "["])
def test_text_that_is_no_object_is_a_comment(text: str) -> None:
    assert FORMS["review"].read(text) == {"rationale": text}


EMPTY = "neither a value nor a rationale"
ANOTHER = f"the answer is to the judgment {OTHER['judgment_id']!r}, but the pending"
UNCLEAR = "a comment alone does not say"
UNCHANGED = "nothing in the form was changed"
REFUSED: list[tuple[str, str, list[Any]]] = [
    *(
        (form, problem, [reply])
        for form in ("review", "clarify")
        for problem, reply in (
            ("of type NoneType", None),
            (EMPTY, " \n"),
            (EMPTY, {}),
            ("`value`: 9 is not on the scale", {"value": 9}),
            ("`rationale` must be text", {"rationale": [WORDS]}),
            ("`author` must be text, not int", {**ONLY_WORDS, "author": 3}),
            ("unknown fields ('why', 'who'): reply with text", {"why": "x", "who": "y"}),
            ("`decisions` is a list", {"decisions": "approve"}),
            ("2 decisions: send one.", [SAID, SAID]),
            ("'yes' is not known", {"type": "yes"}),
            (EMPTY, {"type": "reject"}),
            (f"{EMPTY}: reply with text", {"type": "response", "args": None}),
            ("'awful' is not on the scale", edit(value="awful")),
            ("'verdict'", edit(verdict="Poor")),
            ("an edit needs the edited arguments", {"type": "edit", "args": "Poor"}),
            ("NUL", "a\x00b"),
        )
    ),
    ("review", EMPTY, [edit(value=None, rationale=SEEN)]),
    *(
        ("review", "`given_at` is not a date", [{**SAID, "given_at": date}])
        for date in ("soon", "2024-05-31T10", "2024-W22-5", "0001-01-01T00:00:00+14:00")
    ),
    (
        "review",
        ANOTHER,
        [
            *({**SAID, **OTHER}, {**APPROVE, **OTHER}, {"decisions": [APPROVE], **OTHER}),
            *([{**APPROVE, **OTHER}], accept(**OTHER), {**edit(**SAID, **OTHER), **NAMED}),
            *(inbox_edit(**SAID, **OTHER), {"type": "ignore", **OTHER}),
        ],
    ),
    ("review", "the answer is to the judgment 3, but", [{**SAID, "judgment_id": 3}]),
    ("panel", "grade: `judgment_id`: the answer is to the", [{"grade": {**SAID, **OTHER}}]),
    ("panel without grade", "but the pending one is none", [{"grade": {**SAID, **NAMED}}]),
    (
        "panel",
        ANOTHER,
        [
            *(edit(grade="Poor", **OTHER), inbox_edit(grade="Poor", **OTHER), accept(**OTHER)),
            {"grade": SAID, **OTHER},
        ],
    ),
    ("review", EMPTY, [{"type": "reject", "args": ""}]),
    ("clarify", "or approve to continue without an answer", [respond(" ")]),
    (
        "clarify of ann",
        "'ann' wrote this comment and",
        [{**ONLY_WORDS, "author": "bob"}, {**respond(WORDS), "author": "bob"}],
    ),
    ("panel", "a reply of type str is not understood", [WORDS]),
    ("panel", UNCLEAR, [respond(WORDS, "reject"), {**APPROVE, "message": WORDS}]),
    ("panel", "'mood', which is not a criterion", [{"mood": False}]),
    ("panel", "level: 7 is not on the scale: the value is a whole number", [{"level": 7}]),
    ("panel", "level: `value`: 'high' is not on", [edit(level="high")]),
    ("panel", "has no feedback on any criterion", [dict.fromkeys(SCALES, ""), {"author": "ann"}]),
    ("panel", "tone: the reply has 0 decisions", [{"tone": []}]),
    ("panel", UNCHANGED, [edit(**JUDGED), edit(tone_rationale=f"{SEEN} ")]),
    ("panel", "the reply has 2 decisions: send one", [[APPROVE] * 2]),
    ("panel", "`author` must be text, not int", [{"tone": False, "author": 3}]),
    ("panel", "tone: `rationale` must be text", [{"tone": {"rationale": 3}}]),
    ("panel", "tone: the reply has unknown fields ('valeu')", [{"tone": {"valeu": False}}]),
    ("panel without grade", "grade: `value`: 'x' is not on the scale", [edit(grade="x")]),
    ("panel without grade", "grade: there is no judgment to decide on", [{"grade": APPROVE}]),
    ("conflicts", "type NoneType", [None]),
    (
        "conflicts",
        "the decision on C1 is not understood: reply with an object",
        [
            *("neither", ["first", "second"], [edit(keep="third"), APPROVE]),
            [edit(conflict="C2", keep="first"), APPROVE],
        ],
    ),
    (
        "conflicts",
        "the decision on C2",
        [[APPROVE, {"type": "edit", "edited_action": None}], {"C1": "first", "C2": 3}],
    ),
    (
        "conflicts",
        "decide on C1, C2, each once and nothing else: reply with an object",
        [APPROVE, [APPROVE], {"C1": "first"}, dict.fromkeys(("C1", "C2", "c3"), "first")],
    ),
]


@pytest.mark.parametrize(("form", "problem", "replies"), REFUSED)
def test_invalid_reply_raises_with_the_reason(form: str, problem: str, replies: list[Any]) -> None:
    for reply in replies:
        with pytest.raises(ValueError) as caught:
            FORMS[form].read(reply)
        assert problem in str(caught.value)
        assert "\n" not in str(caught.value)
        assert form != "conflicts" or "for each conflict" in str(caught.value)
        with pytest.raises(ValidationError) as checked:
            FORMS[form].schema.model_validate(reply)
        assert problem in str(checked.value)
        assert "input_value" not in str(checked.value)


@pytest.mark.parametrize(
    ("name", "shown"), [("tone", 1), ("level", 1.0), ("level", "1"), ("share", 1)]
)
def test_approval_of_a_value_of_an_earlier_scale_is_refused(name: str, shown: Any) -> None:
    form = review_form(CRITERIA[name], EXAMPLE, make_judgment(value=shown))
    for reply in (APPROVE, ACCEPT, edit(value=shown, rationale=WORDS), inbox_edit(value=shown)):
        with pytest.raises(ValueError, match=f"the scale was changed after {shown!r} was shown"):
            form.read(reply)
    assert form.read({"value": shown}) == {"value": CRITERIA[name].scale.validate_value(shown)}
    assert form.read(edit(value=SCALES[name][2])) == {"value": SCALES[name][2]}


@pytest.mark.parametrize("name", FORMS)
def test_interrupt_is_langchains_request(name: str) -> None:
    payload = FORMS[name].payload
    [config] = payload["review_configs"]
    for action in payload["action_requests"]:
        assert action["name"] == config["action_name"]
        assert action["description"].startswith("## ")
        # Nested values come back as JSON text.
        assert all(isinstance(value, str | bool | int | float) for value in action["args"].values())
        assert set(action["args"]) == set(config["args_schema"]["properties"])
    assert {"approve", "edit"} <= {*config["allowed_decisions"]}
    assert ("reject" in config["allowed_decisions"]) is not name.startswith("panel")
    hitl = pytest.importorskip("langchain.agents.middleware.human_in_the_loop")
    strict = TypeAdapter(hitl.HITLRequest)
    assert strict.validate_python(payload, strict=True, extra="forbid") == payload


def as_shown(value: Any) -> str:
    """An argument as text in an inbox; JavaScript has one number type."""
    is_whole = isinstance(value, float) and value.is_integer()
    return value if isinstance(value, str) else json.dumps(int(value) if is_whole else value)


@pytest.mark.parametrize("name", SCALES)
@pytest.mark.parametrize("as_text", [True, False])
def test_edit_of_an_inbox_is_read_as_text_and_as_json(name: str, *, as_text: bool) -> None:
    _, judged, value, text = SCALES[name]
    review, panel = review_form(CRITERIA[name], EXAMPLE, JUDGMENTS[name]), FORMS["panel"]
    said = {"value": text if as_text else value, "rationale": WORDS}
    read = review.read(edit(**said))
    assert read == {"value": value, "rationale": WORDS}
    assert type(read["value"]) is type(value)
    unchanged, form = (
        {
            key: as_shown(field) if as_text else field
            for key, field in each.payload["action_requests"][0]["args"].items()
        }
        for each in (review, panel)
    )
    assert review.read(inbox_edit(**unchanged)) == {"value": judged}
    edited = {**form, name: said["value"], f"{name}_rationale": WORDS}
    assert panel.read(inbox_edit(**edited)) == {name: read}
    for decision in ("reject", "respond", "response"):  # the opposite is never inferred
        assert review.read(respond(WORDS, decision)) == ONLY_WORDS


def test_schema_describes_the_plain_reply_and_is_json() -> None:
    schemas = {name: form.schema.model_json_schema() for name, form in FORMS.items()}
    for value in (*schemas.values(), *(form.payload for form in FORMS.values())):
        check_json(value, "shown")
        assert json.loads(json.dumps(value, allow_nan=False)) == value
    assert {schema["type"] for schema in schemas.values()} == {"object"}
    names = ("review", "clarify", "panel")
    review, clarify, panel = (schemas[name]["properties"] for name in names)
    assert review["value"]["enum"] == ["Poor", "Good"]
    assert review["judgment_id"]["const"] == JUDGMENT.id
    assert list(review) == ["value", "rationale", "author", "judgment_id"]
    assert all("description" in value for value in review.values())
    assert "required" not in schemas["review"]
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


def test_description_has_no_empty_sections_and_is_bounded() -> None:
    text = described()
    assert text.startswith("## grade\n\nHow good?\n\n### Inputs\n\n```\nWhy?\n```\n\n### Outputs")
    assert "### The judge says: Good\n\nIt 'answers'." in text
    assert "### Note\n\n- The case \\[was] cut." in text
    for heading in ("Reference outputs", "Guidelines", "Earlier cases"):
        assert heading not in text
    now = datetime.now(UTC)
    plain = Guideline(id="1", text="Be brief.", position=1, created_at=now, updated_at=now)
    measured = plain.model_copy(update={"text": "Say why.", "worth": Worth(auc=5 / 6, cases=12)})
    text = described(Example(inputs="x", outputs="y" * 10_000), guidelines=[plain, measured])
    assert "- Be brief.\n- Say why. (tells good from bad 83% of the time, on 12 cases)" in text
    assert "[... 6,000 more characters]" in text
    assert len(text) < 5_000


def test_invisible_and_bidirectional_characters_are_escaped() -> None:
    hidden, spelled = "1\u202e2\U000e0041", r"1\u202e2\U000e0041"
    example = Example(inputs="x", outputs=hidden)
    earlier = Episode.from_feedback(Feedback(example=example, value="Good"))
    text = described(example, episodes=[earlier])
    assert f"```\n{spelled}\n```" in text
    assert f"` {spelled} ` (expert: Good)" in text
    assert escape(hidden) == spelled.replace("\\", "\\\\")


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


def test_each_episode_is_one_line_without_images_or_links() -> None:
    feedback = [
        Feedback(example=Example(inputs="x", outputs={"a": "one\n- two"}), rationale="A\n\nb" * 99),
        Feedback(
            example=Example(inputs="x", outputs="![p](http://evil/x.png) `a`"),
            rationale="[see](http://evil)",
        ),
    ]
    text = described(episodes=[Episode.from_feedback(each) for each in feedback])
    [line] = [line for line in text.splitlines() if "expert: no value: A b" in line]
    assert line.startswith("- ` one - two ` (expert")
    assert len(line) < 400
    assert "`` ![p](http://evil/x.png) `a` `` (expert" in text
    assert "\\[see](http://evil)" in text


def test_every_reason_to_ask_is_said_in_words() -> None:
    assert REASONS.keys() == {*get_args(ReviewReason)}
