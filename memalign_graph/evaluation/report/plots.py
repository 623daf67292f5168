"""The plots of a report, as SVG. They show numbers and our own words, never texts of others."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from memalign_graph.evaluation.baselines import CONSTANT, NEAREST
from memalign_graph.evaluation.learning import LearningCurve
from memalign_graph.evaluation.metrics import ReliabilityBin
from memalign_graph.evaluation.report.drawing import AFTER, BEFORE, FAINT, GROUND, LINE, Sheet
from memalign_graph.evaluation.report.measures import (
    Measure,
    before_and_after,
    measure_of,
    title_of,
)
from memalign_graph.evaluation.report.words import count, interval, percent, show
from memalign_graph.evaluation.results import Evaluation
from memalign_graph.evaluation.scores import Estimate, JudgeScores, headline_metric
from memalign_graph.scales import Numeric

_WIDTH = 440
_ROW = 52
_INSIDE = (46, 18, 50, 48)
_AREA = 30


@dataclass(frozen=True)
class Plot:
    """A plot, and what is written below it."""

    svg: str
    """The drawing."""

    caption: str
    """What it shows, and how to read it."""


def judges_plot(evaluation: Evaluation) -> Plot | None:
    """Draw the headline metric of each judge, with its interval."""
    scale = evaluation.criterion.scale
    measure = measure_of(scale, headline_metric(scale))
    before, after = before_and_after(evaluation)
    colours = {CONSTANT: FAINT, NEAREST: FAINT, before: BEFORE, after: AFTER}
    rows = [
        (title, colours[one.judge], one.metrics[measure.key])
        for one in evaluation.scores
        if one.judge in colours
        and measure.key in one.metrics
        and one.metrics[measure.key].value is not None
        # Words of our own: a judge's name may be anything.
        for title in ["Before learning" if one.judge == before else title_of(one.judge)]
    ]
    if not rows:
        return None
    top = 1.0 if measure.kind == "share" else _ceiling([found for _, _, found in rows])
    sheet = Sheet(
        (_WIDTH, _ROW * len(rows) + 34),
        (8, 60, 6, 34),
        x=(0, top),
        y=(-0.5, len(rows) - 0.5),
    )
    for x in _steps(top):
        sheet.line([x, x], [-0.5, len(rows) - 0.5], LINE, linewidth=1, zorder=0)
    for place, (title, colour, found) in enumerate(reversed(rows)):
        value = found.value or 0.0
        across, down = sheet.at(0, place)
        kind = "strong" if colour == AFTER else ""
        sheet.text((across, down - 6), title, kind=f"label {kind}".strip())
        ends = interval(found)
        low = place - 0.14
        if ends:
            sheet.line(ends, [low, low], colour, linewidth=6, alpha=0.32)
        sheet.dots([value], [low], colour, s=110, linewidths=2, edgecolors=GROUND)
        right = sheet.at(top, low)
        sheet.text((right[0] + 12, right[1] + 4), measure.show(value), kind=f"value {kind}".strip())
    sheet.ticks([(x, measure.show(x)) for x in _steps(top)], name="", apart=40)
    said = [_said(title, measure, found) for title, _, found in rows]
    what = "Average distance from the experts' value on unseen cases; less is better."
    if measure.kind == "share":
        what = "Share of unseen cases on which each agrees with the experts."
    return Plot(
        sheet.svg("judges", f"{measure.title} of each judge", " ".join(said)),
        f"{what} The band is where the number would likely lie with other cases of the kind.",
    )


def curve_plot(curve: LearningCurve) -> Plot | None:
    """Draw how the judge gets better with feedback."""
    measure = measure_of(curve.criterion.scale, headline_metric(curve.criterion.scale))
    unseen = _series(curve, measure, seen=False)
    seen = _series(curve, measure, seen=True)
    if not unseen:
        return None
    every = [found for _, found in [*unseen, *seen]]
    top = 1.0 if measure.kind == "share" else _ceiling(every)
    # The first pieces of feedback do the most: they get more room.
    last = max(step.feedback for step in curve.steps)
    sheet = Sheet((_WIDTH, 300), _INSIDE, x=(0, math.log1p(max(last, 1))), y=(0, top))
    sheet.grid([(y, measure.show(y)) for y in _steps(top)], name=measure.title)
    banded = [(size, ends) for size, found in unseen if (ends := interval(found))]
    if len(banded) > 1:
        sheet.axes.fill_between(
            [math.log1p(size) for size, _ in banded],
            [low for _, (low, _) in banded],
            [high for _, (_, high) in banded],
            color=AFTER,
            alpha=0.14,
            linewidth=0,
            clip_on=False,
        )
    for series, colour, style in ((seen, BEFORE, (0, (4, 3))), (unseen, AFTER, "-")):
        x = [math.log1p(size) for size, _ in series]
        y = [found.value or 0.0 for _, found in series]
        sheet.line(x, y, colour, linestyle=style)
        sheet.dots(x, y, colour, s=44, linewidths=1.5, edgecolors=GROUND)
    sheet.ticks(
        [(math.log1p(step.feedback), f"{step.feedback:,}") for step in curve.steps],
        name="pieces of feedback learned",
    )
    names = [("unseen cases", AFTER, False)]
    names += [("cases it learned from", BEFORE, True)] if seen else []
    sheet.legend(names)
    said = [_said(f"After {size:,}", measure, found) for size, found in unseen]
    less = " Less is better." if measure.less_is_better else ""
    return Plot(
        sheet.svg("curve", f"{measure.title} as the judge learns", " ".join(said)),
        f"{measure.title} on {count(curve.test_cases, 'case')} that were set aside, and on those "
        f"learned from.{less} The band is the 95 % interval.",
    )


def calibration_plot(evaluation: Evaluation) -> Plot | None:
    """Draw how often the judge is right at each confidence."""
    before, after = before_and_after(evaluation)
    series: list[tuple[str, str, list[ReliabilityBin]]] = []
    for judge, words, colour in ((before, "before", BEFORE), (after, "after learning", AFTER)):
        if judge is not None and evaluation.of(judge).reliability:
            series.append((words, colour, evaluation.of(judge).reliability))
    if not series:
        return None
    sheet = Sheet((_WIDTH, 300), _INSIDE, x=(0, 1), y=(0, 1))
    ticks = [(one, percent(one)) for one in _steps(1.0)]
    sheet.grid(ticks, name="How often it is right")
    sheet.line([0, 1], [0, 1], FAINT, linewidth=1.5, linestyle=(0, (2, 3)), zorder=1)
    most = max(one.count for _, _, bins in series for one in bins)
    for _, colour, bins in series:
        x, y = [one.confidence for one in bins], [one.accuracy for one in bins]
        sheet.line(x, y, colour, linewidth=1.5, alpha=0.6)
        areas = [_AREA + 220 * one.count / most for one in bins]
        sheet.dots(x, y, colour, s=areas, alpha=0.85, linewidths=1, edgecolors=GROUND)
    sheet.ticks(ticks, name="how sure the judge says it is")
    sheet.legend([(words, colour, False) for words, colour, _ in series])
    said = [
        f"{words}: at {percent(one.confidence)} sure, right on {percent(one.accuracy)} of "
        f"{count(one.count, 'case')}."
        for words, _, bins in series
        for one in bins
    ]
    return Plot(
        sheet.svg("calibration", "How far the judge's confidence can be trusted", " ".join(said)),
        "On the dotted line the judge is right as often as it says. Below it, it is too sure of "
        "itself; above, too doubtful. Larger dots are more cases.",
    )


def scatter_plots(evaluation: Evaluation) -> list[Plot]:
    """Draw each verdict against the experts' value, before and after."""
    scale = evaluation.criterion.scale
    plots = []
    for judge, name in zip(before_and_after(evaluation), ("before", "after"), strict=True):
        if not isinstance(scale, Numeric) or judge is None:
            continue
        scores = evaluation.of(judge)
        if scores.confusion is None and scores.cases:
            plots.append(_scatter(evaluation, scale, scores, name))
    return plots


