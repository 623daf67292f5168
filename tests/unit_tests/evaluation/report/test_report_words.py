"""What a report says of what was found."""

from pathlib import Path
from typing import Any

import pytest

from memalign_graph import Boolean, InvalidInputError, Numeric
from memalign_graph.evaluation import Estimate, Report
from memalign_graph.evaluation.report.guidelines import guideline_views
from memalign_graph.evaluation.report.headline import Headline, headline
from memalign_graph.evaluation.report.view import view
from memalign_graph.evaluation.report.words import (
    as_text,
    clean,
    count,
    decimal,
    digits_for,
    duration,
    listed,
    one_line,
    percent,
    points,
    show,
    signed,
)
from memalign_graph.evaluation.variants import ALIGNED, BASE
from tests.unit_tests.evaluation.report.making import (
    CRITERIA,
    EXAM,
    STARS,
    TONE,
    guideline,
    make_evaluation,
    make_report,
)


def said(head: Headline) -> str:
    return " ".join([*head.sentences, *(one.text for one in head.notes)])


@pytest.mark.parametrize("criterion", CRITERIA, ids=lambda one: one.name)
def test_json_round_trip(criterion: Any) -> None:
    report = make_report(criterion, confident=True, experts=2, fails=1)
    assert Report.model_validate_json(report.model_dump_json()) == report
    assert Report.model_validate(report.to_json()) == report


@pytest.mark.parametrize("ending", ["html", "md", "json"])
def test_saving(tmp_path: Path, ending: str) -> None:
    report = make_report()
    file = report.save(tmp_path / "new" / f"report.{ending}")
    text = file.read_text(encoding="utf-8")
    whole = {"html": report.to_html(), "md": report.to_markdown()}
    assert text == whole.get(ending, report.model_dump_json(indent=1))


def test_saving_as_something_else(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match=r"end it in \.html, \.md or \.json"):
        make_report().save(tmp_path / "report.pdf")


def test_better() -> None:
    evaluation = make_evaluation(number=60, right={BASE: 0.3, ALIGNED: 0.95})
    head = headline(evaluation)
    agreement = evaluation.metric(ALIGNED, "agreement").value or 0
    right = round(agreement * 60)
    assert (head.verdict, head.tone) == ("Better than before", "good")
    assert head.sentences[0].startswith(
        "After learning from 24 pieces of feedback, the judge agrees with the experts on "
        f"{right} of 60 unseen cases ({percent(agreement)}, between "
    )
    assert "more than chance is likely to do: by " in said(head)
    assert "It is better than always answering “true”" in said(head)
    assert " and than copying the experts' answer" in said(head)


def test_worse() -> None:
    head = headline(make_evaluation(number=60, right={BASE: 0.95, ALIGNED: 0.3}))
    assert (head.verdict, head.tone) == ("Worse than before", "bad")
    assert "That is worse than before" in said(head)
    assert [one for one in head.notes if one.tone == "bad"]


def test_may_be_chance() -> None:
    head = headline(make_evaluation(number=10, right={BASE: 0.6, ALIGNED: 0.7}))
    assert (head.verdict, head.tone) == ("May be chance", "warn")
    assert "percentage points worse to" in said(head)
    assert "10 cases are few" in said(head)


def test_no_change() -> None:
    head = headline(make_evaluation(number=30, right={BASE: 1.0, ALIGNED: 1.0}))
    assert (head.verdict, head.tone) == ("No change", "plain")
    # All draws of cases that are all right are all right: that is no certainty.
    assert "between" not in said(head)
    assert "it may still have up to 10 % wrong (95 % bound)" in said(head)


def test_no_better_than_without_looking() -> None:
    cases = [
        one.model_copy(update={"predictions": {"nearest": one.expected, "constant": True}})
        for one in make_evaluation(right={BASE: 0.5, ALIGNED: 1.0}).cases
    ]
    head = headline(make_evaluation(cases=cases))
    assert "It is no better than copying the experts' answer" in said(head)


