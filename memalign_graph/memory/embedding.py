"""Embed examples once: vectors are stored, and added to the index."""

import logging
from collections.abc import Iterable, Mapping, Sequence

from langgraph.store.base import ListNamespacesOp, MatchCondition, SearchOp

from memalign_graph.io import IO
from memalign_graph.memory.access import NO_LIMIT, MemoryAccess, chunks, read_vector
from memalign_graph.memory.index.retrieval_text import retrieval_text
from memalign_graph.memory.index.vectors import Vector, encode_vector, normalised, vector_key
from memalign_graph.memory.layout import Namespace
from memalign_graph.memory.view import MemoryView
from memalign_graph.models import embed_texts
from memalign_graph.types import Example

logger = logging.getLogger(__name__)

_EMBED_TEXTS = 256
"""Texts per embedding request."""

_EMBED_REQUESTS = 8
"""Concurrent embedding requests."""


def vector_key_of_example(access: MemoryAccess, example: Example) -> str:
    """Return the vector key of an example: the same for the same inputs and outputs."""
    return vector_key(access.embedder.id, retrieval_text(example)[0])


async def embed(io: IO, access: MemoryAccess, texts: Mapping[str, str]) -> dict[str, Vector]:
    async def one_request(keys: Sequence[str]) -> dict[str, Vector]:
        answer = await embed_texts(io, access.embedder.embeddings, [texts[key] for key in keys])
        return dict(zip(keys, normalised(answer, len(keys), access.embedder.id), strict=True))

    requests = [one_request(keys) for keys in chunks(list(texts), _EMBED_TEXTS)]
    if len(requests) == 1:
        return await requests[0]
    answers = await io.gather(requests, _EMBED_REQUESTS) if requests else []
    return {key: vector for answer in answers for key, vector in answer.items()}


async def stored_vectors(io: IO, access: MemoryAccess, keys: Iterable[str]) -> dict[str, Vector]:
    namespace = access.layout.vectors(access.embedder.id)
    return await access.get(io, namespace, keys, read_vector)


async def store_vectors(io: IO, access: MemoryAccess, vectors: Mapping[str, Vector]) -> None:
    """Store vectors, before the feedback that needs them."""
    namespace = access.layout.vectors(access.embedder.id)
    await _check_dimension(io, access, vectors)
    items = {
        key: {"key": key, "embedder": access.embedder.id, "vector": encode_vector(vector)}
        for key, vector in vectors.items()
    }
    await access.put(io, namespace, items)


async def embedder_namespaces(io: IO, access: MemoryAccess) -> dict[str, Namespace]:
    """Return the namespaces of a memory's vectors, by embedder."""
    prefix = access.layout.of("vectors")
    search = ListNamespacesOp(match_conditions=(MatchCondition("prefix", prefix),), limit=NO_LIMIT)
    [namespaces] = await io.batch(access.store, [search])
    by_embedder: dict[str, Namespace] = {}
    for namespace in sorted(map(tuple, namespaces)):
        [items] = await io.batch(access.store, [SearchOp(namespace, limit=1)])
        embedder = items[0].value.get("embedder") if items else None
        # A deeper namespace may be another memory's, of a criterion named like a kind.
        if isinstance(embedder, str) and access.layout.vectors(embedder) == namespace:
            by_embedder[embedder] = namespace
    return by_embedder


async def ensure_vectors(
    io: IO, access: MemoryAccess, texts: Mapping[str, str], *, warns: bool = False
) -> dict[str, Vector]:
    """Return the vectors of texts: stored ones, or new ones, which are then stored."""
    stored = await stored_vectors(io, access, texts)
    missing = {key: text for key, text in texts.items() if key not in stored}
    if missing and warns:
        logger.warning(
            "The memory of %r has %d example(s) without vectors of the embeddings %s. Embedding "
            "them now.",
            access.criterion.name,
            len(missing),
            access.embedder.id,
        )
    vectors = await embed(io, access, missing)
    await store_vectors(io, access, vectors)
    return stored | vectors


async def index_missing(io: IO, access: MemoryAccess, view: MemoryView) -> None:
    """Add the missing vectors of all episodes to the index."""
    missing = view.missing_texts()
    for keys in chunks(list(missing), _EMBED_TEXTS * _EMBED_REQUESTS):
        episodes = view.episodes(missing[key] for key in keys)
        texts = {
            key: retrieval_text(episodes[missing[key]].example)[0]
            for key in keys
            if missing[key] in episodes
        }
        view.add_vectors(await ensure_vectors(io, access, texts, warns=True))


async def _check_dimension(io: IO, access: MemoryAccess, vectors: Mapping[str, Vector]) -> None:
    dimension = None
    if vectors and access.view.index.dimension is None:
        search = SearchOp(access.layout.vectors(access.embedder.id), limit=1)
        [items] = await io.batch(access.store, [search])
        dimension = len(read_vector(items[0].value)) if items else None
    access.view.index.check(vectors.values(), dimension)
