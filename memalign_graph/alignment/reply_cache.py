"""Models' replies kept in the store until what they lead to is committed.

An alignment of many calls can be cut off, or one of its calls can fail. Made again, it finds the
replies that it has paid for: the same prompt to the same model has the same one.
"""

import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict

from langchain_core.messages import BaseMessage

from memalign_graph.identity import check_json, digest
from memalign_graph.io import IO
from memalign_graph.memory.access import MemoryAccess
from memalign_graph.replies import ChatReply, StructuredModel


class CachedRepliesIO(IO):
    """An `IO` that keeps chat models' replies, so that made again nothing is asked twice.

    Where it asks anew, a reply that was no use before is not taken again.
    """

    def __init__(self, io: IO, access: MemoryAccess, *, bypass_cache: bool = False) -> None:
        super().__init__(io)
        self._access = access
        self._asks_anew = bypass_cache
        self._asked: Counter[str] = Counter()
        self._fresh: dict[int, tuple[str, ChatReply]] = {}
        self._lock = threading.Lock()

    async def chat(self, model: StructuredModel, messages: Sequence[BaseMessage]) -> ChatReply:
        """Return the reply that was kept, or ask."""
        key = self._key(model, messages)
        drafts = self._access.layout.of("drafts")
        wanted = [] if self._asks_anew else [key]
        kept = await self._access.get(self.io, drafts, wanted, lambda item: item["reply"])
        if key in kept:
            try:
                return ChatReply(**kept[key])
            except TypeError:
                pass  # written by another version of this package: asked for again
        reply = await self.io.chat(model, messages)
        self._fresh[id(reply)] = key, reply
        return reply

    async def mark_usable(self, reply: ChatReply) -> None:
        """Keep a reply that could be used."""
        if id(reply) not in self._fresh:
            return  # it was kept already
        key, _ = self._fresh.pop(id(reply))
        item = {"id": key, "reply": asdict(reply)}
        try:
            check_json(item, "the reply")
        except ValueError:
            return  # a model can write what some stores refuse, such as NUL
        await self._access.put(self.io, self._access.layout.of("drafts"), {key: item})

    def _key(self, model: StructuredModel, messages: Sequence[BaseMessage]) -> str:
        prompt = digest([model.key, *([one.type, one.text] for one in messages)])
        with self._lock:
            # The same prompt more than once is a sample each time.
            self._asked[prompt] += 1
            return digest([prompt, self._asked[prompt]])
