"""Embed examples once, store their vectors, and find the most similar examples in memory."""

import logging
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from types import MappingProxyType
from typing import TypedDict

from langgraph.store.base import ListNamespacesOp, MatchCondition, SearchOp

from memalign_graph.errors import EmbeddingError, enumerate_ids
from memalign_graph.io import IO
from memalign_graph.memory.access import NO_LIMIT, MemoryAccess, chunks, do_once
from memalign_graph.memory.facts import Item, Namespace
from memalign_graph.memory.index import (
    MAX_BYTES,
    Vector,
    decode_vector,
    encode_vector,
    normalize_vectors,
    retrieval_text,
    vector_key,
)
from memalign_graph.memory.memory_state import EpisodeRow
from memalign_graph.memory.view import MemoryView
from memalign_graph.models import embed_texts
from memalign_graph.types import Example, RecalledExample

logger = logging.getLogger(__name__)

_EMBED_TEXTS = 256  # per request
_EMBED_REQUESTS = 8  # concurrently

_MAX_FIRST_REFUSED = 20
"""Embeddings that never embedded a text and refuse so many are set up wrongly."""

_REFUSED = (
    "{} piece(s) of feedback have no vector, because the embeddings refused the text of their case "
    "({}). The judge is not shown these cases as similar ones. The first error: {}"
)

_NEAR = 50
"""How many similar examples decide which guidelines are relevant."""

_MANY_GUIDELINES = 20
"""Above this, a prompt may not fit all guidelines."""

_EQUAL = 1e-5  # similarities that differ less are ties
_TIES = 8
"""How many more vectors are searched for at first, so that equally near ones are in one order."""

_TRUNCATED = (
    f"Inputs and outputs exceed the {MAX_BYTES:,} bytes that are embedded: similar examples are "
    "found by their beginnings."
)


class SimilarExample(TypedDict):
    """An example in memory, by the ids of the feedback on it."""

    episodes: list[str]  # oldest first
    similarity: float  # cosine, from -1 to 1


@dataclass(frozen=True)
class RecallResult:
    """The result of `recall`; its fields are JSON.

    It has ids alone, so that no stream shows other users' cases.
    """

    version: str
    recalled: list[SimilarExample] = field(default_factory=list)
    """Most similar first."""
    vector: str | None = None
    """The example's vector as of `MemoryAccess.dump_vector`, for feedback on it."""
    nearness: Mapping[str, float] = field(default_factory=dict)
    """Similarities by episode id, of further episodes too; they decide which guidelines are
    relevant."""
    warnings: list[str] = field(default_factory=list)


def load_examples(view: MemoryView, similar: Sequence[SimilarExample]) -> list[RecalledExample]:
    """Return examples with their feedback, except feedback that was removed since."""
    episodes = view.episodes(key for case in similar for key in case["episodes"])
    return [
        RecalledExample(example=left[0].example, episodes=left, similarity=case["similarity"])
        for case in similar
        if (left := [episodes[key] for key in case["episodes"] if key in episodes])
    ]


async def recall(
    io: IO,
    access: MemoryAccess,
    example: Example,
    k: int,
    *,
    vector: Vector | None = None,
    embed_always: bool = False,
) -> RecallResult:
    """Find the k most similar examples; embeds only if the vector is needed and not stored."""
    view = await access.refresh(io)
    version = view.version  # read before the next await: others may commit meanwhile
    if k == 0 and not embed_always:
        return RecallResult(version)
    text, truncated = retrieval_text(example)
    warnings = [_TRUNCATED] if truncated else []
    if view.is_empty:
        return RecallResult(version, warnings=warnings)
    key = vector_key(access.embedder.id, text)
    await index_missing(io, access)
    stored = view.index.get(key)
    vector = vector if stored is None else stored
    if vector is None:
        vector = (await embed(io, access, {key: text}))[key]
    similar, nearness = _find(view, vector, k)
    return RecallResult(version, similar, access.dump_vector(vector), nearness, warnings)


async def embed_once(
    io: IO, accesses: Sequence[MemoryAccess], example: Example, *, always: bool = False
) -> Vector | None:
    """Embed an example for several memories; None if all are empty."""
    filled = [access for access in accesses if always or not access.view.is_empty]
    if not filled:
        return None
    text, _ = retrieval_text(example)
    key = vector_key(filled[0].embedder.id, text)
    for access in filled:
        vector = access.view.index.get(key)
        if vector is None:  # or it is stored, but no search has read it yet
            vector = (await stored_vectors(io, access, [key])).get(key)
        if vector is not None:
            return vector
    return (await embed(io, filled[0], {key: text}))[key]


