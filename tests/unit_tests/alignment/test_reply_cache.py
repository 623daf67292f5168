"""Replies that are kept until what they lead to is committed."""

from typing import Any

import pytest
from langchain_core.messages import HumanMessage
from langgraph.store.memory import InMemoryStore

from memalign_graph import JudgeMemory
from memalign_graph.alignment.reply_cache import CachedRepliesIO
from memalign_graph.asking import with_schema
from memalign_graph.io import IO
from tests.loopback import LoopbackServer
from tests.unit_tests.memory.support import CRITERION, hashed
from tests.unit_tests.support import Drive

SCHEMA: dict[str, Any] = {"title": "judgment", "type": "object", "properties": {}}


@pytest.mark.parametrize(("settings", "requests"), [({}, 1), ({"temperature": 0.5}, 2)])
def test_a_reply_is_kept_for_a_model_with_the_same_settings(
    drive: Drive, server: LoopbackServer, settings: dict[str, Any], requests: int
) -> None:
    access = JudgeMemory(InMemoryStore(), CRITERION, embeddings=hashed).access
    server.responder = lambda _: {"value": True}

    async def ask(io: IO, **options: Any) -> Any:
        cached = CachedRepliesIO(io, access)
        reply = await cached.chat(with_schema(server.chat_model(**options), SCHEMA), [HUMAN])
        await cached.mark_usable(reply)
        return reply.answer

    assert drive(ask) == drive(lambda io: ask(io, **settings)) == {"value": True}
    assert len(server.chats) == requests


HUMAN = HumanMessage("Well?")
