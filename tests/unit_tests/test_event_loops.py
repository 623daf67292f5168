"""String models in several event loops of one process."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from langgraph.store.memory import InMemoryStore

from memalign_graph import Criterion, Feedback, JudgeMemory, create_judge_graph
from tests.loopback import LoopbackServer, Together

CRITERION = Criterion(name="tone", instructions="Is it polite?")
AT_ONCE = 8


def judge_on_two_loops() -> None:
    """Runs in a separate process, where no client is closed."""
    models: Any = {"model": "openai:gpt-own", "embeddings": "openai:text-embedding-3-small"}
    store = InMemoryStore()
    memory = JudgeMemory(store, CRITERION, embeddings=models["embeddings"])
    case_fields: dict[str, Any] = {"inputs": "Hello?", "outputs": "Go away.", "value": False}
    graph: Any = create_judge_graph(CRITERION, **models).compile(store=store)

    async def judge(loop: str, at_once: int) -> list[Any]:
        await memory.aremember([Feedback.model_validate({**case_fields, "outputs": loop})])
        cases = ({"inputs": "Hi!", "outputs": f"{loop} {n}"} for n in range(at_once))
        return await asyncio.gather(*(graph.ainvoke(case) for case in cases))

    for loop, at_once in (("first", AT_ONCE), ("second", 1), ("third", AT_ONCE)):
        judgments = asyncio.run(judge(loop, at_once))
        assert [item["judgment"]["value"] for item in judgments] == [True] * at_once
        assert all(item["judgment"]["episode_ids"] for item in judgments)


def test_string_models_work_on_every_event_loop_of_a_process() -> None:
    with LoopbackServer() as server:
        server.embedding_latency_s = 0.05
        server.responder = Together(AT_ONCE, server.judge)
        done = subprocess.run(
            [sys.executable, "-m", "tests.unit_tests.test_event_loops"],
            cwd=Path(__file__).parents[2],
            env={**os.environ, **server.environment},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert server.peak_chats == AT_ONCE
        assert len(server.chats) == 2 * AT_ONCE + 1, "no request is sent for nothing"
        assert server.errors == []


if __name__ == "__main__":
    judge_on_two_loops()
