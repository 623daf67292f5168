"""Measures of how far a judge's verdicts agree with the experts' values.

Each is a function of two sequences of equal length, of one case an entry, and returns None where it
is undefined. What scikit-learn has is scikit-learn's.
"""

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

from memalign_graph.errors import needs_extra

_BINS = 10


class LabelScores(BaseModel):
    """How well one label is found."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    label: str
    """The label, as the scale shows it."""

    precision: float | None
    """Of the verdicts with this label, how many the experts gave it, too; None if there are
    none."""

    recall: float | None
    """Of the cases that the experts gave this label, how many the judge did, too; None if there
    are none."""

    f1: float | None
    """The harmonic mean of both, 2 TP / (2 TP + FP + FN); None if neither gave it."""

    support: int
    """How many cases the experts gave this label."""


class ReliabilityBin(BaseModel):
    """The verdicts of about one confidence."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    confidence: float
    """Their mean confidence."""

    accuracy: float
    """The share of them that agrees with the experts."""

    count: int
    """How many they are."""


def exact_match(expected: Sequence[Any], got: Sequence[Any]) -> float | None:
    """Return the share of verdicts that are the experts' value."""
    if not len(expected):
        return None
    return float(np.mean([one == other for one, other in zip(expected, got, strict=True)]))


def cohen_kappa(
    expected: Sequence[Any],
    got: Sequence[Any],
    *,
    labels: Sequence[Any],
    weights: Literal["quadratic"] | None = None,
) -> float | None:
    """Return how far two raters agree beyond what chance would give: (p_o - p_e) / (1 - p_e)."""
    rank = {label: place for place, label in enumerate(labels)}
    counts = np.zeros((len(rank), len(rank)))
    np.add.at(counts, ([rank[one] for one in expected], [rank[one] for one in got]), 1)
    return kappa_of_counts(counts, weights=weights)


def kappa_of_counts(
    counts: NDArray[Any], *, weights: Literal["quadratic"] | None = None
) -> float | None:
    """Return Cohen's kappa of a confusion matrix; see `cohen_kappa`."""
    ranks = np.arange(len(counts))
    apart = ranks[:, None] - ranks[None, :]
    cost = apart**2 if weights == "quadratic" else apart != 0
    by_chance = np.outer(counts.sum(axis=1), counts.sum(axis=0)) / max(counts.sum(), 1)
    most = float((cost * by_chance).sum())
    return 1 - float((cost * counts).sum()) / most if most else None


def concordance(expected: Sequence[float], got: Sequence[float]) -> float | None:
    """Return Lin's concordance correlation coefficient (CCC)."""
    if not len(expected):
        return None
    x, y = np.asarray(expected, float), np.asarray(got, float)
    apart = float(x.var() + y.var() + (x.mean() - y.mean()) ** 2)
    if np.ptp(x) == 0 and np.ptp(y) == 0:
        return None if x[0] == y[0] else 0.0
    return float(2 * np.mean((x - x.mean()) * (y - y.mean()))) / apart


def mean_absolute_error(expected: Sequence[float], got: Sequence[float]) -> float | None:
    """Return how far verdicts lie from the experts' values on average (MAE)."""
    if not len(expected):
        return None
    return float(np.mean(np.abs(np.asarray(expected, float) - np.asarray(got, float))))


def label_scores(
    expected: Sequence[str], got: Sequence[str], *, labels: Sequence[str]
) -> list[LabelScores]:
    """Return precision, recall and F1 of each label, by scikit-learn."""
    if not len(expected):
        return [
            LabelScores(label=label, precision=None, recall=None, f1=None, support=0)
            for label in labels
        ]
    with needs_extra("evaluation", "precision and recall"):
        from sklearn.metrics import precision_recall_fscore_support
    columns = precision_recall_fscore_support(
        expected, got, labels=list(labels), zero_division=np.nan
    )
    return [
        LabelScores(
            label=label,
            precision=_or_none(precision),
            recall=_or_none(recall),
            f1=_or_none(f1),
            support=int(support),
        )
        for label, precision, recall, f1, support in zip(labels, *columns, strict=True)
    ]


def roc_auc(is_positive: Sequence[bool], score: Sequence[float]) -> float | None:
    """Return the area under the ROC curve (AUC), by scikit-learn."""
    if len(set(is_positive)) < 2:  # noqa: PLR2004 - positive and negative
        return None
    with needs_extra("evaluation", "AUC"):
        from sklearn.metrics import roc_auc_score
    return float(roc_auc_score(is_positive, score))


def reliability(
    is_right: Sequence[bool], confidence: Sequence[float], *, bins: int = _BINS
) -> list[ReliabilityBin]:
    """Gather verdicts by confidence, in bins of equal width."""
    right, sure = np.asarray(is_right, bool), np.asarray(confidence, float)
    places: NDArray[np.int_] = np.minimum((sure * bins).astype(int), bins - 1)
    return [
        ReliabilityBin(
            confidence=float(sure[places == place].mean()),
            accuracy=float(right[places == place].mean()),
            count=int((places == place).sum()),
        )
        for place in np.unique(places)
    ]


def expected_calibration_error(
    is_right: Sequence[bool], confidence: Sequence[float], *, bins: int = _BINS
) -> float | None:
    """Return the expected calibration error (ECE)."""
    if not len(is_right):
        return None
    found = reliability(is_right, confidence, bins=bins)
    return sum(one.count * abs(one.accuracy - one.confidence) for one in found) / len(is_right)


def _or_none(number: float) -> float | None:
    return None if np.isnan(number) else float(number)
