"""Answers of models: cached, so that a call is never paid for twice, and counted.

A chat model's answer is kept under a hash of the model with its settings, and of the whole prompt
with its schema; what memory contributes is in the prompt. So a repeated evaluation costs nothing, a
killed one goes on where it was, and nothing stale is found.
"""

import json
import threading
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from contextvars import ContextVar
from typing import Any

from langchain_core.caches import RETURN_VAL_TYPE, BaseCache
from langchain_core.embeddings import Embeddings
from langchain_core.messages import AIMessage, message_to_dict, messages_from_dict
from langchain_core.outputs import ChatGeneration
from langchain_core.runnables.config import var_child_runnable_config
from langgraph.store.base import BaseStore, GetOp, PutOp

from memalign_graph.errors import ModelAnswerError
from memalign_graph.evaluation.results import UsageRow
from memalign_graph.identity import digest
from memalign_graph.io import IO, SYNC, run_sync, sync_async_methods
from memalign_graph.memory.index import vectors
from memalign_graph.models import Embedder, EmbeddingsLike, embed_texts
from memalign_graph.tracing import PURPOSE

_CHAT = ("memalign_evaluation", "answers")
_VECTORS = ("memalign_evaluation", "vectors")

_used_cache_keys: ContextVar[list[str]] = ContextVar("memalign_used_cache_keys")

CountUsage = Callable[..., None]
"""Takes a purpose, and adds counts by name."""


class UsageCounter:
    """Calls, tokens and seconds by judge, stage and purpose."""

    def __init__(self) -> None:
        self._counts: defaultdict[tuple[str, str, str], Counter[str]] = defaultdict(Counter)
        self._lock = threading.Lock()

    def add(self, judge: str, stage: str, purpose: str, **counts: float) -> None:
        """Add to what was counted."""
        with self._lock:
            self._counts[judge, stage, purpose].update(counts)

    def rows(self, *stages: str) -> list[UsageRow]:
        """Return what was counted, all or of some stages."""
        with self._lock:
            return [
                UsageRow(judge=judge, stage=stage, purpose=purpose, **counts)
                for (judge, stage, purpose), counts in self._counts.items()
                if not stages or stage in stages
            ]


class AnswerCache(BaseCache):
    """LangChain's cache of one chat model in a LangGraph store; counts what is asked."""

    def __init__(self, store: BaseStore, count: CountUsage, model: str) -> None:
        self._store, self._count, self._model = store, count, model
        self._started_at: dict[str, float] = {}

    def lookup(self, prompt: str, llm_string: str) -> RETURN_VAL_TYPE | None:
        """Find the answer to a prompt."""
        key = self._key(prompt, llm_string)
        _used_cache_keys.get([]).append(key)
        [item] = run_sync(SYNC.batch(self._store, [GetOp(_CHAT, key)]))
        if item is None:
            self._started_at[key] = time.perf_counter()
            self._count(_purpose(), chat_calls=1)
            return None
        [message] = messages_from_dict([item.value["message"]])
        self._count(_purpose(), cached_calls=1)
        return [ChatGeneration(message=message)]

    def update(self, prompt: str, llm_string: str, return_val: RETURN_VAL_TYPE) -> None:
        """Keep the answer to a prompt."""
        key, now = self._key(prompt, llm_string), time.perf_counter()
        seconds = round(now - self._started_at.pop(key, now), 3)
        message = getattr(return_val[0], "message", None)
        self._count(_purpose(), seconds=seconds, **_tokens(message))
        # What answers in prose once may do better when it is asked again.
        if isinstance(message, AIMessage) and _is_structured(message):
            value = {"message": message_to_dict(message), "seconds": seconds}
            run_sync(SYNC.batch(self._store, [PutOp(_CHAT, key, value, index=False)]))

    def clear(self, **kwargs: Any) -> None:
        """Refuse: what others keep in the same store is not to be lost."""
        raise NotImplementedError("Answers are not cleared: take another store, or file.")

    def _key(self, prompt: str, llm_string: str) -> str:
        """Take from LangChain's text what is asked with; the model is named by its settings."""
        try:
            _, end = json.JSONDecoder().raw_decode(llm_string)
        except ValueError:
            end = 0
        return digest([self._model, llm_string[end:], prompt])


def _purpose() -> str:
    """Return what the present call is for, as its trace names it."""
    config = var_child_runnable_config.get() or {}
    return str((config.get("metadata") or {}).get(PURPOSE, "judge"))


def _tokens(message: Any) -> dict[str, int]:
    usage = getattr(message, "usage_metadata", None) or {}
    return {name: usage.get(name, 0) for name in ("input_tokens", "output_tokens")}


def _is_structured(message: AIMessage) -> bool:
    # One letter whose log-probabilities were asked for is an answer, too.
    if message.tool_calls or message.response_metadata.get("logprobs"):
        return True
    try:
        json.loads(message.text)
    except ValueError:
        return False
    return True


@asynccontextmanager
async def discard_unusable_answers(io: IO, store: BaseStore) -> AsyncIterator[None]:
    """If a block ends without a usable answer, delete its answers from the cache."""
    keys: list[str] = []
    _used_cache_keys.set(keys)
    try:
        yield
    except ModelAnswerError:
        await io.batch(store, [PutOp(_CHAT, key, None) for key in dict.fromkeys(keys)])
        raise


class CachedEmbeddings(Embeddings):
    """Embeddings whose vectors are kept in a LangGraph store; counts what is asked."""

    def __init__(self, store: BaseStore, count: CountUsage, embeddings: EmbeddingsLike) -> None:
        self._store, self._count, self._embedder = store, count, Embedder(embeddings)
        self.model = self._embedder.id

    async def _embed_query(self, io: IO, text: str) -> list[float]:
        """Embed one text."""
        [vector] = await self._embed_documents(io, [text])
        return vector

    async def _embed_documents(self, io: IO, texts: Sequence[str]) -> list[list[float]]:
        """Embed texts, but for those whose vectors are there."""
        keys = [vectors.vector_key(self.model, text) for text in texts]
        items = await io.batch(self._store, [GetOp(_VECTORS, key) for key in keys])
        missing = {key: text for key, text, it in zip(keys, texts, items, strict=True) if not it}
        known = {item.key: vectors.decode_vector(item.value["vector"]) for item in items if item}
        if missing:
            self._count("embed", embedding_calls=1, texts_embedded=len(missing))
            answer = await embed_texts(io, self._embedder.embeddings, list(missing.values()))
            new = vectors.normalised(answer, len(missing), self.model)
            known |= zip(missing, new, strict=True)
            values = {key: {"vector": vectors.encode_vector(known[key])} for key in missing}
            puts = [PutOp(_VECTORS, key, value, index=False) for key, value in values.items()]
            await io.batch(self._store, puts)
        return [known[key].tolist() for key in keys]

    embed_query, aembed_query = sync_async_methods(_embed_query)
    embed_documents, aembed_documents = sync_async_methods(_embed_documents)
