"""What chat models are asked for, told to every trace by LangChain's metadata; a ledger of it."""

import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from uuid import UUID

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages import BaseMessage
from langchain_core.outputs import LLMResult
from langchain_core.runnables.config import var_child_runnable_config

from memalign_graph.io import IO, ChatReply, StructuredModel

CRITERION, PURPOSE = "memalign_criterion", "memalign_purpose"
MEMORY_VERSION = "memalign_memory_version"

_MAX_PENDING_CALLS = 10_000
"""How many calls are under way at most: of those that are cancelled LangChain tells no end."""


class TracedIO(IO):
    """An `IO` whose chat models' runs say in their metadata what they are for."""

    def __init__(
        self, io: IO, about: Callable[[], Mapping[str, str]], tags: Sequence[str] = ()
    ) -> None:
        super().__init__(io)
        self._about, self._tags = about, tags

    async def chat(self, model: StructuredModel, messages: Sequence[BaseMessage]) -> ChatReply:
        config = var_child_runnable_config.get() or {}
        # Whoever is nearer to the question knows better.
        known = config.get("metadata") or {}
        metadata = {PURPOSE: model.purpose, **self._about(), **known}
        tags = [*(config.get("tags") or []), *self._tags]
        token = var_child_runnable_config.set({**config, "metadata": metadata, "tags": tags})
        try:
            return await super().chat(model, messages)
        finally:
            var_child_runnable_config.reset(token)


class UsageLedger(BaseCallbackHandler):
    """Counts what judges ask of chat models, by criterion, purpose and model, from any thread.

    What is answered from a cache costs nothing and is not counted, nor is what failed.

    Example:
        ```python
        ledger = UsageLedger()
        graph.invoke(case, {"callbacks": [ledger]})
        ledger.rows()
        ```
    """

    run_inline = True  # it costs less than a thread

    def __init__(self) -> None:
        self._asked: dict[UUID, tuple[str, str]] = {}
        self._counts: defaultdict[tuple[str, str, str], Counter[str]] = defaultdict(Counter)
        self._lock = threading.Lock()

    def rows(self) -> list[dict[str, Any]]:
        """Return the account, a row for each criterion, purpose and model.

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
        """Note what a call is for; calls of others than judges are left aside."""
        if metadata and metadata.keys() >= {CRITERION, PURPOSE}:
            with self._lock:
                self._asked[run_id] = (metadata[CRITERION], metadata[PURPOSE])
                if len(self._asked) > _MAX_PENDING_CALLS:
                    del self._asked[next(iter(self._asked))]

    def on_llm_end(self, response: LLMResult, *, run_id: UUID, **_: Any) -> None:
        """Count a call that was answered."""
        message: Any = getattr(response.generations[0][0], "message", None)
        usage = getattr(message, "usage_metadata", None) or {}
        with self._lock:
            asked = self._asked.pop(run_id, None)
            if asked is None or usage.get("total_cost") == 0:  # as LangChain marks what is cached
                return
            model = message.response_metadata.get("model_name") or "unknown"
            tokens = {name: usage.get(name, 0) for name in ("input_tokens", "output_tokens")}
            self._counts[*asked, model].update(calls=1, **tokens)

    def on_llm_error(self, error: BaseException, *, run_id: UUID, **_: Any) -> None:  # noqa: ARG002 - as it is called
        """Forget a call that failed."""
        with self._lock:
            self._asked.pop(run_id, None)
