"""What judge, neighbours and evidence say of some cases: as numbers, a row a case.

On a numeric scale a value is its own number; on others its place among the choices.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from memalign_graph.evidence.cases import Floats
from memalign_graph.scales import Boolean, Numeric, Scale, Value

_SURE = 1e-3
"""How near to 0 or 1 a probability may count."""


@dataclass(frozen=True)
class Verdicts:
    """What the judge says."""

    numbers: Floats
    """Its verdicts."""

    probabilities: Floats
    """How likely it holds each choice: a row a case, NaN where that was not measured. On a numeric
    scale there are no columns: the verdict is the number."""

    @classmethod
    def of(
        cls, scale: Scale, said: Iterable[tuple[Value, Mapping[str, float] | None]]
    ) -> "Verdicts":
        """Read what the judge said.

        Args:
            scale: The criterion's scale.
            said: Its verdicts, and how likely it held each value, where that was measured.

        Returns:
            The same as numbers.
        """
        import numpy as np

        number, names = number_of(scale), [scale.render(one) for one in choices_of(scale)]
        unknown = [np.nan] * len(names)
        numbers, rows = [], []
        for verdict, probabilities in said:
            numbers.append(number(verdict))
            known = probabilities and all(name in probabilities for name in names)
            rows.append(
                [probabilities[name] for name in names] if known and probabilities else unknown
            )
        return cls(
            np.array(numbers, dtype=float),
            np.array(rows, dtype=float).reshape(len(numbers), len(names)),
        )


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

    values: list[Value]
    """The estimates."""

    shares: Floats | None
    """How likely each choice is: a row a case; None on a numeric scale."""

    vote: Floats
    """What the neighbours say: the share of each choice, or their mean."""


class Weighing(ABC):
    """A fitted model."""

    weights: dict[str, float]
    """Its coefficients, by what they weigh."""

    verdict_error: float
    """How far the judge's verdicts on the cases in memory are off."""

    evidence_error: float
    """How far the estimates are off, each case left out."""

    left_out: Estimates
    """The estimates of the cases in memory, each left out."""

    @abstractmethod
    def estimate(self, verdicts: Verdicts, votes: Votes) -> Estimates:
        """Weigh new cases.

        Args:
            verdicts: What the judge says of them.
            votes: Their neighbours.

        Returns:
            The estimates.
        """

    @property
    def is_better(self) -> bool:
        """Whether leaving one out says that the estimates are better than the verdicts."""
        return self.evidence_error < self.verdict_error


def choices_of(scale: Scale) -> Sequence[Value]:
    """Return the choices of a scale.

    Args:
        scale: The scale.

    Returns:
        Its values in order; none of a numeric scale.
    """
    if isinstance(scale, Numeric):
        return ()
    return (True, False) if isinstance(scale, Boolean) else scale.choices


def number_of(scale: Scale) -> Callable[[Value], float]:
    """Return what turns values into numbers.

    Args:
        scale: The scale.

    Returns:
        A function that gives a value's own number on a numeric scale, else its place.
    """
    if isinstance(scale, Numeric):
        return float
    places = {value: float(place) for place, value in enumerate(choices_of(scale))}
    return places.__getitem__


def log_odds(probabilities: Floats) -> Floats:
    """Return the logits of probabilities; those of 0 and 1 are finite.

    Args:
        probabilities: The probabilities.

    Returns:
        Their logits.
    """
    import numpy as np

    inside = np.clip(probabilities, _SURE, 1 - _SURE)
    odds: Floats = np.log(inside / (1 - inside))
    return odds


def without_own(numbers: Floats) -> Floats:
    """Return for each of some numbers the mean of the others.

    Args:
        numbers: Two numbers or more.

    Returns:
        The means.
    """
    others: Floats = (numbers.sum() - numbers) / (len(numbers) - 1)
    return others
