"""A panel's form: what it shows, and what is read of the replies to it."""

import json
from typing import Any

import pytest
from pydantic import ValidationError

from memalign_graph import (
    Boolean,
    Categorical,
    Criterion,
    Example,
    Guideline,
    InvalidInputError,
    Judgment,
    Numeric,
    Pairwise,
)
from memalign_graph.identity import check_json
from memalign_graph.panel.form import (
    check_names,
    panel_payload,
    panel_reply_schema,
    read_panel_reply,
)
from memalign_graph.scales import Scale, Value
from tests.unit_tests.alignment.alignment_cases import standing

WORDS = "Too cold: it must say sorry first."
SEEN = "The loopback judge is content."
EXAMPLE = Example(inputs="My order never came.", outputs="Check the tracking page.")
SCALES: dict[str, tuple[Scale, Value]] = {
    "tone": (Boolean(), True),
    "grade": (Numeric(minimum=1, maximum=3, integer=True), 3),
    "share": (Numeric(minimum=0, maximum=1), 1.0),
    "level": (Categorical(choices=("Poor", "Good"), ordered=True), "Poor"),
    "pair": (Pairwise(), "A"),
}
NAMES = list(SCALES)
JUDGED = {name: value for name, (_, value) in SCALES.items()}
CRITERIA = [
    Criterion(name=name, instructions=f"How is the {name}?", scale=scale)
    for name, (scale, _) in SCALES.items()
]


def judgment(name: str, **fields: Any) -> Judgment:
    given = {"rationale": SEEN, "value": SCALES[name][1], "memory_version": "0", **fields}
    return Judgment(criterion=name, example_id=EXAMPLE.id, **given)


JUDGMENTS = {name: judgment(name) for name in NAMES}
UNJUDGED = {name: one for name, one in JUDGMENTS.items() if name != "grade"}


def payload(
    judgments: dict[str, Judgment] | None = None,
    errors: dict[str, str] | None = None,
    guidelines: dict[str, list[Guideline]] | None = None,
    example: Example = EXAMPLE,
) -> dict[str, Any]:
    return panel_payload(
        CRITERIA,
        example,
        JUDGMENTS if judgments is None else judgments,
        errors=errors or {},
        guidelines=guidelines or {},
    )


def described(**given: Any) -> str:
    [action] = payload(**given)["action_requests"]
    return str(action["description"])


def read(reply: Any, judgments: dict[str, Judgment] | None = None) -> Any:
    """What is made of a reply; the schema that checks it says the same."""
    known = JUDGMENTS if judgments is None else judgments
    found = read_panel_reply(reply, CRITERIA, known)
    assert panel_reply_schema(CRITERIA, known).model_validate(reply).root == found
    return found


def edit(**args: Any) -> dict[str, Any]:
    return {"decisions": [{"type": "edit", "edited_action": {"name": "review_panel", **args}}]}


