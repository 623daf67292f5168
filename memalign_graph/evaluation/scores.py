"""What verdicts are worth: metrics with intervals, beside other judges' on the same cases.

Intervals are bootstrap intervals over source items: whole items are drawn with replacement, so that
several cases of one item do not count as independent. Judges are compared on the same draws
(paired), which takes away what only makes items harder or easier. Source: B. Efron and
R. Tibshirani, An Introduction to the Bootstrap, 1993, percentile intervals (chapter 13).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

from memalign_graph.agreement import agree
from memalign_graph.evaluation import metrics
from memalign_graph.evaluation.metrics import LabelScores, ReliabilityBin
from memalign_graph.scales import Boolean, Categorical, Numeric, Pairwise, Scale, Value

DEFAULT_RESAMPLES = 1_000
"""How many times the items are drawn anew for an interval."""

COVERAGE = 0.95
"""How much of the bootstrap distribution an interval holds."""

_MOST_LABELS = 11
"""Integer scales of up to so many values have a confusion matrix and kappa."""

Metric = Callable[[Sequence[Value], Sequence[Value]], float | None]
"""From the experts' values and the verdicts to a number."""


class Estimate(BaseModel):
    """A number measured on some cases, and how far it may be off."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    value: float | None
    """The number on the cases there are; None where it is undefined."""

    low: float | None = None
    """Where its 95 % interval begins; None where too few draws defined it."""

    high: float | None = None
    """Where it ends."""


class Confusion(BaseModel):
    """How often each verdict met each value of the experts."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    labels: list[str]
    """The labels, in the scale's order."""

    counts: list[list[int]]
    """A row for each of the experts' values, a column for each verdict."""


class JudgeScores(BaseModel):
    """What one judge's verdicts are worth."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    judge: str
    """The judge."""

    cases: int
    """How many cases it gave a verdict on."""

    failed: int
    """How many it gave none on; they are in no metric."""

    metrics: dict[str, Estimate]
    """By name: `agreement`, `exact_match`, and what the scale allows of `kappa`, `mae`, `ccc`,
    `macro_f1`, `auc`, `ece`."""

    labels: list[LabelScores]
    """Precision, recall and F1 of each label; none on a continuous scale."""

    confusion: Confusion | None
    """Verdicts against values; None on a continuous scale."""

    reliability: list[ReliabilityBin]
    """How right it is at each confidence; none where it has no confidence."""


class Comparison(BaseModel):
    """One judge beside another, on the cases that both gave a verdict on."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    judge: str
    """The one."""

    against: str
    """The other."""

    cases: int
    """How many cases both gave a verdict on."""

    differences: dict[str, Estimate]
    """By metric: the one's less the other's, with a paired interval."""

    def is_ahead(self, metric: str) -> bool | None:
        """Tell whether the one is better by this metric, beyond the interval.

        Args:
            metric: The metric.

        Returns:
            True if it is better, False if it is worse, None if the interval holds zero or there is
            none.
        """
        found = self.differences.get(metric)
        if found is None or found.low is None or found.high is None or found.low <= 0 <= found.high:
            return None
        return (found.low > 0) == (metric not in LOWER_IS_BETTER)


LOWER_IS_BETTER = frozenset({"mae", "ece"})
"""The metrics of which less is better."""


@dataclass(frozen=True)
class Verdicts:
    """One judge's verdicts, an entry a case."""

    judge: str
    """The judge."""

    values: Sequence[Value | None]
    """What it said; None where it gave no verdict."""

    confidence: Sequence[float | None] = ()
    """How sure it was, where it tells."""

    @cached_property
    def places(self) -> frozenset[int]:
        """The cases it gave a verdict on."""
        return frozenset(place for place, value in enumerate(self.values) if value is not None)


@dataclass(frozen=True)
class Measured:
    """One measure of a judge's verdicts."""

    value: float | None
    """On the cases there are."""

    draws: Sequence[float | None]
    """On each draw of them."""


