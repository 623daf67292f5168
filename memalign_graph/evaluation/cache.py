"""Cache and count what evaluations ask of models.

The key of a chat model's answer is a hash of the model with its settings, the schema and the whole
prompt. So a repeated evaluation calls no model, a killed one continues, and a changed memory, which
changes the prompt, never gets an old answer.
"""

import json
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from typing import Any

from langchain_core.caches import RETURN_VAL_TYPE, BaseCache
from langchain_core.embeddings import Embeddings
from langchain_core.messages import AIMessage, message_to_dict, messages_from_dict
from langchain_core.outputs import ChatGeneration
from langchain_core.runnables.config import var_child_runnable_config
from langgraph.store.base import BaseStore, GetOp, PutOp

from memalign_graph.asking import cached_answers
from memalign_graph.evaluation.report import UsageRow
from memalign_graph.identity import digest
from memalign_graph.io import IO, SYNC, run_sync, sync_async_methods
from memalign_graph.memory.index import decode_vector, encode_vector, normalize_vectors, vector_key
from memalign_graph.models import Embedder, EmbeddingsLike, embed_texts
from memalign_graph.tracing import PURPOSE

_CHAT = ("memalign_evaluation", "answers")
_VECTORS = ("memalign_evaluation", "vectors")


class UsageCounter:
    """Calls, tokens and seconds by judge, stage and purpose."""

    def __init__(self) -> None:
        self._counts: defaultdict[tuple[str, str, str], Counter[str]] = defaultdict(Counter)
        self._lock = threading.Lock()

    def add(self, judge: str, stage: str, purpose: str, **counts: float) -> None:
        with self._lock:
            self._counts[judge, stage, purpose].update(counts)

    def rows(self) -> list[UsageRow]:
        with self._lock:
            return [
                UsageRow(judge=judge, stage=stage, purpose=purpose, **counts)
                for (judge, stage, purpose), counts in self._counts.items()
            ]


class AnswerCache(BaseCache):
    """LangChain's cache of one chat model, in a LangGraph store; counts calls."""

    def __init__(self, store: BaseStore, count: Callable[..., None], model: str) -> None:
        self._store, self._count, self._model = store, count, model
        self._started_at: dict[str, float] = {}

    def lookup(self, prompt: str, llm_string: str) -> RETURN_VAL_TYPE | None:
        key = self._key(prompt, llm_string)
        cached_answers.get([]).append((self._store, PutOp(_CHAT, key, None)))
        [item] = run_sync(SYNC.batch(self._store, [GetOp(_CHAT, key)]))
        if item is None:
            self._started_at[key] = time.perf_counter()
            return None
        [message] = messages_from_dict([item.value["message"]])
        tokens = _tokens(message)["input_tokens"]
        self._count(_purpose(), cached_calls=1, cached_input_tokens=tokens)
        return [ChatGeneration(message=message)]

    def update(self, prompt: str, llm_string: str, return_val: RETURN_VAL_TYPE) -> None:
        key, now = self._key(prompt, llm_string), time.perf_counter()
        seconds = round(now - self._started_at.pop(key, now), 3)
        message = getattr(return_val[0], "message", None)
        self._count(_purpose(), chat_calls=1, seconds=seconds, **_tokens(message))
        if isinstance(message, AIMessage):
            value = {"message": message_to_dict(message)}
            run_sync(SYNC.batch(self._store, [PutOp(_CHAT, key, value, index=False)]))

    def clear(self, **kwargs: Any) -> None:
        """Refuse, since other evaluations may share the store."""
        raise NotImplementedError("The cache can't be cleared. Use another store or file.")

    def _key(self, prompt: str, llm_string: str) -> str:
        """Return the key; the model is named by its own settings, not as LangChain names it."""
        try:
            _, end = json.JSONDecoder().raw_decode(llm_string)
        except ValueError:
            end = 0
        return digest([self._model, llm_string[end:], prompt])


def _purpose() -> str:
    """Return the purpose of the present call, as in its trace."""
    config = var_child_runnable_config.get() or {}
    return str((config.get("metadata") or {}).get(PURPOSE, "judge"))


def _tokens(message: Any) -> dict[str, int]:
    usage = getattr(message, "usage_metadata", None) or {}
    return {name: usage.get(name, 0) for name in ("input_tokens", "output_tokens")}


class CachedEmbeddings(Embeddings):
    """Embeddings with a cache in a LangGraph store; counts calls."""

    def __init__(
        self, store: BaseStore, count: Callable[..., None], embeddings: EmbeddingsLike
    ) -> None:
        self._store, self._count, self._embedder = store, count, Embedder(embeddings)
        self.model = self._embedder.id

    async def _embed_query(self, io: IO, text: str) -> list[float]:
        [vector] = await self._embed_documents(io, [text])
        return vector

    async def _embed_documents(self, io: IO, texts: Sequence[str]) -> list[list[float]]:
        """Embed the texts that have no vector yet; returns the vectors of all."""
        keys = [vector_key(self.model, text) for text in texts]
        items = await io.batch(self._store, [GetOp(_VECTORS, key) for key in keys])
        by_key = {item.key: decode_vector(item.value["vector"]) for item in items if item}
        missing = {key: text for key, text in zip(keys, texts, strict=True) if key not in by_key}
        if missing:
            self._count("embed", embedding_calls=1, texts_embedded=len(missing))
            answer = await embed_texts(io, self._embedder.embeddings, list(missing.values()))
            new = normalize_vectors(answer, len(missing), self.model)
            by_key |= zip(missing, new, strict=True)
            encoded = [(key, {"vector": encode_vector(by_key[key])}) for key in missing]
            await io.batch(self._store, [PutOp(_VECTORS, *item, index=False) for item in encoded])
        return [by_key[key].tolist() for key in keys]

    embed_query, aembed_query = sync_async_methods(_embed_query)
    embed_documents, aembed_documents = sync_async_methods(_embed_documents)
