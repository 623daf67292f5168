"""The model that weighs a judge's verdict against what the most similar cases say.

Stacked generalisation (D. H. Wolpert, 1992) of two forecasters: the judge, and the neighbours'
vote. Few coefficients, a penalty on them, and each case in memory left out of what foretells it, so
that a handful of experts' verdicts is enough to fit it, and tells how good it is.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from memalign_graph.evidence.cases import Case, Floats, Numbers
from memalign_graph.evidence.logistic import Logistic, fit_logistic, probability
from memalign_graph.evidence.logprobs import permitted_values
from memalign_graph.extras import needs_extra
from memalign_graph.judgment import Probabilities
from memalign_graph.scales import Boolean, Numeric, Scale, Value

MIN_CASES = 10
"""How many cases with the judge's verdict and an expert's it takes to weigh anything."""

_SMOOTHING = 0.5
"""How many neighbours' worth of the overall shares stand beside the neighbours' vote."""

_PENALTIES = (0.1, 1.0, 10.0)
"""The penalties of the numeric model that are tried; leaving one out chooses."""

_SURE = 0.001
"""How near to 0 or 1 a probability of the judge's may count."""


@dataclass(frozen=True)
class Estimate:
    """What the evidence says of a case."""

    value: Value
    """The value."""

    probabilities: Probabilities | None
    """How likely each value of a finite scale is."""

    vote: Probabilities | float
    """What the neighbours say."""


@dataclass(frozen=True)
class Votes:
    """Who votes on some cases, and what."""

    weights: Floats
    """A row a case: the neighbours' shares."""

    values: Floats
    """A row a case: the neighbours' values as numbers, or as the places of choices."""


class Weighing(ABC):
    """A fitted model."""

    weights: dict[str, float]
    """Its coefficients, by what they weigh."""

    verdict_error: float
    """How far the judge's verdicts on the cases in memory are off."""

    evidence_error: float
    """How far the estimates are off, each case left out."""

    left_out: list[Estimate]
    """The estimates of the cases in memory, each left out."""

    @abstractmethod
    def estimate(
        self, verdict: Value, probabilities: Mapping[str, float] | None, votes: Votes
    ) -> Estimate:
        """Weigh a new case.

        Args:
            verdict: What the judge says.
            probabilities: How likely it holds each value, where that was measured.
            votes: Its neighbours, one row.

        Returns:
            The estimate.
        """

    @property
    def is_better(self) -> bool:
        """Whether leaving one out says that the estimates are better than the verdicts."""
        return self.evidence_error < self.verdict_error


def fit_weighing(scale: Scale, cases: Sequence[Case], votes: Votes) -> Weighing | None:
    """Fit the model to the cases in memory that the judge had judged.

    Args:
        scale: The criterion's scale.
        cases: The cases.
        votes: Their neighbours, each left out of its own.

    Returns:
        The model; None if there are too few cases, or their experts all say the same.

    Raises:
        ImportError: If scikit-learn is not installed.
    """
    if len(cases) < MIN_CASES or len({(type(one.value), one.value) for one in cases}) == 1:
        return None
    if isinstance(scale, Numeric):
        return NumericWeighing(scale, cases, votes)
    return ChoiceWeighing(scale, cases, votes)


def place_of(scale: Scale, value: Value) -> float:
    """Return a value as a number: itself on a numeric scale, else its place among the choices.

    Args:
        scale: The scale.
        value: The value.

    Returns:
        The number.
    """
    if isinstance(scale, Numeric):
        return float(value)
    return float(_choices(scale).index(value))


