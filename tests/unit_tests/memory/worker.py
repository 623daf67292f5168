"""Worker processes on a shared memory that report what they did."""

import logging
import multiprocessing
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from langgraph.store.base import BaseStore, PutOp
from langgraph.store.sqlite import SqliteStore

from memalign_graph import JudgeMemory
from memalign_graph.io import SYNC, run_sync
from tests.unit_tests.memory.driver import Actor
from tests.unit_tests.memory.stores import connect
from tests.unit_tests.memory.support import CRITERION, hashed

FORKS = multiprocessing.get_context("forkserver")
"""Makes processes in milliseconds, out of one that has imported all and runs no threads."""

FORKS.set_forkserver_preload([__name__])


def store_at(place: Path | str) -> BaseStore:
    """Open a store in a file or a Postgres database."""
    if isinstance(place, Path):
        return SqliteStore(connect(place))
    from langgraph.store.postgres import PostgresStore
    from psycopg import Connection
    from psycopg.rows import dict_row

    return PostgresStore(Connection.connect(place, autocommit=True, row_factory=dict_row))


def act(place: Path | str, name: str, steps: int, pipe: Any) -> None:
    """Perform random operations on command; reports written facts and the final state."""
    logging.disable(logging.WARNING)
    written: list[str] = []
    store = store_at(place)
    batch = store.batch

    def noting(ops: Any) -> Any:
        results = batch(ops)
        puts = [operation for operation in ops if isinstance(operation, PutOp)]
        written.extend(operation.key for operation in puts if operation.namespace[-1] == "facts")
        return results

    vars(store)["batch"] = noting
    memory = JudgeMemory(store, CRITERION, embeddings=hashed)
    actor = Actor(memory, name)
    memory.version()
    pipe.send("ready")
    pipe.recv()
    for _ in range(steps):
        run_sync(actor.act(SYNC))
    pipe.send(written)
    pipe.recv()
    pipe.send((memory.version(), memory.guidelines(), memory.episodes()))


def start(work: Any, *args: Any) -> tuple[Any, Connection]:
    here, there = FORKS.Pipe()
    process = FORKS.Process(target=work, args=(*args, there), daemon=True)
    process.start()
    there.close()
    return process, here
