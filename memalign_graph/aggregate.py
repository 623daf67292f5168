"""One score of many criteria: a weighted mean, and vetoes that no other criterion makes up for."""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from statistics import fmean
from typing import Any

from typing_extensions import TypedDict

from memalign_graph.errors import InvalidInputError
from memalign_graph.reading import Passes, PassRule
from memalign_graph.scales import Boolean, Categorical, Numeric, Scale, Value
from memalign_graph.types import Criterion


class AggregateResult(TypedDict):
    """What many criteria come to."""

    score: float | None
    """The weighted mean of the parts, from 0 to 1; None if nothing with a weight was judged."""
    passed: bool | None
    """Whether the score is high enough and nothing is vetoed; None if neither was asked for."""
    parts: dict[str, float]  # each criterion's value on a scale from 0 to 1
    vetoed_by: list[str]
    missing: list[str]
    """Criteria that could not be judged: they count in no mean, and one with a veto fails."""


@dataclass(frozen=True)
class Aggregate:
    """How to make one score of many criteria.

    A value counts from 0 to 1: true is 1; a number by its place between minimum and maximum; an
    ordered choice by its place among the choices. Other scales have no order: they can veto, and
    have no weight.

    Raises:
        InvalidInputError: From `create_panel_graph`, if it does not fit the panel's criteria.
    """

    weights: Mapping[str, float] = field(default_factory=dict)
    """How much each criterion counts; those not named, 1 where their scale has an order."""
    vetoes: Mapping[str, Passes] = field(default_factory=dict)
    """Which values have to be reached whatever the others say, as a gate's `passes`."""
    passes: float | None = None
    """The score from which the whole passes, from 0 to 1; None if it is not asked for."""

    def bind(
        self, criteria: Iterable[Criterion]
    ) -> Callable[[Mapping[str, Value]], AggregateResult]:
        """Check this against a panel's criteria; return what makes one score of their values."""
        scales = {criterion.name: criterion.scale for criterion in criteria}
        for option, given in {"weights": self.weights, "vetoes": self.vetoes}.items():
            if not isinstance(given, Mapping):
                raise InvalidInputError(f"{option}: give a dict by the criteria's names.")
            for name in given:
                if name not in scales:
                    known = f"no criterion of this panel: {', '.join(scales)}."
                    raise InvalidInputError(f"{option}: {name!r} is {known}")
        for name, weight in self.weights.items():
            if not _is_number(weight) or not 0 <= weight < math.inf:
                raise InvalidInputError(
                    f"weights: {weight!r} for {name!r} is not a number from 0 on."
                )
            if weight and not _is_ordered(scales[name]):
                raise InvalidInputError(
                    f"weights: the scale of {name!r} has no order, so that it has no place in a "
                    "mean: give it a veto instead, or `ordered=True`."
                )
        if self.passes is not None and not (_is_number(self.passes) and 0 <= self.passes <= 1):
            raise InvalidInputError(f"passes: {self.passes!r} is not a number from 0 to 1.")
        ordered = [name for name, scale in scales.items() if _is_ordered(scale)]
        weights = {name: float(self.weights.get(name, 1.0)) for name in ordered}
        if not any(weights.values()) and not self.vetoes:
            raise InvalidInputError(
                "aggregate: no criterion of this panel has a weight: scales without an order can "
                "only veto."
            )
        rules = {
            name: PassRule.of(scales[name], rule, f"vetoes: {name!r}")
            for name, rule in self.vetoes.items()
        }
        return partial(self._score, scales, weights, rules)

    def _score(
        self,
        scales: Mapping[str, Scale],
        weights: Mapping[str, float],
        rules: Mapping[str, PassRule],
        values: Mapping[str, Value],
    ) -> AggregateResult:
        parts = {name: _place(scales[name], values[name]) for name in weights if name in values}
        # Divided by the largest, so that no sum overflows.
        largest = max((weights[name] for name in parts), default=0.0) or 1.0
        shares = [weights[name] / largest for name in parts]
        score = fmean(parts.values(), shares) if any(shares) else None
        missing = [name for name in scales if name not in values]
        vetoed = [name for name in rules if name in values and not rules[name].passes(values[name])]
        passed = None
        if self.passes is not None or rules:
            passed = not vetoed and rules.keys().isdisjoint(missing)
        if passed and self.passes is not None:
            passed = score is not None and score >= self.passes * (1 - 1e-9)  # but for rounding
        return AggregateResult(
            score=score, passed=passed, parts=parts, vetoed_by=vetoed, missing=missing
        )


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_ordered(scale: Scale) -> bool:
    return isinstance(scale, Boolean | Numeric) or bool(getattr(scale, "ordered", False))


def _place(scale: Scale, value: Any) -> float:
    """Tell where a value lies on its scale, from 0 to 1."""
    if isinstance(scale, Numeric):
        return float((value - scale.minimum) / (scale.maximum - scale.minimum))
    if isinstance(scale, Categorical):
        return scale.choices.index(value) / (len(scale.choices) - 1)
    return float(value)
