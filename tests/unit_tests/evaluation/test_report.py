"""Reports: every scale, hostile text, missing parts, no network."""

import json
import random
import re
from datetime import UTC, datetime
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from memalign_graph import Boolean, Categorical, Criterion, Example, Guideline, Numeric, Pairwise
from memalign_graph.agreement import expert_agreement
from memalign_graph.errors import InvalidInputError
from memalign_graph.evaluation import Report
from memalign_graph.evaluation.metrics import Prediction, labels_of, score
from memalign_graph.evaluation.report import (
    MAX_CHARS,
    EvaluatedCase,
    ExpertLabel,
    FoldMemory,
    LearningCurve,
    LearningStep,
    RunSettings,
    UsageRow,
    clean,
    inline,
)
from tests.builders import make_judgment

THEN = datetime(2026, 3, 1, tzinfo=UTC)
SCALES: dict[str, Any] = {
    "boolean": Boolean(),
    "ordered": Categorical(choices=("poor", "fair", "good"), ordered=True),
    "stars": Numeric(minimum=1, maximum=5, integer=True),
    "number": Numeric(minimum=0, maximum=1),
    "pairwise": Pairwise(),
}
EVIL = (
    "</details>\n\n@octocat please look at #12 and www.evil.example",
    "<script>alert(1)</script><img src=x onerror=alert(1)>",
    "a\n```\n</details>\n```\n# Gone",
    "| a | b |\n|---|---|\n[link](https://evil.example) ![x](y)",
    "`" * 3_000,
    "{{ 7 * 7 }} {% raw %} ${x} <!-- ",
    "漢" * 20_000,
)


def guideline(text: str, number: int = 0) -> Guideline:
    return Guideline(
        id=f"g{number}", text=text, position=number, episode_ids=["e0"], created_at=THEN,
        updated_at=THEN,
    )  # fmt: skip


def make_report(
    kind: str = "boolean", number: int = 24, *, right: float = 0.7, text: str = "Say sorry first."
) -> Report:
    """A report of a base judge that is right half the time and an aligned judge."""
    criterion = Criterion(name="tone", instructions=text, scale=SCALES[kind])
    scale, chance = criterion.scale, random.Random(0)  # noqa: S311 - nothing secret
    values = labels_of(scale) or [0.0, 0.25, 0.5, 1.0]
    guidelines = [guideline(text)]
    label = ExpertLabel(author=text[:50], value=None, rationale=text, episode_id="e0")
    cases = []
    for index in range(number):
        example = Example(inputs=f"{text} {index}", outputs={"a": text}, reference_outputs=[text])
        expected = chance.choice(values)
        judgments = {
            name: make_judgment(
                example.id,
                value=expected if chance.random() < share else chance.choice(values),
                rationale=text,
                confidence=chance.uniform(0.5, 1),
                guideline_ids=["g0"],
                episode_ids=["e0", "elsewhere"],
            )
            for name, share in (("base", 0.5), ("aligned", right))
            if index or name == "base"
        }
        predictions = {
            name: Prediction(value=judgment.value, confidence=judgment.confidence)
            for name, judgment in judgments.items()
        }
        case = EvaluatedCase(
            example=example,
            group=example.id,
            fold=index % 2,
            expected=expected,
            experts=[label.model_copy(update={"value": expected})],
            predictions={"majority": Prediction(value=values[0]), **predictions},
            judgments=judgments,
            failures={} if index else {"aligned": text},
        )
        cases.append(case)
    settings = RunSettings(
        version="1", created_at=THEN, data="d", feedback=number, folds=2, group_by="example",
        seed=0, resamples=200, judges={"base": {"k": 0}, "aligned": {"k": 5, "model": text[:50]}},
    )  # fmt: skip
    names = ["majority", "base", "aligned"]
    pairs = [("aligned", "base"), ("aligned", "majority"), ("base", "majority")]
    scores, comparisons = score(
        scale,
        [case.expected for case in cases],
        [case.group for case in cases],
        {name: [case.predictions.get(name, Prediction()) for case in cases] for name in names},
        pairs=pairs,
        resamples=settings.resamples,
    )
    step = LearningStep(feedback=0, guidelines=0, unseen=scores[1], seen=None)
    later = LearningStep(feedback=9, guidelines=1, unseen=scores[2], seen=scores[2])
    usage = UsageRow(judge="aligned", stage="judge", purpose="judge", chat_calls=7, cached_calls=2)
    return Report(
        criterion=criterion,
        settings=settings,
        judges=["base", "aligned"],
        cases=cases,
        scores=scores,
        comparisons=comparisons,
        memories=[
            FoldMemory(
                fold=fold, judge="aligned", episodes=9, guidelines=guidelines, warnings=[text]
            )
            for fold in (0, 1)
        ],
        experts=expert_agreement([], scale),
        usage=[usage],
        warnings=[text],
        guidelines=guidelines,
        sources=[],
        curve=LearningCurve(criterion=criterion, steps=[step, later], test_cases=5, usage=[usage]),
    )


