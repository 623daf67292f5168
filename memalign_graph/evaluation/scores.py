"""What verdicts are worth: metrics with intervals, beside other judges' on the same cases.

Intervals are bootstrap intervals over source items: whole items are drawn with replacement, so that
several cases of one item do not count as independent. Judges are compared on the same draws
(paired), which takes away what only makes items harder or easier. Source: B. Efron and
R. Tibshirani, An Introduction to the Bootstrap, 1993, percentile intervals (chapter 13).
"""

from collections.abc import Callable, Mapping, Sequence
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

_MIN_ITEMS = 2

_MOST_LABELS = 11
"""Integer scales of up to so many values have a confusion matrix and kappa."""


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
    """Return the metric to look at first."""
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
    """Score judges on the same cases, and compare some of them."""
    draws = _draws(groups, resamples, seed)
    every = np.arange(len(expected))
    columns = {one.judge: _Column(scale, expected, one) for one in judges}
    known: dict[tuple[str, frozenset[int]], dict[str, Measured]] = {}

    def measured(judge: str, places: frozenset[int]) -> dict[str, Measured]:
        if (judge, places) not in known:
            column = columns[judge]
            drawn = [column.measure(draw, places) for draw in draws]
            known[judge, places] = {
                name: Measured(value, [one[name] for one in drawn])
                for name, value in column.measure(every, places).items()
            }
        return known[judge, places]

    scores = [_score(scale, expected, one, measured(one.judge, one.places)) for one in judges]
    by_name = {one.judge: one for one in judges}
    comparisons = [_compare(by_name[one], by_name[other], measured) for one, other in pairs]
    return scores, comparisons


def labels_of(scale: Scale) -> list[Value] | None:
    """Return the values of a scale that has few of them."""
    match scale:
        case Boolean():
            return [False, True]
        case Categorical() | Pairwise():
            return list(scale.choices)
        case Numeric(integer=True) if scale.maximum - scale.minimum < _MOST_LABELS:
            return list(range(int(scale.minimum), int(scale.maximum) + 1))
        case _:
            return None


class _Column:
    """A judge's verdicts beside the experts' values, as arrays: they are drawn many times."""

    def __init__(self, scale: Scale, expected: Sequence[Value], judge: Verdicts) -> None:
        self.judge = judge
        self.places = judge.places
        labels = labels_of(scale)
        self._size = len(labels or ())
        self._is_ordered = isinstance(scale, Numeric) or (
            isinstance(scale, Categorical) and scale.ordered
        )
        self._is_numeric = isinstance(scale, Numeric)
        code = {label: place for place, label in enumerate(labels or ())}
        pairs = [
            (one, other)
            for one, other in zip(expected, judge.values, strict=True)
            if other is not None
        ]
        # Where each case's verdict lies among those there are; -1 for cases without one.
        self._at = np.full(len(expected), -1)
        self._at[sorted(self.places)] = np.arange(len(pairs))
        self._agrees = np.array([agree(scale, got, want) for want, got in pairs], bool)
        self._same = np.array([got == want for want, got in pairs], bool)
        if labels is not None:
            cells = [code[want] * self._size + code[got] for want, got in pairs]
            self._cells = np.array(cells, int)
        if self._is_numeric:
            self._expected = np.array([float(want) for want, _ in pairs])
            self._got = np.array([float(got) for _, got in pairs])

    def measure(self, drawn: NDArray[np.int_], places: frozenset[int]) -> dict[str, float | None]:
        """Take every metric of the scale on some cases, as often as each is drawn."""
        if len(places) < len(self.places):
            drawn = np.array([place for place in drawn if place in places], int)
        at = self._at[drawn]
        at = at[at >= 0]
        found: dict[str, float | None] = {
            "agreement": float(self._agrees[at].mean()) if len(at) else None,
            "exact_match": float(self._same[at].mean()) if len(at) else None,
        }
        if self._size:
            counts = np.bincount(self._cells[at], minlength=self._size**2)
            found["kappa"] = metrics.kappa_of_counts(
                counts.reshape(self._size, self._size),
                weights="quadratic" if self._is_ordered else None,
            )
        if self._is_numeric:
            want, got = self._expected[at], self._got[at]
            found["mae"] = metrics.mean_absolute_error(want, got)
            found["ccc"] = metrics.concordance(want, got)
        return found


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
        right = [
            agree(scale, value, expected[place])
            for place, _ in sure
            if (value := judge.values[place]) is not None
        ]
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
    measured: Callable[[str, frozenset[int]], dict[str, Measured]],
) -> Comparison:
    both = one.places & other.places
    mine, theirs = measured(one.judge, both), measured(other.judge, both)
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


def _less(one: float | None, other: float | None) -> float | None:
    return None if one is None or other is None else one - other


def _draws(groups: Sequence[str], resamples: int, seed: int) -> list[NDArray[np.int_]]:
    """Draw items with replacement; each draw as the places of their cases."""
    items: dict[str, list[int]] = {}
    for place, group in enumerate(groups):
        items.setdefault(group, []).append(place)
    members = [np.asarray(places) for places in items.values()]
    # One item drawn again and again varies no way, which would look like certainty.
    if len(members) < _MIN_ITEMS:
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
