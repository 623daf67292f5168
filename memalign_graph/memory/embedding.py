"""A memory's vectors: made once, kept in the store, and given to the index."""

import logging
from collections.abc import Iterable, Mapping

from langgraph.store.base import ListNamespacesOp, MatchCondition, SearchOp

from memalign_graph.effects import Batch, Embed, Gather, Operation
from memalign_graph.memory.access import MemoryAccess, chunks
from memalign_graph.memory.index.retrieval_text import retrieval_text
from memalign_graph.memory.index.vectors import Vector, encode_vector, normalised, vector_key
from memalign_graph.memory.items import read_vector
from memalign_graph.memory.layout import Namespace
from memalign_graph.memory.view import MemoryView
from memalign_graph.types import Example

logger = logging.getLogger(__name__)

_EMBED_TEXTS = 256
"""How many texts go into one embedding request."""

_MANY = 1_000_000

_EMBED_REQUESTS = 8
"""How many embedding requests are under way at a time."""


def key_of(access: MemoryAccess, example: Example) -> str:
    """Name the vector of an example; those with the same inputs and outputs have one."""
    return vector_key(access.embedder.id, retrieval_text(example)[0])


def embed(access: MemoryAccess, texts: Mapping[str, str]) -> Operation[dict[str, Vector]]:
    """Embed texts."""

    def one_request(keys: list[str]) -> Operation[dict[str, Vector]]:
        answer = yield Embed(access.embedder.embeddings, [texts[key] for key in keys])
        return dict(zip(keys, normalised(answer, len(keys), access.embedder.id), strict=True))

    requests = [one_request(keys) for keys in chunks(list(texts), _EMBED_TEXTS)]
    if len(requests) == 1:
        return (yield from requests[0])
    answers = (yield Gather(requests, _EMBED_REQUESTS)) if requests else []
    return {key: vector for answer in answers for key, vector in answer.items()}


def stored_vectors(access: MemoryAccess, keys: Iterable[str]) -> Operation[dict[str, Vector]]:
    """Read vectors from the store."""
    namespace = access.layout.vectors(access.embedder.id)
    found = yield from access.get(namespace, keys, read_vector)
    return found


def store_vectors(access: MemoryAccess, vectors: Mapping[str, Vector]) -> Operation[None]:
    """Write vectors, before the items that need them."""
    namespace = access.layout.vectors(access.embedder.id)
    yield from _check_dimension(access, vectors)
    items = {
        key: {"key": key, "embedder": access.embedder.id, "vector": encode_vector(vector)}
        for key, vector in vectors.items()
    }
    yield from access.put(namespace, items)


def embedder_namespaces(access: MemoryAccess) -> Operation[dict[str, Namespace]]:
    """Find the embedders that made vectors for a memory."""
    prefix = access.layout.all_vectors
    search = ListNamespacesOp(match_conditions=(MatchCondition("prefix", prefix),), limit=_MANY)
    [namespaces] = yield Batch(access.store, [search])
    found: dict[str, Namespace] = {}
    for namespace in sorted(tuple(one) for one in namespaces):
        [items] = yield Batch(access.store, [SearchOp(namespace, limit=1)])
        embedder = items[0].value.get("embedder") if items else None
        # Another memory may lie below: of a criterion that is named like a kind of item.
        if isinstance(embedder, str) and access.layout.vectors(embedder) == namespace:
            found[embedder] = namespace
    return found


def index_missing(access: MemoryAccess, view: MemoryView) -> Operation[None]:
    """Give every episode its vector in the index: from the store, else by embedding its text."""
    missing = view.missing_texts()
    if not missing:
        return
    stored = yield from stored_vectors(access, missing)
    view.add_vectors(stored)
    rest = {key: episode for key, episode in missing.items() if key not in stored}
    if not rest:
        return
    logger.warning(
        "The memory of %r has %d example(s) without vectors of the embeddings %s: embedding "
        "them now.",
        access.criterion.name,
        len(rest),
        access.embedder.id,
    )
    episodes = yield from access.episodes(rest.values())
    texts = {
        key: retrieval_text(episodes[episode].example)[0]
        for key, episode in rest.items()
        if episode in episodes
    }
    vectors = yield from embed(access, texts)
    yield from store_vectors(access, vectors)
    view.add_vectors(vectors)


def _check_dimension(access: MemoryAccess, vectors: Mapping[str, Vector]) -> Operation[None]:
    index = access.view.index
    if vectors and index.is_empty:
        search = SearchOp(access.layout.vectors(access.embedder.id), limit=1)
        [found] = yield Batch(access.store, [search])
        stored = [read_vector(item.value) for item in found]
        index.check(vectors.values(), like=stored)
    else:
        index.check(vectors.values())
