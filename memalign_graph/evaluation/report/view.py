"""Everything a report shows, whatever it is written as. Pure functions."""

from dataclasses import dataclass

from memalign_graph.evaluation.report.cases import (
    CaseView,
    FlipView,
    failed_cases,
    flips,
    wrong_cases,
)
from memalign_graph.evaluation.report.costs import cost_sentence, cost_table
from memalign_graph.evaluation.report.guidelines import GuidelineView, guideline_views
from memalign_graph.evaluation.report.headline import Headline, headline
from memalign_graph.evaluation.report.measures import before_and_after, title_of
from memalign_graph.evaluation.report.report import Report
from memalign_graph.evaluation.report.tables import (
    Matrix,
    Table,
    curve_table,
    differences_table,
    labels_tables,
    matrices,
    metrics_table,
    mix_ups_table,
    values_in_words,
)
from memalign_graph.evaluation.report.words import clean, count
from memalign_graph.evaluation.results import Evaluation
from memalign_graph.evaluation.variants import ALIGNED, BASE

_WARNING_CHARS = 600


@dataclass(frozen=True)
class ReportView:
    """What a report shows."""

    name: str
    """The criterion's name."""

    instructions: str
    """What the judge is asked."""

    values: str
    """Which values there are."""

    method: str
    """How it was measured, in a sentence or two."""

    headline: Headline
    """What was found."""

    warnings: list[str]
    """What has to be known to read the numbers."""

    metrics: Table
    """Every metric of every judge."""

    differences: Table | None
    """How judges compare on the same cases."""

    labels: list[Table]
    """How well each answer is found."""

    matrices: list[Matrix]
    """Which answers are taken for which."""

    mix_ups: Table | None
    """The same as a list."""

    curve: Table | None
    """How the judge gets better."""

    flips: list[FlipView]
    """Where it got worse on the way."""

    guidelines: list[GuidelineView]
    """What it learned."""

    credit_cases: int
    """On how many cases guidelines were left out at most; 0 where that was not tried."""

    wrong: list[CaseView]
    """What it has still wrong."""

    broken: int
    """How many of them it had right before."""

    failed: list[CaseView]
    """What it gave no verdict on."""

    cost: Table
    """What was asked of models."""

    cost_in_words: str
    """The same in a sentence."""

    after: bool
    """Whether there is a judge that has learned."""


def view(report: Report) -> ReportView:
    """Read everything off a report that it shows."""
    evaluation = report.evaluation
    curve = report.learning_curve
    wrong = wrong_cases(evaluation)
    return ReportView(
        name=clean(evaluation.criterion.name, most=200),
        instructions=clean(evaluation.criterion.instructions),
        values=values_in_words(evaluation.criterion.scale),
        method=_method(evaluation),
        headline=headline(evaluation),
        warnings=_warnings(evaluation),
        metrics=metrics_table(evaluation),
        differences=differences_table(evaluation),
        labels=labels_tables(evaluation),
        matrices=matrices(evaluation),
        mix_ups=mix_ups_table(evaluation),
        curve=curve_table(curve) if curve else None,
        flips=flips(curve) if curve else [],
        guidelines=guideline_views(report),
        credit_cases=max((one.shown_for for one in report.credit), default=0),
        wrong=wrong,
        broken=sum(one.was_right for one in wrong),
        failed=failed_cases(evaluation),
        cost=cost_table(evaluation, curve),
        cost_in_words=cost_sentence(evaluation, curve),
        after=before_and_after(evaluation)[1] is not None,
    )


def _method(evaluation: Evaluation) -> str:
    cases = count(len(evaluation.cases), "case")
    if evaluation.folds == 1:
        return (
            f"{cases} with the experts' values {'was' if len(evaluation.cases) == 1 else 'were'} "
            "set aside; the judge never learned from them."
        )
    return (
        f"{cases} with the experts' values, in {count(evaluation.folds, 'part')}: each part was "
        "judged by a judge that had learned from the others only, so no case was judged by one "
        "that had seen it."
    )


def _warnings(evaluation: Evaluation) -> list[str]:
    told = [*evaluation.warnings, *(text for one in evaluation.memories for text in one.warnings)]
    return [clean(_named(one), most=_WARNING_CHARS) for one in dict.fromkeys(told)]


def _named(warning: str) -> str:
    """Name the judge that a warning begins with as the rest of a report does."""
    name, colon, rest = warning.partition(": ")
    return f"{title_of(name)}{colon}{rest}" if name in (BASE, ALIGNED) else warning
