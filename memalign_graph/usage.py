"""What an operation costs: model calls, tokens and texts embedded, counted as it runs."""

import threading
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict

from memalign_graph.effects import Chat, Effect, Embed, Gather, Operation
from memalign_graph.replies import ChatReply

T = TypeVar("T")


class Usage(BaseModel):
    """What was asked of models."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    chat_calls: int = 0
    """Calls of the chat model that were answered."""

    input_tokens: int = 0
    """Tokens of their prompts, as far as the model tells."""

    output_tokens: int = 0
    """Tokens of their answers, as far as the model tells."""

    embedding_calls: int = 0
    """Embedding requests that were answered."""

    texts_embedded: int = 0
    """The texts in them."""

    def __add__(self, other: "Usage") -> "Usage":
        return Usage(**{name: getattr(self, name) + getattr(other, name) for name in _FIELDS})


_FIELDS = tuple(Usage.model_fields)


class Meter:
    """Counts what operations ask for, also where they run side by side."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.usage = Usage()

    def watch(self, operation: Operation[T]) -> Operation[T]:
        """Carry an operation through, counting what it asks for."""
        try:
            effect = next(operation)
            while True:
                try:
                    result = yield self._watched(effect)
                except Exception as error:  # noqa: BLE001 - the operation decides what becomes of it
                    effect = operation.throw(error)
                else:
                    self._count(effect, result)
                    effect = operation.send(result)
        except StopIteration as stop:
            value: T = stop.value
            return value

    def _watched(self, effect: Effect) -> Effect:
        if isinstance(effect, Gather):
            return Gather([self.watch(one) for one in effect.operations], effect.limit)
        return effect

    def _count(self, effect: Effect, result: Any) -> None:
        match effect:
            case Chat():
                reply: ChatReply = result
                used = Usage(
                    chat_calls=1,
                    input_tokens=reply.input_tokens or 0,
                    output_tokens=reply.output_tokens or 0,
                )
            case Embed():
                used = Usage(embedding_calls=1, texts_embedded=len(effect.texts))
            case _:
                return
        with self._lock:
            self.usage += used
