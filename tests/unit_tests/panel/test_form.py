"""What a panel's form shows."""

from typing import Any

import pytest

from memalign_graph import Boolean, Criterion, Example, Judgment, Numeric
from memalign_graph.interrupts import Form
from memalign_graph.panel import panel_form
from memalign_graph.scales import Value
from tests.unit_tests.alignment.alignment_cases import standing

EXAMPLE = Example(inputs="My order never came.", outputs="Check the tracking page.")
CRITERIA = {
    "tone": Criterion(name="tone", instructions="How is the tone?", scale=Boolean()),
    "grade": Criterion(name="grade", instructions="Which?", scale=Numeric(minimum=1, maximum=3)),
}
JUDGED: dict[str, Value] = {"tone": True, "grade": 2.5}


def judgment(name: str, **fields: Any) -> Judgment:
    given = {"rationale": "It is.", "value": JUDGED[name], "memory_version": "0", **fields}
    return Judgment(criterion=name, example_id=EXAMPLE.id, **given)


JUDGMENTS = {name: judgment(name) for name in JUDGED}


def form(judgments: Any = JUDGMENTS, example: Example = EXAMPLE, **given: Any) -> Form[Any]:
    return panel_form(CRITERIA, example, judgments, **{"errors": {}, "guidelines": {}, **given})


def described(**given: Any) -> str:
    [action] = form(**given).payload["action_requests"]
    return str(action["description"])


def test_what_was_not_judged_is_said_and_has_no_field() -> None:
    errors = {"grade": "The model failed: [x](http://x) <b>\n# Big"}
    given = form({"tone": JUDGMENTS["tone"]}, errors=errors)
    [action] = given.payload["action_requests"]
    assert "### grade: not judged" in action["description"]
    assert "[x](" not in action["description"].replace("\\[", "")
    assert not any(line.startswith("# Big") for line in action["description"].splitlines())
    assert "grade" not in action["args"]


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
    "where", ["inputs", "outputs", "reference_outputs", "rationale", "warnings"]
)
@pytest.mark.parametrize("breaks", ["\n", "\r\n", "\r"])
def test_nothing_that_was_judged_or_said_makes_a_section(where: str, breaks: str) -> None:
    text = HOSTILE.replace("\n", breaks)
    plain = sections(described())
    if where in ("rationale", "warnings"):
        fields: dict[str, Any] = {where: text if where == "rationale" else [text]}
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
