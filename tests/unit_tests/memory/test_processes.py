"""Real processes on one SQLite file, and one that is killed half-way."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

from memalign_graph import JudgeMemory
from memalign_graph.memory.standing import stand
from tests.loopback import LoopbackServer
from tests.unit_tests.memory.support import CRITERION, QUERY, ROOT, Opener, hashed, said
from tests.unit_tests.memory.test_in_step import recalled

COUNT = 3
"""How many processes act at once."""

STEPS = os.environ.get("MEMALIGN_TEST_STEPS", "40")
"""How often each process acts; a thousand times tells more."""

WORKER = ("-m", "tests.unit_tests.memory.worker")

KILLED = """
import os, signal, sys
from tests.unit_tests.memory.support import CRITERION, connect, is_content, said
from langgraph.store.base import PutOp
from langgraph.store.sqlite import SqliteStore
from memalign_graph import JudgeMemory

class Killed(SqliteStore):
    def batch(self, ops):
        ops = list(ops)
        if any(isinstance(one, PutOp) and is_content(one) for one in ops):
            os.kill(os.getpid(), signal.SIGKILL)
        return super().batch(ops)

store = Killed(connect(sys.argv[1]))
memory = JudgeMemory(store, CRITERION, embeddings="openai:text-embedding-3-small")
memory.remember([said("one"), said("two")])
"""


class Child:
    """A process that does a step for each line it is given."""

    def __init__(self, *args: object, **environment: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-W", "error", *map(str, args)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | environment,
            cwd=ROOT,
        )

    def read(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def go(self) -> None:
        assert self._process.stdin is not None
        print(file=self._process.stdin, flush=True)

    def end(self) -> tuple[int, str]:
        _, errors = self._process.communicate(timeout=300)
        return self._process.returncode, errors


def test_processes_at_random_lose_nothing_and_see_the_same(opener: Opener, tmp_path: Path) -> None:
    memory = JudgeMemory(opener(), CRITERION, embeddings=hashed)
    memory.version()
    path = tmp_path / "store.db"
    children = [Child(*WORKER, path, f"actor {number}", STEPS) for number in range(COUNT)]
    assert [child.read() for child in children] == ["ready"] * COUNT
    for child in children:
        child.go()
    written = [json.loads(child.read()) for child in children]
    for child in children:
        child.go()
    reports = [child.read() for child in children]
    assert [child.end() for child in children] == [(0, "")] * COUNT

    rules, episodes = memory.guidelines(), memory.episodes()
    assert reports == [f"{memory.version()} {len(rules)} {len(episodes)}"] * COUNT
    facts, words = memory.access.view.facts()
    assert all(written)
    assert sorted(fact.id for fact in facts) == sorted(key for one in written for key in one)
    assert stand(facts, words, memory.access.embedder.id).version == memory.version()
    cold = JudgeMemory(opener(), CRITERION, embeddings=hashed)
    assert (cold.version(), cold.guidelines()) == (memory.version(), rules)
    assert cold.episodes() == episodes
    assert recalled(cold) == recalled(memory)
    assert memory.at(memory.version()).guidelines == rules


def test_killed_before_its_commit_a_writer_leaves_the_old_memory(
    server: LoopbackServer, opener: Opener, tmp_path: Path
) -> None:
    memory = JudgeMemory(opener(), CRITERION, embeddings=server.embedder())
    before = memory.version()
    child = Child("-c", KILLED, tmp_path / "store.db", **server.environment)
    assert child.end() == (-signal.SIGKILL, "")
    assert [request.texts for request in server.embeddings] == [["one\n\na", "two\n\na"]]

    assert memory.episodes() == []
    assert memory.recall(QUERY) == []
    assert memory.version() == before
    server.embeddings.clear()
    memory.remember([said("one"), said("two")])
    assert len(memory.recall(said("one").example)) == 2
    assert server.embeddings == []