def headline_metric(scale: Scale) -> str:
    """Return the metric to look at first.

    Args:
        scale: The scale.

    Returns:
        `mae` on a numeric scale, `agreement` else.
    """
    return "mae" if isinstance(scale, Numeric) else "agreement"


def score(
    scale: Scale,
    expected: Sequence[Value],
    groups: Sequence[str],
    judges: Sequence[Verdicts],
    *,
    pairs: Sequence[tuple[str, str]] = (),
    resamples: int = DEFAULT_RESAMPLES,
    seed: int = 0,
) -> tuple[list[JudgeScores], list[Comparison]]:
    """Score judges on the same cases, and compare some of them.

    Args:
        scale: The scale of all values.
        expected: The experts' values, one a case.
        groups: The source item of each case.
        judges: The judges.
        pairs: Which to compare: the one, and the one it is held against.
        resamples: How many times the items are drawn anew; 0 for no intervals.
        seed: Draws them.

    Returns:
        The scores, in the judges' order, and the comparisons.

    Raises:
        ImportError: If the extra `evaluation` is not installed.
    """
    measures = _measures(scale)
    draws = _draws(groups, resamples, seed)
    by_name = {one.judge: one for one in judges}
    known: dict[tuple[str, frozenset[int]], dict[str, Measured]] = {}

    def measured(judge: Verdicts, places: frozenset[int]) -> dict[str, Measured]:
        key = (judge.judge, places)
        if key not in known:
            known[key] = _measure(expected, judge, places, measures, draws)
        return known[key]

    scores = [_score(scale, expected, one, measured(one, one.places)) for one in judges]
    comparisons = [_compare(by_name[one], by_name[other], measured) for one, other in pairs]
    return scores, comparisons


def labels_of(scale: Scale) -> list[Value] | None:
    """Return the values of a scale that has few of them.

    Args:
        scale: The scale.

    Returns:
        The values, in order; None on a continuous scale, or one of very many values.
    """
    match scale:
        case Boolean():
            return [False, True]
        case Categorical() | Pairwise():
            return list(scale.choices)
        case Numeric(integer=True) if scale.maximum - scale.minimum < _MOST_LABELS:
            return list(range(int(scale.minimum), int(scale.maximum) + 1))
        case _:
            return None


def _measures(scale: Scale) -> dict[str, Metric]:
    measures: dict[str, Metric] = {
        "agreement": lambda expected, got: metrics.exact_match(
            [True] * len(expected), [agree(scale, b, a) for a, b in zip(expected, got, strict=True)]
        ),
        "exact_match": metrics.exact_match,
    }
    labels = labels_of(scale)
    if labels is not None:
        ordered = isinstance(scale, Numeric) or (isinstance(scale, Categorical) and scale.ordered)
        shown = {one: place for place, one in enumerate(labels)}
        measures["kappa"] = lambda expected, got: metrics.cohen_kappa(
            [shown[one] for one in expected],
            [shown[one] for one in got],
            labels=range(len(labels)),
            weights="quadratic" if ordered else None,
        )
    if isinstance(scale, Numeric):
        measures["mae"] = lambda expected, got: metrics.mean_absolute_error(
            _numbers(expected), _numbers(got)
        )
        measures["ccc"] = lambda expected, got: metrics.concordance(
            _numbers(expected), _numbers(got)
        )
    return measures


