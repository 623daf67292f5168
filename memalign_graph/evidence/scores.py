"""What decisions are calibrated by: a score for each, the higher the surer, or several.

There are three kinds, and a decision is compared with those of its own kind alone: they are of
different length, and say different things of the same case.
"""

from collections.abc import Sequence
from typing import Literal

from memalign_graph.evidence.cases import Floats
from memalign_graph.evidence.estimates import Estimates, Verdicts, Votes, log_odds, number_of
from memalign_graph.scales import Numeric, Scale, Value

Kind = Literal["stated", "weighed", "apart"]
"""What a score is made of.

- `stated`: how likely the judge itself holds its verdict.
- `weighed`: how likely the evidence holds the value, on a scale of choices.
- `apart`: how far neighbours and verdict are apart, on a numeric scale.
"""

_STRETCH = 4.0
"""Brings distances, as shares of the range, to about the size of a logit."""


def stated_scores(raw: Sequence[float]) -> Floats:
    """Score decisions by the probability that is stated for them.

    Args:
        raw: The probabilities.

    Returns:
        Their logits, a row each.
    """
    import numpy as np

    return log_odds(np.asarray(raw, dtype=float))[:, None]


def weighed_scores(
    scale: Scale,
    values: list[Value],
    verdicts: Verdicts,
    estimates: Estimates,
    *,
    votes: Votes,
    nearest: Floats,
) -> tuple[Kind, Floats]:
    """Score decisions by the evidence, whether or not it decides.

    Args:
        scale: The criterion's scale.
        values: What was decided.
        verdicts: What the judge says.
        estimates: What the evidence says.
        votes: The neighbours.
        nearest: The similarity of the nearest one to each case; -inf where there is none.

    Returns:
        The kind and the scores. Of choices, the logit of the value's share. Of numbers, how far
        the neighbours are apart, how far judge and vote are, and how far the nearest neighbour is.
    """
    import numpy as np

    if not isinstance(scale, Numeric):
        return "weighed", stated_scores(_shares(scale, values, estimates))
    span = scale.maximum - scale.minimum
    off = votes.values - estimates.vote[:, None]
    spread = np.sqrt((votes.weights * off**2).sum(axis=1)) / span
    apart = np.abs(verdicts.numbers - estimates.vote) / span
    lone = np.where(np.isfinite(nearest), 1 - nearest, 1.0)
    return "apart", _STRETCH * np.stack((spread, apart, lone), axis=1)


def weighed_share(scale: Scale, value: Value, estimates: Estimates) -> float | None:
    """Tell how likely the evidence holds a value.

    Args:
        scale: The criterion's scale.
        value: The value.
        estimates: What the evidence says, of one case.

    Returns:
        The probability; None on a numeric scale.
    """
    if estimates.shares is None:
        return None
    [share] = _shares(scale, [value], estimates)
    return share


def _shares(scale: Scale, values: list[Value], estimates: Estimates) -> list[float]:
    import numpy as np

    number = number_of(scale)
    places = np.array([int(number(one)) for one in values], dtype=np.int64)
    shares: Floats = np.asarray(estimates.shares)[np.arange(len(values)), places]
    numbers: list[float] = shares.tolist()
    return numbers
