"""A review on a Postgres database, in a process of its own, which is killed half-way."""

import os
import signal
from collections.abc import Callable, Mapping
from itertools import count
from typing import Any

from langgraph.store.base import PutOp
from langgraph.types import Command

from memalign_graph import create_review_graph
from tests.conftest import COLD, CRITERION
from tests.integration_tests.alignment_worker import ON, models
from tests.unit_tests.memory.worker import FORKS

FORKS.set_forkserver_preload([__name__])


def learn(uri: str, environment: Mapping[str, str], kill_at: int | None, pipe: Any) -> None:
    """Take an expert's reply; killed before one of the writes, or telling how many there were."""
    from langgraph.checkpoint.postgres import PostgresSaver
    from langgraph.store.postgres import PostgresStore

    os.environ.update(environment)
    steps = count(1)

    def stepping(call: Callable[..., Any]) -> Callable[..., Any]:
        def step(*args: Any, **kwargs: Any) -> Any:
            is_read = isinstance(args[0], list) and not isinstance(args[0][0], PutOp)
            if not is_read and next(steps) == kill_at:
                os.kill(os.getpid(), signal.SIGKILL)
            return call(*args, **kwargs)

        return step

    with (
        PostgresStore.from_conn_string(uri) as store,
        PostgresSaver.from_conn_string(uri) as saver,
    ):
        for owner, name in ((store, "batch"), (saver, "put"), (saver, "put_writes")):
            setattr(owner, name, stepping(getattr(owner, name)))
        graph: Any = create_review_graph(CRITERION, **models()).compile(
            store=store, checkpointer=saver
        )
        graph.invoke(Command(resume=COLD), ON)
    pipe.send(next(steps) - 1)