def _score(
    scale: Scale,
    expected: Sequence[Value],
    judge: Verdicts,
    measured: Mapping[str, Measured],
) -> JudgeScores:
    there = sorted(judge.places)
    given = [expected[place] for place in there]
    got = [value for value in judge.values if value is not None]
    found = {
        name: Estimate(value=one.value, **_interval(one.draws)) for name, one in measured.items()
    }
    labels = labels_of(scale)
    per_label: list[LabelScores] = []
    confusion = None
    if labels is not None:
        names = [scale.render(one) for one in labels]
        rows, columns = [scale.render(one) for one in given], [scale.render(one) for one in got]
        per_label = metrics.label_scores(rows, columns, labels=names)
        f1 = [one.f1 for one in per_label if one.f1 is not None]
        found["macro_f1"] = Estimate(value=sum(f1) / len(f1) if f1 else None)
        confusion = _confusion(names, rows, columns)
    reliability: list[ReliabilityBin] = []
    sure = [
        (place, confidence)
        for place in there
        if judge.confidence and (confidence := judge.confidence[place]) is not None
    ]
    if sure:
        right = [agree(scale, judge.values[place] or False, expected[place]) for place, _ in sure]
        confidences = [one for _, one in sure]
        reliability = metrics.reliability(right, confidences)
        ece = metrics.expected_calibration_error(right, confidences)
        found["ece"] = Estimate(value=ece)
        if isinstance(scale, Boolean):
            belief = [one if judge.values[place] else 1 - one for place, one in sure]
            positive = [bool(expected[place]) for place, _ in sure]
            found["auc"] = Estimate(value=metrics.roc_auc(positive, belief))
    return JudgeScores(
        judge=judge.judge,
        cases=len(there),
        failed=len(judge.values) - len(there),
        metrics=found,
        labels=per_label,
        confusion=confusion,
        reliability=reliability,
    )


def _compare(
    one: Verdicts,
    other: Verdicts,
    measured: Callable[[Verdicts, frozenset[int]], dict[str, Measured]],
) -> Comparison:
    both = one.places & other.places
    mine, theirs = measured(one, both), measured(other, both)
    differences = {
        name: Estimate(
            value=_less(mine[name].value, theirs[name].value),
            **_interval(list(map(_less, mine[name].draws, theirs[name].draws))),
        )
        for name in mine
    }
    return Comparison(
        judge=one.judge, against=other.judge, cases=len(both), differences=differences
    )


def _measure(
    expected: Sequence[Value],
    judge: Verdicts,
    places: frozenset[int],
    measures: Mapping[str, Metric],
    draws: Sequence[NDArray[np.int_]],
) -> dict[str, Measured]:
    """Take every measure of a judge's verdicts on some cases, and on each draw of them."""

    def measured(measure: Metric, drawn: Iterable[int]) -> float | None:
        there = [place for place in drawn if place in places]
        got = [value for place in there if (value := judge.values[place]) is not None]
        return measure([expected[place] for place in there], got)

    every = range(len(expected))
    return {
        name: Measured(measured(measure, every), [measured(measure, draw) for draw in draws])
        for name, measure in measures.items()
    }


def _less(one: float | None, other: float | None) -> float | None:
    return None if one is None or other is None else one - other


def _draws(groups: Sequence[str], resamples: int, seed: int) -> list[NDArray[np.int_]]:
    """Draw items with replacement; each draw as the places of their cases."""
    items: dict[str, list[int]] = {}
    for place, group in enumerate(groups):
        items.setdefault(group, []).append(place)
    members = [np.asarray(places) for places in items.values()]
    if not members:
        return []
    chance = np.random.default_rng(seed)
    return [
        np.concatenate([members[one] for one in chance.integers(len(members), size=len(members))])
        for _ in range(resamples)
    ]


def _interval(found: Sequence[float | None]) -> dict[str, float | None]:
    defined = [one for one in found if one is not None]
    # Where most draws leave a number undefined, the others do not tell how far it varies.
    if not defined or len(defined) * 2 < len(found):
        return {"low": None, "high": None}
    rest = (1 - COVERAGE) / 2
    low, high = np.quantile(defined, [rest, 1 - rest])
    return {"low": float(low), "high": float(high)}


def _confusion(names: list[str], rows: Sequence[str], columns: Sequence[str]) -> Confusion:
    counts = [[0] * len(names) for _ in names]
    place = {name: number for number, name in enumerate(names)}
    for row, column in zip(rows, columns, strict=True):
        counts[place[row]][place[column]] += 1
    return Confusion(labels=names, counts=counts)


def _numbers(values: Sequence[Value]) -> list[float]:
    return [float(one) for one in values]
