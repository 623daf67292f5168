"""What models answered, kept so that the same is never paid for twice.

A chat model's answer is kept under a hash of the model with its settings, and of the whole prompt
with its schema. A memory is in a prompt with every guideline and episode it contributes: another
version of it that changes the prompt has another hash, and one that does not has the same answer.
So a repeated evaluation costs nothing, a killed one goes on where it was, and an answer that is no
longer right can't be found.
"""

import json
import threading
import time
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from typing import Any

from langchain_core.caches import RETURN_VAL_TYPE, BaseCache
from langchain_core.embeddings import Embeddings
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, message_to_dict, messages_from_dict
from langchain_core.outputs import ChatGeneration
from langgraph.store.base import BaseStore, GetOp, Item, PutOp
from pydantic import BaseModel, ConfigDict

from memalign_graph.identity import digest
from memalign_graph.io import AWAITING, BLOCKING, IO, run
from memalign_graph.memory.index.vectors import (
    decode_vector,
    encode_vector,
    normalised,
    vector_key,
)
from memalign_graph.models import (
    OF_NO_MATTER,
    Embedder,
    EmbeddingsLike,
    embed_texts,
    model_key,
)

_CHAT = ("memalign_evaluation", "answers")
_VECTORS = ("memalign_evaluation", "vectors")

_noted: ContextVar[list[str] | None] = ContextVar("memalign_noted_answers", default=None)


class Spent(BaseModel):
    """What an evaluation asked of chat models."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    chat_calls: int = 0
    """Answers it needed."""

    kept_calls: int = 0
    """Those of them that were there from before, and cost nothing now."""

    input_tokens: int = 0
    """Tokens of all prompts, as far as the model tells, also of answers that were kept."""

    output_tokens: int = 0
    """Tokens of all answers, likewise."""

    model_seconds: float = 0.0
    """How long the model took for all of them together, also at the time for those kept."""

    def __add__(self, other: "Spent") -> "Spent":
        fields = type(self).model_fields
        return Spent(**{name: getattr(self, name) + getattr(other, name) for name in fields})

    def __sub__(self, other: "Spent") -> "Spent":
        fields = type(self).model_fields
        return Spent(**{name: getattr(self, name) - getattr(other, name) for name in fields})


class Account:
    """Adds up what is asked of chat models for one purpose."""

    def __init__(self) -> None:
        """Begin with nothing."""
        self.spent = Spent()
        """What was asked so far."""
        self._lock = threading.Lock()

    def add(self, message: Any, seconds: float, *, kept: bool) -> None:
        """Count an answer."""
        told = message.usage_metadata if isinstance(message, AIMessage) else None
        usage: Mapping[str, Any] = told or {}
        spent = Spent(
            chat_calls=1,
            kept_calls=int(kept),
            input_tokens=usage.get("input_tokens", 0),
            output_tokens=usage.get("output_tokens", 0),
            model_seconds=seconds,
        )
        with self._lock:
            self.spent += spent


class KeptAnswers(BaseCache):
    """Keeps a chat model's answers in a LangGraph store, and counts what was asked.

    A LangChain cache for one model; see `with_kept_answers`.
    """

    def __init__(self, store: BaseStore, account: "Account", model: str) -> None:
        """Keep answers in a store."""
        self._store = store
        self._account = account
        self._model = model
        self._lock = threading.Lock()
        self._asked: dict[str, float] = {}

    def lookup(self, prompt: str, llm_string: str) -> RETURN_VAL_TYPE | None:
        """Find the answer to a prompt."""
        return run(self._lookup(BLOCKING, prompt, llm_string))

    async def alookup(self, prompt: str, llm_string: str) -> RETURN_VAL_TYPE | None:
        """Async twin of `lookup`."""
        return await self._lookup(AWAITING, prompt, llm_string)

    def update(self, prompt: str, llm_string: str, return_val: RETURN_VAL_TYPE) -> None:
        """Keep the answer to a prompt."""
        run(self._update(BLOCKING, prompt, llm_string, return_val))

    async def aupdate(self, prompt: str, llm_string: str, return_val: RETURN_VAL_TYPE) -> None:
        """Async twin of `update`."""
        await self._update(AWAITING, prompt, llm_string, return_val)

    def clear(self, **kwargs: Any) -> None:
        """Refuse: what others keep in the same store is not to be lost."""
        raise NotImplementedError("Kept answers are not cleared: take another store, or file.")

    def _key(self, prompt: str, llm_string: str) -> str:
        key = digest([self._model, _settings(llm_string), prompt])
        noted = _noted.get()
        if noted is not None:
            noted.append(key)
        return key

    async def _lookup(self, io: IO, prompt: str, llm_string: str) -> RETURN_VAL_TYPE | None:
        key = self._key(prompt, llm_string)
        found: list[Item | None] = await io.batch(self._store, [GetOp(_CHAT, key)])
        if found[0] is None:
            with self._lock:
                self._asked[key] = time.perf_counter()
            return None
        kept = found[0].value
        (message,) = messages_from_dict([kept["message"]])
        self._account.add(message, kept["seconds"], kept=True)
        return [ChatGeneration(message=message)]

    async def _update(self, io: IO, prompt: str, llm_string: str, answer: RETURN_VAL_TYPE) -> None:
        key = self._key(prompt, llm_string)
        now = time.perf_counter()
        with self._lock:
            seconds = round(now - self._asked.pop(key, now), 3)
        first = answer[0]
        if not isinstance(first, ChatGeneration):
            return
        self._account.add(first.message, seconds, kept=False)
        # What answers in prose once may do better when it is asked again.
        if not _is_structured(first.message):
            return
        value = {"message": message_to_dict(first.message), "seconds": seconds}
        await io.batch(self._store, [PutOp(_CHAT, key, value, index=False)])


def _is_structured(message: Any) -> bool:
    # One letter whose log-probabilities were asked for is an answer, too.
    if isinstance(message, AIMessage) and (
        message.tool_calls or message.response_metadata.get("logprobs")
    ):
        return True
    try:
        json.loads(message.text)
    except ValueError:
        return False
    return True


def with_kept_answers(model: BaseChatModel, store: BaseStore, account: Account) -> BaseChatModel:
    """Return a chat model whose answers are kept."""
    answers = KeptAnswers(store, account, model_key(model))
    copied = model.model_copy(update={"cache": answers})
    # LangChain remembers how it named the model, also after its settings were changed.
    vars(copied).pop("_serialized", None)
    return copied


def note_answers() -> list[str]:
    """Begin to note which answers are asked for, in this thread or task and those it starts."""
    noted: list[str] = []
    _noted.set(noted)
    return noted


async def drop_answers(io: IO, store: BaseStore, noted: Sequence[str]) -> None:
    """Keep answers no longer, so that they are asked for again."""
    keys = list(dict.fromkeys(noted))
    if keys:
        await io.batch(store, [PutOp(_CHAT, key, None) for key in keys])


def _settings(llm_string: str) -> str:
    """Take from LangChain's name of a model what does not change its answers."""
    try:
        named, end = json.JSONDecoder().raw_decode(llm_string)
    except ValueError:
        return llm_string
    if isinstance(named, dict) and isinstance(named.get("kwargs"), dict):
        for name in OF_NO_MATTER:
            named["kwargs"].pop(name, None)
    return json.dumps(named, sort_keys=True) + llm_string[end:]


