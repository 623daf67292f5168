"""What judge, neighbours and evidence say of some cases: as numbers, a row a case.

On a numeric scale a value is its own number; on others its place among the choices.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from memalign_graph.evidence.nearest import Floats
from memalign_graph.evidence.places import places_of
from memalign_graph.scales import Scale, Value

_SURE = 1e-3
"""How near to 0 or 1 a probability may count."""


@dataclass(frozen=True)
class Verdicts:
    """What the judge says."""

    numbers: Floats
    """Its verdicts."""

    stated: Floats
    """How likely it holds them; NaN where that was not measured."""

    probabilities: Floats
    """How likely it holds each choice: a row a case, NaN where that was not measured. On a numeric
    scale there are no columns: the verdict is the number."""

    @classmethod
    def read(cls, rows: Floats) -> "Verdicts":
        """Read what a judge said of cases."""
        return cls(rows[:, 0], rows[:, 1], rows[:, 2:])

    @classmethod
    def of(
        cls, scale: Scale, verdict: Value, probabilities: Mapping[str, float] | None
    ) -> "Verdicts":
        """Read what the judge says of one case."""
        import numpy as np

        return cls.read(np.array([places_of(scale).said(verdict, probabilities)]))


@dataclass(frozen=True)
class Votes:
    """Who votes, and what."""

    weights: Floats
    """The neighbours' shares; a row sums to 1, or to 0 where there are none."""

    values: Floats
    """The neighbours' values."""


@dataclass(frozen=True)
class Estimates:
    """What the evidence says."""

    numbers: Floats
    """The estimates."""

    shares: Floats | None
    """How likely each choice is: a row a case; None on a numeric scale."""

    vote: Floats
    """What the neighbours say: the share of each choice, or their mean."""


class Weighing(ABC):
    """A fitted model."""

    weights: dict[str, float]
    """Its coefficients, by what they weigh."""

    verdict_errors: Floats
    """How far the judge's verdict on each case in memory is off: 0 or 1, or the distance."""

    evidence_errors: Floats
    """The same of the estimate, the case left out."""

    left_out: Estimates
    """The estimates of the cases in memory, each left out."""

    @abstractmethod
    def estimate(self, verdicts: Verdicts, votes: Votes) -> Estimates:
        """Weigh new cases."""

    @property
    def verdict_error(self) -> float:
        """How far the judge's verdicts on the cases in memory are off."""
        return float(self.verdict_errors.mean())

    @property
    def evidence_error(self) -> float:
        """How far the estimates are off, each case left out."""
        return float(self.evidence_errors.mean())

    @cached_property
    def is_better(self) -> bool:
        """Whether leaving one out says that the estimates are better than the verdicts."""
        gains = self.verdict_errors - self.evidence_errors
        gain = float(gains.mean())
        return gain > 0 and gain > float(gains.std(ddof=1)) / math.sqrt(len(gains))


def choices_of(scale: Scale) -> Sequence[Value]:
    """Return the choices of a scale."""
    return places_of(scale).choices


def log_odds(probabilities: Floats) -> Floats:
    """Return the logits of probabilities; those of 0 and 1 are finite."""
    import numpy as np

    inside = np.clip(probabilities, _SURE, 1 - _SURE)
    odds: Floats = np.log(inside / (1 - inside))
    return odds


def without_own(numbers: Floats) -> Floats:
    """Return for each of some numbers the mean of the others."""
    others: Floats = (numbers.sum() - numbers) / (len(numbers) - 1)
    return others
