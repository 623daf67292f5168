"""What several experts on one case make together: the majority's value, and how far they agree."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import Literal, TypeVar

from pydantic import BaseModel, ConfigDict

from memalign_graph.scales import Boolean, Categorical, Numeric, Pairwise, Scale, Value
from memalign_graph.types import Episode

Level = Literal["nominal", "ordinal", "interval"]
"""What the difference of two values means.

- `nominal`: they are the same, or they are not.
- `ordinal`: one ranks higher, by as many values as were given in between.
- `interval`: they lie so far apart.
"""

T = TypeVar("T")

_PAIR = 2

_TOLERANCE = 0.1
"""How far apart two values of a continuous scale may be and still agree, of its whole range."""


class GivenValue(BaseModel):
    """One expert's value for an example."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    episode_id: str
    """The episode that holds it."""

    author: str | None
    """Who gave it, if known."""

    value: Value
    """The value."""


class Disagreement(BaseModel):
    """An example whose experts gave different values."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    example_id: str
    """The example's id."""

    given: list[GivenValue]
    """What each expert gave, oldest first."""

    majority: Value
    """What most of them gave, as `majority_value` decides."""


class Agreement(BaseModel):
    """How far the experts of a memory agree."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    alpha: float | None
    """Krippendorff's alpha: 1 is full agreement, 0 what chance would give, below 0 less than that.
    None where no example has two experts' values, or all values given to such examples are the
    same: `examples` tells the two apart."""

    level: Level
    """How the scale's values differ."""

    examples: int
    """How many examples have values of two or more experts."""

    disagreements: list[Disagreement]
    """Those of them whose experts differ, the ones first spoken of longest ago first."""


def majority_value(episodes: Sequence[Episode]) -> Value | None:
    """Find the value that most experts gave."""
    return majority((one.given_at, one.id, one.value) for one in episodes if one.value is not None)


def majority(given: Iterable[tuple[datetime, str, Value]]) -> Value | None:
    """Find the value given most often."""
    counts: Counter[tuple[bool, Value]] = Counter()
    newest: dict[tuple[bool, Value], tuple[datetime, str, Value]] = {}
    for one in given:
        key = _same(one[2])
        counts[key] += 1
        newest[key] = max(newest.get(key, one), one, key=lambda known: known[:2])
    if not counts:
        return None
    winner = max(counts, key=lambda key: (counts[key], newest[key][:2]))
    return newest[winner][2]


def agree(scale: Scale, got: Value, expected: Value) -> bool:
    """Tell whether a verdict agrees with an expert's value."""
    if isinstance(scale, Numeric) and not scale.integer:
        return abs(float(got) - float(expected)) <= reach(scale)
    return _same(got) == _same(expected)


def reach(scale: Numeric) -> float:
    """Return how far apart two values of a continuous scale may be and still agree."""
    # A hair more than a tenth: 0.3 - 0.2 is not 0.1 in binary.
    return _TOLERANCE * (scale.maximum - scale.minimum) * (1 + 1e-9)


def krippendorff_alpha(units: Iterable[Sequence[Value]], level: Level) -> float | None:
    """Measure how far the values given to the same cases agree, beyond what chance would give."""
    pairable = [unit for unit in units if len(unit) >= _PAIR]
    if level == "nominal":
        return _alpha([[_same(value) for value in unit] for unit in pairable], _differing)
    numbers = [[_number(value, level) for value in unit] for unit in pairable]
    if level == "ordinal":
        middles = _middles(Counter(number for unit in numbers for number in unit))
        numbers = [[middles[number] for number in unit] for unit in numbers]
    return _alpha(numbers, _squares)


def expert_agreement(episodes: Iterable[Episode], scale: Scale) -> Agreement:
    """Measure how far the experts of a memory agree, and say where they do not."""
    by_example: defaultdict[str, list[Episode]] = defaultdict(list)
    for episode in episodes:
        value = on_scale(episode.value, scale)
        if value is not None:
            by_example[episode.example_id].append(episode.model_copy(update={"value": value}))
    shared = [
        sorted(group, key=lambda one: (one.given_at, one.id))
        for group in by_example.values()
        if len(group) >= _PAIR
    ]
    shared.sort(key=lambda group: (group[0].given_at, group[0].example_id))
    values = [[one.value for one in group if one.value is not None] for group in shared]
    level = _level(scale)
    return Agreement(
        alpha=krippendorff_alpha([[_rank(one, scale) for one in unit] for unit in values], level),
        level=level,
        examples=len(shared),
        disagreements=[
            _disagreement(group)
            for group, unit in zip(shared, values, strict=True)
            if len({_same(value) for value in unit}) > 1
        ],
    )


def _same(value: Value) -> tuple[bool, Value]:
    """Return what is equal for equal values: Python takes True for 1, an expert does not."""
    return isinstance(value, bool), value


def _number(value: Value, level: Level) -> float:
    if isinstance(value, str):
        raise ValueError(f"{value!r} is no number, and {level} values are: give a choice's rank.")
    return value


def _alpha(units: list[list[T]], disagreement: Callable[[list[T]], float]) -> float | None:
    values = [value for unit in units for value in unit]
    # Sums over pairs of the same values; the factor 1/n, which both have, is left out.
    expected = disagreement(values) / (len(values) - 1) if values else 0
    if not expected:
        return None
    observed = sum(disagreement(unit) / (len(unit) - 1) for unit in units)
    return 1 - observed / expected


def _differing(values: list[tuple[bool, Value]]) -> float:
    """Count the ordered pairs of different values, without looking at each pair."""
    return len(values) ** 2 - sum(count**2 for count in Counter(values).values())


def _squares(numbers: list[float]) -> float:
    """Add up the squared differences of all ordered pairs, without looking at each pair."""
    # Differences to one of them, so that equal numbers give exactly 0.
    apart = [number - numbers[0] for number in numbers]
    mean = sum(apart) / len(apart)
    return 2 * len(apart) * sum((one - mean) ** 2 for one in apart)


def _middles(counts: Counter[float]) -> dict[float, float]:
    """Place ranks on a line, each in the middle of as many places as it was given times."""
    middles, below = {}, 0
    for rank in sorted(counts):
        middles[rank] = below + counts[rank] / 2
        below += counts[rank]
    return middles


def _level(scale: Scale) -> Level:
    match scale:
        case Numeric():
            return "interval"
        case Categorical(ordered=True):
            return "ordinal"
        case Boolean() | Categorical() | Pairwise():
            return "nominal"


def _rank(value: Value, scale: Scale) -> Value:
    if isinstance(scale, Categorical) and scale.ordered:
        return scale.choices.index(str(value))
    return value


def on_scale(value: Value | None, scale: Scale) -> Value | None:
    """Read a value that was stored under a scale which may have changed since."""
    if value is None:
        return None
    try:
        return scale.validate_value(value)
    except ValueError:
        return None


def _disagreement(group: list[Episode]) -> Disagreement:
    majority = majority_value(group)
    given = [
        GivenValue(episode_id=one.id, author=one.author, value=one.value)
        for one in group
        if one.value is not None
    ]
    return Disagreement(
        example_id=group[0].example_id,
        given=given,
        majority=given[0].value if majority is None else majority,
    )
