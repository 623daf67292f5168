"""Values as numbers: on a numeric scale their own, on others their place among the choices."""

from collections.abc import Mapping, Sequence
from functools import lru_cache

from memalign_graph.scales import Boolean, Numeric, Scale, Value

_NOT_MEASURED = float("nan")


class Places:
    """How a scale's values are written as numbers, and what a judge said of them."""

    def __init__(self, scale: Scale) -> None:
        """Read a scale."""
        self._scale = scale
        self._is_integer = isinstance(scale, Numeric) and scale.integer
        self.choices: Sequence[Value] = ()
        """The choices in order; none of a numeric scale."""
        if not isinstance(scale, Numeric):
            self.choices = (True, False) if isinstance(scale, Boolean) else scale.choices
        self.names = [scale.render(one) for one in self.choices]
        """The choices as the scale renders them."""
        self._places = {value: float(place) for place, value in enumerate(self.choices)}

    def number(self, value: Value) -> float:
        """Return a value as a number."""
        return self._places[value] if self.choices else float(value)

    def value(self, number: float) -> Value:
        """Return the value that a number stands for."""
        if self.choices:
            return self.choices[int(number)]
        return int(number) if self._is_integer else number + 0.0  # -0.0 is 0.0

    def said(self, verdict: Value, probabilities: Mapping[str, float] | None) -> list[float]:
        """Return what a judge said of a case as numbers."""
        number = self.number(verdict)
        if not probabilities:
            return [number, _NOT_MEASURED, *[_NOT_MEASURED] * len(self.names)]
        shares = [probabilities.get(name, _NOT_MEASURED) for name in self.names]
        if any(one != one for one in shares):  # noqa: PLR0124 - of choices that are no more
            shares = [_NOT_MEASURED] * len(self.names)
        stated = probabilities.get(self._scale.render(verdict), _NOT_MEASURED)
        return [number, stated, *shares]


@lru_cache(maxsize=64)
def places_of(scale: Scale) -> Places:
    """Return how a scale's values are written as numbers."""
    return Places(scale)