def test_no_intervals() -> None:
    head = headline(make_evaluation(resamples=0))
    assert head.verdict == "Difference untested"
    assert "between" not in head.sentences[0]
    assert "whether that is chance is not known" in said(head)


def test_not_better_than_without_looking() -> None:
    head = headline(make_evaluation(number=30, right={BASE: 0.5, ALIGNED: 0.5}))
    warned = " ".join(one.text for one in head.notes if one.tone == "warn")
    assert "It is not clearly better than always answering “true” (" in warned
    assert "It is not clearly better than copying the experts' answer" in warned


def test_distances() -> None:
    head = headline(make_evaluation(EXAM, 60, right={BASE: 0.1, ALIGNED: 0.9}))
    assert "the judge's value is on average 0.0" in head.sentences[0]
    assert "on a scale from 0 to 1 and on 60 unseen cases; before, it was 0." in head.sentences[0]
    assert "It is within a tenth of the scale on " in said(head)
    # Less is better: the gain is told without a sign.
    assert "better than before by more than chance is likely to do: by 0." in said(head)
    assert "It gives exactly their value on" in said(headline(make_evaluation(STARS)))


def test_failures_are_told() -> None:
    head = headline(make_evaluation(fails=3))
    assert "On 3 cases the judge gave no verdict that can be used" in said(head)
    assert "gave no verdict that can be used on any of 4 unseen cases" in said(
        headline(make_evaluation(number=4, fails=4))
    )


def test_experts_among_themselves() -> None:
    head = headline(make_evaluation(experts=3))
    assert "36 cases have values of two or more experts, and on " in said(head)
    assert "Krippendorff's alpha 0." in said(head)
    assert "Krippendorff" not in said(headline(make_evaluation()))


def test_folds_that_learned_differently_much() -> None:
    evaluation = make_evaluation()
    memories = [one.model_copy(update={"episodes": 20 + one.fold}) for one in evaluation.memories]
    head = headline(evaluation.model_copy(update={"memories": memories}))
    assert head.sentences[0].startswith("After learning from 20 to 22 pieces of feedback")


def test_other_ways_of_judging_beside_the_first() -> None:
    evaluation = make_evaluation()
    renamed = evaluation.model_dump_json().replace('"base"', '"none"')
    other = type(evaluation).model_validate_json(renamed)
    assert headline(other).sentences == headline(evaluation).sentences
    shown = view(Report(evaluation=other))
    assert "none" in shown.metrics.head
    assert len(shown.matrices) == 2


def test_warnings_name_the_judge_in_words_once() -> None:
    shown = view(Report(evaluation=make_evaluation(warnings=["aligned: x", "aligned: x", "y: z"])))
    assert shown.warnings == ["After learning: x", "y: z"]


def test_wrong_cases_that_were_right_come_first() -> None:
    shown = view(Report(evaluation=make_evaluation(number=80, right={BASE: 0.5, ALIGNED: 0.5})))
    was_right = [one.was_right for one in shown.wrong]
    assert was_right == sorted(was_right, reverse=True)
    assert shown.broken == sum(was_right) > 0


def test_the_furthest_off_come_first() -> None:
    evaluation = make_evaluation(EXAM, 60, right={BASE: 0.0, ALIGNED: 0.2})
    shown = view(Report(evaluation=evaluation))
    for group in (True, False):
        far = [
            abs(float(one.verdict) - float(one.expected))
            for one in shown.wrong
            if one.was_right is group
        ]
        assert far == sorted(far, reverse=True)


def test_guidelines_with_their_sources_and_credit() -> None:
    views = guideline_views(make_report())
    assert [one.worth for one in views] == ["Does harm", "Turns nothing", "Helps", "Never shown"]
    assert (
        views[0].credit == "Of 20 verdicts tried with and without it, it makes 0 right and 2 wrong."
    )
    assert views[1].origin == "Written by Dr. Cleo Martín."
    assert views[2].origin == "Rests on 4 pieces of feedback by Ann, Bo and Dr. Cleo Martín."
    assert len(views[2].sources) == 3
    assert views[2].more_sources == 1
    assert views[2].sources[0].word.words.startswith("It never says sorry.")


