"""A memory's vectors: made once, kept in the store, and given to the index."""

import logging
from collections.abc import Iterable, Mapping, Sequence

from langgraph.store.base import ListNamespacesOp, MatchCondition, SearchOp

from memalign_graph.io import IO
from memalign_graph.memory.access import (
    BATCH_ITEMS,
    EVERYTHING,
    HEAD,
    MemoryAccess,
    chunks,
    read_vector,
)
from memalign_graph.memory.index import pgvector
from memalign_graph.memory.index.retrieval_text import retrieval_text
from memalign_graph.memory.index.vectors import Vector, encode_vector, normalised, vector_key
from memalign_graph.memory.layout import Namespace
from memalign_graph.memory.view import MemoryView
from memalign_graph.models import embed_texts
from memalign_graph.types import Example

logger = logging.getLogger(__name__)

_EMBED_TEXTS = 256
"""How many texts go into one embedding request."""

_EMBED_REQUESTS = 8
"""How many embedding requests are under way at a time."""


def key_of(access: MemoryAccess, example: Example) -> str:
    """Name the vector of an example; those with the same inputs and outputs have one."""
    return vector_key(access.embedder.id, retrieval_text(example)[0])


async def embed(io: IO, access: MemoryAccess, texts: Mapping[str, str]) -> dict[str, Vector]:
    """Embed texts."""

    async def one_request(keys: Sequence[str]) -> dict[str, Vector]:
        answer = await embed_texts(io, access.embedder.embeddings, [texts[key] for key in keys])
        return dict(zip(keys, normalised(answer, len(keys), access.embedder.id), strict=True))

    requests = [one_request(keys) for keys in chunks(list(texts), _EMBED_TEXTS)]
    if len(requests) == 1:
        return await requests[0]
    answers = await io.gather(requests, _EMBED_REQUESTS) if requests else []
    return {key: vector for answer in answers for key, vector in answer.items()}


async def stored_vectors(io: IO, access: MemoryAccess, keys: Iterable[str]) -> dict[str, Vector]:
    """Read vectors from the store."""
    namespace = access.layout.vectors(access.embedder.id)
    return await access.get(io, namespace, keys, read_vector)


async def store_vectors(io: IO, access: MemoryAccess, vectors: Mapping[str, Vector]) -> None:
    """Write vectors, before the items that need them."""
    namespace = access.layout.vectors(access.embedder.id)
    await _check_dimension(io, access, vectors)
    items = {
        key: {"key": key, "embedder": access.embedder.id, "vector": encode_vector(vector)}
        for key, vector in vectors.items()
    }
    await access.put(io, namespace, items)


async def embedder_namespaces(io: IO, access: MemoryAccess) -> dict[str, Namespace]:
    """Find the embedders that made vectors for a memory."""
    prefix = access.layout.of("vectors")
    search = ListNamespacesOp(
        match_conditions=(MatchCondition("prefix", prefix),), limit=EVERYTHING
    )
    [namespaces] = await io.batch(access.store, [search])
    found: dict[str, Namespace] = {}
    for namespace in sorted(tuple(one) for one in namespaces):
        [items] = await io.batch(access.store, [SearchOp(namespace, limit=1)])
        embedder = items[0].value.get("embedder") if items else None
        # Another memory may lie below: of a criterion that is named like a kind of item.
        if isinstance(embedder, str) and access.layout.vectors(embedder) == namespace:
            found[embedder] = namespace
    return found


async def index_missing(io: IO, access: MemoryAccess, view: MemoryView) -> None:
    """Give every episode its vector in the index: from the store, else by embedding its text."""
    missing = view.missing_texts()
    table, is_touched = access.table, bool(missing)
    if table is not None:
        missing = await _compare(io, access, view, table)
    rest: dict[str, str] = {}
    for keys in chunks(list(missing), BATCH_ITEMS):
        stored = await stored_vectors(io, access, keys)
        await _index(io, access, view, stored)
        rest |= {key: missing[key] for key in keys if key not in stored}
    if rest:
        await _index(io, access, view, await _embed_episodes(io, access, view, rest))
    if table is not None and is_touched and view.count_vectors() > pgvector.EXACT:
        await table.make_index(io, _remote(view).dimension or 0)


