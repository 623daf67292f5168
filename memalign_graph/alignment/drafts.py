"""Models' answers kept in the store until they are committed.

An alignment of many calls can be cut off, or one of its calls can fail. Made again, it finds the
answers it has already paid for: the same prompt has the same answer.
"""

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any, TypeVar

from langchain_core.messages import BaseMessage

from memalign_graph.identity import check_json, digest
from memalign_graph.io import IO
from memalign_graph.memory.access import MemoryAccess
from memalign_graph.models import ChatReply, StructuredModel, ask

T = TypeVar("T")


async def ask_once(
    io: IO,
    access: MemoryAccess,
    model: StructuredModel,
    messages: Sequence[BaseMessage],
    read: Callable[[dict[str, Any], bool], T],
    *,
    purpose: str,
) -> T:
    """Ask for an answer, or take the one that is waiting to be committed."""
    key = digest([model.name, *([one.type, one.text] for one in messages)])
    drafts = access.layout.drafts
    waiting = await access.get(io, drafts, [key], lambda item: item["answer"])
    if key in waiting:
        try:
            return read(waiting[key], True)
        except ValueError:
            pass  # written by another version of this package: asked for again
    result, reply = await ask(io, model, messages, read, purpose=purpose)
    await access.put(io, drafts, {key: {"id": key, "answer": reply.answer}})
    return result


class KeepReplies(IO):
    """An `IO` that keeps chat models' replies, so that made again nothing is asked twice."""

    def __init__(self, io: IO, access: MemoryAccess) -> None:
        super().__init__(io)
        self._access = access
        self._asked: Counter[str] = Counter()
        self._lock = threading.Lock()

    async def chat(self, model: StructuredModel, messages: Sequence[BaseMessage]) -> ChatReply:
        """Return the reply that was kept, or ask, and keep it."""
        key = self._key(model, messages)
        drafts = self._access.layout.drafts
        waiting = await self._access.get(self.io, drafts, [key], lambda item: item["reply"])
        if key in waiting:
            try:
                return ChatReply(**waiting[key])
            except TypeError:
                pass  # written by another version of this package: asked for again
        reply = await self.io.chat(model, messages)
        kept = asdict(reply)
        if reply.answer is not None and _is_storable(kept):
            await self._access.put(self.io, drafts, {key: {"id": key, "reply": kept}})
        return reply

    def _key(self, model: StructuredModel, messages: Sequence[BaseMessage]) -> str:
        said = [[one.type, one.text] for one in messages]
        prompt = digest(["reply", model.name, *said])
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