def recall_excluding(
    access: MemoryAccess, example: Example, k: int, excluded_episode_ids: AbstractSet[str]
) -> RecallResult:
    """Find similar examples without some episodes."""
    view = access.view
    text, truncated = retrieval_text(example)
    vector = view.index.get(vector_key(access.embedder.id, text))
    if vector is None:
        return RecallResult(view.version)
    similar, nearness = _find(view, vector, k, excluded_episode_ids)
    warnings = [_TRUNCATED] if truncated and k else []
    return RecallResult(view.version, similar, access.dump_vector(vector), nearness, warnings)


def _find(
    view: MemoryView, vector: Vector, k: int, excluded_episode_ids: AbstractSet[str] = frozenset()
) -> tuple[list[SimilarExample], dict[str, float]]:
    """Find similar examples, and the similarities of more episodes, without some episodes."""
    if not k:
        return [], {}
    # Relevant guidelines are chosen by their sources, which are more than k.
    wanted = max(k, _NEAR) if len(view.guidelines) > _MANY_GUIDELINES else k
    near: list[tuple[list[EpisodeRow], float]] = []
    for key, similarity in _search(view, vector, wanted + len(excluded_episode_ids)):
        rows = [row for row in view.rows_for_vector(key) if row.id not in excluded_episode_ids]
        near += [(rows, similarity)] if rows else []
    similar = [case for rows, similarity in near[:k] for case in _group(rows, similarity)][:k]
    nearness = {key: case["similarity"] for case in similar for key in case["episodes"]}
    for rows, similarity in near[k:wanted]:
        nearness |= {row.id: round(similarity, 4) for row in rows}
    return similar, nearness


def _search(view: MemoryView, vector: Vector, k: int) -> list[tuple[str, float]]:
    """Find the nearest vectors, ties in the same order in every process."""
    count = k + _TIES
    while True:
        near = view.index.search(vector, count)
        # Embeddings that read the beginning of a text alone give many cases the same vector.
        is_tied = len(near) > k and near[-1][1] >= near[k - 1][1] - _EQUAL
        if len(near) < count or not is_tied:
            return sorted(near, key=lambda pair: (-round(pair[1], 5), pair[0]))[:k]
        count *= 2


async def recall_without_episodes(
    io: IO, access: MemoryAccess, error: EmbeddingError
) -> RecallResult:
    """Continue without similar examples, with a warning, after an embedding call failed."""
    view = await access.refresh(io)
    warning = f"Judged by the guidelines alone, without similar examples. {error}"
    return RecallResult(view.version, warnings=[warning])


def _group(rows: Sequence[EpisodeRow], similarity: float) -> list[SimilarExample]:
    """Group feedback by example: two examples can have the same embedded text."""

    def age(row: EpisodeRow) -> tuple[datetime, str]:
        return datetime.fromisoformat(row.content["created_at"]), row.id

    grouped: dict[str, list[str]] = {}
    for row in sorted(rows, key=age):
        grouped.setdefault(row.example_id, []).append(row.id)
    bounded = max(-1.0, min(1.0, similarity))
    return [{"episodes": ids, "similarity": bounded} for ids in grouped.values()]


def vector_key_of_example(access: MemoryAccess, example: Example) -> str:
    """Return the vector key of an example: the same for the same inputs and outputs."""
    return vector_key(access.embedder.id, retrieval_text(example)[0])


async def embed(
    io: IO,
    access: MemoryAccess,
    texts: Mapping[str, str],
    refused: dict[str, EmbeddingError] | None = None,
) -> dict[str, Vector]:
    """Return the vectors of texts; the errors of those that are refused are added to `refused`.

    Without it, a refused text is an error, as is any other failure.
    """
    vectors: dict[str, Vector] = {}

    async def request(keys: Sequence[str]) -> None:
        try:
            answer = await embed_texts(io, access.embedder.embeddings, [texts[key] for key in keys])
            embedded = normalize_vectors(answer, len(keys), access.embedder.id)
            vectors.update(zip(keys, embedded, strict=True))
        except EmbeddingError as error:
            if refused is None or not error.is_refusal:
                raise
            if len(keys) > 1:
                half = len(keys) // 2
                await request(keys[:half])
                await request(keys[half:])
                return
            refused[keys[0]] = error
            is_first = not vectors and 1 < min(len(texts), _MAX_FIRST_REFUSED) <= len(refused)
            if is_first and access.embedder.id not in await embedder_namespaces(io, access):
                raise

    requests = [request(keys) for keys in chunks(list(texts), _EMBED_TEXTS)]
    if len(requests) == 1:
        await requests[0]
    elif requests:
        await io.gather(requests, _EMBED_REQUESTS)
    return vectors


async def stored_vectors(io: IO, access: MemoryAccess, keys: Iterable[str]) -> dict[str, Vector]:
    stored = await access.get(io, access.layout.vectors(access.embedder.id), keys)
    return {key: decode_vector(item["vector"]) for key, item in stored.items()}


