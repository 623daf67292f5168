"""Evidence on a numeric scale: a ridge regression between verdict, neighbours and mean."""

import math

from memalign_graph.evidence.estimates import Estimates, Verdicts, Votes, Weighing, without_own
from memalign_graph.evidence.nearest import Floats
from memalign_graph.scales import Numeric

_PENALTIES = (0.1, 1.0, 10.0)
"""The penalties that are tried; leaving one out chooses."""

_DIGITS = 6
"""To how many digits of the scale's range a number is given."""


class NumericWeighing(Weighing):
    """Ridge regression: how far the judge, and the mean, draw an estimate away from the vote.

    estimate = vote + a (verdict - bias - vote) + b (mean - vote), a and b not below 0

    The bias is how much higher the judge's verdicts are than the experts' on the whole. The penalty
    is on a and b, so that with little to go by the estimate is the neighbours' vote.
    """

    def __init__(self, scale: Numeric, truth: Floats, verdicts: Verdicts, votes: Votes) -> None:
        """Fit the model; see `fit_weighing`."""
        import numpy as np

        self._scale = scale
        self._range = scale.maximum - scale.minimum
        over = verdicts.numbers - truth
        self._mean = float(truth.mean())
        self._bias = float(over.mean())
        features, vote = self._features(verdicts.numbers - self._bias, votes, self._mean)
        # What is known of a case without it.
        unbiased = verdicts.numbers - without_own(over)
        asked, without = self._features(unbiased, votes, without_own(truth))
        target = (truth - vote) / self._range
        fits = [_ridge(features, target, penalty, asked) for penalty in _PENALTIES]
        estimated = [without + moved * self._range for _, moved in fits]
        best = int(np.argmin([float(((one - truth) ** 2).mean()) for one in estimated]))
        self._coefficients = fits[best][0]
        judge, mean = self._coefficients.tolist()
        self.weights = {"judge": judge, "neighbours": 1 - judge - mean, "mean": mean}
        self.left_out = Estimates(self._on_scale(estimated[best]), None, without)
        self.verdict_errors = np.abs(over)
        self.evidence_errors = np.abs(self.left_out.numbers - truth)

    def estimate(self, verdicts: Verdicts, votes: Votes) -> Estimates:
        """Weigh new cases; see `Weighing.estimate`."""
        features, vote = self._features(verdicts.numbers - self._bias, votes, self._mean)
        moved = features @ self._coefficients
        return Estimates(self._on_scale(vote + moved * self._range), None, vote)

    def _features(
        self, unbiased: Floats, votes: Votes, mean: Floats | float
    ) -> tuple[Floats, Floats]:
        """Return the features of each case, and the neighbours' vote."""
        import numpy as np

        total = votes.weights.sum(axis=1)
        vote = np.where(total > 0, (votes.weights * votes.values).sum(axis=1), mean)
        return np.stack((unbiased - vote, mean - vote), axis=1) / self._range, vote

    def _on_scale(self, numbers: Floats) -> Floats:
        import numpy as np

        # As fine as an expert would give it, and the same however the sums were rounded.
        fine = 0 if self._scale.integer else _DIGITS - math.floor(math.log10(self._range))
        return np.clip(np.round(numbers, fine), self._scale.minimum, self._scale.maximum)


def _ridge(
    features: Floats, target: Floats, penalty: float, asked: Floats
) -> tuple[Floats, Floats]:
    """Fit a ridge regression without intercept; what would count against itself does not count."""
    import numpy as np

    coefficients = np.zeros(features.shape[1])
    counts = list(range(features.shape[1]))
    pull, own = features[:, :0], features[:, :0]
    while counts:
        own = features[:, counts]
        pull = own @ np.linalg.inv(own.T @ own + penalty * np.eye(len(counts)))
        found = pull.T @ target
        if found.min() >= 0:
            coefficients[counts] = found
            break
        counts.pop(int(found.argmin()))
    else:
        return coefficients, np.zeros(len(asked))
    off = (target - features @ coefficients) / (1 - (pull * own).sum(axis=1))
    without: Floats = coefficients[counts] - pull * off[:, None]
    return coefficients, (asked[:, counts] * without).sum(axis=1)
