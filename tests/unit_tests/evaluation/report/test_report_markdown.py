"""The Markdown: short enough for a comment, and nothing in it breaks out of its place."""

import re

import pytest

from memalign_graph import Criterion
from memalign_graph.evaluation import Report
from memalign_graph.evaluation.report.markdown import MOST_BYTES, inline, render_markdown
from memalign_graph.evaluation.variants import ALIGNED, BASE
from tests.unit_tests.evaluation.report.changing import with_text
from tests.unit_tests.evaluation.report.making import (
    CRITERIA,
    TONE,
    guideline,
    make_report,
)
from tests.unit_tests.evaluation.report.reading import check_markdown, outside_fences
from tests.unit_tests.evaluation.report.test_report_html import EVIL, empty_reports

BREAKING = (
    "| a | b |\n|---|---|",
    "```\n</details>\n```\n# Gone",
    "`" * 5_000,
    "~~~\ngone",
    "</details>\n\n@octocat please look at #12, GH-13 and octo/repo#14",
    "https://evil.example/x www.evil.example mailto:a@b.example",
    "[link](https://evil.example) ![picture](x) [ref]: x",
    "<!-- hidden --> <b>bold</b> <script>",
    "$x$ and $$y$$ \\$z",
    "- [ ] task\n1. one\n> quote\n***\n===\n---",
    "<summary>x</summary><br/>",
    "&" * 3_000,
    "<" * 3_000,
    "漢" * 20_000,
)


@pytest.mark.parametrize("criterion", CRITERIA, ids=lambda one: one.name)
def test_every_scale(criterion: Criterion) -> None:
    report = make_report(criterion, confident=True, experts=2, fails=1)
    text = render_markdown(report)
    check_markdown(text)
    assert text == report.to_markdown()
    assert len(text.encode()) < 30_000
    assert text.startswith("## ")
    for one in report.guidelines:
        assert inline(one.text) in text
    assert "**Cost.** It took" in text
    assert "| Metric | Always one answer | Copy similar cases | Before learning |" in text


@pytest.mark.parametrize("text", [*EVIL, *BREAKING])
def test_texts_of_others_stay_text(text: str) -> None:
    written = with_text(make_report(fails=2), text).to_markdown()
    check_markdown(written)
    assert len(written.encode()) <= MOST_BYTES
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f\ud800-\udfff\u202e]", written)


@pytest.mark.parametrize("report", empty_reports())
def test_whatever_is_missing(report: Report) -> None:
    text = report.to_markdown()
    check_markdown(text)
    assert "**Guidelines.** None was learned." in text
    assert not re.search(r"\bnan\b|\binf\b", text)


def test_it_fits_whatever_there_is() -> None:
    report = make_report(number=300, right={BASE: 0.5, ALIGNED: 0.0}, experts=12)
    many = [guideline(one, "漢" * 2_000) for one in range(200)]
    whole = with_text(report, "😀" * 3_000).model_copy(update={"guidelines": many, "credit": []})
    text = whole.to_markdown()
    check_markdown(text)
    assert len(text.encode()) <= MOST_BYTES
    assert "More than fits here" in text
    assert "… and 188 more." in text
    assert "**Cost.**" in text


def test_headline_first_and_a_few_cases() -> None:
    report = make_report(right={BASE: 0.5, ALIGNED: 0.5})
    text = report.to_markdown()
    assert text.split("\n\n")[1].startswith("**After learning from 24 pieces of feedback")
    wrong = len(report.evaluation.wrong(ALIGNED))
    assert f"### {wrong} cases still wrong" in text
    assert text.count("<details><summary>Case ") == 5
    assert f"… and {wrong - 5} more cases; the HTML page shows them." in text


def test_words_stand_in_fences_as_they_are() -> None:
    words = "Use `x`, not ```y```.\n\n</details> @octocat"
    text = with_text(make_report(TONE, 8, right={BASE: 0.5, ALIGNED: 0.0}), words).to_markdown()
    assert f"````text\n{words}\n````" in text
    assert not [line for line in outside_fences(text) if "@octocat" in line]


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("a_b*c", r"a\_b\*c"),
        ("x | y", r"x \| y"),
        ("- item", r"\- item"),
        ("12. item", r"12\. item"),
        ("0.65", "0.65"),
        ("# head", r"\# head"),
        ("--- ", r"\---"),
        ("a\n\nb", "a b"),
        ("<b> & ", "&lt;b&gt; &amp;"),
        ("@you", "@\u2060you"),
        ("see #1", "see #\u20601"),
        ("+19 pts", "+19 pts"),
    ],
)
def test_a_line(text: str, written: str) -> None:
    assert inline(text) == written
