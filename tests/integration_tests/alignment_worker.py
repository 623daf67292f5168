"""An alignment in a process of its own, which is killed before a step of its work is written.

See `test_alignment_killed` and `test_alignment_processes`.
"""

import asyncio
import multiprocessing
import os
import signal
import sqlite3
import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from langchain_openai import ChatOpenAI, OpenAIEmbeddings
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.graph import StateGraph
from langgraph.store.base import PutOp
from langgraph.store.sqlite import SqliteStore
from langgraph.store.sqlite.aio import AsyncSqliteStore

from memalign_graph import Criterion, create_alignment_graph
from tests.loopback import LoopbackServer

ON: Any = {"configurable": {"thread_id": "t"}}
BATCH_SIZE = 25

FORKS = multiprocessing.get_context("forkserver")
"""Makes workers in milliseconds, out of a process that has imported all and runs no threads."""

FORKS.set_forkserver_preload(["tests.integration_tests.alignment_worker"])


@dataclass
class Job:
    """What a worker is to do."""

    folder: Path
    """Where its files are."""

    environment: Mapping[str, str]
    """Where its models are."""

    criterion: Criterion
    feedback: list[dict[str, Any]]
    awaits: bool = False
    """Whether by awaited calls."""

    checkpoints: bool = True
    """Whether with a checkpointer."""

    guard: Any = None
    """The graph's option."""

    kill_at: int | None = None
    """Before which step it is killed; None to count them."""

    name: str = "steps"
    """The file for the number of steps."""

    steps: int = 0
    lock: Any = field(default=None)

    def step(self) -> None:
        """Take a step, or die: SIGKILL, so that nothing is flushed and nothing is closed."""
        with self.lock:
            self.steps += 1
            if self.steps == self.kill_at:
                os.kill(os.getpid(), signal.SIGKILL)

    def builder(self) -> StateGraph[Any, Any, Any, Any]:
        return create_alignment_graph(
            self.criterion,
            model=ChatOpenAI(model="gpt-4.1-mini"),
            embeddings=OpenAIEmbeddings(
                model="text-embedding-3-small", check_embedding_ctx_length=False
            ),
            batch_size=BATCH_SIZE,
            guard=self.guard,
        )


def connect(path: Path) -> sqlite3.Connection:
    """A connection as several processes on one file need it."""
    connection = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
    connection.execute("PRAGMA busy_timeout=30000")
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=OFF")  # a test needs no safety from power cuts
    return connection


def texts(server: LoopbackServer) -> Counter[str]:
    """How often each text was embedded."""
    return Counter(text for request in server.embeddings for text in request.texts)


def writes(ops: Any) -> bool:
    """Whether a batch writes."""
    return isinstance(ops[0], PutOp)


def align(job: Job) -> None:
    """Align with blocking calls."""

    class Store(SqliteStore):
        def batch(self, ops: Any) -> Any:
            given = list(ops)
            if writes(given):
                job.step()
            return super().batch(given)

    class Saver(SqliteSaver):
        def put(self, *args: Any, **kwargs: Any) -> Any:
            job.step()
            return super().put(*args, **kwargs)

        def put_writes(self, *args: Any, **kwargs: Any) -> None:
            job.step()
            super().put_writes(*args, **kwargs)

    store = Store(connect(job.folder / "store.db"))
    store.setup()
    saver = Saver(connect(job.folder / "threads.db")) if job.checkpoints else None
    graph: Any = job.builder().compile(store=store, checkpointer=saver)
    graph.invoke({"feedback": job.feedback}, ON if job.checkpoints else {})


async def aalign(job: Job) -> None:
    """Align with awaited calls."""

    class Store(AsyncSqliteStore):
        async def abatch(self, ops: Any) -> Any:
            given = list(ops)
            if writes(given):
                job.step()
            return await super().abatch(given)

    class Saver(AsyncSqliteSaver):
        async def aput(self, *args: Any, **kwargs: Any) -> Any:
            job.step()
            return await super().aput(*args, **kwargs)

        async def aput_writes(self, *args: Any, **kwargs: Any) -> None:
            job.step()
            await super().aput_writes(*args, **kwargs)

    async with (
        Store.from_conn_string(str(job.folder / "store.db")) as store,
        Saver.from_conn_string(str(job.folder / "threads.db")) as saver,
    ):
        await store.conn.execute("PRAGMA synchronous=OFF")
        await saver.conn.execute("PRAGMA synchronous=OFF")
        await store.setup()
        graph: Any = job.builder().compile(
            store=store, checkpointer=saver if job.checkpoints else None
        )
        await graph.ainvoke({"feedback": job.feedback}, ON if job.checkpoints else {})


def work(job: Job) -> None:
    """Do a job; ends with the number of its steps in a file, unless it is killed."""
    os.environ.update(job.environment)
    job.lock = threading.Lock()
    if job.awaits:
        asyncio.run(aalign(job))
    else:
        align(job)
    (job.folder / job.name).write_text(str(job.steps))
