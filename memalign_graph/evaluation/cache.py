"""What models answered, cached so that the same is never paid for twice, and counted.

A chat model's answer is kept under a hash of the model with its settings, and of the whole prompt
with its schema; what memory contributes is in the prompt. So a repeated evaluation costs nothing, a
killed one goes on where it was, and nothing stale is found.
"""

import json
import re
import threading
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from contextvars import ContextVar
from typing import Any

from langchain_core.caches import RETURN_VAL_TYPE, BaseCache
from langchain_core.embeddings import Embeddings
from langchain_core.messages import AIMessage, message_to_dict, messages_from_dict
from langchain_core.outputs import ChatGeneration
from langgraph.store.base import BaseStore, GetOp, PutOp

from memalign_graph.evaluation.results import UsageRow
from memalign_graph.identity import digest
from memalign_graph.io import BLOCKING, IO, run, twins
from memalign_graph.memory.index.vectors import (
    decode_vector,
    encode_vector,
    normalised,
    vector_key,
)
from memalign_graph.models import Embedder, EmbeddingsLike, embed_texts

_CHAT = ("memalign_evaluation", "answers")
_VECTORS = ("memalign_evaluation", "vectors")

_PURPOSES = {
    "guideline_operations": "distil",
    "guideline_relations": "compare",
    "judgment": "judge",
}
"""What is asked of a chat model, by the title of the answer's schema; a confidence has none."""


class Ledger:
    """The one account of what is asked of models, by judge, stage and purpose."""

    def __init__(self) -> None:
        self._counts: dict[tuple[str, str, str], Counter[str]] = {}
        self._lock = threading.Lock()

    def add(self, judge: str, stage: str, purpose: str, **counts: float) -> None:
        """Count a call."""
        with self._lock:
            self._counts.setdefault((judge, stage, purpose), Counter()).update(counts)

    def rows(self, *stages: str) -> list[UsageRow]:
        """Return what was counted, all or of some stages."""
        with self._lock:
            return [
                UsageRow(judge=judge, stage=stage, purpose=purpose, **counts)
                for (judge, stage, purpose), counts in self._counts.items()
                if not stages or stage in stages
            ]


_touched: ContextVar[list[str] | None] = ContextVar("memalign_touched_answers", default=None)


class AnswerCache(BaseCache):
    """LangChain's cache of one chat model in a LangGraph store; counts what is asked."""

    def __init__(
        self, store: BaseStore, ledger: Ledger, model: str, judge: str, stage: str
    ) -> None:
        self._store, self._ledger, self._model = store, ledger, model
        self._judge, self._stage = judge, stage
        self._asked: dict[str, float] = {}

    def lookup(self, prompt: str, llm_string: str) -> RETURN_VAL_TYPE | None:
        """Find the answer to a prompt."""
        key = self._key(prompt, llm_string)
        if (touched := _touched.get()) is not None:
            touched.append(key)
        [item] = run(BLOCKING.batch(self._store, [GetOp(_CHAT, key)]))
        if item is None:
            self._asked[key] = time.perf_counter()
            self._count(llm_string, chat_calls=1)
            return None
        [message] = messages_from_dict([item.value["message"]])
        self._count(llm_string, message, cached_calls=1, seconds=item.value["seconds"])
        return [ChatGeneration(message=message)]

    def update(self, prompt: str, llm_string: str, return_val: RETURN_VAL_TYPE) -> None:
        """Keep the answer to a prompt."""
        key, now = self._key(prompt, llm_string), time.perf_counter()
        seconds = round(now - self._asked.pop(key, now), 3)
        if not isinstance(return_val[0], ChatGeneration):
            return
        message = return_val[0].message
        self._count(llm_string, message, seconds=seconds)
        # What answers in prose once may do better when it is asked again.
        if _is_structured(message):
            value = {"message": message_to_dict(message), "seconds": seconds}
            run(BLOCKING.batch(self._store, [PutOp(_CHAT, key, value, index=False)]))

    def clear(self, **kwargs: Any) -> None:
        """Refuse: what others keep in the same store is not to be lost."""
        raise NotImplementedError("Answers are not cleared: take another store, or file.")

    def _count(self, llm_string: str, message: Any = None, **counts: float) -> None:
        usage: Any = (message.usage_metadata if isinstance(message, AIMessage) else None) or {}
        is_sample = re.search(r"---sample \d+$", llm_string)
        titles = [title for title in _PURPOSES if title in llm_string and not is_sample]
        purpose = _PURPOSES[titles[0]] if titles else "confidence"
        tokens = {name: usage.get(name, 0) for name in ("input_tokens", "output_tokens")}
        self._ledger.add(self._judge, self._stage, purpose, **tokens, **counts)

    def _key(self, prompt: str, llm_string: str) -> str:
        """Take from LangChain's text what is asked with; the model is named by its settings."""
        try:
            _, end = json.JSONDecoder().raw_decode(llm_string)
        except ValueError:
            end = 0
        return digest([self._model, llm_string[end:], prompt])


def _is_structured(message: Any) -> bool:
    # One letter whose log-probabilities were asked for is an answer, too.
    if getattr(message, "tool_calls", None) or message.response_metadata.get("logprobs"):
        return True
    try:
        json.loads(message.text)
    except ValueError:
        return False
    return True


def note_answers() -> list[str]:
    """Begin to note which answers are asked for, in this context and those it starts."""
    touched: list[str] = []
    _touched.set(touched)
    return touched


async def drop_answers(io: IO, store: BaseStore, keys: Iterable[str]) -> None:
    """Forget answers that were no use, so that they are asked for again."""
    puts = [PutOp(_CHAT, key, None) for key in dict.fromkeys(keys)]
    if puts:
        await io.batch(store, puts)


class CachedEmbeddings(Embeddings):
    """Embeddings whose vectors are kept in a LangGraph store; counts what is asked."""

    def __init__(
        self, embeddings: EmbeddingsLike, store: BaseStore, ledger: Ledger, judge: str, stage: str
    ) -> None:
        self._embedder = Embedder(embeddings)
        self.model = self._embedder.id
        self._store, self._ledger = store, ledger
        self._judge, self._stage = judge, stage

    async def _embed_query(self, io: IO, text: str) -> list[float]:
        """Embed one text."""
        [vector] = await self._embed_documents(io, [text])
        return vector

    async def _embed_documents(self, io: IO, texts: Sequence[str]) -> list[list[float]]:
        """Embed texts, but for those whose vectors are there."""
        keys = {vector_key(self.model, text): text for text in texts}
        items = await io.batch(self._store, [GetOp(_VECTORS, key) for key in keys])
        vectors = {
            key: decode_vector(item.value["vector"])
            for key, item in zip(keys, items, strict=True)
            if item is not None
        }
        missing = [key for key in keys if key not in vectors]
        if missing:
            counts = {"embedding_calls": 1, "texts_embedded": len(missing)}
            self._ledger.add(self._judge, self._stage, "embed", **counts)
            answer = await embed_texts(io, self._embedder.embeddings, [keys[k] for k in missing])
            new = dict(zip(missing, normalised(answer, len(missing), self.model), strict=True))
            values = {key: {"vector": encode_vector(vector)} for key, vector in new.items()}
            puts = [PutOp(_VECTORS, key, value, index=False) for key, value in values.items()]
            await io.batch(self._store, puts)
            vectors |= new
        return [vectors[vector_key(self.model, text)].tolist() for text in texts]

    embed_query, aembed_query = twins(_embed_query)
    embed_documents, aembed_documents = twins(_embed_documents)
