"""A store and a checkpointer in Postgres for `langgraph dev`, named in a `langgraph.json`."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
from langgraph.store.base import BaseStore
from psycopg import AsyncConnection
from psycopg.rows import DictRow, dict_row
from psycopg_pool import AsyncConnectionPool

from memalign_graph.local import open_store_async

URI = os.environ["MEMALIGN_STORE"]


@asynccontextmanager
async def store() -> AsyncIterator[BaseStore]:
    async with open_store_async(URI) as opened:
        yield opened


@asynccontextmanager
async def checkpointer() -> AsyncIterator[AsyncPostgresSaver]:
    kwargs = {"autocommit": True, "prepare_threshold": 0, "row_factory": dict_row}
    pool: AsyncConnectionPool[AsyncConnection[DictRow]] = AsyncConnectionPool(
        URI, min_size=1, max_size=4, open=False, kwargs=kwargs
    )
    async with pool:
        yield AsyncPostgresSaver(pool)
