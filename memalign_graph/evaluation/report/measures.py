"""The metrics of a report: what they are called, what they mean, how they are written."""

from dataclasses import dataclass
from typing import Literal

from memalign_graph.evaluation.baselines import CONSTANT, NEAREST
from memalign_graph.evaluation.report.words import (
    NOT_DEFINED,
    clean,
    decimal,
    digits_for,
    interval,
    percent,
    points,
    signed,
)
from memalign_graph.evaluation.results import Evaluation
from memalign_graph.evaluation.scores import LOWER_IS_BETTER, Comparison, Estimate, headline_metric
from memalign_graph.evaluation.variants import ALIGNED, BASE, VERDICT
from memalign_graph.scales import Categorical, Numeric, Scale

Kind = Literal["share", "number", "distance"]
"""How a metric is written.

- `share`: in per cent.
- `number`: with two decimals.
- `distance`: in units of the scale.
"""

Tone = Literal["good", "warn", "bad", "plain"]
"""What a finding means for the reader: gladly seen, to be careful with, amiss, or neither."""


@dataclass(frozen=True)
class Measure:
    """A metric as a report shows it."""

    key: str
    """Its name in the results."""

    title: str
    """What it is called."""

    meaning: str
    """What it says, in a sentence."""

    kind: Kind
    """How it is written."""

    digits: int = 2
    """Decimals of a number or distance."""

    @property
    def less_is_better(self) -> bool:
        """Whether less is better."""
        return self.key in LOWER_IS_BETTER

    def show(self, value: float | None) -> str:
        """Write a value."""
        if value is None:
            return NOT_DEFINED
        return percent(value) if self.kind == "share" else decimal(value, self.digits)

    def show_interval(self, found: Estimate) -> str:
        """Write the interval of a number."""
        ends = interval(found)
        return "" if ends is None else f"{self.show(ends[0])} to {self.show(ends[1])}"

    def show_difference(self, value: float | None) -> str:
        """Write by how much one judge has more of it than another."""
        if value is None:
            return NOT_DEFINED
        return points(value) if self.kind == "share" else signed(value, self.digits)


def measures_of(evaluation: Evaluation) -> list[Measure]:
    """List the metrics that an evaluation has, the most important first."""
    scale = evaluation.criterion.scale
    there = {name for one in evaluation.scores for name in one.metrics}
    if not (isinstance(scale, Numeric) and not scale.integer):
        there.discard("exact_match")  # the same as agreement
    known = _known(scale)
    first = headline_metric(scale)
    ordered = sorted((one for one in known if one.key in there), key=lambda one: one.key != first)
    others = sorted(there - {one.key for one in known})
    return ordered + [Measure(name, clean(name, most=60), "", "number") for name in others]


def measure_of(scale: Scale, key: str) -> Measure:
    """Return one metric."""
    return next(one for one in _known(scale) if one.key == key)


def title_of(judge: str) -> str:
    """Say in words which judge this is."""
    return {
        CONSTANT: "Always one answer",
        NEAREST: "Copy similar cases",
        BASE: "Before learning",
        VERDICT: "After learning, verdict alone",
        ALIGNED: "After learning",
    }.get(judge, clean(judge, most=60))


def lower_title(judge_title: str) -> str:
    """Return what a judge is called, inside a sentence."""
    ours = {title_of(one) for one in (CONSTANT, NEAREST, BASE, VERDICT, ALIGNED)}
    return judge_title.lower() if judge_title in ours else judge_title


def before_and_after(evaluation: Evaluation) -> tuple[str | None, str | None]:
    """Tell which judges to hold side by side."""
    scored = {one.judge for one in evaluation.scores}
    there = [name for name in evaluation.judging if name in scored]
    others = [name for name in there if name != ALIGNED]
    before = BASE if BASE in there else next(iter(others), None)
    return before, ALIGNED if ALIGNED in there else None


def comparison_of(evaluation: Evaluation, judge: str, against: str) -> Comparison | None:
    """Find how two judges compare."""
    pairs = {(one.judge, one.against): one for one in evaluation.comparisons}
    return pairs.get((judge, against))


def _known(scale: Scale) -> list[Measure]:
    continuous = isinstance(scale, Numeric) and not scale.integer
    ordered = isinstance(scale, Numeric) or (isinstance(scale, Categorical) and scale.ordered)
    weights = (
        " A mistake counts by the square of how far apart the two answers are (quadratic weights)."
        if ordered
        else ""
    )
    same = "within a tenth of the scale of the experts' value" if continuous else "the experts' own"
    return [
        Measure(
            "agreement",
            "Agreement",
            f"The share of cases on which the judge's answer is {same}.",
            "share",
        ),
        Measure(
            "exact_match",
            "Exactly the same",
            "The share of cases on which the judge gives the very value of the experts.",
            "share",
        ),
        Measure(
            "mae",
            "Average distance",
            "How far the judge's value lies from the experts' on average (mean absolute error); "
            "less is better.",
            "distance",
            digits_for(scale),
        ),
        Measure(
            "ccc",
            "Concordance (CCC)",
            "How closely values follow the experts' (Lin's concordance correlation): 1 is the same "
            "values throughout, 0 is no relation.",
            "number",
        ),
        Measure(
            "kappa",
            "Agreement beyond chance (kappa)",
            "Cohen's kappa: 1 is full agreement, 0 is what guessing with the same frequencies "
            f"would reach.{weights}",
            "number",
        ),
        Measure(
            "macro_f1",
            "Average F1",
            "How well each answer is found, every answer counting alike, also rare ones: from 0 "
            "to 1.",
            "number",
        ),
        Measure(
            "auc",
            "Ranking (AUC)",
            "How often a case that meets the criterion gets more belief than one that does not: "
            "1 is always, 0.5 is guessing.",
            "number",
        ),
        Measure(
            "ece",
            "Calibration error (ECE)",
            "How far the judge's stated confidence lies from how often it is right; less is "
            "better.",
            "number",
        ),
    ]
