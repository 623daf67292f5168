"""The tables of a report, as text in cells. Pure functions."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from memalign_graph.evaluation.learning import LearningCurve
from memalign_graph.evaluation.metrics import ReliabilityBin
from memalign_graph.evaluation.report.measures import (
    Measure,
    Tone,
    before_and_after,
    lower_title,
    measure_of,
    measures_of,
    title_of,
)
from memalign_graph.evaluation.report.words import (
    NOT_DEFINED,
    clean,
    count,
    decimal,
    percent,
    show,
)
from memalign_graph.evaluation.results import Evaluation
from memalign_graph.evaluation.scores import Comparison, Confusion, Estimate, headline_metric
from memalign_graph.scales import Numeric, Scale

MOST_LABELS = 12
"""More labels than that make no matrix that can be read; their mix-ups are listed."""

_MOST_MIX_UPS = 15
_LABEL_CHARS = 60
_SHADES = 5


@dataclass(frozen=True)
class Cell:
    """One cell."""

    text: str
    """What stands in it."""

    small: str = ""
    """What stands below, smaller."""

    tone: Tone = "plain"
    """What it means for the reader."""


@dataclass(frozen=True)
class Table:
    """A table whose first column names its rows."""

    caption: str
    """What it shows."""

    head: list[str]
    """The columns' names."""

    rows: list[list[Cell]]
    """The rows."""

    marked: frozenset[int] = field(default_factory=frozenset)
    """The columns to look at."""


@dataclass(frozen=True)
class Matrix:
    """How often each answer of the judge met each of the experts'."""

    caption: str
    """Whose answers."""

    labels: list[str]
    """The answers."""

    rows: list[list[tuple[int, int]]]
    """For each answer of the experts, how often each of the judge's, and how dark to draw that."""


def metrics_table(evaluation: Evaluation) -> Table:
    """Lay out every judge's metrics."""
    rows = [
        [Cell(one.title, one.meaning)]
        + [
            Cell(one.show(found.value), one.show_interval(found))
            for judge in evaluation.scores
            for found in [judge.metrics.get(one.key, Estimate(value=None))]
        ]
        for one in measures_of(evaluation)
    ]
    cases = [
        Cell(f"{one.cases:,}", count(one.failed, "failure") if one.failed else "")
        for one in evaluation.scores
    ]
    rows.append([Cell("Cases", "How many cases the numbers rest on."), *cases])
    _, after = before_and_after(evaluation)
    names = [one.judge for one in evaluation.scores]
    return Table(
        caption="Every metric of every judge, with 95 % intervals",
        head=["Metric", *(title_of(name) for name in names)],
        rows=rows,
        marked=frozenset({names.index(after) + 1} if after else ()),
    )


def differences_table(evaluation: Evaluation) -> Table | None:
    """Lay out how judges compare on the same cases."""
    before, after = before_and_after(evaluation)
    measures = [
        one
        for one in measures_of(evaluation)
        if any(one.key in pair.differences for pair in evaluation.comparisons)
    ]
    if not measures:
        return None
    # What the reader came for first: after against before.
    pairs = sorted(
        evaluation.comparisons,
        key=lambda one: (one.judge != after, one.against != before),
    )
    return Table(
        caption="Differences on the same cases (paired), with 95 % intervals",
        head=["Judges", *(one.title for one in measures)],
        rows=[
            [
                Cell(
                    f"{title_of(pair.judge)} vs. {lower_title(title_of(pair.against))}",
                    f"on {count(pair.cases, 'case')}",
                ),
                *(_difference(pair, one) for one in measures),
            ]
            for pair in pairs
        ],
    )


def _difference(pair: Comparison, measure: Measure) -> Cell:
    found = pair.differences.get(measure.key, Estimate(value=None))
    if found.value is None:
        return Cell(NOT_DEFINED)
    unit = " pts" if measure.kind == "share" else ""
    text = f"{measure.show_difference(found.value)}{unit}"
    if found.low is None or found.high is None:
        return Cell(text)
    span = f"{measure.show_difference(found.low)} to {measure.show_difference(found.high)}"
    if found.value == found.low == found.high == 0:
        return Cell(text, "the same")
    match pair.is_ahead(measure.key):
        case True:
            return Cell(text, f"{span}; better", "good")
        case False:
            return Cell(text, f"{span}; worse", "bad")
        case None:
            return Cell(text, f"{span}; may be chance")