async def _store_vectors(io: IO, access: MemoryAccess, vectors: Mapping[str, Vector]) -> None:
    """Store vectors of the dimension of the stored ones."""
    index, namespace, dimension = access.view.index, access.layout.vectors(access.embedder.id), None
    if vectors and index.dimension is None:  # vectors stay after all their episodes are gone
        stored = await first_item(io, access, namespace)
        dimension = len(decode_vector(stored["vector"])) if stored else None
    index.check(vectors.values(), dimension)
    items = {
        key: {"key": key, "embedder": access.embedder.id, "vector": encode_vector(vector)}
        for key, vector in vectors.items()
    }
    await access.put(io, namespace, items)


async def first_item(io: IO, access: MemoryAccess, namespace: Namespace) -> Item:
    """Return one item of a namespace; empty if there is none."""
    [items] = await access.search(io, SearchOp(namespace, limit=1))
    if not items:  # the first may be in a namespace below
        [items] = await access.search(io, namespace)
    return items[0] if items else {}


async def embedder_namespaces(io: IO, access: MemoryAccess) -> dict[str, Namespace]:
    """Return the namespaces of a memory's vectors, by embedder."""
    prefix = access.layout.of("vectors")
    search = ListNamespacesOp(match_conditions=(MatchCondition("prefix", prefix),), limit=NO_LIMIT)
    [namespaces] = await io.batch(access.store, [search])
    by_embedder: dict[str, Namespace] = {}
    for namespace in sorted(map(tuple, namespaces)):
        embedder = (await first_item(io, access, namespace)).get("embedder")
        # A deeper namespace may be another memory's, of a criterion named like a kind.
        if isinstance(embedder, str) and access.layout.vectors(embedder) == namespace:
            by_embedder[embedder] = namespace
    return by_embedder


async def ensure_vectors(
    io: IO,
    access: MemoryAccess,
    examples: Mapping[str, Example],
    known_vectors: Mapping[str, Vector] = MappingProxyType({}),
) -> tuple[dict[str, Vector], list[str]]:
    """Return the vectors of episodes' examples that the index lacks, and a warning of the others.

    New ones are stored. A text that the embeddings refuse has none, and is not sent again by this
    process. `known_vectors` has vectors by example id.
    """
    texts = {each: retrieval_text(example)[0] for each, example in examples.items()}
    keys = {each: vector_key(access.embedder.id, text) for each, text in texts.items()}
    indexed = access.view.index.keys()
    lacking = {key: each for each, key in keys.items() if key not in indexed}
    known = {
        key: vector
        for key, each in (lacking.items() if known_vectors else ())
        if (vector := known_vectors.get(examples[each].id)) is not None
    }
    stored = await stored_vectors(io, access, lacking.keys() - known.keys())
    settled = known.keys() | stored.keys() | access.view.refused.keys()
    missing = {key: texts[each] for key, each in lacking.items() if key not in settled}
    if missing:
        logger.info("Memory of %r: embedding %d example(s).", access.criterion.name, len(missing))
    refused = dict[str, EmbeddingError]()
    new = known | await embed(io, access, missing, refused)
    access.view.add_refused(refused)
    await _store_vectors(io, access, new)
    return stored | new, _refusals(access, keys)


def _refusals(access: MemoryAccess, keys: Mapping[str, str]) -> list[str]:
    """Log and return a warning if the embeddings refused vectors of episodes, given by id."""
    refused = access.view.refused
    ids = sorted(each for each, key in keys.items() if key in refused)
    if not ids:
        return []
    warning = _REFUSED.format(len(ids), enumerate_ids(ids), refused[keys[ids[0]]])
    return access.log_warnings([warning])


async def index_missing(io: IO, access: MemoryAccess) -> None:
    """Add the missing vectors of all episodes to the index, or wait for a caller that does."""
    view = access.view
    missing = view.missing_texts()
    # In chunks: a caller that has waited too long for one embeds only that one again.
    for keys in chunks(list(missing), _EMBED_TEXTS * _EMBED_REQUESTS):
        work = partial(_index, io, access, [missing[key] for key in keys])
        await do_once(io, view.indexing, partial(view.has_vectors, keys), work)


async def _index(io: IO, access: MemoryAccess, episode_ids: Iterable[str]) -> None:
    episodes = access.view.episodes(episode_ids)
    examples = {key: episode.example for key, episode in episodes.items()}
    vectors, _ = await ensure_vectors(io, access, examples)
    # Stored before it is checked: a purge that this does not see yet finds them in the store.
    view = await access.refresh(io)
    unused = [key for key in vectors if not view.rows_for_vector(key)]
    await access.put(io, access.layout.vectors(access.embedder.id), dict.fromkeys(unused))
    view.add_vectors(vectors)
