"""Evidence on a scale of choices: a logistic regression on log-odds, the same for every choice."""

from memalign_graph.evidence.estimates import (
    Estimates,
    Verdicts,
    Votes,
    Weighing,
    log_odds,
)
from memalign_graph.evidence.logistic import Logistic, fit_logistic, probability
from memalign_graph.evidence.nearest import Floats, Numbers
from memalign_graph.evidence.places import places_of
from memalign_graph.scales import Scale

_SMOOTHING = 0.5
"""How many neighbours' worth of the overall shares stand beside the neighbours' vote."""


class ChoiceWeighing(Weighing):
    """Logistic regression on log-odds: the judge's and the vote's, the same for every choice."""

    def __init__(self, scale: Scale, truth: Floats, verdicts: Verdicts, votes: Votes) -> None:
        """Fit the model; see `fit_weighing`."""
        import numpy as np

        count, ways = len(truth), len(places_of(scale).choices)
        self._ways = ways
        # Of two choices the one tells the other.
        self._rows = 1 if ways == 2 else ways  # noqa: PLR2004
        hits = (truth == verdicts.numbers).astype(float)
        said = (truth[:, None] == np.arange(ways)[None, :]).astype(float)
        self._accuracy: Floats = _smoothed(hits.sum(keepdims=True), count, 2)
        self._shares: Floats = _smoothed(said.sum(axis=0), count, ways)
        self._has_probabilities = bool(np.isfinite(verdicts.probabilities).any())
        voted = self._voted(votes)
        features, _ = self._features(verdicts, voted, self._accuracy, self._shares)
        # What is known of a case without it.
        accuracies = _smoothed(hits.sum() - hits, count - 1, 2)
        shares = _smoothed(said.sum(axis=0) - said, count - 1, ways)
        asked, vote = self._features(verdicts, voted, accuracies, shares)
        self._model = _logistic(
            features.reshape(count * self._rows, -1),
            said[:, : self._rows].reshape(-1),
            np.repeat(np.arange(count), self._rows),
            asked.reshape(count * self._rows, -1),
            intercept=self._rows == 1,
        )
        names = ["judge", *(["judge_probability"] if self._has_probabilities else [])]
        coefficients = self._model.coefficients.tolist()
        self.weights = dict(zip([*names, "neighbours", "intercept"], coefficients, strict=True))
        self.left_out = self._estimates(self._model.left_out, vote)
        self.verdict_errors = (verdicts.numbers != truth).astype(float)
        self.evidence_errors = (self.left_out.numbers != truth).astype(float)

    def estimate(self, verdicts: Verdicts, votes: Votes) -> Estimates:
        """Weigh new cases; see `Weighing.estimate`."""
        voted = self._voted(votes)
        features, vote = self._features(verdicts, voted, self._accuracy, self._shares)
        width = features.shape[-1]
        return self._estimates(self._model.logits(features.reshape(-1, width)), vote)

    def _estimates(self, logits: Floats, vote: Floats) -> Estimates:
        import numpy as np

        own = probability(logits.reshape(-1, self._rows))
        if self._rows == 1:
            shares = np.concatenate((own, 1 - own), axis=1)
        else:
            shares = own / own.sum(axis=1, keepdims=True)
        return Estimates(shares.argmax(axis=1).astype(float), shares, vote)

    def _voted(self, votes: Votes) -> Floats:
        """Return how many of the neighbours' shares each choice has."""
        import numpy as np

        places = range(self._ways)
        voted = [(votes.weights * (votes.values == place)).sum(axis=1) for place in places]
        return np.stack(voted, axis=1)

    def _features(
        self, verdicts: Verdicts, voted: Floats, accuracies: Floats, overall: Floats
    ) -> tuple[Floats, Floats]:
        """Return the features of each case and choice, and the neighbours' vote."""
        import numpy as np

        places = np.arange(self._ways)
        chosen = verdicts.numbers[:, None] == places[None, :]
        total = voted.sum(axis=1, keepdims=True) + _SMOOTHING
        vote = (voted + _SMOOTHING * overall) / total
        columns = [np.where(chosen, 1.0, -1.0), log_odds(vote)]
        if self._has_probabilities:
            # By the judge's accuracy where none were measured.
            others = ((1 - accuracies) / (len(places) - 1))[:, None]
            by_accuracy = np.where(chosen, accuracies[:, None], others)
            own = verdicts.probabilities
            columns.insert(1, log_odds(np.where(np.isfinite(own), own, by_accuracy)))
        return np.stack([one[:, : self._rows] for one in columns], axis=2), vote


def _smoothed(hits: Floats, count: int, ways: int) -> Floats:
    """Estimate shares from counts: as if each way had been seen once more (P.-S. Laplace, 1814)."""
    shares: Floats = (hits + 1) / (count + ways)
    return shares


def _logistic(
    features: Floats, targets: Floats, groups: Numbers, asked: Floats, *, intercept: bool
) -> Logistic:
    """Fit a logistic regression; what would count against itself does not count."""
    import numpy as np

    counts = np.ones(features.shape[1])
    while True:
        model = fit_logistic(
            features * counts, targets, groups, asked=asked * counts, intercept=intercept
        )
        least = int(model.coefficients[:-1].argmin())
        if model.coefficients[least] >= 0 or not counts[least]:
            return model
        counts[least] = 0.0