class NumericWeighing(Weighing):
    """Ridge regression: how far the judge, and the mean, draw an estimate away from the vote.

    estimate = vote + a (verdict - bias - vote) + b (mean - vote), a and b not below 0

    The bias is how much higher the judge's verdicts are than the experts' on the whole. The penalty
    is on a and b, so that with little to go by the estimate is the neighbours' vote.
    """

    def __init__(self, scale: Numeric, cases: Sequence[Case], votes: Votes) -> None:
        import numpy as np

        self._scale = scale
        self._range = scale.maximum - scale.minimum
        truth = np.array([float(one.value) for one in cases])
        verdicts = np.array([float(one.verdict or 0) for one in cases])
        self._mean = float(truth.mean())
        self._bias = float((verdicts - truth).mean())
        others = (truth.sum() - truth) / (len(cases) - 1)
        vote = self._votes(votes, others)
        features = self._features(verdicts, vote, others)
        fits = [_ridge(features, (truth - vote) / self._range, penalty) for penalty in _PENALTIES]
        self._coefficients, off = min(fits, key=lambda one: float((one[1] ** 2).mean()))
        judge, mean = self._coefficients.tolist()
        self.weights = {"judge": judge, "neighbours": 1 - judge - mean, "mean": mean}
        self.left_out = [
            Estimate(self._on_scale(float(one)), None, float(said))
            for one, said in zip(truth - off * self._range, vote, strict=True)
        ]
        estimated = np.array([float(one.value) for one in self.left_out])
        self.verdict_error = float(np.abs(verdicts - truth).mean())
        self.evidence_error = float(np.abs(estimated - truth).mean())

    def estimate(
        self,
        verdict: Value,
        probabilities: Mapping[str, float] | None,  # noqa: ARG002 - the verdict is the number
        votes: Votes,
    ) -> Estimate:
        """Weigh a new case; see `Weighing.estimate`."""
        import numpy as np

        mean = np.array([self._mean])
        vote = self._votes(votes, mean)
        [features] = self._features(np.array([float(verdict)]), vote, mean)
        moved = float(features @ self._coefficients) * self._range
        return Estimate(self._on_scale(float(vote[0]) + moved), None, float(vote[0]))

    def _features(self, verdicts: Floats, vote: Floats, mean: Floats) -> Floats:
        import numpy as np

        return np.stack((verdicts - self._bias - vote, mean - vote), axis=1) / self._range

    def _votes(self, votes: Votes, mean: Floats) -> Floats:
        import numpy as np

        total = votes.weights.sum(axis=1)
        said: Floats = np.where(total > 0, (votes.weights * votes.values).sum(axis=1), mean)
        return said

    def _on_scale(self, number: float) -> Value:
        inside = min(max(number, self._scale.minimum), self._scale.maximum)
        # As fine as an expert would give it, and the same however the sums were rounded.
        return self._scale.validate_value(
            float(round(inside)) if self._scale.integer else round(inside, 6)
        )


class ChoiceWeighing(Weighing):
    """Logistic regression on log-odds: the judge's and the vote's, the same for every choice."""

    def __init__(self, scale: Scale, cases: Sequence[Case], votes: Votes) -> None:
        import numpy as np

        self._names = [scale.render(one) for one in _choices(scale)]
        self._values = _choices(scale)
        # Of two choices the one tells the other.
        self._rows = 1 if len(self._values) == 2 else len(self._values)  # noqa: PLR2004
        count = len(cases)
        truth = np.array([int(place_of(scale, one.value)) for one in cases])
        verdicts = np.array([self._place(one.verdict) for one in cases])
        hits = (truth == verdicts).sum()
        self._accuracy = float((hits + 1) / (count + 2))
        counts = np.bincount(truth, minlength=len(self._values)).astype(float)
        self._shares = (counts + 1) / (count + len(self._values))
        self._has_probabilities = any(one.probabilities for one in cases)
        odds = np.stack([self._odds(one.verdict, one.probabilities) for one in cases])
        vote = self._vote(votes)
        features = self._features(verdicts, odds, vote)
        targets = (truth[:, None] == np.arange(self._rows)[None, :]).astype(float)
        groups = np.repeat(np.arange(count), self._rows)
        self._model = _logistic(
            features.reshape(count * self._rows, -1),
            targets.reshape(-1),
            groups,
            intercept=self._rows == 1,
        )
        left = self._probabilities(self._model.left_out.reshape(count, self._rows))
        names = ["judge", *(["judge_probability"] if self._has_probabilities else [])]
        coefficients = self._model.coefficients.tolist()
        self.weights = dict(zip([*names, "neighbours", "intercept"], coefficients, strict=True))
        self.left_out = [self._estimate(own, said) for own, said in zip(left, vote, strict=True)]
        estimated = left.argmax(axis=1)
        self.verdict_error = float((verdicts != truth).mean())
        self.evidence_error = float((estimated != truth).mean())

    def estimate(
        self, verdict: Value, probabilities: Mapping[str, float] | None, votes: Votes
    ) -> Estimate:
        """Weigh a new case; see `Weighing.estimate`."""
        import numpy as np

        vote = self._vote(votes)
        odds = self._odds(verdict, probabilities)[None]
        features = self._features(np.array([self._place(verdict)]), odds, vote)
        logits = self._model.logits(features.reshape(self._rows, -1))
        return self._estimate(self._probabilities(logits[None])[0], vote[0])

    def _place(self, verdict: Any) -> int:
        return self._values.index(verdict)

    def _estimate(self, probabilities: Floats, vote: Floats) -> Estimate:
        own = dict(zip(self._names, probabilities.tolist(), strict=True))
        said = dict(zip(self._names, vote.tolist(), strict=True))
        return Estimate(self._values[int(probabilities.argmax())], own, said)

    def _vote(self, votes: Votes) -> Floats:
        import numpy as np

        shares = np.stack(
            [
                (votes.weights * (votes.values == place)).sum(axis=1)
                for place in range(len(self._values))
            ],
            axis=1,
        )
        total = shares.sum(axis=1, keepdims=True) + _SMOOTHING
        smoothed: Floats = (shares + _SMOOTHING * self._shares) / total
        return smoothed

    def _odds(self, verdict: Any, probabilities: Mapping[str, float] | None) -> Floats:
        """Return the judge's log-odds of each choice; by its accuracy where none were measured."""
        import numpy as np

        if probabilities and all(name in probabilities for name in self._names):
            own = np.array([probabilities[name] for name in self._names])
        else:
            own = np.full(len(self._names), (1 - self._accuracy) / (len(self._names) - 1))
            own[self._place(verdict)] = self._accuracy
        return _log_odds(own)

    def _features(self, verdicts: Floats, odds: Floats, vote: Floats) -> Floats:
        """Return the features of each case and choice."""
        import numpy as np

        choices = np.arange(self._rows)
        said = np.where(verdicts[:, None] == choices[None, :], 1.0, -1.0)
        columns = [said, odds[:, : self._rows], _log_odds(vote)[:, : self._rows]]
        if not self._has_probabilities:
            del columns[1]
        return np.stack(columns, axis=2)

    def _probabilities(self, logits: Floats) -> Floats:
        import numpy as np

        own = probability(logits)
        if self._rows == 1:
            return np.concatenate((own, 1 - own), axis=1)
        shares: Floats = own / own.sum(axis=1, keepdims=True)
        return shares


