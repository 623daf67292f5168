"""Agreement of judges with experts: metrics with intervals, and paired comparisons.

Intervals are bootstrap intervals over items: whole items are drawn with replacement, because cases
of one item are not independent. Two judges are compared on the same draws (paired). A draw is a
weight for each case, so all draws of a metric are one product of matrices; scikit-learn's metrics,
which the tests compare with these, take a millisecond a draw. Source: B. Efron and R. Tibshirani,
An Introduction to the Bootstrap, 1993, chapter 13.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import comb

import numpy as np
from numpy.typing import NDArray

from memalign_graph.agreement import is_ordered, values_agree
from memalign_graph.scales import Boolean, Categorical, Numeric, Pairwise, Scale, Value
from memalign_graph.types import FrozenModel

_MOST_LABELS = 11
_BINS = 10
_QUANTILES = (0.025, 0.975)
_SAME = 1e-12  # draws that differ less are equal up to rounding

Array = NDArray[np.float64]
Measure = Callable[["PredictionColumn", Array], Array]
"""Computes a metric of a judge on draws: a row of weights for each draw, a column for each case."""


class Estimate(FrozenModel):
    """A number measured on some cases, and its 95 % interval."""

    value: float | None = None  # None where it is undefined
    low: float | None = None  # None where too few draws defined it
    high: float | None = None

    @classmethod
    def of(
        cls, draws: Array, items: int = 0, bounds: tuple[float, float] | None = None
    ) -> "Estimate":
        """Make an estimate: the first draw is the number, the others give the interval.

        Draws that are all the same would look like certainty. Then the interval of a mean over
        items, within bounds, allows for as many different items as may be unseen (Clopper and
        Pearson, 1934); other metrics have none.
        """
        value = None if np.isnan(draws[0]) else float(draws[0])
        defined = draws[1:][~np.isnan(draws[1:])]
        # If most draws leave a number undefined, the others do not show how far it varies.
        if not len(defined) or 2 * len(defined) < len(draws) - 1:
            return cls(value=value)
        low, high = map(float, np.quantile(defined, _QUANTILES))
        if value is not None and np.ptp(defined) < _SAME:
            if bounds is None or not items:
                return cls(value=value)
            unseen = 1 - _QUANTILES[0] ** (1 / items)
            low, high = (value + unseen * (end - value) for end in bounds)
        return cls(value=value, low=low, high=high)


class LabelScores(FrozenModel):
    """Precision, recall and F1 of one label."""

    label: str
    precision: Estimate
    recall: Estimate
    f1: Estimate
    support: int  # how many cases the experts gave this label


class JudgeScores(FrozenModel):
    """One judge's scores."""

    judge: str
    cases: int  # cases with a verdict
    failed: int  # cases without one; they are in no metric
    metrics: dict[str, Estimate]
    """By name: `agreement`, and those of `kappa`, `macro_f1`, `mae`, `ccc`, `auc`, `ece` that the
    scale allows."""
    labels: list[LabelScores]  # empty on a continuous scale
    confusion: list[list[int]] | None
    """A row for each label by the experts, a column for each by the judge."""


_LEVEL = 0.95
_MANY_PAIRS = 20  # items on which one of two judges is nearer to the experts


class Comparison(FrozenModel):
    """One judge against another, on the cases with a verdict by both."""

    judge: str
    against: str
    cases: int
    differences: dict[str, Estimate]  # of `judge` minus `against`, with paired intervals
    wins: int | None = None
    """On how many items `judge` is nearer to the experts, in the mean of the item's cases; None in
    reports of earlier versions."""
    losses: int | None = None

    def is_ahead(self, metric: str) -> bool | None:
        """Return whether `judge` is better by this metric; None if that may be chance."""
        difference = self.differences.get(metric, Estimate())
        low, high = difference.low, difference.high
        if low is None or high is None or low <= 0 <= high:
            return None
        if self.wins is not None and self.losses is not None:
            pairs, fewer = self.wins + self.losses, min(self.wins, self.losses)
            if pairs < _MANY_PAIRS:
                # Bootstrap intervals are too narrow: add the two-sided exact sign test.
                tail = sum(comb(pairs, count) for count in range(fewer + 1)) / 2**pairs
                if 2 * tail > 1 - _LEVEL:
                    return None
        return (low > 0) == (metric not in ("mae", "ece"))


class Prediction(FrozenModel):
    """The value that a judge or a baseline gives a case."""

    value: Value | None = None
    confidence: float | None = None


