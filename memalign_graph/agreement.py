"""What several experts on one case make together: the value that counts, and how far they agree."""

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
    """What counts, as `majority_value` decides."""


class Agreement(FrozenModel):
    """How far the experts of a memory agree."""

    alpha: float | None
    """Krippendorff's alpha: 1 is full agreement, 0 what chance would give, below 0 less than that;
    None where no example has two experts' values, or all values given to such examples are the
    same: `examples` tells the two apart."""
    level: Level
    examples: int  # how many have values of two or more experts
    disagreements: list[Disagreement]  # those of them whose experts differ, oldest first


def consensus_value(episodes: Iterable[Episode], scale: Scale) -> Value | None:
    """Find the value that counts of those that experts gave on one case."""
    values = [value for _, value in _valued(episodes, scale)]
    return consensus(values, scale) if values else None


def _valued(episodes: Iterable[Episode], scale: Scale) -> Iterator[tuple[Episode, Value]]:
    """Give the episodes that have a value on the scale, oldest first."""
    for episode in sorted(episodes, key=lambda episode: (episode.given_at, episode.id)):
        if (value := value_or_none(episode.value, scale)) is not None:
            yield episode, value


def consensus(values: Sequence[Value], scale: Scale) -> Value:
    """Find the (lower) median of values in an order, else the last of the most frequent ones."""
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


def agreement_tolerance(scale: Numeric) -> float:
    """Return how far apart two values of a continuous scale may be and still agree."""
    # A hair more than a tenth: 0.3 - 0.2 is not 0.1 in binary.
    return 0.1 * (scale.maximum - scale.minimum) * (1 + 1e-9)


def krippendorff_alpha(units: Iterable[Sequence[Value]], level: Level) -> float | None:
    """Measure how far the values given to the same cases agree, beyond what chance would give."""
    import numpy as np

    pairable = [unit for unit in units if len(unit) > 1]
    values = [value for unit in pairable for value in unit]
    if not values:
        return None
    # Points whose squared distances are how far values differ, but for a factor.
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
        # Differences to one of them, so that equal values give exactly 0.
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
    """Return what is equal for equal values: Python takes True for 1, an expert does not."""
    return isinstance(value, bool), value


def value_or_none(value: Value | None, scale: Scale) -> Value | None:
    """Read a value that was stored under a scale which may have changed since."""
    try:
        return None if value is None else scale.validate_value(value)
    except ValueError:
        return None
