"""Logistic regression with a penalty, and each case foretold as if it had not been there."""

from dataclasses import dataclass
from typing import Any

from memalign_graph.evidence.cases import Floats, Numbers
from memalign_graph.extras import needs_extra

_HELD = 1e12
"""A penalty under which a coefficient stays 0."""

_LIMIT = 35.0
"""Beyond this a logit's probability is 0 or 1 in double precision."""


@dataclass(frozen=True)
class Logistic:
    """A fitted model."""

    coefficients: Floats
    """One a feature, and the intercept last."""

    left_out: Floats
    """The logit of each row, fitted without the rows of its group."""

    def logits(self, features: Floats) -> Floats:
        """Foretell new rows.

        Args:
            features: A row each.

        Returns:
            Their logits.
        """
        logits: Floats = _with_one(features) @ self.coefficients
        return logits


def fit_logistic(
    features: Floats,
    targets: Floats,
    groups: Numbers,
    *,
    asked: Floats | None = None,
    intercept: bool = True,
) -> Logistic:
    """Fit a logistic regression with a quadratic penalty on its coefficients.

    Leaving out is not done by fitting anew, which would take a second for a thousand cases, but by
    one step of Newton's method from the whole fit, over the rows that are left: with few
    coefficients and a penalty it comes out the same to about three digits. Source: K. R. Rad and
    A. Maleki, A scalable estimate of the out-of-sample prediction error via approximate
    leave-one-out, 2020.

    Args:
        features: A row each, a column a feature, about of the size of a logit.
        targets: 0 or 1, or a share of both; at least one above 0 and one below 1.
        groups: Which rows are left out together: numbers from 0 on, all of equal size.
        asked: The rows as they are foretold when they are left out; as they are, unless given.
        intercept: Whether there is one; it is not penalised.

    Returns:
        The model.

    Raises:
        ImportError: If scikit-learn is not installed.
    """
    import numpy as np

    with needs_extra("evidence", "Weighing evidence"):
        from sklearn import config_context
        from sklearn.linear_model import LogisticRegression

    rows, width = features.shape
    # A share of both is a row of each kind with its weight: the same likelihood.
    both = np.concatenate((np.ones(rows), np.zeros(rows)))
    weights = np.concatenate((targets, 1 - targets))
    counted = weights > 0
    model: Any = LogisticRegression(solver="newton-cholesky", fit_intercept=intercept)
    with config_context(assume_finite=True, skip_parameter_validation=True):
        model.fit(np.concatenate((features, features))[counted], both[counted], weights[counted])
    coefficients = np.append(model.coef_[0], model.intercept_[0] if intercept else 0.0)
    penalty = np.append(np.ones(width), 0.0 if intercept else _HELD)
    moved = _moved(_with_one(features), targets, groups, coefficients, penalty)
    left_out: Floats = (_with_one(features if asked is None else asked) * moved).sum(axis=1)
    return Logistic(coefficients, left_out)


def probability(logits: Floats) -> Floats:
    """Return the probability that a logit stands for.

    Args:
        logits: The logits.

    Returns:
        The probabilities.
    """
    import numpy as np

    probabilities: Floats = 1 / (1 + np.exp(-np.clip(logits, -_LIMIT, _LIMIT)))
    return probabilities


def _moved(
    whole: Floats, targets: Floats, groups: Numbers, coefficients: Floats, penalty: Floats
) -> Floats:
    """Return the coefficients for each row, fitted without its group."""
    import numpy as np

    fitted = probability(whole @ coefficients)
    curvature = whole * (fitted * (1 - fitted))[:, None]
    hessian = whole.T @ curvature + np.diag(penalty)
    order = np.argsort(groups, kind="stable")
    size = len(groups) // (int(groups.max()) + 1)
    shape = (-1, size, whole.shape[1])
    own, bent = whole[order].reshape(shape), curvature[order].reshape(shape)
    slope = (fitted - targets)[order].reshape(-1, size)
    without = hessian - own.transpose(0, 2, 1) @ bent
    # A direction that only this group speaks of would have no curvature left.
    without += 1e-9 * np.eye(whole.shape[1])
    pull = (own * slope[:, :, None]).sum(axis=1)
    moved: Floats = coefficients + np.linalg.solve(without, pull[:, :, None])[:, :, 0]
    return moved[groups]


def _with_one(features: Floats) -> Floats:
    import numpy as np

    return np.concatenate((features, np.ones((len(features), 1))), axis=1)