class Page(HTMLParser):
    """The tags, attributes and text of a page."""

    def __init__(self, written: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(written)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data

    def has(self, *names: str) -> bool:
        return not {*names}.isdisjoint(name for name, _ in self.tags)


@pytest.mark.parametrize("kind", SCALES)
def test_every_scale(kind: str) -> None:
    report = make_report(kind)
    text, page = report.to_markdown(), Page(report.to_html())
    assert text.startswith("## ")
    for part in ("### Guidelines learned: 1", "7 chat calls"):
        assert part in text
    assert not re.search(r"\bnan\b|\binf\b", text)
    assert text.startswith(report.summary().rstrip())
    assert report.summary().count("| aligned |") == 1
    assert page.text.count("Case ") == len(report.cases)
    earlier = {**report.model_dump(mode="json"), "credit": []}  # as 0.2 wrote it
    earlier["curve"]["steps"][0]["flips"] = []
    assert Report.model_validate_json(json.dumps(earlier)) == report


def test_page_needs_no_network_and_no_script_and_failures_are_not_wrong() -> None:
    report = make_report()
    written, wrong = report.to_html(), report.wrong("aligned")
    assert report.of("aligned").failed == 1
    assert f"### Cases that aligned has wrong: {len(wrong)}\n" in report.to_markdown()
    assert f"<h3>All cases; wrong: {len(wrong)}, which come first</h3>" in written
    page = Page(written)
    assert not re.search(r"https?:|url\(|@import", written)
    [policy] = re.findall(r'Content-Security-Policy" content="([^"]+)"', written)
    assert policy.startswith("default-src 'none'")
    assert "unsafe" not in policy
    assert not page.has("script", "link", "iframe", "img")


def test_comment_that_is_too_long_has_no_details(monkeypatch: pytest.MonkeyPatch) -> None:
    report = make_report(number=8)
    whole = report.to_markdown()
    for limit, is_whole in ((len(whole), True), (len(whole) - 2, False)):
        monkeypatch.setattr("memalign_graph.evaluation.report.MAX_CHARS", limit)
        assert (report.to_markdown() == whole) == is_whole


@pytest.mark.parametrize("text", EVIL)
def test_untrusted_text_is_escaped(text: str) -> None:
    report = make_report(number=8, right=0, text=text)
    written = report.to_markdown()
    assert len(written) <= MAX_CHARS < 65_536  # GitHub's limit of a comment
    assert written.count("<details>") == written.count("</details>") or "</details>" in text
    outside = re.sub(r"^(`{3,})text\n.*?\n\1$", "", written, flags=re.DOTALL | re.MULTILINE)
    assert outside.count("<details>") == outside.count("</details>")
    assert not re.search(r"@octocat|<script|<img|www\.evil|://", outside)
    page = Page(report.to_html())
    assert not [tag for tag, attributes in page.tags if "onerror" in attributes]
    assert not page.has("script", "a", "img")


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("a_b*c | d", r"a\_b\*c \| d"),
        (r"a\|b\*c", r"a\\\|b\\\*c"),
        ("- item", "\u2060- item"),
        ("12. item", "\u206012. item"),
        ("a\n\nb", "a b"),
        ("<b> & ", "&lt;b&gt; &amp;"),
        ("@you see #1", "@\u2060you see #\u20601"),
        ("a\x00b\u202ec\ud800", "a\ufffdb\ufffdc\ufffd"),
    ],
)
def test_summary_line(text: str, written: str) -> None:
    assert inline(text) == written
    assert clean("x" * 20, 10) == "x" * 10 + "… [10 more characters]"


