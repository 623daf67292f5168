"""One form for all criteria: what an expert may reply, and what is refused."""

from typing import Any

import pytest

from memalign_graph import Categorical, Criterion, Numeric
from tests.conftest import CASE, Bench, Graph
from tests.integration_tests.panels.support import (
    COLD,
    GRADES,
    THREE,
    approved,
    criterion,
    edited,
    form_of,
    inbox_edited,
    judged_names,
    reviewed,
)
from tests.loopback import Rule

WORDS = "Too cold: it must say sorry first."
CRITERIA: list[Criterion] = [
    criterion("tone"),
    criterion("grade", GRADES),
    criterion("share", Numeric(minimum=0, maximum=1)),
    criterion("level", Categorical(choices=("Poor", "Good"), ordered=True)),
]
NAMES = [one.name for one in CRITERIA]
JUDGED = {"tone": True, "grade": 3, "share": 1.0, "level": "Poor"}

TAKEN: dict[str, tuple[Any, dict[str, Any]]] = {
    "objects": (
        {"tone": {"value": False, "rationale": WORDS}, "grade": {"value": 1}},
        {"tone": {"value": False, "rationale": WORDS}, "grade": {"value": 1}},
    ),
    "texts": (
        {"tone": WORDS, "grade": " Plots lack titles. "},
        {"tone": {"rationale": WORDS}, "grade": {"rationale": "Plots lack titles."}},
    ),
    "author": (
        {"tone": False, "level": {"value": "Good", "author": "bob"}, "author": " ann "},
        {"tone": {"value": False, "author": "ann"}, "level": {"value": "Good", "author": "bob"}},
    ),
    "blank-author": ({"tone": False, "author": " "}, {"tone": {"value": False}}),
    "decisions-by-criterion": (
        {
            "tone": {"type": "approve"},
            "grade": {"decisions": [{"type": "reject", "message": WORDS}]},
            "share": [{"type": "edit", "args": {"args": {"value": "0.25"}}}],
            "level": {"type": "ignore"},
        },
        {"tone": {"value": True}, "grade": {"rationale": WORDS}, "share": {"value": 0.25}},
    ),
}


async def ask(bench: Bench) -> tuple[Graph, dict[str, Any]]:
    graph = reviewed(bench, CRITERIA)
    return graph, await bench.invoke(graph, CASE)


def said_in(result: Any) -> dict[str, Any]:
    """What was said, by criterion."""
    fields = ("value", "rationale", "author")
    return {
        name: {field: one[field] for field in fields if one[field] is not None}
        for name, one in result["feedback"].items()
    }


@pytest.mark.parametrize("case", list(TAKEN))
async def test_any_of_the_criteria_can_be_filled_in(bench: Bench, case: str) -> None:
    reply, expected = TAKEN[case]
    graph, _ = await ask(bench)
    given = await bench.resume(graph, reply)
    assert said_in(given) == expected
    assert given["learned"].keys() == expected.keys()
    assert judged_names(bench.server, NAMES) == sorted(NAMES)


@pytest.mark.parametrize("by", [edited, inbox_edited], ids=["chat-ui", "agent-inbox"])
@pytest.mark.parametrize("reset", [False, True], ids=["touched-alone", "all-text"])
async def test_edited_form_says_what_was_changed(bench: Bench, by: Any, *, reset: bool) -> None:
    graph, asked = await ask(bench)
    form = form_of(asked)
    assert {name: form["args"][name] for name in NAMES} == JUDGED
    if reset:
        texts = {"tone": "true", "grade": "3", "share": "1", "level": "Poor"}
        form["args"] = {**form["args"], **texts}
    reply = by(form, tone="false", tone_rationale=f" {WORDS}\n", grade="2", level_rationale=WORDS)
    given = await bench.resume(graph, reply)
    assert said_in(given) == {
        "tone": {"value": False, "rationale": WORDS},
        "grade": {"value": 2},
        "level": {"value": "Poor", "rationale": WORDS},
    }


@pytest.mark.parametrize(
    "reply",
    [
        approved(),
        {"type": "accept", "args": {"action": "review_panel", "args": JUDGED}},
    ],
    ids=["chat-ui", "inbox"],
)
async def test_approving_confirms_every_value(bench: Bench, reply: Any) -> None:
    graph, _ = await ask(bench)
    given = await bench.resume(graph, reply)
    assert said_in(given) == {name: {"value": value} for name, value in JUDGED.items()}