async def _index(
    io: IO, access: MemoryAccess, view: MemoryView, vectors: Mapping[str, Vector]
) -> None:
    if access.table is not None and vectors:
        view.index.check(vectors.values(), like=vectors.values())
        await access.table.add(io, vectors)
    view.add_vectors(vectors)


async def _compare(
    io: IO, access: MemoryAccess, view: MemoryView, table: pgvector.VectorTable
) -> dict[str, str]:
    """Look for the rows of episodes, and remove those of others; returns what has no row."""
    index, missing = _remote(view), view.missing_texts()
    if missing:
        is_whole = len(missing) == view.count_vectors()  # as when it was just opened
        found = await table.keys(io, None if is_whole else list(missing))
        if found is None:
            await table.make(io)
            view.miss_vectors()
            return view.missing_texts()
        there, dimension = found
        index.dimension = index.dimension or dimension
        view.note_vectors(there & missing.keys())
        index.remove(there if is_whole else set())
    gone = {key for key in index.gone if not view.episodes_at(key)}
    head = (".".join(access.layout.of("head")), HEAD)
    # Where another wrote meanwhile, what is gone may be back.
    is_done = not gone or bool(view.head and await table.remove(io, gone, head, view.head))
    index.gone = set() if is_done else gone
    return view.missing_texts()


def _remote(view: MemoryView) -> pgvector.RemoteIndex:
    index = view.index
    assert isinstance(index, pgvector.RemoteIndex)  # noqa: S101 - where there is a table
    return index


async def vectors_of(io: IO, access: MemoryAccess, keys: Iterable[str]) -> dict[str, Vector]:
    """Return the vectors of episodes, as far as they have one."""
    view = access.view
    if access.table is not None:
        return await stored_vectors(io, access, filter(view.episodes_at, keys))
    return {key: vector for key in keys if (vector := view.index.get(key)) is not None}


async def nearest(io: IO, access: MemoryAccess, vector: Vector, k: int) -> list[tuple[str, float]]:
    """Find the nearest vectors of episodes, most similar first."""
    view = access.view
    if access.table is None:
        return view.index.search(vector, k)
    view.index.check([vector])
    found = await _nearest_rows(io, access, access.table, vector, k)
    if len(found) < min(k, view.count_vectors() - len(view.missing_texts())):
        logger.warning(
            "The memory of %r lost rows of its vectors: they are made anew from the store.",
            access.criterion.name,
        )
        view.miss_vectors()
        await index_missing(io, access, view)
        found = await _nearest_rows(io, access, access.table, vector, k)
    return found


async def _nearest_rows(
    io: IO, access: MemoryAccess, table: pgvector.VectorTable, vector: Vector, k: int
) -> list[tuple[str, float]]:
    view, index, asked = access.view, _remote(access.view), k
    if view.count_vectors() > pgvector.EXACT and not index.is_approximate:
        index.is_approximate = await table.has_index(io)
    while True:
        rows = await table.search(io, vector, asked, is_approximate=index.is_approximate)
        found = [row for row in rows if view.episodes_at(row[0])]
        if len(found) >= k or len(rows) < asked:
            return found[:k]
        asked *= 2  # past those whose episodes were taken back


async def _embed_episodes(
    io: IO, access: MemoryAccess, view: MemoryView, rest: Mapping[str, str]
) -> dict[str, Vector]:
    logger.warning(
        "The memory of %r has %d example(s) without vectors of the embeddings %s: embedding "
        "them now.",
        access.criterion.name,
        len(rest),
        access.embedder.id,
    )
    episodes = view.episodes(rest.values())
    texts = {
        key: retrieval_text(episodes[episode].example)[0]
        for key, episode in rest.items()
        if episode in episodes
    }
    vectors = await embed(io, access, texts)
    await store_vectors(io, access, vectors)
    return vectors


async def _check_dimension(io: IO, access: MemoryAccess, vectors: Mapping[str, Vector]) -> None:
    index = access.view.index
    if vectors and index.is_empty:
        search = SearchOp(access.layout.vectors(access.embedder.id), limit=1)
        [found] = await io.batch(access.store, [search])
        stored = [read_vector(item.value) for item in found]
        index.check(vectors.values(), like=stored)
    else:
        index.check(vectors.values())
