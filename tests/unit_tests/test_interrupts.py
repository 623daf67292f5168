"""The review payload and the reading of replies, without a graph."""

import json
from typing import Any

import pytest
from pydantic import ValidationError

from memalign_graph import Categorical, Criterion, Episode, Example, Feedback, Judgment
from memalign_graph.interrupts import read_reply, reply_schema, review_payload

CRITERION = Criterion(
    name="grade", instructions="How good?", scale=Categorical(choices=("Poor", "Good"))
)
EXAMPLE = Example(inputs={"q": "Why?"}, outputs="Because.")
JUDGMENT = Judgment(
    criterion="grade",
    example_id=EXAMPLE.id,
    value="Good",
    rationale="It answers.",
    memory_version="0",
    warnings=["The case was cut."],
)
SAID = {"value": "Poor", "rationale": "Too short."}


def edit(args: Any) -> dict[str, Any]:
    return {"type": "edit", "edited_action": {"name": "review_judgment", "args": args}}


def inbox_edit(args: Any) -> dict[str, Any]:
    return {"type": "edit", "args": {"action": "review_judgment", "args": args}}


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        ({"value": "poor"}, {"value": "Poor"}),
        ({"value": None, "rationale": "Too short."}, {"rationale": "Too short."}),
        ({**SAID, "author": " ann "}, {**SAID, "author": "ann"}),
        ({**SAID, "author": "", "id": "f-1"}, {**SAID, "id": "f-1"}),
        ("  Too short.\n", {"rationale": "Too short."}),
        (["Too short."], {"rationale": "Too short."}),
        ([SAID], SAID),
        ({"decisions": [{"type": "approve"}]}, {"value": "Good"}),
        ({"type": "approve"}, {"value": "Good"}),
        ({"type": "accept", "args": None}, {"value": "Good"}),
        ({"type": "accept", "args": {"action": "any", "args": SAID}}, {"value": "Good"}),
        ({"type": "ignore", "args": None}, None),
        (edit(SAID), SAID),
        (edit({"value": "Poor"}), {"value": "Poor"}),
        (edit({"value": "Poor", "rationale": "It answers. "}), {"value": "Poor"}),
        (edit({"value": "Good", "rationale": "It answers."}), {"value": "Good"}),
        (edit({"rationale": "Too short."}), {"value": "Good", "rationale": "Too short."}),
        (inbox_edit(SAID), SAID),
        ({"type": "edit", "args": SAID}, SAID),
        ({"type": "reject", "message": "Too short."}, {"rationale": "Too short."}),
        ({"type": "respond", "message": "Too short."}, {"rationale": "Too short."}),
        ({"type": "response", "args": "Too short."}, {"rationale": "Too short."}),
    ],
    ids=repr,
)
def test_reply_is_read(reply: Any, expected: Any) -> None:
    assert read_reply(reply, CRITERION, JUDGMENT) == expected


