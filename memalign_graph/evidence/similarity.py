"""Cosine similarities that come out the same wherever vectors lie and whatever lies beside them."""

from typing import Any

from memalign_graph.memory.index.vectors import Vector

_DIGITS = 6
"""To how many digits similarities count: beyond them the order of a sum shows."""


def similarities(vectors: Any, vector: Vector) -> list[float]:
    """Compare vectors with one.

    Args:
        vectors: Normalised vectors, a row each.
        vector: A normalised vector.

    Returns:
        Their cosine similarities.
    """
    import numpy as np

    products = np.asarray(vectors, dtype=np.float64) * vector.astype(np.float64)
    found: list[float] = np.round(products.sum(axis=-1), _DIGITS).tolist()
    return found
