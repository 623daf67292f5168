"""Which cases to label, so that least doubt is left about all of them: numbers only.

What an expert would say of a case, less what is expected, is taken for a random number. Before
anything is labelled its variance is the doubt about the case, and two cases go together as far as
they are similar. A label then takes doubt from its own case and from all that are like it, and the
case is picked whose label takes most from all cases together: in the midst of many others, unlike
what is labelled, and one that is doubtful.

Sources: D. Cohn, Z. Ghahramani and M. Jordan, Active learning with statistical models, 1996 (the
aim: the least expected variance over all cases); K. Yu, J. Bi and V. Tresp, Active learning via
transductive experimental design, 2006 (greedily, with a Gaussian process).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from memalign_graph.evidence.cases import Floats

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Singles = NDArray[np.float32]
    Numbers = NDArray[np.int64]
else:
    Singles = Any
    Numbers = Any

_NOISE = 0.15
"""How much of the doubt about a usual case its own label leaves, as a share of how far the cases
are apart: embedders differ in their similarities. Chosen on labelled rows; between 0.1 and 0.3 it
matters little."""

_LEAST_NOISE = 1e-6
"""The same where all cases are one."""

_FLOOR = 0.1
"""What is added to each uncertainty: a judge that is sure may be wrong."""

_TIE = 1e-9
"""Gains whose ratio is nearer to 1 than this are equal: the first case goes first."""

_BLOCK = 4_000_000
"""How many numbers a block of similarities, or of products, has."""


@dataclass(frozen=True)
class Pick:
    """A case picked."""

    row: int
    """Its row in the backlog."""

    gain: float
    """The share of all doubt that its label takes away."""

    spread: float
    """1 less the cosine similarity to the nearest picked before it; 1 for the first."""


def pick(backlog: Singles, uncertainties: Floats, known: Singles, n: int) -> list[Pick]:
    """Pick cases to label, one after the other, each as if those before it were labelled.

    With d dimensions a pick costs the backlog's size times d, besides d squared; no similarities of
    all pairs are made.

    Args:
        backlog: The cases' normalised vectors, a row a case.
        uncertainties: How unsure each one's value is, from 0 to 1.
        known: The normalised vectors of the cases that are labelled already.
        n: How many to pick.

    Returns:
        Up to n cases, the one that brings most first.
    """
    import numpy as np

    if not len(backlog) or n < 1:
        return []
    doubts = _FLOOR + uncertainties
    # Only their ratios count: how much a label takes from a case is told by the noise.
    scaled = backlog * np.sqrt(doubts / doubts.mean())[:, None]
    noise = _noise(backlog, known)
    inverse = _inverse(known, noise)
    everything = scaled.T @ scaled
    removed, left = _initial(scaled, inverse, everything)
    total = left.sum()
    free = np.ones(len(backlog), dtype=bool)
    nearest = np.full(len(backlog), -np.inf)
    picks: list[Pick] = []
    for _ in range(min(n, len(backlog))):
        gains = np.where(free, np.maximum(removed, 0) / (noise + left), -1)
        at = int(np.argmax(gains >= gains.max() * (1 - _TIE)))
        spread = 1.0 if not picks else 1 - float(nearest[at])
        picks.append(Pick(at, _share(gains[at] / total), _share(spread)))
        free[at] = False
        nearest = np.maximum(nearest, backlog @ backlog[at])
        # The label's rank-one change of the covariance, and of what is computed from it.
        step = inverse @ scaled[at] / np.sqrt(noise + left[at])
        along = scaled @ step
        seen = everything @ step
        removed += along * (along * (step @ seen) - 2 * (scaled @ (inverse @ seen)))
        left = np.maximum(left - along**2, 0)
        inverse -= np.outer(step, step)
    return picks


def nearest_known(backlog: Singles, known: Singles, k: int) -> tuple[Floats, Numbers]:
    """Find the known cases nearest to each case of a backlog.

    Args:
        backlog: The cases' normalised vectors, a row a case.
        known: Those of the known cases, at least one.
        k: How many to find.

    Returns:
        Cosine similarities, and the rows of the known cases, most similar first: a row a case, of
        k columns or of as many as there are known cases.
    """
    import numpy as np

    k = min(k, len(known))
    step = max(1, _BLOCK // len(known))
    similarities = np.empty((len(backlog), k))
    rows = np.empty((len(backlog), k), dtype=np.int64)
    for start in range(0, len(backlog), step):
        block = (backlog[start : start + step] @ known.T).astype(float).round(6)
        near = np.argpartition(-block, k - 1, axis=1)[:, :k]
        near.sort(axis=1)
        found = np.take_along_axis(block, near, axis=1)
        order = np.argsort(-found, axis=1, kind="stable")
        similarities[start : start + step] = np.take_along_axis(found, order, axis=1)
        rows[start : start + step] = np.take_along_axis(near, order, axis=1)
    return similarities, rows


def share_doubts(similarities: Floats, shares: Floats) -> Floats:
    """Measure how far the most similar cases differ in their values, on a finite scale.

    Args:
        similarities: Of the nearest known cases: a row a case, most similar first.
        shares: How many of the experts on each of them gave each value: by case, neighbour, value.

    Returns:
        For each case the entropy of the similarity-weighted vote, from 0 to 1. One more neighbour
        votes for all values alike, so that few and distant ones are no certainty.
    """
    import numpy as np

    weights = np.maximum(similarities, 0)
    values = shares.shape[-1]
    votes = np.einsum("ij,ijk->ik", weights, shares) + 1 / values
    votes /= votes.sum(axis=1, keepdims=True)
    logs = np.log(np.where(votes > 0, votes, 1))
    entropies: Floats = -(votes * logs).sum(axis=1) / np.log(values)
    return np.clip(entropies, 0, 1)


def number_doubts(similarities: Floats, means: Floats, squares: Floats) -> Floats:
    """Measure how far the most similar cases differ in their values, on a scale of numbers.

    Args:
        similarities: Of the nearest known cases: a row a case, most similar first.
        means: The mean of the experts' values on each of them, in the unit of the scale's range.
        squares: The mean of their squares.

    Returns:
        For each case the similarity-weighted standard deviation, from 0 to 1, which stands for that
        of any number on the scale or more. One more neighbour deviates like any number, so that
        few and distant ones are no certainty.
    """
    import numpy as np

    weights = np.maximum(similarities, 0)
    total = weights.sum(axis=1)
    inside = np.where(total > 0, total, 1)
    mean = (weights * means).sum(axis=1) / inside
    square = (weights * squares).sum(axis=1) / inside
    uniform = 1 / 12
    variances = total * np.maximum(square - mean**2, 0) + uniform
    deviations: Floats = np.sqrt(variances / (total + 1) / uniform)
    return np.clip(deviations, 0, 1)


def _noise(backlog: Singles, known: Singles) -> float:
    """Return the variance of an expert's label, from how far the cases are apart on the whole."""
    import numpy as np

    count = len(backlog) + len(known)
    mean = (backlog.sum(axis=0, dtype=float) + known.sum(axis=0, dtype=float)) / count
    return max(_NOISE * (1 - float(np.dot(mean, mean))), _LEAST_NOISE)


def _inverse(known: Singles, noise: float) -> Floats:
    """Return the covariance of what is still to learn, by dimension, after the known labels."""
    import numpy as np

    dimension = known.shape[1]
    precision = np.eye(dimension)
    for rows in _blocks(known):
        precision += rows.T @ rows / noise
    inverse: Floats = np.linalg.inv(precision).astype(np.float64)
    return inverse


def _initial(scaled: Floats, inverse: Floats, everything: Floats) -> tuple[Floats, Floats]:
    """Return for each case what its label bears on in all others, and how unsure it is itself."""
    import numpy as np

    removed, left = [], []
    for rows in _blocks(scaled):
        known = rows @ inverse
        removed.append(((known @ everything) * known).sum(axis=1))
        left.append((known * rows).sum(axis=1))
    return np.concatenate(removed), np.concatenate(left)


def _blocks(rows: Singles | Floats) -> Iterator[Floats]:
    """Return the rows some at a time, in double precision."""
    step = max(1, _BLOCK // rows.shape[1])
    return (rows[at : at + step].astype(float) for at in range(0, len(rows), step))


def _share(number: float) -> float:
    return min(max(float(number), 0.0), 1.0)