@dataclass(frozen=True)
class PredictionColumn:
    """One judge's predictions and the experts' values, an entry for each case."""

    has_value: NDArray[np.bool_]
    right: Array
    truth: Array
    value: Array
    confidence: Array  # NaN where there is none
    labels: int  # number of the scale's labels; 0 if it is continuous

    @classmethod
    def of(
        cls, scale: Scale, expected: Sequence[Value], predictions: Sequence[Prediction]
    ) -> "PredictionColumn":
        """Encode predictions: a number by itself, a label by its position."""
        labels = labels_of(scale)

        def code(value: Value | None) -> float:
            return 0.0 if value is None else float(labels.index(value) if labels else value)

        values = [prediction.value for prediction in predictions]
        pairs = list(zip(values, expected, strict=True))
        return cls(
            has_value=np.array([value is not None for value in values], bool),
            right=np.array(
                [v is not None and values_agree(scale, v, label) for v, label in pairs], float
            ),
            truth=np.array([code(value) for value in expected], float),
            value=np.array([code(value) for value in values], float),
            confidence=np.array(
                [np.nan if p.confidence is None else p.confidence for p in predictions]
            ),
            labels=len(labels or ()),
        )

    def counts(self, weights: Array) -> Array:
        """Return the confusion matrix of each draw."""
        cells = (self.truth * self.labels + self.value).astype(int)
        counts: Array = weights @ (cells[:, None] == np.arange(self.labels**2))
        return counts.reshape(-1, self.labels, self.labels)


def labels_of(scale: Scale) -> list[Value] | None:
    """Return the values of a scale that has few of them, in order."""
    match scale:
        case Boolean():
            return [False, True]
        case Categorical() | Pairwise():
            return list(scale.choices)
        case Numeric(integer=True) if scale.maximum - scale.minimum < _MOST_LABELS:
            return list(range(int(scale.minimum), int(scale.maximum) + 1))
    return None


METRICS = ("agreement", "kappa", "macro_f1", "mae", "ccc", "auc", "ece")


def measures_of(scale: Scale) -> dict[str, Measure]:
    measures: dict[str, Measure] = {
        "agreement": lambda column, weights: _mean(weights, column.right)
    }
    if labels_of(scale):
        ordered = is_ordered(scale)
        measures["kappa"] = lambda column, weights: kappa(column.counts(weights), ordered=ordered)
        measures["macro_f1"] = lambda column, weights: nanmean(
            _label_rates(column.counts(weights))[2]
        )
    if isinstance(scale, Numeric):
        measures["mae"] = lambda column, weights: _mean(weights, abs(column.truth - column.value))
        measures["ccc"] = lambda column, weights: concordance(column.truth, column.value, weights)
    if isinstance(scale, Boolean):
        measures["auc"] = roc_auc
    return {**measures, "ece": calibration_error}


def score(
    scale: Scale,
    expected: Sequence[Value],
    groups: Sequence[str],
    judges: Mapping[str, Sequence[Prediction]],
    *,
    pairs: Sequence[tuple[str, str]] = (),
    resamples: int = 1_000,
    seed: int = 0,
) -> tuple[list[JudgeScores], list[Comparison]]:
    columns = {
        name: PredictionColumn.of(scale, expected, predictions)
        for name, predictions in judges.items()
    }
    weights = draw_weights(groups, resamples, seed)
    bounds = {"agreement": (0.0, 1.0)}
    if isinstance(scale, Numeric):
        bounds["mae"] = (0.0, scale.maximum - scale.minimum)

    def items(cases: NDArray[np.bool_]) -> int:
        return len({group for group, is_in in zip(groups, cases, strict=True) if is_in})

    def metrics_of(column: PredictionColumn, cases: NDArray[np.bool_]) -> dict[str, Array]:
        return {
            metric: measure(column, weights * cases)
            for metric, measure in measures_of(scale).items()
            if metric not in ("auc", "ece") or not np.isnan(column.confidence).all()
        }

    def labels_in(column: PredictionColumn, counts: Array) -> Iterator[LabelScores]:
        precision, recall, f1 = _label_rates(counts)
        for code, label in enumerate(labels_of(scale) or ()):
            predicted, true = (
                items(column.has_value & (codes == code)) for codes in (column.value, column.truth)
            )
            yield LabelScores(
                label=scale.render(label),
                precision=Estimate.of(precision[:, code], predicted, (0.0, 1.0)),
                recall=Estimate.of(recall[:, code], true, (0.0, 1.0)),
                f1=Estimate.of(f1[:, code]),
                support=int(counts[0, code].sum()),
            )

    def scores_of(name: str, column: PredictionColumn) -> JudgeScores:
        counts = column.counts(weights * column.has_value) if column.labels else None
        return JudgeScores(
            judge=name,
            cases=int(column.has_value.sum()),
            failed=int((~column.has_value).sum()),
            metrics={
                # Of a sample, `ece` is above zero by chance, and further so of a draw from it.
                key: Estimate.of(
                    draws[:1] if key == "ece" else draws, items(column.has_value), bounds.get(key)
                )
                for key, draws in metrics_of(column, column.has_value).items()
            },
            labels=[] if counts is None else list(labels_in(column, counts)),
            confusion=None if counts is None else counts[0].astype(int).tolist(),
        )

    def compare(judge: str, against: str) -> Comparison:
        pair = columns[judge], columns[against]
        both = pair[0].has_value & pair[1].has_value
        unknown = np.isnan(pair[0].confidence + pair[1].confidence)
        metrics, others = (
            metrics_of(replace(each, confidence=np.where(unknown, np.nan, each.confidence)), both)
            for each in pair
        )
        error, other_error = (
            np.abs(column.value - column.truth) if "mae" in metrics else 1 - column.right
            for column in pair
        )
        # The sign test needs independent pairs, and cases of one item are not independent.
        _, item_of_case = np.unique(np.array(groups), return_inverse=True)
        nearer = np.bincount(item_of_case[both], (other_error - error)[both])
        of_both = {name: (-high, high) for name, (_, high) in bounds.items()}
        return Comparison(
            judge=judge,
            against=against,
            cases=int(both.sum()),
            differences={
                name: Estimate.of(metrics[name] - others[name], items(both), of_both.get(name))
                for name in metrics
                if name in others
            },
            wins=int((nearer > _SAME).sum()),
            losses=int((nearer < -_SAME).sum()),
        )

    with np.errstate(invalid="ignore", divide="ignore"):
        scores = [scores_of(name, column) for name, column in columns.items()]
        return scores, [compare(*pair) for pair in pairs]