def labels_tables(evaluation: Evaluation) -> list[Table]:
    """Lay out how well each answer is found, before and after."""
    tables = []
    for judge in before_and_after(evaluation):
        if judge is None or not evaluation.of(judge).labels:
            continue
        rows = [
            [
                Cell(clean(one.label, most=_LABEL_CHARS)),
                Cell(_share(one.precision)),
                Cell(_share(one.recall)),
                Cell(NOT_DEFINED if one.f1 is None else decimal(one.f1, 2)),
                Cell(f"{one.support:,}"),
            ]
            for one in evaluation.of(judge).labels
        ]
        head = ["Answer", "Precision", "Recall", "F1", "Cases"]
        tables.append(Table(title_of(judge), head, rows))
    return tables


def matrices(evaluation: Evaluation) -> list[Matrix]:
    """Lay out which answers are taken for which, before and after."""
    return [
        _matrix(title_of(judge), confusion)
        for judge in before_and_after(evaluation)
        if judge is not None
        and (confusion := evaluation.of(judge).confusion) is not None
        and len(confusion.labels) <= MOST_LABELS
    ]


def _matrix(caption: str, confusion: Confusion) -> Matrix:
    rows = []
    for counts in confusion.counts:
        whole = sum(counts)
        rows.append([(one, -(-_SHADES * one // whole) if whole else 0) for one in counts])
    return Matrix(caption, [clean(one, most=_LABEL_CHARS) for one in confusion.labels], rows)


def mix_ups_table(evaluation: Evaluation) -> Table | None:
    """List which answers are taken for which after learning, the most frequent first."""
    before, after = before_and_after(evaluation)
    main = after or before
    confusion = evaluation.of(main).confusion if main else None
    if confusion is None:
        return None
    labels = [clean(one, most=_LABEL_CHARS) for one in confusion.labels]
    found = sorted(
        (
            (-number, row, column)
            for row, counts in enumerate(confusion.counts)
            for column, number in enumerate(counts)
            if number and row != column
        )
    )[:_MOST_MIX_UPS]
    if not found:
        return None
    return Table(
        caption="The answers most often mixed up",
        head=["Experts say", "Judge says", "Cases"],
        rows=[[Cell(labels[row]), Cell(labels[col]), Cell(f"{-n:,}")] for n, row, col in found],
    )


def curve_table(curve: LearningCurve) -> Table:
    """Lay out the steps of a learning curve."""
    measure = measure_of(curve.criterion.scale, headline_metric(curve.criterion.scale))
    rows = []
    for step in curve.steps:
        unseen = step.unseen.metrics.get(measure.key, Estimate(value=None))
        seen = (step.seen.metrics if step.seen else {}).get(measure.key, Estimate(value=None))
        rows.append(
            [
                Cell(f"{step.feedback:,}"),
                Cell(f"{step.guidelines:,}"),
                Cell(measure.show(unseen.value), measure.show_interval(unseen)),
                Cell(measure.show(seen.value) if step.seen else "-", measure.show_interval(seen)),
                Cell(f"{len(step.flips):,}" if step.flips else "-"),
                Cell(f"{step.learning.chat_calls:,}" if step.feedback else "-"),
            ]
        )
    return Table(
        caption=f"{measure.title} as the judge learns, with 95 % intervals",
        head=["Feedback", "Guidelines", "Unseen", "Seen", "Flips", "Calls"],
        rows=rows,
        marked=frozenset({2}),
    )


def reliability_table(caption: str, bins: Sequence[ReliabilityBin]) -> Table:
    """Lay out how right a judge is at each confidence."""
    return Table(
        caption=caption,
        head=["Confidence", "Right", "Cases"],
        rows=[
            [Cell(percent(one.confidence)), Cell(percent(one.accuracy)), Cell(f"{one.count:,}")]
            for one in bins
        ],
    )


def _share(value: float | None) -> str:
    return NOT_DEFINED if value is None else percent(value)


def values_in_words(scale: Scale) -> str:
    """Say which values there are."""
    if isinstance(scale, Numeric):
        kind = "a whole number" if scale.integer else "a number"
        return f"{kind} from {show(scale, scale.minimum)} to {show(scale, scale.maximum)}."
    return clean(scale.describe(), most=400)
