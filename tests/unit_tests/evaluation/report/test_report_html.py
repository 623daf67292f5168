"""The HTML page: whole, self-contained, safe, the same each time, and readable."""

import base64
import hashlib
import re
import sys
import threading
from collections.abc import Sequence
from html import unescape
from itertools import pairwise

import pytest

from memalign_graph import Criterion
from memalign_graph.evaluation import Report
from memalign_graph.evaluation.report import html
from memalign_graph.evaluation.report.html import fold, render_html, unbroken
from memalign_graph.evaluation.report.words import clean
from memalign_graph.evaluation.variants import ALIGNED, BASE
from tests.unit_tests.evaluation.report.changing import with_text
from tests.unit_tests.evaluation.report.making import (
    BETTER,
    CRITERIA,
    EFFORT,
    EXAM,
    STARS,
    TONE,
    make_evaluation,
    make_report,
)
from tests.unit_tests.evaluation.report.reading import Page

EVIL = (
    "</style><script>alert(1)</script><img src=x onerror=alert(2)>",
    '" onmouseover="alert(1)" x=\'',
    "{{ 7 * 7 }}{% raw %}",
    "</div></details></article><h1>gone</h1>",
    "&lt;b&gt; &#60; &amp;",
    "a\x00b\x07c\x1b[31m\ud800\udfffd\u202ee\ufffe",
    "\r\nline\r\u2028line\u2029\u0085",
    "שלום עולם — العربية",
    "😀" * 50,
)


def everywhere(page: Page) -> None:
    """What holds for every page."""
    assert page.names.isdisjoint({"script", "img", "link", "iframe", "object", "form", "base"})
    ids = [value for _, attrs in page.tags if (value := attrs.get("id"))]
    assert len(ids) == len(set(ids))
    for _, attrs in page.tags:
        assert not [name for name in attrs if name.startswith("on") or name == "style"]
        for name in ("href", "aria-labelledby"):
            for one in (attrs.get(name) or "").split():
                assert one.removeprefix("#") in ids
    heads = [int(name[1]) for name, _ in page.tags if re.fullmatch("h[1-6]", name)]
    assert heads[0] == 1
    assert heads.count(1) == 1
    assert all(after <= before + 1 for before, after in pairwise(heads))
    assert all(one.get("scope") for one in page.named("th"))
    drawings = page.named("svg")
    assert all(one["role"] == "img" and one["aria-labelledby"] for one in drawings)
    assert len(page.named("desc")) == len(drawings)


@pytest.mark.parametrize("criterion", CRITERIA, ids=lambda one: one.name)
def test_every_scale(criterion: Criterion) -> None:
    report = make_report(criterion, confident=True, experts=2, fails=1)
    written = render_html(report)
    assert written == report.to_html()
    page = Page(written)
    everywhere(page)
    assert criterion.name in page.text
    assert criterion.instructions in page.text
    for one in report.guidelines:
        assert one.text in page.text
    assert len(written.encode()) < 400_000


def test_no_network_and_only_our_styles() -> None:
    written = make_report().to_html()
    assert not re.search(r"https?:|//\w|url\(|@import|data:", written)
    [policy] = re.findall(r'Content-Security-Policy" content="([^"]+)"', written)
    policy = unescape(policy)
    assert policy.startswith("default-src 'none'")
    assert "unsafe" not in policy
    [styles] = re.findall(r"<style>(.*?)</style>", written, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(styles.encode()).digest()).decode()
    assert f"'sha256-{digest}'" in policy


@pytest.mark.parametrize("criterion", [TONE, EXAM], ids=lambda one: one.name)
def test_the_same_report_is_the_same_page_also_in_threads(criterion: Criterion) -> None:
    report = make_report(criterion, confident=True)
    again = Report.model_validate_json(report.model_dump_json())
    found: list[str] = []
    threads = [
        threading.Thread(target=lambda one=one: found.append(render_html(one)))
        for one in (report, again, report, again)
    ]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert len(found) == 4
    assert set(found) == {render_html(report)}


def test_drawing_changes_no_setting_and_opens_no_figure() -> None:
    import matplotlib as mpl
    from matplotlib import _pylab_helpers

    before = dict(mpl.rcParams)
    make_report(EXAM, confident=True).to_html()
    assert dict(mpl.rcParams) == before
    assert not _pylab_helpers.Gcf.figs


def test_a_users_own_plot_settings_change_nothing() -> None:
    import matplotlib as mpl

    report = make_report(EXAM, confident=True)
    plain = report.to_html()
    with mpl.rc_context({"text.usetex": True, "axes.grid": True, "svg.fonttype": "none"}):
        assert report.to_html() == plain


@pytest.mark.parametrize("text", EVIL)
def test_texts_of_others_stay_text(text: str) -> None:
    page = Page(with_text(make_report(fails=1), text).to_html())
    everywhere(page)
    assert not [name for name in page.names if name in {"script", "img"}]
    whole = "".join(data for _, data in page.texts)
    assert not re.search(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff\u202e\ufffe]", whole)
    if text == clean(text):
        assert text in page.text


