"""Workers on one Postgres database: one completes the learning of a killed one."""

import signal
from contextlib import ExitStack
from typing import Any

import pytest
from langgraph.types import Command

from memalign_graph import JudgeMemory, create_review_graph
from memalign_graph.local import open_checkpointer, open_store
from tests.conftest import CASE, COLD, CRITERION, distillings, judgings
from tests.integration_tests.alignment_worker import ON, learn
from tests.loopback import LoopbackServer
from tests.postgres import database
from tests.unit_tests.memory.driver import check_same, content_of
from tests.unit_tests.memory.worker import start

pytestmark = pytest.mark.postgres


def test_another_worker_completes_learning(postgres_server: str, server: LoopbackServer) -> None:
    def outcome(kill_at: int | None) -> tuple[Any, int]:
        server.reset()
        models: Any = {"model": server.chat_model(), "embeddings": server.embedder()}
        with ExitStack() as stack:
            uri = stack.enter_context(database(postgres_server))
            store = stack.enter_context(open_store(uri))
            saver = stack.enter_context(open_checkpointer(uri))
            builder = create_review_graph(CRITERION, **models)
            graph: Any = builder.compile(store=store, checkpointer=saver)
            graph.invoke(CASE, ON)
            process, pipe = start(learn, uri, dict(server.environment), kill_at)
            process.join()
            if kill_at is None:
                steps = pipe.recv()
            else:
                steps = 0
                assert process.exitcode == -signal.SIGKILL, kill_at
                asks = graph.get_state(ON).interrupts
                graph.invoke(Command(resume=COLD) if asks else None, ON)
            assert graph.get_state(ON).next == ()
            memory = JudgeMemory(store, CRITERION, embeddings=server.embedder())
            with open_store(uri) as cold:
                other = JudgeMemory(cold, CRITERION, embeddings=server.embedder())
                check_same([memory], other)
            assert len(judgings(server)) == 1
            assert len(distillings(server)) <= 2
            return content_of(memory), steps

    wanted, steps = outcome(None)
    [case], [(*_, sources)], *_ = wanted
    assert case[2] == "distilled"
    assert sources == [case[0]]
    for step in range(1, steps + 1):
        assert outcome(step)[0] == wanted, step
