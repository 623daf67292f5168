"""Deterministic embeddings: hashed bags of words, so that similar texts lie near."""

import math
import re
from array import array
from collections import Counter
from functools import lru_cache
from hashlib import blake2b

_PLACES = 8
"""How many coordinates one word touches."""
_LONG_WORD = 6
"""Longer words weigh no more than this; short ones are mostly filler."""


@lru_cache(maxsize=1_000)
def embed(text: str, dimension: int) -> "array[float]":
    """Embed a text as a normalised float32 vector, never zero."""
    vector = [0.0] * dimension
    for feedback, count in sorted(Counter(re.findall(r"\w+", text.lower())).items()):
        weight = min(len(feedback), _LONG_WORD) * (1 + math.log(count))
        for place, sign in _places(feedback, dimension):
            vector[place] += sign * weight
    length = math.hypot(*vector)
    if not length:
        vector[0] = length = 1.0
    return array("f", [value / length for value in vector])


@lru_cache(maxsize=10_000)
def _places(word: str, dimension: int) -> tuple[tuple[int, int], ...]:
    digest = blake2b(word.encode(), digest_size=2 * _PLACES).digest()
    numbers = [int.from_bytes(digest[index : index + 2]) for index in range(0, len(digest), 2)]
    return tuple(((number >> 1) % dimension, 1 if number & 1 else -1) for number in numbers)
