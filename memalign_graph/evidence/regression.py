"""Kernel regression in closed form, beside a vote of the nearest: arrays in, arrays out.

Cases are alike by their texts, and by what else is known of them where that helps: the kernel is a
weighted sum of both, their columns side by side.

Sources: C. K. I. Williams and C. E. Rasmussen, Gaussian processes for regression, 1996;
M. Gönen and E. Alpaydin, Multiple kernel learning algorithms, 2011.
"""

from math import sqrt
from operator import itemgetter
from typing import Any

import numpy as np

from memalign_graph.memory.index.vectors import Vector

Floats = Any
"""An array: numpy's types say little of what arithmetic makes of them."""

MAX_NEIGHBORS = 50  # of the cases most similar to a new one, of all that memory has, tell of it

_SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)  # of what else is known, beside texts
_RIDGES = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
_TEMPERATURES = (0.01, 0.02, 0.03, 0.05, 0.08, 0.12, 0.2, 0.4)
_TRIED = 200  # cases at most

_TWIN_SHARE = 0.1
"""Cases no farther apart than this share of the median distance are near-duplicates: with sentence
embeddings rewordings are at 0.02 to 0.04 of it, the nearest other cases at 0.15 to 0.7."""


class KernelRegression:
    """Weighs cases by likeness: the mean of kernel regression and of a vote of the nearest."""

    def __init__(
        self,
        vectors: Floats,
        targets: Floats,
        width: int,
        features: Floats | None = None,
        *,
        like: "KernelRegression | None" = None,
    ) -> None:
        """Fit to targets; how closely is chosen by leaving one out of so many first columns.

        Near-duplicates are a group: left out together, and with one voice in that choice.
        Features are what else is known of each case, standardised. Fitted to many cases it may be
        `like` another one, as closely: one case more would change that by chance alone.
        """
        like = like if len(targets) > _TRIED else None
        self._targets, self._mean = targets, targets.mean(axis=0)
        self._least, self._most = targets.min(axis=0), targets.max(axis=0)
        self._centre = vectors.mean(axis=0)
        known = _unit(vectors - self._centre)
        distances, last = -(vectors @ vectors.T), min(MAX_NEIGHBORS, len(vectors) - 1)
        self.groups = _groups(distances + 1)
        """The number of the group of near-duplicates that each case is in."""
        np.fill_diagonal(distances, _FAR)
        self.closest = -distances.min(axis=1)
        """How similar the nearest other case is to each, near-duplicates too."""
        distances[self.groups[:, None] == self.groups] = _FAR
        near = np.argpartition(distances, last, axis=1)[:, :last]
        order = np.argsort(np.take_along_axis(distances, near, axis=1), axis=1)
        self.nearest = np.take_along_axis(near, order, axis=1)
        """Who votes on each case: the others that are most similar, the nearest first. Those of its
        own group, where too few others are there, have no share in the vote."""
        self.similarities = -np.take_along_axis(distances, self.nearest, axis=1)
        first, experts = np.unique(self.groups, return_index=True)[1], targets[:, :width]
        some = np.sort(first)[:: -(-len(first) // _TRIED)]
        power = 1 if width == 1 else 2

        def error(temperature: float) -> float:
            votes = _weighted_targets(
                softmax_weights(self.similarities[some], temperature), experts[self.nearest[some]]
            )
            return float((np.abs(votes - experts[some]) ** power).mean())

        self.temperature: float = like.temperature if like else min(_TEMPERATURES, key=error)
        has_features = features is not None

        def fit(share: float) -> tuple[float, float, float]:
            rows = _concatenate(known, features, share)[some]
            return *_best_ridge(rows, experts[some], compares=has_features), share

        shares = _SHARES if has_features else _SHARES[:1]
        best = (0.0, like.ridge, like.share) if like else min(map(fit, shares), key=itemgetter(0))
        self.ridge: float = best[1]
        self.share: float = best[2]
        self._known = known = _concatenate(known, features, self.share)
        self.shares = softmax_weights(self.similarities, self.temperature)
        """Their shares in the vote."""
        # By the smaller of both products: what is solved is the same.
        is_wide = len(known) <= known.shape[1]
        product = (known @ known.T if is_wide else known.T @ known).astype(np.float64)
        product[np.diag_indices_from(product)] += self.ridge
        inverse = np.linalg.inv(product).astype(np.float32)
        self._solved = inverse @ known if is_wide else known @ inverse

    def left_out(self) -> Floats:
        """Estimate each case without its group, in closed form; it takes two groups."""
        # Around the mean of the others: around that of all, they would tell of it.
        targets, groups = self._targets, self.groups
        both = np.hstack((targets, np.ones((len(targets), 1))))
        sums = np.zeros((len(targets), both.shape[1]))
        np.add.at(sums, groups, both)
        others = both.sum(axis=0) - sums[groups]
        means = others[:, :-1] / others[:, -1:]
        off = both - self._solved @ (self._known.T @ both.astype(np.float32))
        leverage = (self._solved * self._known).sum(axis=1)
        is_alone = sums[groups, -1] == 1
        off[is_alone] /= (1 - leverage[is_alone])[:, None]
        for group in np.unique(groups[~is_alone]):
            rows = groups == group
            within = np.eye(rows.sum()) - self._solved[rows] @ self._known[rows].T
            off[rows] = np.linalg.solve(within, off[rows])
        votes = _weighted_targets(self.shares, targets[self.nearest])
        return (targets - off[:, :-1] + means * off[:, -1:] + votes) / 2

    def estimate(self, vector: Vector, vote: Floats, features: Floats | None = None) -> Floats:
        """Estimate a new case, with the vote of those that are most similar to it."""
        known = _unit((vector - self._centre)[None])
        [new] = _concatenate(known, None if features is None else features[None], self.share)
        smooth = self._mean + (self._solved @ new) @ (self._targets - self._mean)
        return (np.clip(smooth, self._least, self._most) + vote) / 2


_FAR = 9.0  # as a distance: no case is so far from another


def _groups(distances: Floats) -> Floats:
    """Number the near-duplicates: those that are as near to the first of them, in order."""
    count = len(distances)
    step = -(-count // _TRIED)
    some = distances[::step, ::step][np.triu_indices(-(-count // step), 1)]
    reach = _TWIN_SHARE * float(np.median(some)) if len(some) else 0.0
    groups = np.full(count, -1)
    for row in range(count):
        if groups[row] < 0:
            groups[(groups < 0) & (distances[row] <= reach)] = row
            groups[row] = row
    return groups if (groups != 0).any() else np.arange(count)


def _unit(rows: Floats) -> Floats:
    return rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-9)


def _concatenate(known: Floats, features: Floats | None, share: float) -> Floats:
    """Set columns side by side, so that their products add up in these shares."""
    if features is None or not share:
        return known
    besides = sqrt(share / features.shape[1]) * features
    return np.hstack((sqrt(1 - share) * known, besides))


def softmax_weights(similarities: Floats, temperature: float) -> Floats:
    """Share a vote out by similarity."""
    top = similarities.max(axis=1, keepdims=True, initial=-9.0)
    weights = np.exp((similarities - top) / temperature)
    return weights / weights.sum(axis=1, keepdims=True)


def _weighted_targets(shares: Floats, targets: Floats) -> Floats:
    return np.einsum("ij,ijk->ik", shares, targets)


def _best_ridge(known: Floats, targets: Floats, *, compares: bool) -> tuple[float, float]:
    """Choose by what regression without each case is off, in closed form; tells it first."""
    values, sides = np.linalg.eigh((known @ known.T).astype(np.float64))
    moves = targets - targets.mean(axis=0)
    turned, squares = sides.T @ moves, sides**2

    def error(ridge: float) -> float:
        shrunk = (1 / (values + ridge))[:, None]
        off = sides @ (shrunk * turned)
        if compares:
            # Around the mean of the others: that of all tells of the case, more so by many columns.
            level = sides @ (shrunk * sides.sum(axis=0)[:, None])
            off = off + level * moves / max(len(moves) - 1, 1)
        return float(((off / (squares @ shrunk)) ** 2).mean())

    return min(((error(ridge), ridge) for ridge in _RIDGES), key=itemgetter(0))
