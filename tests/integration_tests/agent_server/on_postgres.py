"""A store and a checkpointer in Postgres for `langgraph dev`, as docs/operations.md has them."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
from langgraph.store.base import BaseStore

from memalign_graph.local import open_store_async


@asynccontextmanager
async def own_store() -> AsyncIterator[BaseStore]:
    async with open_store_async(os.environ["MEMALIGN_STORE"]) as opened:
        yield opened


@asynccontextmanager
async def own_checkpointer() -> AsyncIterator[AsyncPostgresSaver]:
    async with AsyncPostgresSaver.from_conn_string(os.environ["MEMALIGN_STORE"]) as saver:
        await saver.setup()
        yield saver