class KeptEmbeddings(Embeddings):
    """Embeddings whose vectors are kept in a LangGraph store."""

    def __init__(self, embeddings: EmbeddingsLike, store: BaseStore) -> None:
        """Keep vectors in a store."""
        self._embedder = Embedder(embeddings)
        self.model = self._embedder.id
        self._store = store

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        """Embed texts, but for those whose vectors are there."""
        return run(self._embed(BLOCKING, texts))

    async def aembed_documents(self, texts: list[str]) -> list[list[float]]:
        """Async twin of `embed_documents`."""
        return await self._embed(AWAITING, texts)

    def embed_query(self, text: str) -> list[float]:
        """Embed one text, the same way."""
        return self.embed_documents([text])[0]

    async def aembed_query(self, text: str) -> list[float]:
        """Async twin of `embed_query`."""
        return (await self.aembed_documents([text]))[0]

    async def _embed(self, io: IO, texts: Sequence[str]) -> list[list[float]]:
        keys = {vector_key(self.model, text): text for text in texts}
        found: list[Item | None] = await io.batch(
            self._store, [GetOp(_VECTORS, key) for key in keys]
        )
        vectors = {
            key: decode_vector(item.value["vector"]).tolist()
            for key, item in zip(keys, found, strict=True)
            if item is not None
        }
        missing = [key for key in keys if key not in vectors]
        if missing:
            given = await embed_texts(io, self._embedder.embeddings, [keys[key] for key in missing])
            new = normalised(given, len(missing), self.model)
            fresh = dict(zip(missing, new, strict=True))
            puts = [
                PutOp(_VECTORS, key, {"vector": encode_vector(vector)}, index=False)
                for key, vector in fresh.items()
            ]
            await io.batch(self._store, puts)
            vectors |= {key: vector.tolist() for key, vector in fresh.items()}
        return [vectors[vector_key(self.model, text)] for text in texts]
