"""Two real processes on one SQLite file, and one that is killed half-way."""

import os
import signal
import subprocess
import sys
from pathlib import Path

from memalign_graph import JudgeMemory
from tests.loopback import LoopbackServer
from tests.unit_tests.memory.support import CRITERION, QUERY, ROOT, Opener, hashed, said

COUNT = 50

WRITER = """
import sys
from tests.unit_tests.memory.support import CRITERION, connect, hashed, said
from langgraph.store.sqlite import SqliteStore
from memalign_graph import JudgeMemory

path, name, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
memory = JudgeMemory(SqliteStore(connect(path)), CRITERION, embeddings=hashed)
memory.version()
print("ready", flush=True)
sys.stdin.readline()
for number in range(count):
    memory.remember([said(f"{name} {number}"), said("shared", author=f"{name} {number}")])
    if number % 10 == 0:
        memory.add_guideline(f"Rule {name} {number}.")
print("done", flush=True)
sys.stdin.readline()
print(memory.version(), len(memory.episodes()), len(memory.recall(said().example, k=1000)))
"""

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
    """A process that runs a script, a step for each line it is given."""

    def __init__(self, script: str, *args: object, **environment: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-W", "error", "-c", script, *map(str, args)],
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


def test_two_processes_writing_at_once_lose_and_double_nothing(
    opener: Opener, tmp_path: Path
) -> None:
    memory = JudgeMemory(opener(), CRITERION, embeddings=hashed)
    memory.recall(QUERY)
    children = [Child(WRITER, tmp_path / "store.db", name, COUNT) for name in ("ann", "bob")]
    for step in ("ready", "done"):
        assert [child.read() for child in children] == [step, step]
        for child in children:
            child.go()
    reports = [child.read() for child in children]
    assert [child.end() for child in children] == [(0, "")] * 2

    episodes = memory.episodes()
    assert len(episodes) == 4 * COUNT
    assert len({one.example_id for one in episodes}) == 2 * COUNT + 1
    assert len(memory.guidelines()) == 10
    assert reports == [f"{memory.version()} {4 * COUNT} {2 * COUNT + 1}"] * 2
    assert len(memory.recall(QUERY, k=1000)) == 2 * COUNT + 1
    cold = JudgeMemory(opener(), CRITERION, embeddings=hashed)
    assert cold.version() == memory.version()


def test_killed_before_its_commit_a_writer_leaves_the_old_memory(
    server: LoopbackServer, opener: Opener, tmp_path: Path
) -> None:
    memory = JudgeMemory(opener(), CRITERION, embeddings=server.embedder())
    before = memory.version()
    child = Child(KILLED, tmp_path / "store.db", **server.environment)
    assert child.end() == (-signal.SIGKILL, "")
    assert [request.texts for request in server.embeddings] == [["one\n\na", "two\n\na"]]

    assert memory.episodes() == []
    assert memory.recall(QUERY) == []
    assert memory.version() == before
    server.embeddings.clear()
    memory.remember([said("one"), said("two")])
    assert len(memory.recall(said("one").example)) == 2
    assert server.embeddings == []
