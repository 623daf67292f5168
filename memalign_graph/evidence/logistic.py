"""Logistic regression with a penalty, and each case foretold as if it had not been there."""

from dataclasses import dataclass

from memalign_graph.evidence.cases import Floats, Numbers

_LIMIT = 35.0
"""Beyond this a logit's probability is 0 or 1 in double precision."""

_STEPS = 100
"""How many steps Newton's method takes at most; it takes less than ten."""

_CLOSE = 1e-10
"""Below this a step changes nothing any more."""

_RIDGE = 1e-9
"""What keeps a direction that no case speaks of from having no curvature."""


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
    """Fit a logistic regression with a quadratic penalty of 1/2 on its coefficients.

    By Newton's method, which with a handful of coefficients is a few small matrices: general
    solvers take six times as long to check what they are given.

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
    """
    import numpy as np

    whole = _with_one(features) if intercept else features
    foretold = whole if asked is None else _with_one(asked) if intercept else asked
    penalty = np.ones(whole.shape[1])
    if intercept:
        penalty[-1] = 0.0
    coefficients = _fit(whole, targets, penalty)
    moved = _moved(whole, targets, groups, coefficients, penalty)
    left_out: Floats = (foretold * moved).sum(axis=1)
    return Logistic(coefficients if intercept else np.append(coefficients, 0.0), left_out)


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


def _fit(whole: Floats, targets: Floats, penalty: Floats) -> Floats:
    import numpy as np

    def loss(coefficients: Floats) -> float:
        logits = whole @ coefficients
        misfit = (np.logaddexp(0, logits) - targets * logits).sum()
        return float(misfit + (penalty * coefficients**2).sum() / 2)

    coefficients: Floats = np.zeros(whole.shape[1])
    least = loss(coefficients)
    for _ in range(_STEPS):
        fitted = probability(whole @ coefficients)
        slope = whole.T @ (fitted - targets) + penalty * coefficients
        step = np.linalg.solve(_curvature(whole, fitted, penalty), slope)
        # Half as far where it went too far: the loss is convex, so that some step lowers it.
        while (now := loss(coefficients - step)) > least and np.abs(step).max() > _CLOSE:
            step = step / 2
        if np.abs(step).max() <= _CLOSE:
            break
        coefficients, least = coefficients - step, now
    return coefficients


def _curvature(whole: Floats, fitted: Floats, penalty: Floats) -> Floats:
    import numpy as np

    curvature: Floats = whole.T @ (whole * (fitted * (1 - fitted))[:, None])
    return curvature + np.diag(penalty + _RIDGE)


def _moved(
    whole: Floats, targets: Floats, groups: Numbers, coefficients: Floats, penalty: Floats
) -> Floats:
    """Return the coefficients for each row, fitted without its group."""
    import numpy as np

    fitted = probability(whole @ coefficients)
    bent = whole * (fitted * (1 - fitted))[:, None]
    order = np.argsort(groups, kind="stable")
    shape = (int(groups.max()) + 1, -1, whole.shape[1])
    own = whole[order].reshape(shape)
    without = _curvature(whole, fitted, penalty) - own.transpose(0, 2, 1) @ bent[order].reshape(
        shape
    )
    slope = (fitted - targets)[order].reshape(shape[:2])
    pull = (own * slope[:, :, None]).sum(axis=1)
    moved: Floats = coefficients + np.linalg.solve(without, pull[:, :, None])[:, :, 0]
    return moved[groups]


def _with_one(features: Floats) -> Floats:
    import numpy as np

    return np.concatenate((features, np.ones((len(features), 1))), axis=1)