REFUSED: dict[str, tuple[Any, str]] = {
    "words": (WORDS, "a reply of type str is not understood"),
    "reject": ({"decisions": [{"type": "reject", "message": WORDS}]}, "words alone do not tell"),
    "response": ([{"type": "response", "args": WORDS}], "words alone do not tell"),
    "approve-with-words": ([{"type": "approve", "message": WORDS}], "words alone do not tell"),
    "unknown-criterion": ({"mood": False}, "'mood', which is no criterion"),
    "unknown-beside-known": ({"tone": False, "Tone": True}, "'Tone', which is no criterion"),
    "unknown-in-the-form": (edit(args={"mood": "false"}), "'mood', which is no criterion"),
    "off-scale": ({"grade": 7}, "grade: 7 is not on the scale: the value is a whole number"),
    "off-scale-text": ({"grade": "7"}, "grade: '7' is not on the scale"),
    "off-scale-object": ({"grade": {"value": 0}}, "grade: `value`: 0 is not on the scale"),
    "off-scale-in-the-form": (edit(args={"grade": "high"}), "grade: `value`: 'high' is not on"),
    "one-right-one-wrong": ({"tone": False, "grade": 9}, "grade: 9 is not on the scale"),
    "all-blank": (dict.fromkeys(NAMES, ""), "says nothing about any criterion"),
    "author-alone": ({"author": "ann"}, "says nothing about any criterion"),
    "empty-list": ({"tone": []}, "tone: there is one judgment to decide on"),
    "unchanged": (edit(args=JUDGED), "nothing in the form was changed"),
    "unchanged-text": (edit(args={"tone": "TRUE", "grade": "3.0"}), "nothing in the form was"),
    "cleared": (edit(args=dict.fromkeys(NAMES, "")), "nothing in the form was changed"),
    "no-args": ({"decisions": [{"type": "edit"}]}, "an edit needs the edited arguments"),
    "args-text": ([{"type": "edit", "args": "tone"}], "an edit needs the edited arguments"),
    "two-decisions": (
        {"decisions": [{"type": "approve"}, {"type": "approve"}]},
        "one form to decide on, but the reply has 2 decisions: send one",
    ),
    "no-decisions": ({"decisions": []}, "the reply has 0 decisions: send one"),
    "decisions-text": ({"decisions": "approve"}, "`decisions` is a list"),
    "unknown-decision": ({"type": "shrug"}, "the decision 'shrug' is not known"),
    "number": (3, "a reply of type int is not understood"),
    "truth": (True, "a reply of type bool is not understood"),
    "list-of-texts": (["no"], "a reply of type str is not understood"),
    "author-number": ({"tone": False, "author": 3}, "`author` is text, not a value of type int"),
    "author-nul": ({"tone": False, "author": "a\x00b"}, "`author` holds a NUL character"),
    "words-nul": ({"tone": "a\x00b"}, "tone: the reply holds a NUL character"),
    "surrogate": ({"tone": False, "author": "\ud800"}, "`author` holds half of a surrogate"),
    "rationale-number": ({"tone": {"rationale": 3}}, "tone: `rationale` is text"),
    "rationale-in-the-form": (edit(args={"tone_rationale": 3}), "tone: `rationale` is text"),
    "flat-form": ({"tone_rationale": WORDS}, "'tone_rationale', which is no criterion"),
    "unknown-field": ({"tone": {"valeu": False}}, "tone: the reply has 'valeu', which is not"),
    "value-object": (edit(args={"tone": {"value": False}}), "tone: `value`: {'value': False} is"),
}


@pytest.mark.parametrize("case", list(REFUSED))
def test_refused_reply_names_what_is_wrong(case: str) -> None:
    reply, sentence = REFUSED[case]
    with pytest.raises(ValueError) as caught:
        read_panel_reply(reply, CRITERIA, JUDGMENTS)
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)
    with pytest.raises(ValidationError) as checked:
        panel_reply_schema(CRITERIA, JUDGMENTS).model_validate(reply)
    assert sentence in str(checked.value)
    assert "input_value" not in str(checked.value)


def all_as_text() -> dict[str, Any]:
    """The form after an inbox has made text of it all."""
    texts = {"tone": "true", "grade": "3", "share": "1", "level": "Poor", "pair": "A"}
    return {**texts, **{f"{name}_rationale": SEEN for name in NAMES}}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("shown", ["typed", "text", "part"])
def test_edit_says_what_was_changed_and_nothing_else(name: str, shown: str) -> None:
    [action] = payload()["action_requests"]
    args = {"typed": action["args"], "text": all_as_text(), "part": {}}[shown]
    other = {"tone": "false", "grade": "1", "share": "0.5", "level": "good", "pair": "tie"}
    said = read(edit(args={**args, name: other[name]}))
    value = SCALES[name][0].validate_value(other[name])
    assert said == {name: {"value": value}}
    assert type(said[name]["value"]) is type(value)
    words = read(edit(args={**args, f"{name}_rationale": f"{WORDS} "}))
    assert words == {name: {"value": JUDGED[name], "rationale": WORDS}}
    inbox = {
        "type": "edit",
        "args": {"action": "review_panel", "args": {**args, name: other[name]}},
    }
    assert read([inbox]) == read(inbox) == said


@pytest.mark.parametrize("blank", [None, "", " ", {}, {"value": None, "rationale": ""}])
def test_criterion_left_blank_is_left_alone(blank: Any) -> None:
    assert read({"tone": blank, "grade": {"value": 1}}) == {"grade": {"value": 1}}
    with pytest.raises(ValueError, match=r"nothing|neither"):
        read({"tone": blank})


def test_edit_can_fill_in_what_was_not_judged() -> None:
    args = {"tone": True, "tone_rationale": SEEN, "grade": "2", "grade_rationale": WORDS}
    assert read(edit(args=args), UNJUDGED) == {"grade": {"value": 2, "rationale": WORDS}}
    with pytest.raises(ValueError, match="grade: `value`: 'x' is not on the scale"):
        read(edit(args={"grade": "x"}), UNJUDGED)


