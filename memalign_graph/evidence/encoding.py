"""How values are regressed on: as numbers, or one-hot."""

from collections.abc import Sequence
from math import nan

import numpy as np

from memalign_graph.agreement import agreement_tolerance, value_or_none
from memalign_graph.evidence.regression import Floats
from memalign_graph.evidence.verdicts import RawVerdict
from memalign_graph.scales import Boolean, Categorical, Numeric, Scale, Value

_THIRDS = ("low", "middle", "high")


class ValueEncoding:
    """How values are regressed on: numbers and choices in order as positions, others one-hot."""

    def __init__(self, scale: Scale) -> None:
        self.scale = scale
        self.choices: Sequence[Value] = ()
        self.low, self.near = 0.0, 0.0
        if isinstance(scale, Numeric):
            self.low, self.span = scale.minimum, scale.maximum - scale.minimum
            self.near = 0.0 if scale.integer else agreement_tolerance(scale)
        else:
            self.choices = (True, False) if isinstance(scale, Boolean) else scale.choices
            self.span = len(self.choices) - 1.0
        self.names = [scale.render(choice) for choice in self.choices]
        ranks = isinstance(scale, Categorical) and scale.ordered
        self.is_ordered = ranks or isinstance(scale, Numeric)

    def numbers(self, values: Sequence[Value]) -> Floats:
        """Return numbers themselves, or the places of choices."""
        places = [self.choices.index(value) for value in values] if self.choices else values
        return np.array(places, dtype=float)

    def value(self, number: float) -> Value:
        """Return the value that a number stands for."""
        return self.choices[int(number)] if self.choices else self.scale.validate_value(number)

    def rows(self, values: Sequence[Value]) -> Floats:
        """Return values as rows of targets."""
        numbers = self.numbers(values)[:, None]
        return numbers if self.is_ordered else (numbers == np.arange(len(self.names))).astype(float)

    def classes(self, numbers: Floats) -> Floats:
        """Return which choice numbers are, or which third of an ordered scale they are in."""
        if not self.is_ordered:
            return numbers.astype(int)
        return np.clip(np.floor(3 * (numbers - self.low) / self.span), 0, 2).astype(int)

    def class_of(self, value: Value) -> str:
        """Name the class of a value."""
        [number] = self.classes(self.numbers([value]))
        return _THIRDS[number] if self.is_ordered else self.names[number]

    def errors(self, numbers: Floats, truth: Floats) -> Floats:
        """Measure how far numbers are off: the distance, of choices 0 or 1."""
        off = np.abs(numbers - truth)
        return (off > 0).astype(float) if self.choices else off

    def believed(self, said: Sequence[RawVerdict]) -> Floats:
        """Return the judge's probabilities as rows of targets; its verdicts where it has none.

        In an order they come to the mean of the values that they name.
        """
        rows = self.rows([one.verdict for one in said])
        for at, one in enumerate(said):
            shares = one.probabilities or {}
            if self.is_ordered:
                named = [(value_or_none(name, self.scale), share) for name, share in shares.items()]
                known = [(value, share) for value, share in named if value is not None]
                if sum(share for _, share in known) > 0:
                    values, weights = zip(*known, strict=True)
                    rows[at] = np.average(self.numbers(values), weights=weights)
            elif all(name in shares for name in self.names):
                rows[at] = [shares[name] for name in self.names]
        return rows

    def stated(self, said: RawVerdict) -> float:
        """Return how likely the judge holds its verdict; NaN where that was not measured."""
        return (said.probabilities or {}).get(self.scale.render(said.verdict), nan)
