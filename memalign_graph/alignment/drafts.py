"""Models' answers kept in the store until they are committed.

An alignment of many calls can be cut off, or one of its calls can fail. Made again, it finds the
answers it has already paid for: the same prompt has the same answer.
"""

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, TypeVar

from langchain_core.messages import BaseMessage

from memalign_graph.asking import ask
from memalign_graph.effects import Chat, Effect, Gather, Operation
from memalign_graph.identity import check_json, digest
from memalign_graph.memory.access import MemoryAccess
from memalign_graph.models import StructuredModel
from memalign_graph.replies import ChatReply

T = TypeVar("T")


def ask_once(
    access: MemoryAccess,
    model: StructuredModel,
    messages: Sequence[BaseMessage],
    read: Callable[[dict[str, Any], bool], T],
    *,
    purpose: str,
) -> Operation[T]:
    """Ask for an answer, or take the one that is waiting to be committed."""
    key = digest([model.name, *([one.type, one.text] for one in messages)])
    drafts = access.layout.drafts
    waiting = yield from access.get(drafts, [key], lambda item: item["answer"])
    if key in waiting:
        try:
            return read(waiting[key], True)
        except ValueError:
            pass  # written by another version of this package: asked for again
    result, reply = yield from ask(model, messages, read, purpose=purpose)
    yield from access.put(drafts, {key: {"id": key, "answer": reply.answer}})
    return result


def keep_replies(access: MemoryAccess, operation: Operation[T]) -> Operation[T]:
    """Carry an operation through, so that made again it asks no chat model for the same again."""
    return (yield from _Kept(access).watch(operation))


@dataclass(frozen=True)
class _Kept:
    """The replies of one operation."""

    access: MemoryAccess
    _asked: Counter[str] = field(default_factory=Counter)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def watch(self, operation: Operation[T]) -> Operation[T]:
        """Carry an operation through, or one that runs side by side with others within it."""
        try:
            effect = next(operation)
            while True:
                try:
                    result = yield from self._result(effect)
                except Exception as error:  # noqa: BLE001 - the operation decides what becomes of it
                    effect = operation.throw(error)
                else:
                    effect = operation.send(result)
        except StopIteration as stop:
            value: T = stop.value
            return value

    def _result(self, effect: Effect) -> Operation[Any]:
        match effect:
            case Chat():
                return (yield from self._reply(effect))
            case Gather(operations, limit):
                return (yield Gather([self.watch(one) for one in operations], limit))
            case _:
                return (yield effect)

    def _reply(self, chat: Chat) -> Operation[ChatReply]:
        key = self._key(chat)
        drafts = self.access.layout.drafts
        waiting = yield from self.access.get(drafts, [key], lambda item: item["reply"])
        if key in waiting:
            try:
                return ChatReply(**waiting[key])
            except TypeError:
                pass  # written by another version of this package: asked for again
        reply: ChatReply = yield chat
        kept = asdict(reply)
        if reply.answer is not None and _is_storable(kept):
            yield from self.access.put(drafts, {key: {"id": key, "reply": kept}})
        return reply

    def _key(self, chat: Chat) -> str:
        said = [[one.type, one.text] for one in chat.messages]
        prompt = digest(["reply", chat.model.name, *said])
        with self._lock:
            self._asked[prompt] += 1
            return digest([prompt, self._asked[prompt]])


def _is_storable(reply: Any) -> bool:
    """Tell whether any store can keep a reply: a model can write what some refuse, such as NUL."""
    try:
        check_json(reply, "the reply")
    except ValueError:
        return False
    return True
