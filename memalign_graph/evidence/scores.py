"""What decisions are calibrated by: a score for each, the higher the surer, or several.

There are three kinds, and a decision is compared with those of its own kind alone: they are of
different length, and say different things of the same case.
"""

from typing import Literal

from memalign_graph.evidence.estimates import Estimates, Verdicts, Votes, log_odds
from memalign_graph.evidence.nearest import Floats
from memalign_graph.scales import Numeric, Scale

Kind = Literal["stated", "weighed", "apart"]
"""What a score is made of.

- `stated`: how likely the judge itself holds its verdict.
- `weighed`: how likely the evidence holds the value, on a scale of choices.
- `apart`: how far neighbours and verdict are apart, on a numeric scale.
"""

_STRETCH = 4.0
"""Brings distances, as shares of the range, to about the size of a logit."""


def stated_scores(raw: Floats) -> Floats:
    """Score decisions by the probability that is stated for them."""
    return log_odds(raw)[:, None]


def weighed_scores(
    scale: Scale,
    numbers: Floats,
    verdicts: Verdicts,
    estimates: Estimates,
    *,
    votes: Votes,
    nearest: Floats,
) -> tuple[Kind, Floats]:
    """Score decisions by the evidence, whether or not it decides."""
    import numpy as np

    if not isinstance(scale, Numeric):
        return "weighed", stated_scores(weighed_shares(numbers, estimates))
    span = scale.maximum - scale.minimum
    off = votes.values - estimates.vote[:, None]
    spread = np.sqrt((votes.weights * off**2).sum(axis=1)) / span
    apart = np.abs(verdicts.numbers - estimates.vote) / span
    lone = np.where(np.isfinite(nearest), 1 - nearest, 1.0)
    return "apart", _STRETCH * np.stack((spread, apart, lone), axis=1)


def weighed_shares(numbers: Floats, estimates: Estimates) -> Floats:
    """Tell how likely the evidence holds values."""
    import numpy as np

    if estimates.shares is None:
        return np.full(len(numbers), np.nan)
    shares: Floats = estimates.shares[np.arange(len(numbers)), numbers.astype(np.int64)]
    return shares