def _scatter(evaluation: Evaluation, scale: Numeric, scores: JudgeScores, name: str) -> Plot:
    low, high = scale.minimum, scale.maximum
    pairs = Counter(
        (float(case.expected), float(value))
        for case in evaluation.cases
        if (value := case.value_of(scores.judge)) is not None
    )
    sheet = Sheet((_WIDTH, 380), (46, 18, 34, 48), x=(low, high), y=(low, high))
    ticks = [
        (low + share * (high - low), show(scale, low + share * (high - low)))
        for share in _steps(1.0)
    ]
    sheet.grid(ticks, name="The judge's value")
    reach = 0.1 * (high - low)
    if not scale.integer:
        sheet.axes.fill(
            [low, low, high - reach, high, high, low + reach],
            [low, low + reach, high, high, high - reach, low],
            color=FAINT,
            alpha=0.14,
            linewidth=0,
            clip_on=False,
        )
    sheet.line([low, high], [low, high], FAINT, linewidth=1.5, linestyle=(0, (2, 3)), zorder=1)
    colour = AFTER if name == "after" else BEFORE
    x, y = [one for one, _ in pairs], [one for _, one in pairs]
    areas = [min(_AREA * many + 15, _AREA * 20) for many in pairs.values()]
    sheet.dots(x, y, colour, s=areas, alpha=0.6, linewidths=1, edgecolors=GROUND)
    sheet.ticks(ticks, name="the experts' value")
    distance = measure_of(scale, "mae")
    off = distance.show(scores.metrics.get("mae", Estimate(value=None)).value)
    title = "After learning" if name == "after" else "Before learning"
    within = "" if scale.integer else " In the shaded band they lie within a tenth of the scale."
    return Plot(
        sheet.svg(
            f"scatter-{name}",
            f"{title}: the judge's values against the experts'",
            f"{count(pairs.total(), 'case')}; on average {off} apart.",
        ),
        f"{title}. Each dot is a case, a larger one several; on the dotted line judge and "
        f"experts say the same.{within}",
    )


def _series(curve: LearningCurve, measure: Measure, *, seen: bool) -> list[tuple[int, Estimate]]:
    found = [(step.feedback, step.seen if seen else step.unseen) for step in curve.steps]
    return [
        (size, scores.metrics[measure.key])
        for size, scores in found
        if scores is not None
        and measure.key in scores.metrics
        and scores.metrics[measure.key].value is not None
    ]


def _said(title: str, measure: Measure, found: Estimate) -> str:
    between = measure.show_interval(found)
    return f"{title}: {measure.show(found.value)}{f' ({between})' if between else ''}."


def _ceiling(found: Sequence[Estimate]) -> float:
    """Return a round number above all of these."""
    most = max(max(one.value or 0.0, one.high or 0.0) for one in found)
    if most <= 0:
        return 1.0
    unit = 10.0 ** math.floor(math.log10(most))
    return next(step * unit for step in (1, 2, 4, 6, 8, 10, 20) if step * unit >= most)


def _steps(top: float) -> list[float]:
    return [top * share for share in (0, 0.25, 0.5, 0.75, 1)]
