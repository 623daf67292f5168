"""Run an alignment or a review in a process that gets killed."""

import asyncio
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from langchain_openai import ChatOpenAI, OpenAIEmbeddings
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.store.base import PutOp
from langgraph.store.sqlite import SqliteStore
from langgraph.store.sqlite.aio import AsyncSqliteStore
from langgraph.types import Command

from memalign_graph import Criterion, create_alignment_graph, create_review_graph
from memalign_graph.local import open_checkpointer, open_store
from tests.conftest import CASE, COLD
from tests.conftest import CRITERION as SUPPORT
from tests.loopback import LoopbackServer
from tests.unit_tests.memory.stores import connect
from tests.unit_tests.memory.worker import FORKS

ON: Any = {"configurable": {"thread_id": "t"}}
BATCH_SIZE = 25

FORKS.set_forkserver_preload([__name__])


def models() -> dict[str, Any]:
    embeddings = OpenAIEmbeddings(model="text-embedding-3-small", check_embedding_ctx_length=False)
    return {"model": ChatOpenAI(model="gpt-4.1-mini"), "embeddings": embeddings}


@dataclass
class Job:
    """A worker's task."""

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

    kill_at: int | None = None
    """Before which step it is killed; None to count them."""

    name: str = "steps"
    """The file for the number of steps."""

    steps: int = 0
    lock: Any = field(default=None)

    def step(self) -> None:
        """Count a step, or die by SIGKILL, so that nothing is flushed or closed."""
        with self.lock:
            self.steps += 1
            if self.steps == self.kill_at:
                os.kill(os.getpid(), signal.SIGKILL)

    def compile(self, store: Any, saver: Any) -> Any:
        """Compile the graph and count each store write as a step."""
        names = ("abatch", "aput", "aput_writes") if self.awaits else ("batch", "put", "put_writes")
        for owner, name in zip((store, saver, saver), names, strict=True):
            setattr(owner, name, self._stepping(getattr(owner, name)))
        options: Any = {**models(), "batch_size": BATCH_SIZE}
        builder = create_alignment_graph(self.criterion, **options)
        return builder.compile(store=store, checkpointer=saver if self.checkpoints else None)

    def _stepping(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def stepping(*args: Any, **kwargs: Any) -> Any:
            is_read = isinstance(args[0], list) and not isinstance(args[0][0], PutOp)
            if not is_read:
                self.step()
            return call(*args, **kwargs)

        return stepping


def texts(server: LoopbackServer) -> Counter[str]:
    """How often each text was embedded."""
    return Counter(text for request in server.embeddings for text in request.texts)


def align(job: Job) -> None:
    store = SqliteStore(connect(job.folder / "store.db"))
    store.setup()
    saver = SqliteSaver(connect(job.folder / "threads.db"))
    job.compile(store, saver).invoke({"feedback": job.feedback}, ON if job.checkpoints else {})


async def aalign(job: Job) -> None:
    async with (
        AsyncSqliteStore.from_conn_string(str(job.folder / "store.db")) as store,
        AsyncSqliteSaver.from_conn_string(str(job.folder / "threads.db")) as saver,
    ):
        await store.conn.execute("PRAGMA synchronous=OFF")
        await saver.conn.execute("PRAGMA synchronous=OFF")
        await store.setup()
        graph = job.compile(store, saver)
        await graph.ainvoke({"feedback": job.feedback}, ON if job.checkpoints else {})


def work(job: Job) -> None:
    """Do a job and write the number of its steps to a file, unless killed."""
    os.environ.update(job.environment)
    job.lock = threading.Lock()
    if job.awaits:
        asyncio.run(aalign(job))
    else:
        align(job)
    (job.folder / job.name).write_text(str(job.steps))


def review(folder: Path, environment: Mapping[str, str], criterion: Criterion, reply: Any) -> None:
    """Judge a case, resume with a reply if given, and wait to be killed."""
    os.environ.update(environment)
    store = SqliteStore(connect(folder / "store.db"))
    saver = SqliteSaver(connect(folder / "threads.db"))
    store.setup()
    graph: Any = create_review_graph(criterion, **models()).compile(store=store, checkpointer=saver)
    graph.invoke(CASE, ON)
    if reply is not None:
        graph.invoke(Command(resume=reply), ON)
    time.sleep(600)


def learn(uri: str, environment: Mapping[str, str], kill_at: int | None, pipe: Any) -> None:
    """Resume with a reply on Postgres; killed before one write, or reports their number."""
    os.environ.update(environment)
    job = Job(Path(), environment, SUPPORT, [], kill_at=kill_at, lock=threading.Lock())
    with open_store(uri) as store, open_checkpointer(uri) as saver:
        for owner, name in ((store, "batch"), (saver, "put"), (saver, "put_writes")):
            setattr(owner, name, job._stepping(getattr(owner, name)))
        builder = create_review_graph(SUPPORT, **models())
        graph: Any = builder.compile(store=store, checkpointer=saver)
        graph.invoke(Command(resume=COLD), ON)
    pipe.send(job.steps)