def test_guideline_that_is_to_be_worded_anew() -> None:
    waiting = guideline(1, status="pending")
    [shown] = guideline_views(Report(evaluation=make_evaluation(), guidelines=[waiting]))
    assert shown.status == "Some of its sources were taken back; it is to be worded anew."
    assert (shown.worth, shown.credit) == ("", "")
    assert shown.origin == "No feedback that it rests on is known."


def test_undefined_numbers_are_words() -> None:
    evaluation = make_evaluation()
    empty = [
        one.model_copy(update={"metrics": {"agreement": Estimate(value=None)}})
        for one in evaluation.scores
    ]
    shown = view(Report(evaluation=evaluation.model_copy(update={"scores": empty})))
    assert [cell.text for cell in shown.metrics.rows[0][1:]] == ["n/a"] * 4


@pytest.mark.parametrize(
    ("share", "text"),
    [(0, "0 %"), (1, "100 %"), (0.861, "86 %"), (0.9996, "> 99 %"), (0.0004, "< 1 %")],
)
def test_percent(share: float, text: str) -> None:
    assert percent(share) == text


def test_numbers() -> None:
    assert points(0.19) == "+19"
    assert points(-0.004) == "\u22120.4"
    assert points(0) == "0"
    assert decimal(-0.0001, 2) == "0.00"
    assert decimal(-1234.5, 1) == "\u22121,234.5"
    assert signed(0.3, 2) == "+0.30"
    assert count(1, "case") == "1 case"
    assert count(1_200, "case") == "1,200 cases"
    assert duration(4.21) == "4.2 s"
    assert duration(59.4) == "59 s"
    assert duration(200) == "3 min 20 s"
    assert duration(3_900) == "1 h 5 min"
    assert listed([]) == ""
    assert listed(["a", "b", "c"]) == "a, b and c"


@pytest.mark.parametrize(
    ("low", "high", "digits"), [(0, 1, 2), (1, 5, 2), (0, 10, 1), (0, 100, 1), (0, 0.01, 4)]
)
def test_digits(low: float, high: float, digits: int) -> None:
    assert digits_for(Numeric(minimum=low, maximum=high)) == digits


def test_values() -> None:
    scale = Numeric(minimum=-1, maximum=1)
    assert show(scale, 0.1 + 0.2) == "0.3"
    assert show(scale, -0.5) == "\u22120.5"
    assert show(scale, 1.0) == "1"
    assert show(Numeric(minimum=1, maximum=5, integer=True), 4) == "4"
    assert show(Boolean(), True) == "true"
    assert show(Boolean(), None) == "no value"
    assert show(Boolean(), "maybe") == "maybe (on an earlier scale)"


def test_texts() -> None:
    assert clean("a\r\nb\rc\x00\ud800") == "a\nb\nc\ufffd\ufffd"
    assert clean("x" * 20, most=5) == "xxxxx… [15 more characters, not shown]"
    assert one_line(" a\n\n b ", 10) == "a b"
    assert one_line("abcdef", 3) == "abc…"
    assert as_text({"messages": [{"role": "user", "content": "Hi"}]}) == "user: Hi"
    assert as_text([{"role": "user", "content": "Hi"}, {"role": "ai", "content": "Ho"}]) == (
        "user: Hi\n\nai: Ho"
    )
    assert as_text({"question": "Why?", "tries": 2}) == "question: Why?\ntries: 2"
    assert as_text({"a": {"b": 1}}) == '{\n  "a": {\n    "b": 1\n  }\n}'
    assert as_text([]) == "[]"


def test_what_is_asked_of_models() -> None:
    shown = view(make_report(TONE))
    assert "A call to judge reads, in tokens on average: 212 before learning, 911 after" in (
        shown.cost_in_words
    )
    assert [cell.text for cell in shown.cost.rows[-1]][:3] == ["All together", "156", "2"]