@pytest.mark.parametrize(
    ("reply", "problem"),
    [
        (None, "of type NoneType"),
        (True, "of type bool"),
        ("", "the reply is empty"),
        ({}, "neither a value nor a rationale"),
        ({"author": "ann"}, "neither a value nor a rationale"),
        ({"value": "awful"}, "'awful' is not on the scale: the value is one of Poor, Good"),
        ({"value": ["Poor"]}, "is not on the scale"),
        ({"rationale": ["Too short."]}, "`rationale` is text"),
        ({"value": "Poor", "why": "x", "who": "y"}, "'why', 'who'"),
        ([], "0 decisions"),
        ({"decisions": []}, "0 decisions"),
        ([SAID, SAID], "2 decisions"),
        ([[SAID]], "of type list"),
        ({"type": "yes"}, "'yes' is not known"),
        ({"type": ["approve"]}, "is not known"),
        ({"type": None}, "None is not known"),
        ({"type": "reject"}, "the message of 'reject' is empty"),
        ({"type": "respond", "message": 3}, "the message of 'respond' is empty"),
        ({"type": "response", "args": None}, "the response is empty"),
        (edit({"value": "awful"}), "'awful' is not on the scale"),
        (edit({"value": None}), "neither a value nor a rationale"),
        (edit({"verdict": "Poor"}), "'verdict'"),
        ({"type": "edit", "args": "Poor"}, "edited arguments"),
    ],
    ids=repr,
)
def test_reply_that_says_nothing_is_refused(reply: Any, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        read_reply(reply, CRITERION, JUDGMENT)


@pytest.mark.parametrize("kind", ["reject", "respond"])
def test_opposite_is_never_inferred(kind: str) -> None:
    yes_or_no = Criterion(name="tone", instructions="?")
    judgment = JUDGMENT.model_copy(update={"value": True})
    fields = read_reply({"type": kind, "message": "Wrong."}, yes_or_no, judgment)
    assert fields == {"rationale": "Wrong."}


def test_reply_schema_gives_what_was_read_or_says_why() -> None:
    schema = reply_schema(CRITERION, JUDGMENT)
    assert schema.model_validate({"value": "good"}).root == {"value": "Good"}
    assert schema.model_validate({"type": "ignore"}).root is None
    with pytest.raises(ValidationError, match="'awful' is not on the scale") as caught:
        schema.model_validate({"value": "awful", "rationale": "secret words"})
    assert "secret words" not in str(caught.value)


def test_reply_schema_is_the_native_form_as_json() -> None:
    schema = reply_schema(CRITERION, JUDGMENT).model_json_schema()
    assert json.loads(json.dumps(schema)) == schema
    assert schema["type"] == "object"
    assert schema["properties"]["value"]["enum"] == ["Poor", "Good"]
    assert all("description" in one for one in schema["properties"].values())


def described(example: Example = EXAMPLE, **shown: Any) -> str:
    payload = review_payload(
        CRITERION, example, JUDGMENT, **{"guidelines": [], "episodes": [], **shown}
    )
    [action] = payload["action_requests"]
    return str(action["description"])


def test_description_leaves_out_what_there_is_not() -> None:
    text = described()
    assert text.startswith("## grade\n\nHow good?\n\n### Inputs\n\n```\n{")
    assert "### The judge says: Good\n\nIt answers." in text
    assert "### Note\n\n- The case was cut." in text
    for heading in ("Reference outputs", "Guidelines", "Earlier cases"):
        assert heading not in text


@pytest.mark.parametrize("ticks", [0, 1, 2, 3, 4, 7])
def test_text_can_not_end_its_block(ticks: int) -> None:
    outputs = f"{'`' * ticks}\n# Not a heading"
    text = described(Example(inputs="x", outputs=outputs))
    fence = "`" * max(3, ticks + 1)
    assert f"### Outputs\n\n{fence}\n{outputs}\n{fence}\n" in text


def test_long_text_is_cut_in_the_description() -> None:
    text = described(Example(inputs="x", outputs="y" * 10_000))
    assert "[... 6,000 more characters]" in text
    assert len(text) < 5_000


def test_episodes_take_a_line_each() -> None:
    feedback = Feedback(
        example=Example(inputs="x", outputs={"a": "one\n- two"}), rationale="Too\n\nshort." * 100
    )
    text = described(episodes=[Episode.from_feedback(feedback)])
    [line] = [one for one in text.splitlines() if "expert: no value: Too short." in one]
    assert line.startswith('- ` { "a": "one\\n- two" } ` (expert')
    assert len(line) < 400


def test_application_text_makes_no_pictures_or_links_in_the_description() -> None:
    feedback = Feedback(
        example=Example(inputs="x", outputs="![p](http://evil/x.png) `a`"),
        rationale="[see](http://evil)",
    )
    text = described(episodes=[Episode.from_feedback(feedback)])
    assert "`` ![p](http://evil/x.png) `a` `` (expert" in text
    assert "\\[see](http://evil)" in text


def test_an_edit_that_clears_the_value_and_says_nothing_is_refused() -> None:
    args = {"value": None, "rationale": JUDGMENT.rationale}
    reply = {"decisions": [{"type": "edit", "edited_action": {"name": "x", "args": args}}]}
    with pytest.raises(ValueError, match="neither a value nor a rationale"):
        read_reply(reply, CRITERION, JUDGMENT)