def kappa(counts: Array, *, ordered: bool) -> Array:
    """Return Cohen's kappa of confusion matrices, with quadratic weights on ordered scales."""
    ranks = np.arange(counts.shape[-1])
    cost = (ranks[:, None] - ranks) ** 2 if ordered else (ranks[:, None] != ranks).astype(int)
    rows, columns = counts.sum(-1), counts.sum(-2)
    chance = (rows @ cost * columns).sum(-1) / rows.sum(-1)
    return np.where(chance > 0, 1 - np.tensordot(counts, cost) / chance, np.nan)


def concordance(truth: Array, value: Array, weights: Array) -> Array:
    """Return Lin's concordance correlation coefficient (1989)."""
    # Centred, because the squares of large numbers lose digits.
    middle = truth.mean() if len(truth) else 0.0
    x, y = truth - middle, value - middle
    mean_x, mean_y = _mean(weights, x), _mean(weights, y)
    spread = _mean(weights, x * x) - mean_x**2 + _mean(weights, y * y) - mean_y**2
    apart = spread + (mean_x - mean_y) ** 2
    span = max(float(np.ptp(np.append(x, y))), 1.0) if len(x) else 1.0
    agreed: Array = 2 * (_mean(weights, x * y) - mean_x * mean_y) / apart
    return np.where(apart > 1e-12 * span**2, agreed, np.nan)


def roc_auc(column: PredictionColumn, weights: Array) -> Array:
    """Return the probability that a positive case has a higher score than a negative one."""
    has_score = ~np.isnan(column.confidence)
    scores = np.where(column.value == 1, column.confidence, 1 - column.confidence)
    positive, negative = has_score & (column.truth == 1), has_score & (column.truth == 0)
    difference = scores[positive][:, None] - scores[negative]
    wins = (difference > 0) + 0.5 * (difference == 0)
    ahead = ((weights[:, positive] @ wins) * weights[:, negative]).sum(1)
    whole: Array = weights[:, positive].sum(1) * weights[:, negative].sum(1)
    return np.where(whole > 0, ahead / whole, np.nan)


def calibration_error(column: PredictionColumn, weights: Array) -> Array:
    """Return the expected calibration error over bins of equal width (Naeini et al., 2015)."""
    has_confidence = ~np.isnan(column.confidence)
    confidence = np.nan_to_num(column.confidence)
    bins = np.minimum((confidence * _BINS).astype(int), _BINS - 1)
    gaps = np.where(has_confidence, column.right - confidence, 0.0)
    by_bin = [np.abs(weights @ (gaps * (bins == number))) for number in range(_BINS)]
    error: Array = np.sum(by_bin, axis=0) / (weights @ has_confidence.astype(float))
    return error


def _label_rates(counts: Array) -> tuple[Array, Array, Array]:
    """Return precision, recall and F1 of each label on each draw."""
    hits = np.diagonal(counts, axis1=1, axis2=2)
    rows, columns = counts.sum(2), counts.sum(1)
    return hits / columns, hits / rows, 2 * hits / (rows + columns)


def nanmean(rates: Array) -> Array:
    mean: Array = np.nansum(rates, axis=1) / (~np.isnan(rates)).sum(1)
    return mean


def _mean(weights: Array, values: Array) -> Array:
    mean: Array = (weights @ values) / weights.sum(1)
    return mean


def draw_weights(groups: Sequence[str], resamples: int, seed: int) -> Array:
    """Return how often each draw has each case: the first each once, the others items at random."""
    items = {group: number for number, group in enumerate(dict.fromkeys(groups))}
    once = np.ones((1, len(groups)))
    # Draws of a single item are all the same, which would look like certainty.
    if len(items) <= 1 or not resamples:
        return once
    shares = np.full(len(items), 1 / len(items))
    drawn = np.random.default_rng(seed).multinomial(len(items), shares, size=resamples)
    return np.vstack([once, drawn[:, [items[group] for group in groups]]])
