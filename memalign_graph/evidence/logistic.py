"""Logistic regression with a penalty, and each case foretold as if it had not been there."""

from dataclasses import dataclass
from typing import Any

from memalign_graph.evidence.nearest import Floats, Numbers

_LIMIT = 35.0
"""Beyond this a logit's probability is 0 or 1 in double precision."""

_STEPS = 15
"""How many full steps are tried; it takes less than ten."""

_SLOW_STEPS = 200
"""How many shorter ones are taken at most."""

_CLOSE = 1e-6
"""Below this a step changes nothing any more: the next would be about its square."""

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
        """Foretell new rows."""
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
    """Fit a logistic regression with a quadratic penalty of 1/2 on its coefficients."""
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
    """Return the probability that a logit stands for."""
    import numpy as np

    probabilities: Floats = 1 / (1 + np.exp(-np.clip(logits, -_LIMIT, _LIMIT)))
    return probabilities


def _fit(whole: Floats, targets: Floats, penalty: Floats) -> Floats:
    """Find the coefficients: by full steps, and if those lead nowhere by ones that surely lead."""
    import numpy as np

    coefficients: Floats = np.zeros(whole.shape[1])
    for _ in range(_STEPS):
        step = _step(whole, targets, penalty, coefficients)
        coefficients -= step
        if np.abs(step).max() <= _CLOSE:
            return coefficients
    return _fit_slowly(whole, targets, penalty)


def _step(whole: Floats, targets: Floats, penalty: Floats, coefficients: Floats) -> Floats:
    import numpy as np

    # In this thread alone: threads that wait for each other cost more than they bring.
    fitted = probability(np.einsum("ij,j->i", whole, coefficients))
    slope = whole.T @ (fitted - targets) + penalty * coefficients
    step: Any = np.linalg.solve(_curvature(whole, fitted, penalty), slope)
    return np.asarray(step, dtype=np.float64)


def _fit_slowly(whole: Floats, targets: Floats, penalty: Floats) -> Floats:
    import numpy as np

    def loss(coefficients: Floats) -> float:
        logits = whole @ coefficients
        misfit = (np.logaddexp(0, logits) - targets * logits).sum()
        return float(misfit + (penalty * coefficients**2).sum() / 2)

    coefficients: Floats = np.zeros(whole.shape[1])
    least = loss(coefficients)
    for _ in range(_SLOW_STEPS):
        step = _step(whole, targets, penalty, coefficients)
        # Half as far where it went too far: the loss is convex, so that some step lowers it.
        while (now := loss(coefficients - step)) > least and np.abs(step).max() > _CLOSE:
            step /= 2
        if np.abs(step).max() <= _CLOSE:
            break
        coefficients -= step
        least = now
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
    weights = fitted * (1 - fitted)
    curvature = _curvature(whole, fitted, penalty)
    count = int(groups.max()) + 1
    if count == len(groups):
        # Of one row each, in closed form (J. Sherman and W. J. Morrison, 1950).
        pull = np.linalg.solve(curvature, whole.T).T
        leverage = weights * (whole * pull).sum(axis=1)
        moved: Floats = coefficients + pull * ((fitted - targets) / (1 - leverage))[:, None]
        return moved
    order = np.argsort(groups, kind="stable")
    own = whole[order].reshape(count, -1, whole.shape[1])
    bent = own * weights[order].reshape(count, -1, 1)
    pull = (own * (fitted - targets)[order].reshape(count, -1, 1)).sum(axis=1)
    without = curvature - own.transpose(0, 2, 1) @ bent
    moved = coefficients + np.linalg.solve(without, pull[:, :, None])[:, :, 0]
    return moved[groups]


def _with_one(features: Floats) -> Floats:
    import numpy as np

    return np.concatenate((features, np.ones((len(features), 1))), axis=1)
