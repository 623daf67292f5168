"""Measures of how far a judge's verdicts agree with the experts' values.

Each is a function of two sequences of equal length, of one case an entry, and returns None where it
is undefined. What scikit-learn has is scikit-learn's.
"""

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

from memalign_graph.extras import needs_extra

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
    """Return the share of verdicts that are the experts' value.

    Args:
        expected: The experts' values.
        got: The verdicts.

    Returns:
        From 0 to 1; None for no cases.
    """
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
    """Return how far two raters agree beyond what chance would give: (p_o - p_e) / (1 - p_e).

    p_o is the observed agreement, p_e what two raters with these shares of labels would reach by
    chance. With quadratic weights a disagreement counts by the square of how far the labels lie
    apart. Sources: J. Cohen, A coefficient of agreement for nominal scales, 1960; J. Cohen,
    Weighted kappa, 1968. Written out, since an interval takes thousands of them: scikit-learn's
    `cohen_kappa_score`, which gives the same, takes a hundred times as long.

    Args:
        expected: The experts' values.
        got: The verdicts.
        labels: All labels; in their order, equally far apart, where the weights are quadratic.
        weights: None, or `quadratic` for ordered labels.

    Returns:
        1 for full agreement, 0 for what chance gives, below 0 for less; None where both gave one
        and the same label throughout, which is 0 / 0.
    """
    rank = {label: place for place, label in enumerate(labels)}
    counts = np.zeros((len(rank), len(rank)))
    np.add.at(counts, ([rank[one] for one in expected], [rank[one] for one in got]), 1)
    return kappa_of_counts(counts, weights=weights)


def kappa_of_counts(
    counts: NDArray[Any], *, weights: Literal["quadratic"] | None = None
) -> float | None:
    """Return Cohen's kappa of a confusion matrix; see `cohen_kappa`.

    Args:
        counts: How often each label of the one rater (row) met each of the other (column).
        weights: None, or `quadratic` for ordered labels.

    Returns:
        Kappa; None where it is undefined.
    """
    ranks = np.arange(len(counts))
    apart = ranks[:, None] - ranks[None, :]
    cost = apart**2 if weights == "quadratic" else apart != 0
    by_chance = np.outer(counts.sum(axis=1), counts.sum(axis=0)) / max(counts.sum(), 1)
    most = float((cost * by_chance).sum())
    return 1 - float((cost * counts).sum()) / most if most else None


def concordance(expected: Sequence[float], got: Sequence[float]) -> float | None:
    """Return Lin's concordance correlation coefficient (CCC).

        2 s_xy / (s_x^2 + s_y^2 + (mean_x - mean_y)^2)

    with moments over n. Unlike a correlation it asks for the same values, not for the same order
    alone. Source: L. Lin, A concordance correlation coefficient to evaluate reproducibility,
    Biometrics 45, 1989.

    Args:
        expected: The experts' values.
        got: The verdicts.

    Returns:
        From -1 to 1; 0 where either never varies; None where both are one and the same constant.
    """
    if not len(expected):
        return None
    x, y = np.asarray(expected, float), np.asarray(got, float)
    apart = float(x.var() + y.var() + (x.mean() - y.mean()) ** 2)
    if np.ptp(x) == 0 and np.ptp(y) == 0:
        return None if x[0] == y[0] else 0.0
    return float(2 * np.mean((x - x.mean()) * (y - y.mean()))) / apart


def mean_absolute_error(expected: Sequence[float], got: Sequence[float]) -> float | None:
    """Return how far verdicts lie from the experts' values on average (MAE).

    Args:
        expected: The experts' values.
        got: The verdicts.

    Returns:
        From 0 on, in units of the scale; None for no cases.
    """
    if not len(expected):
        return None
    return float(np.mean(np.abs(np.asarray(expected, float) - np.asarray(got, float))))


def label_scores(
    expected: Sequence[str], got: Sequence[str], *, labels: Sequence[str]
) -> list[LabelScores]:
    """Return precision, recall and F1 of each label, by scikit-learn.

    Args:
        expected: The experts' values.
        got: The verdicts.
        labels: The labels to score.

    Returns:
        One a label.

    Raises:
        ImportError: If the extra `evaluation` is not installed.
    """
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
    """Return the area under the ROC curve (AUC), by scikit-learn.

    It is the probability that a positive case has a higher score than a negative one, ties
    counting half. Source: J. Hanley and B. McNeil, The meaning and use of the area under a receiver
    operating characteristic (ROC) curve, Radiology 143, 1982.

    Args:
        is_positive: What the experts say.
        score: What rises with the judge's belief that a case is positive.

    Returns:
        From 0 to 1; None where all cases are of one kind.

    Raises:
        ImportError: If the extra `evaluation` is not installed.
    """
    if len(set(is_positive)) < 2:  # noqa: PLR2004 - positive and negative
        return None
    with needs_extra("evaluation", "AUC"):
        from sklearn.metrics import roc_auc_score
    return float(roc_auc_score(is_positive, score))


def reliability(
    is_right: Sequence[bool], confidence: Sequence[float], *, bins: int = _BINS
) -> list[ReliabilityBin]:
    """Gather verdicts by confidence, in bins of equal width.

    Args:
        is_right: Whether each verdict agrees with the experts.
        confidence: How sure the judge was of it, from 0 to 1.
        bins: How many bins.

    Returns:
        The bins that hold any, lowest confidence first.
    """
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
    """Return the expected calibration error (ECE).

    The mean distance of confidence and accuracy over bins of equal width, each weighted by its
    share of the verdicts. Sources: M. Naeini, G. Cooper and M. Hauskrecht, Obtaining well
    calibrated probabilities using Bayesian binning, AAAI 2015; C. Guo, G. Pleiss, Y. Sun and
    K. Weinberger, On calibration of modern neural networks, ICML 2017.

    Args:
        is_right: Whether each verdict agrees with the experts.
        confidence: How sure the judge was of it, from 0 to 1.
        bins: How many bins.

    Returns:
        From 0 to 1; None for no cases.
    """
    if not len(is_right):
        return None
    found = reliability(is_right, confidence, bins=bins)
    return sum(one.count * abs(one.accuracy - one.confidence) for one in found) / len(is_right)


def _or_none(number: float) -> float | None:
    return None if np.isnan(number) else float(number)
