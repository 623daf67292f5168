"""Replies that are kept until what they lead to is committed."""

from functools import partial
from itertools import count
from typing import Any

import pytest
from langchain_core.messages import HumanMessage
from langgraph.store.memory import InMemoryStore

from memalign_graph import JudgeMemory
from memalign_graph.alignment.reply_cache import CachedRepliesIO
from memalign_graph.asking import with_schema
from memalign_graph.io import IO, SYNC, run_sync
from memalign_graph.memory.purge import Selection
from memalign_graph.memory.purge import purge as erase
from tests.loopback import LoopbackServer
from tests.unit_tests.memory.driver import memories
from tests.unit_tests.memory.purging import everything_in, left_in
from tests.unit_tests.memory.stores import asks, commits, in_memory, interleave
from tests.unit_tests.memory.support import CRITERION, comment, hashed
from tests.unit_tests.support import Drive

SCHEMA: dict[str, Any] = {"title": "judgment", "type": "object", "properties": {}}


@pytest.mark.parametrize(("settings", "later"), [({}, [0, 1]), ({"temperature": 0.5}, [2, 3])])
def test_replies_to_a_prompt_are_kept_for_a_model_with_the_same_settings(
    drive: Drive, server: LoopbackServer, settings: dict[str, Any], later: list[int]
) -> None:
    access, numbers = JudgeMemory(InMemoryStore(), CRITERION, embeddings=hashed).access, count()
    server.responder = lambda _: {"value": next(numbers)}

    async def ask(io: IO, **options: Any) -> list[Any]:
        cached, model = (
            CachedRepliesIO(io, access),
            with_schema(server.chat_model(**options), SCHEMA),
        )
        replies = [await cached.chat(model, [HUMAN]) for _ in range(2)]
        for reply in replies:
            await cached.mark_usable(reply)
        return [reply.answer and reply.answer["value"] for reply in replies]

    assert drive(ask) == [0, 1]
    assert drive(lambda io: ask(io, **settings)) == later


@pytest.mark.parametrize("is_during_call", [True, False])
def test_no_reply_from_before_a_purge(server: LoopbackServer, *, is_during_call: bool) -> None:
    here, there = memories(in_memory(InMemoryStore()), 2)
    there.remember(comment("one", "It is zqxwhy.", author="ann"))
    server.responder = lambda _: {"rationale": "zqxwhy"}
    model = with_schema(server.chat_model(), SCHEMA)

    async def ask(io: IO) -> None:
        cached = CachedRepliesIO(io, here.access)
        await cached.mark_usable(await cached.chat(model, [HUMAN]))

    def purge() -> None:
        there.forget(author="ann", purge=True)

    if is_during_call:
        interleave(ask, asks, purge)
    else:
        purging = partial(erase, access=there.access, selection=Selection(author="ann"), saver=None)
        interleave(purging, commits, lambda: run_sync(ask(SYNC)))
    assert left_in(everything_in(there.access.store)) == []


HUMAN = HumanMessage("Well?")
