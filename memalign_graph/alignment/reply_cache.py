"""Cache models' replies in the store until their result is committed.

An alignment makes many calls, and each may fail or be cut off. When the alignment is run again,
only failed calls are paid. LangChain's cache does not fit: it is set for the whole process, is
seldom on disk, and a purge does not reach it.
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
    """An `IO` that returns the cached reply of the same model and settings to a prompt."""

    def __init__(self, io: IO, access: MemoryAccess) -> None:
        super().__init__(io)
        self._access, self._namespace = access, access.layout.of("drafts")
        self._prompt_counts: Counter[str] = Counter()
        self._uncached: dict[int, tuple[str, set[str], ChatReply]] = {}
        """New replies by their Python ids: the key, the purges before it, and the reply itself, so
        that its id is not reused."""
        self._lock = threading.Lock()

    async def chat(self, model: StructuredModel, messages: Sequence[BaseMessage]) -> ChatReply:
        key = self._key(model, messages)
        cached = await self._access.get(self.io, self._namespace, [key])
        if key in cached:
            try:
                return ChatReply(**cached[key]["reply"])
            except (KeyError, TypeError):
                pass  # written by another version of this package
        purges = (await self._access.refresh(self.io)).purges()
        reply = await self.io.chat(model, messages)
        self._uncached[id(reply)] = key, purges, reply
        return reply

    async def mark_usable(self, reply: ChatReply) -> None:
        if id(reply) not in self._uncached:
            return  # it is from the cache
        key, purges, _ = self._uncached.pop(id(reply))
        item = {"id": key, "reply": asdict(reply)}
        try:
            check_json(item, "the reply")
        except ValueError:
            return  # text that some stores refuse, such as NUL
        await self._access.put(self.io, self._namespace, {key: item})
        if (await self._access.refresh(self.io)).purges() != purges:
            # It may repeat what was purged.
            await self._access.put(self.io, self._namespace, {key: None})

    def _key(self, model: StructuredModel, messages: Sequence[BaseMessage]) -> str:
        prompt = digest([model.key, *([message.type, message.text] for message in messages)])
        with self._lock:
            # Each repetition of a prompt is a new sample.
            self._prompt_counts[prompt] += 1
            return digest([prompt, self._prompt_counts[prompt]])
