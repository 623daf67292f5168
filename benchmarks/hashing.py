"""Deterministic embeddings: texts that share words lie near each other."""

import re
from collections import Counter
from functools import lru_cache
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

DIMENSION = 512
"""The vectors' length where a request asks for none; the peer's default."""

_LONG_WORD = 6
"""Longer words weigh no more than this; short ones are mostly filler."""

_WORD = re.compile(r"\w+")


def embed(text: str, dimension: int = DIMENSION) -> NDArray[np.float32]:
    """Embed a text as the weighted sum of its words' vectors.

    Args:
        text: The text.
        dimension: The vector's length.

    Returns:
        A vector of length 1.
    """
    counts = Counter(_WORD.findall(text.lower())) or Counter([""])
    rows = np.stack([_word_vector(word, dimension) for word in counts])
    vector: NDArray[np.float32] = np.asarray(list(counts.values()), dtype=np.float32) @ rows
    length = float(np.linalg.norm(vector))
    return vector / np.float32(length or 1.0)


@lru_cache(maxsize=100_000)
def _word_vector(word: str, dimension: int) -> NDArray[np.float32]:
    """Draw a word's direction; the same word has the same one in every process."""
    seed = int.from_bytes(blake2b(word.encode(), digest_size=8).digest())
    drawn = np.random.default_rng(seed).standard_normal(dimension, dtype=np.float32)
    return drawn * np.float32(max(1, min(len(word), _LONG_WORD)))