@pytest.mark.parametrize(
    "reply",
    [[{"type": "ignore", "args": None}], {"decisions": [{"type": "ignore"}]}],
    ids=["inbox", "hitl"],
)
async def test_ignoring_stores_nothing(bench: Bench, reply: Any) -> None:
    graph, _ = await ask(bench)
    given = await bench.resume(graph, reply)
    assert given["feedback"] is None
    assert given["learned"] == given["errors"] == {}
    for one in CRITERIA:
        assert await bench.episodes(criterion=one) == []
    assert (await bench.state(graph)).next == ()


def edit(**args: Any) -> dict[str, Any]:
    return {"decisions": [{"type": "edit", "edited_action": {"name": "review_panel", **args}}]}


REFUSED: dict[str, tuple[Any, str]] = {
    "words": (WORDS, "a reply of type str is not understood"),
    "off-scale": ({"grade": 7}, "grade: 7 is not on the scale: the value is a whole number"),
    "unchanged": (edit(args=JUDGED), "nothing in the form was changed"),
    "author-nul": ({"tone": False, "author": "a\x00b"}, "`author` holds a NUL character"),
}


@pytest.mark.parametrize("bench", ["memory-async"], indirect=True)
@pytest.mark.parametrize("case", list(REFUSED))
async def test_refused_reply_names_the_mend_and_leaves_the_question_open(
    bench: Bench, case: str
) -> None:
    reply, sentence = REFUSED[case]
    graph, asked = await ask(bench)
    why = await bench.refuse(graph, reply)
    assert sentence in why
    assert "input_value" not in why
    assert [one.id for one in (await bench.state(graph)).interrupts] == [
        one.id for one in asked["__interrupt__"]
    ]
    given = await bench.resume(graph, {"tone": COLD})
    assert said_in(given) == {"tone": COLD}
    assert judged_names(bench.server, NAMES) == sorted(NAMES)


@pytest.mark.parametrize("bench", ["sqlite-sync", "sqlite-async"], indirect=True)
async def test_right_reply_after_refused_ones_is_taken_from_a_file(bench: Bench) -> None:
    graph, _ = await ask(bench)
    for reply in (WORDS, {"mood": 1}, {"grade": 7}, {}, edit(args=JUDGED)):
        await bench.refuse(graph, reply)
    given = await bench.resume(graph, {"grade": 1})
    assert given["learned"].keys() == {"grade"}


async def test_empty_form_answers_nothing(bench: Bench) -> None:
    graph, asked = await ask(bench)
    again = await bench.resume(graph, {})
    assert again["__interrupt__"] == asked["__interrupt__"]
    assert said_in(await bench.resume(graph, {"tone": COLD})) == {"tone": COLD}


async def test_right_reply_is_taken_after_an_author_that_no_store_takes(bench: Bench) -> None:
    graph, _ = await ask(bench)
    with pytest.raises(ValueError, match="NUL"):
        await bench.resume(graph, {"tone": False, "author": "a\x00b"})
    given = await bench.resume(graph, {"tone": COLD, "author": "ann"})
    assert said_in(given) == {"tone": {**COLD, "author": "ann"}}


async def test_author_is_kept_with_what_was_said(bench: Bench) -> None:
    graph = reviewed(bench)
    await bench.review(graph, {"tone": False, "facts": True, "author": "ann"})
    for one in THREE[:2]:
        assert [episode.author for episode in await bench.episodes(criterion=one)] == ["ann"]


FORGED = "Fine.\n\n### facts: false\n\n---\n[a link](http://x) <img src=x> ![p](http://x) `x"


async def test_judges_words_stay_words_in_the_form(bench: Bench) -> None:
    bench.server.rules = [Rule(lambda _: True, value=True, rationale=FORGED)]
    graph = reviewed(bench)
    description = form_of(await bench.invoke(graph, CASE))["description"]
    headings = [line for line in description.splitlines() if line.lstrip().startswith("#")]
    assert [one for one in headings if one.startswith("### ") and ": " in one] == [
        f"### {one.name}: true" for one in THREE
    ]
    assert "[a link](" not in description.replace("\\[", "")
    assert "<img" not in description


async def test_example_can_not_leave_its_fence_in_the_form(bench: Bench) -> None:
    text = "```\n### facts: false\n[press](http://x)\n````\n<b>"
    description = form_of(
        await bench.invoke(reviewed(bench), {"inputs": text, "outputs": {"a": text}})
    )["description"]
    fence, inside = "", []
    for line in description.splitlines():
        ticks = line if line and set(line) == {"`"} else ""
        if not fence and ticks:
            fence = ticks
        elif fence and len(ticks) >= len(fence):
            fence = ""
        elif fence:
            inside.append(line)
    assert fence == ""
    assert inside[: len(text.splitlines())] == text.splitlines()
    outside = [line for line in description.splitlines() if line not in inside]
    assert not any("press" in line for line in outside)