def test_report_with_missing_parts() -> None:
    missing = ("guidelines", "usage", "warnings", "comparisons")
    bare = make_report().model_copy(update={**{name: [] for name in missing}, "curve": None})
    assert "### Guidelines learned: 0" in bare.to_markdown()
    for report in (bare, bare.model_copy(update={"judges": ["aligned"]})):
        assert "tone" in report.to_html()
        assert "measured" in report.to_markdown()


def test_warnings_of_the_main_judge_come_first_and_the_rest_is_counted() -> None:
    warnings = [f"base: note {number}." for number in range(6)]
    report = make_report().model_copy(update={"warnings": [*warnings, "aligned: last."]})
    shown = report.to_markdown().split("| judge")[0]
    assert shown.index("aligned: last.") < shown.index("base: note 0.")
    assert "base: note 4." not in shown
    assert "More warnings in Report.warnings: 2" in shown
    assert "aligned: last." in report.to_html()


def test_headline() -> None:
    rows = ((1.0, 60, "better"), (0.0, 60, "worse"), (0.5, 8, "may be chance"))
    for right, number, verdict in rows:
        text = make_report(number=number, right=right).to_markdown()
        than = "" if number < 20 else " than base"
        assert f"{verdict}{than}: tone" in text.split("\n")[0]
        assert ("are few cases" in text) == (number < 20)
        assert ("baseline" in text.split("| judge")[0]) == (right < 1)
    base = (report := make_report()).of("base")
    scores = [base, base.model_copy(update={"judge": "aligned"})]
    same = report.model_copy(update={"scores": scores})
    assert "no change: tone" in same.summary().split("\n")[0]


def test_report_is_saved(tmp_path: Path) -> None:
    report = make_report()
    for ending in ("html", "md", "json"):
        file = report.save(tmp_path / "new" / f"report.{ending}")
        assert file.stat().st_size > 500
    assert Report.model_validate_json(file.read_text(encoding="utf-8")) == report
    with pytest.raises(InvalidInputError, match=r"^path: 'r.pdf' has no known ending"):
        report.save(tmp_path / "r.pdf")
    (tmp_path / "r.md").symlink_to("/dev/full")
    for name, problem in (
        ("r.md", "No space left on device"),
        ("new/report.md/r.md", "File exists"),
        (f"{'x' * 300}.md", "File name too long"),
    ):
        refused = rf"^path: .*{name} can't be written: {problem}. Free space or choose another path"
        with pytest.raises(InvalidInputError, match=refused):
            report.save(tmp_path / name)


def test_report_is_not_compared_by_a_judge_that_it_lacks() -> None:
    report = make_report()
    with pytest.raises(KeyError, match="'alignd' was not measured"):
        report.compare(report, judge="alignd")


@pytest.mark.parametrize("kind", ["stars", "number", "ordered", "pairwise"])
def test_report_is_not_compared_with_one_of_another_scale_or_criterion(kind: str) -> None:
    report, other = make_report(), make_report(kind)
    with pytest.raises(InvalidInputError, match=r"^before: .* another scale"):
        report.compare(other)
    criterion = report.criterion.model_copy(update={"name": "facts"})
    with pytest.raises(InvalidInputError, match="of the criterion 'facts'"):
        report.compare(report.model_copy(update={"criterion": criterion}))
    # The same criterion in other words.
    revised = report.criterion.model_copy(update={"instructions": "Is it kind?"})
    assert report.compare(report.model_copy(update={"criterion": revised})).better == []
