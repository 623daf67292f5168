"""Several experts on one example: the consensus value, and how far the experts agree."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from statistics import median, median_low
from typing import Any, Literal

from memalign_graph.scales import Categorical, Numeric, Scale, Value
from memalign_graph.types import Episode, FrozenModel

Level = Literal["nominal", "ordinal", "interval"]


class RaterValue(FrozenModel):
    """One expert's value for an example."""

    episode_id: str
    author: str | None
    value: Value


class Disagreement(FrozenModel):
    """An example whose experts gave different values, oldest first."""

    example_id: str
    given: list[RaterValue]
    majority: Value
    """The consensus value: the majority, or the median on an ordered scale."""


class Agreement(FrozenModel):
    """How far the experts of a memory agree."""

    alpha: float | None
    """Krippendorff's alpha: 1 is full agreement, 0 is chance, below 0 is worse than chance. None if
    no example has values of two experts (`examples` is 0), or all these values are the same."""
    level: Level
    examples: int  # with values of two or more experts
    disagreements: list[Disagreement]  # the examples whose experts differ, oldest first


def consensus_value(episodes: Iterable[Episode], scale: Scale) -> Value | None:
    """Return the consensus of the experts' values on one example; None if there are none."""
    values = [value for _, value in _valued(episodes, scale)]
    return consensus(values, scale) if values else None


def _valued(episodes: Iterable[Episode], scale: Scale) -> Iterator[tuple[Episode, Value]]:
    """Yield the episodes with a value on the scale, oldest first."""
    for episode in sorted(episodes, key=lambda episode: (episode.given_at, episode.id)):
        if (value := value_or_none(episode.value, scale)) is not None:
            yield episode, value


def consensus(values: Sequence[Value], scale: Scale) -> Value:
    """Return the (lower) median on an ordered scale, otherwise the latest most frequent value."""
    if isinstance(scale, Numeric):
        return scale.validate_value((median_low if scale.integer else median)(map(float, values)))
    if isinstance(scale, Categorical) and scale.ordered:
        return scale.choices[median_low(scale.choices.index(str(value)) for value in values)]
    counts = Counter(values)
    return max(enumerate(values), key=lambda vote: (counts[vote[1]], vote[0]))[1]


def values_agree(scale: Scale, got: Value, expected: Value) -> bool:
    if isinstance(scale, Numeric) and not scale.integer:
        return abs(float(got) - float(expected)) <= agreement_tolerance(scale)
    return _equality_key(got) == _equality_key(expected)


def is_ordered(scale: Scale) -> bool:
    """Return whether some mistakes are smaller than others."""
    return isinstance(scale, Numeric) or (isinstance(scale, Categorical) and scale.ordered)


def agreement_tolerance(scale: Numeric) -> float:
    """Return the largest difference at which two values of a continuous scale agree."""
    # Slightly more than a tenth, as 0.3 - 0.2 is not 0.1 in binary.
    return 0.1 * (scale.maximum - scale.minimum) * (1 + 1e-9)


def krippendorff_alpha(units: Iterable[Sequence[Value]], level: Level) -> float | None:
    """Measure the agreement of raters on the same units, corrected for chance."""
    import numpy as np

    pairable = [unit for unit in units if len(unit) > 1]
    values = [value for unit in pairable for value in unit]
    if not values:
        return None
    # Points whose squared distances are proportional to the metric of the level.
    if level == "nominal":
        codes = {kind: code for code, kind in enumerate(dict.fromkeys(map(_equality_key, values)))}
        points = np.eye(len(codes))[[codes[_equality_key(value)] for value in values]]
    else:
        points = np.array(values, float)[:, None]
        if level == "ordinal":
            ranked = np.sort(points[:, 0])
            middles = np.searchsorted(ranked, points) + np.searchsorted(ranked, points, "right")
            points = middles.astype(float)

    def disagreement(points: Any) -> float:
        # Relative to one point, so that equal values give exactly 0.
        return float(len(points) * (points - points[0]).var(axis=0, ddof=1).sum())

    expected = disagreement(points)
    ends = np.cumsum([len(unit) for unit in pairable])[:-1]
    observed = sum(disagreement(unit) for unit in np.split(points, ends))
    return 1 - observed / expected if expected else None


def expert_agreement(episodes: Iterable[Episode], scale: Scale) -> Agreement:
    by_example: defaultdict[str, list[tuple[Episode, Value]]] = defaultdict(list)
    for episode, value in _valued(episodes, scale):
        by_example[episode.example_id].append((episode, value))
    units = [[value for _, value in rated] for rated in by_example.values() if len(rated) > 1]
    level: Level = "nominal"
    if isinstance(scale, Numeric):
        level = "interval"
    elif isinstance(scale, Categorical) and scale.ordered:
        level = "ordinal"
        units = [[scale.choices.index(str(value)) for value in unit] for unit in units]
    return Agreement(
        alpha=krippendorff_alpha(units, level),
        level=level,
        examples=len(units),
        disagreements=[
            Disagreement(
                example_id=example_id,
                given=[
                    RaterValue(episode_id=episode.id, author=episode.author, value=value)
                    for episode, value in rated
                ],
                majority=consensus([value for _, value in rated], scale),
            )
            for example_id, rated in by_example.items()
            if len({_equality_key(value) for _, value in rated}) > 1
        ],
    )


def _equality_key(value: Value) -> tuple[bool, Value]:
    """Return a key that tells True from 1, which are equal in Python."""
    return isinstance(value, bool), value


def value_or_none(value: Value | None, scale: Scale) -> Value | None:
    """Return a stored value on the scale; None if it is not on it any more."""
    try:
        return None if value is None else scale.validate_stored(value)
    except ValueError:
        return None
