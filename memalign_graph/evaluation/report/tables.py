"""The tables of a report, as text in cells. Pure functions."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from memalign_graph.evaluation.answers import Spent
from memalign_graph.evaluation.learning import LearningCurve
from memalign_graph.evaluation.metrics import ReliabilityBin
from memalign_graph.evaluation.report.measures import (
    Measure,
    Tone,
    before_and_after,
    measure_of,
    measures_of,
    title_of,
)
from memalign_graph.evaluation.report.words import (
    NOT_DEFINED,
    clean,
    count,
    decimal,
    duration,
    percent,
)
from memalign_graph.evaluation.results import Evaluation
from memalign_graph.evaluation.scores import Comparison, Confusion, Estimate, headline_metric
from memalign_graph.scales import Scale

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
    """Lay out every judge's metrics.

    Args:
        evaluation: The evaluation.

    Returns:
        A row a metric, a column a judge.
    """
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
    """Lay out how judges compare on the same cases.

    Args:
        evaluation: The evaluation.

    Returns:
        A row a pair, a column a metric; None for no pairs.
    """
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
                    f"{title_of(pair.judge)} less {title_of(pair.against).lower()}"
                    if pair.against != pair.judge
                    else title_of(pair.judge),
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
    small, tone, verdict = "", "plain", ""
    if found.low is not None and found.high is not None:
        small = f"{measure.show_difference(found.low)} to {measure.show_difference(found.high)}"
        ahead = pair.is_ahead(measure.key)
        verdict = {True: "better", False: "worse", None: "may be chance"}[ahead]
        tone = {True: "good", False: "bad", None: "plain"}[ahead]
        if found.value == found.low == found.high == 0:
            verdict = "the same"
    return Cell(
        f"{measure.show_difference(found.value)}{unit}",
        f"{small}; {verdict}" if small else "",
        "good" if tone == "good" else "bad" if tone == "bad" else "plain",
    )


def labels_tables(evaluation: Evaluation) -> list[Table]:
    """Lay out how well each answer is found, before and after.

    Args:
        evaluation: The evaluation.

    Returns:
        A table a judge that has labels.
    """
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
    """Lay out which answers are taken for which, before and after.

    Args:
        evaluation: The evaluation.

    Returns:
        A matrix a judge; none for values without labels, or too many of them.
    """
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
    """List which answers are taken for which after learning, the most frequent first.

    Args:
        evaluation: The evaluation.

    Returns:
        The table; None where nothing is mixed up, or values have no labels.
    """
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
    """Lay out the steps of a learning curve.

    Args:
        curve: The curve.

    Returns:
        A row a step.
    """
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
                Cell(measure.show(seen.value) if step.seen else "–", measure.show_interval(seen)),
                Cell(f"{len(step.flips):,}" if step.flips else "–"),
                Cell(f"{step.learning.chat_calls:,}" if step.feedback else "–"),
            ]
        )
    return Table(
        caption=f"{measure.title} as the judge learns, with 95 % intervals",
        head=["Feedback", "Guidelines", "Unseen", "Seen", "Flips", "Calls"],
        rows=rows,
        marked=frozenset({2}),
    )


def reliability_table(caption: str, bins: Sequence[ReliabilityBin]) -> Table:
    """Lay out how right a judge is at each confidence.

    Args:
        caption: Which judge.
        bins: Its verdicts by confidence.

    Returns:
        A row a bin.
    """
    return Table(
        caption=caption,
        head=["Confidence", "Right", "Cases"],
        rows=[
            [Cell(percent(one.confidence)), Cell(percent(one.accuracy)), Cell(f"{one.count:,}")]
            for one in bins
        ],
    )


def cost_table(evaluation: Evaluation, curve: LearningCurve | None) -> Table:
    """Lay out what was asked of models.

    Args:
        evaluation: The evaluation.
        curve: The learning curve, if there is one.

    Returns:
        A row a purpose, and the sum.
    """
    entries = [("Learning, all folds together", evaluation.learning)]
    entries += [(f"Judging: {title_of(name).lower()}", one) for name, one in _judging(evaluation)]
    if curve is not None:
        entries.append(("Learning curve: learning", _sum(one.learning for one in curve.steps)))
        entries.append(("Learning curve: judging", _sum(one.judging for one in curve.steps)))
    rows = [_cost_row(title, one) for title, one in entries]
    rows.append(_cost_row("All together", _sum(one for _, one in entries)))
    return Table(
        caption="What was asked of models",
        head=["For", "Calls", "Kept", "Tokens in", "Tokens out", "Model time"],
        rows=rows,
    )


def cost_sentence(evaluation: Evaluation, curve: LearningCurve | None) -> str:
    """Say what was asked of models.

    Args:
        evaluation: The evaluation.
        curve: The learning curve, if there is one.

    Returns:
        A sentence or two.
    """
    steps = curve.steps if curve else []
    whole = _sum([evaluation.learning, *(one for _, one in _judging(evaluation))])
    whole = _sum([whole, *(part for one in steps for part in (one.learning, one.judging))])
    if not whole.chat_calls:
        return "No model was called."
    kept = f", {whole.kept_calls:,} of them kept from before" if whole.kept_calls else ""
    text = f"It took {count(whole.chat_calls, 'answer')} of the model{kept}"
    if whole.input_tokens or whole.output_tokens:
        text += f", {whole.input_tokens:,} tokens in and {whole.output_tokens:,} out"
    text += f": {duration(whole.model_seconds)} of its time."
    each = [
        f"{round(one.input_tokens / one.chat_calls):,} {title_of(name).lower()}"
        for name, one in _judging(evaluation)
        if one.chat_calls and one.input_tokens
    ]
    if each:
        text += f" A call to judge reads, in tokens on average: {', '.join(each)}."
    return text


def _judging(evaluation: Evaluation) -> list[tuple[str, Spent]]:
    return list(evaluation.judging.items())


def _sum(parts: Iterable[Spent]) -> Spent:
    return sum(parts, Spent())


def _cost_row(title: str, spent: Spent) -> list[Cell]:
    told = spent.input_tokens or spent.output_tokens or not spent.chat_calls
    return [
        Cell(title),
        Cell(f"{spent.chat_calls:,}"),
        Cell(f"{spent.kept_calls:,}"),
        Cell(f"{spent.input_tokens:,}" if told else "not told"),
        Cell(f"{spent.output_tokens:,}" if told else "not told"),
        Cell(duration(spent.model_seconds)),
    ]


def _share(value: float | None) -> str:
    return NOT_DEFINED if value is None else percent(value)


def values_in_words(scale: Scale) -> str:
    """Say which values there are.

    Args:
        scale: The scale.

    Returns:
        The sentence.
    """
    return clean(scale.describe(), most=400)