def test_long_texts_are_cut_with_a_note() -> None:
    written = with_text(make_report(number=10), "word " * 200_000).to_html()
    assert len(written) < 3_000_000
    assert "990,000 more characters, not shown" in Page(written).text


def test_many_wrong_cases_are_cut_with_a_note() -> None:
    page = Page(make_report(number=150, right={BASE: 0.1, ALIGNED: 0.0}).to_html())
    assert page.text.count("The judge says") == 100
    assert "… and 50 more cases, which the JSON of this report holds." in page.text


def test_a_case_shows_both_sides_and_the_guidelines() -> None:
    report = make_report(confident=True)
    page = Page(report.to_html()).text
    case = report.evaluation.wrong(ALIGNED)[0]
    assert f"Case {report.evaluation.cases.index(case) + 1} " in page
    assert case.judgments[ALIGNED].rationale in page
    assert str(case.example.inputs) in page
    assert "The 2 guidelines it was given" in page
    assert "was right before" in page
    assert page.index("was right before") > page.index("Cases still wrong")


def test_two_outputs_are_shown_by_themselves() -> None:
    page = Page(make_report(BETTER, right={BASE: 0.2, ALIGNED: 0.2}).to_html()).text
    assert re.search(r"Answer A A careful summary of report \d+\. Answer B A bold summary", page)


def test_matrices_for_labels_and_dots_for_numbers() -> None:
    for criterion in (TONE, EFFORT, STARS, BETTER):
        page = Page(make_report(criterion).to_html())
        assert len([one for one in page.named("table") if one.get("class") == "matrix"]) == 2
    page = Page(make_report(EXAM).to_html())
    assert not [one for one in page.named("table") if one.get("class") == "matrix"]
    assert "Before learning: the judge's values against the experts'" in page.text
    assert "After learning: the judge's values against the experts'" in page.text


def test_too_many_labels_are_listed() -> None:
    many = TONE.model_copy(
        update={"scale": EFFORT.scale.model_copy(update={"choices": tuple("abcdefghijklmno")})}
    )
    page = Page(make_report(many).to_html())
    assert not [one for one in page.named("table") if one.get("class") == "matrix"]
    assert "The answers most often mixed up" in page.text


def test_calibration_only_where_there_is_confidence() -> None:
    assert "can be trusted" in make_report(confident=True).to_html()
    assert "can be trusted" not in make_report().to_html()


def test_steps_back_name_what_turned_them() -> None:
    page = Page(make_report().to_html()).text
    assert "Steps back on the way" in page
    assert "Between 2 and 5 pieces of feedback" in page
    assert "A new guideline turned it: without it the case would still be right." in page
    assert "New cases in the judge's prompt turned it; no guideline did." in page


def empty_reports() -> Sequence[Report]:
    perfect = make_evaluation(right={BASE: 1.0, ALIGNED: 1.0})
    return [
        Report(evaluation=perfect),
        Report(evaluation=make_evaluation(number=1)),
        Report(evaluation=make_evaluation(number=0)),
        Report(evaluation=make_evaluation(EXAM, 1, right={BASE: 0, ALIGNED: 0})),
        Report(evaluation=make_evaluation(EXAM, 0)),
        Report(evaluation=make_evaluation(resamples=0)),
        Report(evaluation=make_evaluation(number=5, fails=5)),
        Report(evaluation=make_evaluation(EXAM, 5, fails=5)),
        Report(evaluation=make_evaluation(scores=[], comparisons=[], judging={}, memories=[])),
    ]


@pytest.mark.parametrize("report", empty_reports())
def test_whatever_is_missing(report: Report) -> None:
    page = Page(report.to_html())
    everywhere(page)
    assert "No guideline was learned" in page.text
    assert "How it gets better with feedback" not in page.text
    assert not re.search(r"\bNone\b(?!:)|\bnan\b|\binf\b", page.text)


def test_folding_loses_nothing() -> None:
    for text in ("", "short", "a\n" * 50, "word " * 500, "x" * 2_000, "\n" * 30, "a" * 430):
        head, rest = fold(text)
        assert (head + rest).replace("\n", "") == text.replace("\n", "")
        assert len(head) <= 530


def test_numbers_keep_their_sign() -> None:
    assert unbroken("86 % of 3, > 99 %") == "86\u00a0% of 3, >\u00a099\u00a0%"


@pytest.mark.parametrize("package", ["jinja2", "matplotlib.figure"])
def test_without_the_extra(monkeypatch: pytest.MonkeyPatch, package: str) -> None:
    report = make_report(number=4)
    html._templates.cache_clear()
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ImportError, match=r'pip install "memalign-graph\[evaluation\]"'):
        report.to_html()
    assert report.to_markdown()
    assert report.to_json()


def test_the_page_of_one_case_says_how_little_that_is() -> None:
    page = Page(Report(evaluation=make_evaluation(number=1)).to_html()).text
    assert "on 1 of 1 unseen case (100 %); before, it was " in page
    assert "1 case is few: one case more or less can change the picture." in page
