"""Vectors of many kinds, and what a search among them has to find."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from memalign_graph.memory.index.vectors import (
    VectorIndex,
    normalised,
)

Matrix = NDArray[np.float32]

Vectors = dict[str, NDArray[np.float32]]


def made(count: int, dimension: int = 24, seed: int = 7) -> Vectors:
    numbers = np.random.default_rng(seed).normal(size=(count, dimension))
    rows = normalised(numbers, count, "test")
    return {f"key {number}": row for number, row in enumerate(rows)}


def brute_force(vectors: Vectors, query: NDArray[np.float32], k: int) -> list[str]:
    return sorted(vectors, key=lambda key: -float(vectors[key] @ query))[:k]


def keyed(matrix: Any, prefix: str = "key") -> Vectors:
    return {f"{prefix} {at}": row for at, row in enumerate(normalised(matrix, len(matrix), "test"))}


def check_search(index: VectorIndex, vectors: Vectors, query: Matrix, k: int = 5) -> None:
    """Check the similarities found, since of two that are equal either may be found."""
    found = index.search(query, k)
    every = np.stack(list(vectors.values())) @ query
    scores = np.array([score for _, score in found])
    assert np.allclose(scores, np.sort(every)[::-1][:k], rtol=0, atol=2e-6)
    assert len({key for key, _ in found}) == len(found)
    own = np.stack([vectors[key] for key, _ in found]) @ query
    assert np.allclose(scores, own, rtol=0, atol=2e-6)


def random_rows(numbers: np.random.Generator, count: int, dimension: int) -> Any:
    return numbers.normal(size=(count, dimension))


def clustered_rows(numbers: np.random.Generator, count: int, dimension: int) -> Any:
    centres = numbers.normal(size=(1 + count // 50, dimension))
    return centres[numbers.integers(0, len(centres), count)] + 0.1 * numbers.normal(
        size=(count, dimension)
    )


def nearly_equal_rows(numbers: np.random.Generator, count: int, dimension: int) -> Any:
    return numbers.normal(size=dimension) + 0.001 * numbers.normal(size=(count, dimension))


def shifted_rows(numbers: np.random.Generator, count: int, dimension: int) -> Any:
    scale = 1 / np.arange(1, dimension + 1)
    return 2 * numbers.normal(size=dimension) + scale * numbers.normal(size=(count, dimension))


def sparse_rows(numbers: np.random.Generator, count: int, dimension: int) -> Any:
    dense = numbers.normal(size=(count, dimension))
    return np.where(numbers.random((count, dimension)) < 3 / dimension, dense, 0) + 1e-6


def heavy_tailed_rows(numbers: np.random.Generator, count: int, dimension: int) -> Any:
    return numbers.standard_t(1.5, (count, dimension))


def equal_rows(numbers: np.random.Generator, count: int, dimension: int) -> Any:
    return np.ones((count, dimension))