def _logistic(features: Floats, targets: Floats, groups: Numbers, *, intercept: bool) -> Logistic:
    """Fit a logistic regression; what would count against itself does not count."""
    import numpy as np

    counts = np.ones(features.shape[1])
    while True:
        model = fit_logistic(features * counts, targets, groups, intercept=intercept)
        least = int(model.coefficients[:-1].argmin())
        if model.coefficients[least] >= 0 or not counts[least]:
            return model
        counts[least] = 0.0


def _log_odds(probabilities: Floats) -> Floats:
    import numpy as np

    inside = np.clip(probabilities, _SURE, 1 - _SURE)
    odds: Floats = np.log(inside / (1 - inside))
    return odds


def _choices(scale: Scale) -> list[Value]:
    if isinstance(scale, Boolean):
        return [True, False]
    values = permitted_values(scale)
    return list(getattr(scale, "choices", ())) if values is None else values


def _ridge(features: Floats, target: Floats, penalty: float) -> tuple[Floats, Floats]:
    """Fit a ridge regression without intercept; what would count against itself does not count.

    Returns:
        The coefficients, and how far each case is off, fitted without it: e / (1 - h), which is
        exact for the features that count (D. M. Allen, The relationship between variable selection
        and data augmentation and a method for prediction, 1974).
    """
    import numpy as np

    with needs_extra("evidence", "Weighing evidence"):
        from sklearn import config_context
        from sklearn.linear_model import Ridge

    coefficients = np.zeros(features.shape[1])
    counts = list(range(features.shape[1]))
    while counts:
        with config_context(assume_finite=True, skip_parameter_validation=True):
            model: Any = Ridge(alpha=penalty, fit_intercept=False)
            model.fit(features[:, counts], target)
        if model.coef_.min() >= 0:
            coefficients[counts] = model.coef_
            break
        counts.pop(int(model.coef_.argmin()))
    own = features[:, counts]
    inverse = np.linalg.inv(own.T @ own + penalty * np.eye(len(counts)))
    leverage = ((own @ inverse) * own).sum(axis=1)
    off: Floats = (target - features @ coefficients) / (1 - leverage)
    return coefficients, off
