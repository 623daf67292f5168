"""Kernel regression over the cases in memory, with leave-one-out estimates.

Source: C. K. I. Williams and C. E. Rasmussen, Gaussian processes for regression, 1996.
"""

from typing import Any, NamedTuple

import numpy as np

from memalign_graph.memory.index import Vector

Floats = Any
"""An array: numpy's type hints lose the element type in arithmetic."""

MAX_NEIGHBORS = 50  # that vote on a case


class Neighbors(NamedTuple):
    """The cases that are most similar to one case, or to each of several."""

    rows: Floats
    similarities: Floats
    shares: Floats  # in their vote


NO_NEIGHBORS = Neighbors(np.zeros(0, int), np.zeros(0), np.zeros(0))

_RIDGES = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
_TEMPERATURES = (0.01, 0.02, 0.03, 0.05, 0.08, 0.12, 0.2, 0.4)
_MAX_SAMPLE = 200  # cases for choosing ridge and temperature
_FAR = -9.0  # below any similarity
_ROUNDING = 1e-6  # distance of equal vectors

_NEAR_DUPLICATE_SHARE = 0.1
"""Cases that are closer than this share of the median distance are near-duplicates: with sentence
embeddings rewordings are at 0.02 to 0.04 of it, and the nearest other cases at 0.15 to 0.7."""

_FAR_SHARE = 0.04
"""So are cases that are closer than this share of the distance that a tenth of all pairs exceed: if
most cases are near-duplicates, the median is between these. A few outliers change neither."""


class KernelRegression:
    """The mean of kernel ridge regression and a vote of the nearest cases.

    The kernel is the cosine of centered vectors. A group of near-duplicates is left out together.
    """

    groups: Floats
    """Each case's group of near-duplicates: the row of the group's first case."""

    neighbors: Neighbors
    """The voters on each case, nearest first. Cases of its own group, which fill up short rows,
    have no share in the vote."""

    left_out: Floats
    """Each case's targets, estimated without its group; it takes two groups."""

    def __init__(self, vectors: Floats, targets: Floats, n_expert_columns: int) -> None:
        """Fit to unit vectors and their targets: the experts' values, then the judge's.

        Leave-one-out on the experts' columns chooses the hyperparameters.
        """
        self._vectors, self._targets = vectors, targets
        similarities = vectors @ vectors.T
        self.groups = _near_duplicates(1 - similarities)
        # If all are of one group, each is compared with the others.
        alike = self.groups if self.groups.any() else np.arange(len(vectors))
        similarities[alike[:, None] == alike] = _FAR
        rows = np.argsort(-similarities, axis=1)[:, : min(MAX_NEIGHBORS, len(vectors) - 1)]
        similarities = np.take_along_axis(similarities, rows, axis=1)

        representatives = np.unique(self.groups)
        sample = representatives[:: -(-len(representatives) // _MAX_SAMPLE)]
        experts = targets[sample, :n_expert_columns]

        def vote_error(temperature: float) -> float:
            shares = _softmax(similarities[sample], temperature)
            votes = np.einsum("ij,ijk->ik", shares, targets[rows[sample], :n_expert_columns])
            return float((np.abs(votes - experts) ** min(n_expert_columns, 2)).mean())

        self.temperature = min(_TEMPERATURES, key=vote_error)
        shares = _softmax(similarities, self.temperature)
        self.neighbors = Neighbors(rows, similarities, shares)

        self._center = vectors.mean(axis=0)
        self._centered = _unit(vectors - self._center)

        def ridge_error(ridge: float) -> float:
            # Around the mean of all cases: this favors smoothing, which few labels need.
            inverse = _inverse(self._centered[sample], ridge)
            residuals = inverse @ (experts - experts.mean(axis=0)) / np.diag(inverse)[:, None]
            return float((residuals**2).mean())

        self.ridge = min(_RIDGES, key=ridge_error)
        inverse = _inverse(self._centered, self.ridge)
        self._mean = targets.mean(axis=0)
        self._coefficients = inverse @ (targets - self._mean)
        votes = np.einsum("ij,ijk->ik", shares, targets[rows])
        self.left_out = (_without_group(inverse, targets, self.groups) + votes) / 2

    def nearest(self, vector: Vector) -> Neighbors:
        """Return the cases that are most similar to a new one."""
        similarities = self._vectors @ vector
        # Further digits depend on the order of summation.
        rows = np.argsort(-np.round(similarities, 6), kind="stable")[:MAX_NEIGHBORS]
        [shares] = _softmax(similarities[None, rows], self.temperature)
        return Neighbors(rows, similarities[rows], shares)

    def estimate(self, vector: Vector, neighbors: Neighbors) -> tuple[Floats, Floats]:
        """Estimate a new case; also return its neighbors' vote."""
        vote = neighbors.shares @ self._targets[neighbors.rows]
        [centered] = _unit((vector - self._center)[None])
        smooth = self._mean + (self._centered @ centered) @ self._coefficients
        return (smooth + vote) / 2, vote


def _near_duplicates(distances: Floats) -> Floats:
    """Return each case's group: cases in order, each with all later ones that are near it."""
    count = len(distances)
    groups = np.full(count, -1)
    pairs = distances[np.triu_indices(count, 1)] if count > 1 else distances
    median, far = np.quantile(pairs, (0.5, 0.9))
    reach = max(_NEAR_DUPLICATE_SHARE * median, _FAR_SHARE * far, _ROUNDING)
    for row in range(count):
        if groups[row] < 0:
            groups[(groups < 0) & (distances[row] <= reach)] = row
            groups[row] = row
    return groups


def _inverse(centered: Floats, ridge: float) -> Floats:
    """Invert the kernel matrix with the ridge on its diagonal."""
    centered = centered.astype(np.float64)
    return np.linalg.inv(centered @ centered.T + ridge * np.eye(len(centered)))


def _without_group(inverse: Floats, targets: Floats, groups: Floats) -> Floats:
    """Estimate each row by ridge regression without its group, in closed form.

    The regression is around the mean of the other rows, which leaves out the row's own target.
    """
    columns = np.hstack((targets, np.ones((len(targets), 1))))
    solved = inverse @ columns
    residuals = solved / np.diag(inverse)[:, None]
    for group, size in zip(*np.unique(groups, return_counts=True), strict=True):
        if size > 1:
            rows = np.flatnonzero(groups == group)
            residuals[rows] = np.linalg.solve(inverse[np.ix_(rows, rows)], solved[rows])
    sums = np.zeros_like(columns)
    np.add.at(sums, groups, columns)
    others = columns.sum(axis=0) - sums[groups]
    means = others[:, :-1] / np.maximum(others[:, -1:], 1)
    return targets - residuals[:, :-1] + means * residuals[:, -1:]


def _unit(rows: Floats) -> Floats:
    return rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-9)


def _softmax(similarities: Floats, temperature: float) -> Floats:
    """Return the shares of voters, by their similarity."""
    top = similarities.max(axis=1, keepdims=True, initial=_FAR)
    weights = np.exp((similarities - top) / temperature)
    return weights / weights.sum(axis=1, keepdims=True)