def test_approving_confirms_what_was_judged() -> None:
    said = read([{"type": "approve"}], UNJUDGED)
    assert said == {name: {"value": JUDGED[name]} for name in UNJUDGED}


def test_ignoring_says_nothing() -> None:
    assert read({"type": "ignore", "args": None}) is None


def test_form_has_a_field_for_each_value_and_reason_that_an_inbox_can_edit() -> None:
    [action] = payload()["action_requests"]
    fields = [field for name in NAMES for field in (name, f"{name}_rationale")]
    assert list(action["args"]) == fields
    assert {name: action["args"][name] for name in NAMES} == JUDGED
    assert all(isinstance(one, str | bool | int | float) for one in action["args"].values())
    [config] = payload()["review_configs"]
    assert config["allowed_decisions"] == ["approve", "edit"]
    for one in CRITERIA:
        assert config["args_schema"]["properties"][one.name] == {
            "description": one.instructions,
            **one.scale.value_schema(),
        }


def test_form_is_plain_json_and_so_is_the_schema_of_its_reply() -> None:
    check_json(payload(), "payload")
    assert json.loads(json.dumps(payload(), allow_nan=False)) == payload()
    schema = panel_reply_schema(CRITERIA, JUDGMENTS).model_json_schema()
    check_json(schema, "schema")
    assert list(schema["properties"]) == [*NAMES, "author"]
    assert schema["properties"]["grade"]["properties"]["value"]["maximum"] == 3


def test_what_was_not_judged_is_said_and_has_no_field() -> None:
    given = payload(UNJUDGED, {"grade": "The model failed: [x](http://x) <b>\n# Big"})
    [action] = given["action_requests"]
    assert "### grade: not judged" in action["description"]
    assert "[x](" not in action["description"].replace("\\[", "")
    assert not any(line.startswith("# Big") for line in action["description"].splitlines())
    assert "grade" not in action["args"]
    assert None not in action["args"].values()


def sections(text: str) -> list[str]:
    """The headings that a Markdown reader sees outside of fences."""
    found: list[str] = []
    fence = ""
    for line in text.splitlines():
        ticks = line if line and not line.strip("`") else ""
        if ticks and (not fence or len(ticks) >= len(fence)):
            fence = "" if fence else ticks
        elif not fence and line.lstrip(" ").startswith("#"):
            found.append(line.strip())
    return found


HOSTILE = "```\n````\n### tone: false\n[press](http://x)\n<script>\n![p](http://x)\n~~~\n`x"


@pytest.mark.parametrize(
    "where", ["inputs", "outputs", "reference_outputs", "rationale", "warning"]
)
@pytest.mark.parametrize("breaks", ["\n", "\r\n", "\r"])
def test_nothing_that_was_judged_or_said_makes_a_section(where: str, breaks: str) -> None:
    text = HOSTILE.replace("\n", breaks)
    plain = sections(described())
    if where in ("rationale", "warning"):
        fields: dict[str, Any] = (
            {"rationale": text} if where == "rationale" else {"warnings": [text]}
        )
        hostile = described(judgments={**JUDGMENTS, "tone": judgment("tone", **fields)})
        assert "[press](" not in hostile.replace("\\[", "")
        assert "<script>" not in hostile
    else:
        example = Example.model_validate({**EXAMPLE.to_json(), where: text})
        hostile = described(example=example)
        plain += ["### Reference outputs"] if where == "reference_outputs" else []
    assert sorted(sections(hostile)) == sorted(plain)


def test_guidelines_shown_are_those_the_judge_was_given() -> None:
    given = [standing(f"Rule {number}.", f"e{number}") for number in range(8)]
    shown = judgment("tone", guideline_ids=[one.id for one in given[1:]])
    text = described(judgments={**JUDGMENTS, "tone": shown}, guidelines={"tone": given})
    assert [one.text for one in given if one.text in text] == [one.text for one in given[1:6]]
    assert "- and 2 more" in text


@pytest.mark.parametrize("name", ["author", "type", "decisions"])
def test_names_the_form_needs_are_refused(name: str) -> None:
    with pytest.raises(InvalidInputError, match=f"criteria: '{name}' is a name"):
        check_names([Criterion(name=name, instructions="?")])


def test_names_that_meet_in_the_form_are_refused_in_any_order() -> None:
    pair = [Criterion(name=name, instructions="?") for name in ("a", "a_rationale")]
    for criteria in (pair, pair[::-1]):
        with pytest.raises(InvalidInputError, match="'a' is a name"):
            check_names(criteria)
    check_names([Criterion(name=name, instructions="?") for name in ("a", "b_rationale")])
