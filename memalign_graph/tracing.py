"""The metadata of model calls in traces, their usage, and judgments as OpenTelemetry events.

The events have the name `gen_ai.evaluation.result`.
"""

import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from inspect import signature
from itertools import chain
from typing import Any
from uuid import UUID

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.embeddings import Embeddings
from langchain_core.messages import BaseMessage
from langchain_core.outputs import LLMResult
from langchain_core.runnables.config import var_child_runnable_config

from memalign_graph.io import IO
from memalign_graph.models import drop_oldest
from memalign_graph.replies import ChatReply, StructuredModel
from memalign_graph.types import FrozenModel, Judgment

CRITERION, PURPOSE = "memalign_criterion", "memalign_purpose"
MEMORY_VERSION, JUDGE_KEY = "memalign_memory_version", "memalign_judge_key"

_MAX_PENDING_CALLS = 10_000
"""The maximum of calls in flight: LangChain does not report the end of cancelled calls."""


class TracedIO(IO):
    """An `IO` that adds purpose, criterion and memory version to the runs of chat models."""

    def __init__(
        self, io: IO, run_metadata: Callable[[], Mapping[str, str]], tags: Sequence[str] = ()
    ) -> None:
        super().__init__(io)
        self._run_metadata, self._tags = run_metadata, tags

    async def chat(self, model: StructuredModel, messages: Sequence[BaseMessage]) -> ChatReply:
        config = var_child_runnable_config.get() or {}
        # The metadata of the innermost caller wins.
        inner = config.get("metadata") or {}
        metadata = {PURPOSE: model.purpose, **self._run_metadata(), **inner}
        tags = [*(config.get("tags") or []), *self._tags]
        token = var_child_runnable_config.set({**config, "metadata": metadata, "tags": tags})
        try:
            return await self.io.chat(model, messages)
        finally:
            var_child_runnable_config.reset(token)


class UsageLedger(BaseCallbackHandler):
    """Counts the judges' calls of chat models by criterion, purpose and model; thread-safe.

    Calls that are answered from a cache, or that failed, are not counted.

    Example:
        ```python
        ledger = UsageLedger()
        graph.invoke(case, {"callbacks": [ledger]})
        ledger.rows()
        ```
    """

    run_inline = True  # it costs less than a thread

    def __init__(self) -> None:
        self._pending_calls: dict[UUID, tuple[str, str]] = {}
        self._counts: defaultdict[tuple[str, str, str], Counter[str]] = defaultdict(Counter)
        self._lock = threading.Lock()

    def rows(self) -> list[dict[str, Any]]:
        """Return a row for each criterion, purpose and model.

        Returns:
            Rows of `criterion`, `purpose` (`judge`, `confidence`, `check`, `clarify`, `distil` or
            `compare`), `model`, `calls`, `input_tokens` and `output_tokens`.
        """
        names = ("criterion", "purpose", "model")
        with self._lock:
            return [
                {**dict(zip(names, key, strict=True)), **counts}
                for key, counts in sorted(self._counts.items())
            ]

    def on_chat_model_start(
        self, *_: Any, run_id: UUID, metadata: dict[str, Any] | None = None, **__: Any
    ) -> None:
        """Record the purpose of a judge's call."""
        if metadata and metadata.keys() >= {CRITERION, PURPOSE}:
            with self._lock:
                self._pending_calls[run_id] = (metadata[CRITERION], metadata[PURPOSE])
                drop_oldest(self._pending_calls, _MAX_PENDING_CALLS)

    def on_llm_end(self, response: LLMResult, *, run_id: UUID, **_: Any) -> None:
        """Count an answered call."""
        message: Any = getattr(next(chain(*response.generations), None), "message", None)
        usage = getattr(message, "usage_metadata", None) or {}
        with self._lock:
            pending = self._pending_calls.pop(run_id, None)
            is_cached = usage.get("total_cost") == 0  # as LangChain marks it
            if pending is None or message is None or is_cached:
                return
            model = message.response_metadata.get("model_name") or "unknown"
            tokens = {name: usage.get(name, 0) for name in ("input_tokens", "output_tokens")}
            self._counts[*pending, model].update(calls=1, **tokens)

    def on_llm_error(self, error: BaseException, *, run_id: UUID, **_: Any) -> None:  # noqa: ARG002 - as it is called
        """Drop a failed call."""
        with self._lock:
            self._pending_calls.pop(run_id, None)


class Usage(FrozenModel):
    """Answered model calls; tokens as far as the model reports them."""

    chat_calls: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    embedding_calls: int = 0
    texts_embedded: int = 0

    def __add__(self, other: "Usage") -> "Usage":
        return Usage(**{name: count + getattr(other, name) for name, count in self})


class MeteredIO(IO):
    """An `IO` that counts its model calls; thread-safe."""

    def __init__(self, io: IO) -> None:
        super().__init__(io)
        self._lock = threading.Lock()
        self.usage = Usage()

    async def chat(self, model: StructuredModel, messages: Sequence[BaseMessage]) -> ChatReply:
        reply = await self.io.chat(model, messages)
        read, wrote = reply.input_tokens or 0, reply.output_tokens or 0
        self._count(Usage(chat_calls=1, input_tokens=read, output_tokens=wrote))
        return reply

    async def embed(self, embeddings: Embeddings, texts: Sequence[str]) -> list[list[float]]:
        vectors = await self.io.embed(embeddings, texts)
        self._count(Usage(embedding_calls=1, texts_embedded=len(texts)))
        return vectors

    def _count(self, usage: Usage) -> None:
        with self._lock:
            self.usage += usage


def emit_evaluation(judgment: Judgment, *, asked: bool | None) -> None:
    """Emit a judgment as an OpenTelemetry event, if that is installed; `asked` may be unknown.

    The rationale may repeat the case, so the event does not contain it.
    """
    logger = _event_logger()
    if logger is None:
        return
    value = judgment.value
    label = str(value).lower() if isinstance(value, bool) else str(value)
    attributes = {
        "gen_ai.evaluation.name": judgment.criterion,
        "gen_ai.evaluation.score.label": label,
        "gen_ai.evaluation.score.value": None if isinstance(value, str) else float(value),
        "gen_ai.response.model": judgment.model,
        "memalign.judgment_id": judgment.id,
        "memalign.judge_key": judgment.judge_key,
        "memalign.memory_version": judgment.memory_version,
        "memalign.confidence": judgment.confidence,
        "memalign.asked": asked,
    }
    present = {name: value for name, value in attributes.items() if value is not None}
    logger.emit(event_name="gen_ai.evaluation.result", attributes=present)


@cache
def _event_logger() -> Any:
    """Return OpenTelemetry's logger; None if it is missing, or too old for events."""
    try:
        from opentelemetry import _logs
    except ImportError:
        return None
    if "event_name" not in signature(_logs.Logger.emit).parameters:
        return None
    return _logs.get_logger("memalign_graph")
