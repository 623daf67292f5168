"""Embeddings, in both encodings."""

import openai
import pytest

from tests.loopback import (
    LoopbackServer,
    error,
)


@pytest.mark.parametrize("encoding", ["base64", "float"])
async def test_embeddings(server: LoopbackServer, encoding: str) -> None:
    # The openai client asks for base64 by itself, and decodes it only then.
    asked = {} if encoding == "base64" else {"encoding_format": encoding}
    embedder = server.embedder(model_kwargs=asked)
    texts = [
        "The refund was late, and the reply is cold.",
        "The reply is cold, and the refund came late.",
        "Penguins breed on Antarctic sea ice.",
        "?!",
    ]
    first, second, third, fourth = vectors = embedder.embed_documents(texts)
    assert {len(vector) for vector in vectors} == {64}
    assert [dot(vector, vector) for vector in vectors] == pytest.approx([1, 1, 1, 1], abs=1e-6)
    assert dot(first, second) > 0.8
    assert abs(dot(first, third)) < 0.5
    assert await embedder.aembed_query(texts[0]) == first
    assert fourth != third
    assert server.embeddings[0].texts == texts
    assert server.embeddings[1].texts == [texts[0]]
    assert server.embeddings[0].body["encoding_format"] == encoding


def test_embeddings_are_the_same_in_both_encodings_and_in_size_as_asked(
    server: LoopbackServer,
) -> None:
    numbers = server.embedder(dimensions=16, model_kwargs={"encoding_format": "float"})
    packed = server.embedder(dimensions=16)
    assert numbers.embed_query("A cold reply.") == packed.embed_query("A cold reply.")
    assert len(packed.embed_query("A cold reply.")) == 16


def test_embedding_faults(server: LoopbackServer) -> None:
    server.script_embeddings(error(503, "Busy.", retry_after=0), None, error(401, "Bad key."))
    embedder = server.embedder()
    assert embedder.embed_query("A cold reply.")
    with pytest.raises(openai.BadRequestError, match="may not be an empty string"):
        embedder.embed_query("")
    with pytest.raises(openai.BadRequestError, match="token ids"):
        embedder.client.create(input=[[1, 2, 3]], model="m")
    assert len(server.embeddings) == 4
    assert server.embeddings[3].texts == []


def dot(one: list[float], other: list[float]) -> float:
    return sum(a * b for a, b in zip(one, other, strict=True))
