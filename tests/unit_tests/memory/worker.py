"""A process that acts at random on a memory in a file: `python -m ... FILE NAME STEPS`.

It says when it is ready, acts so often once it is told a line, names the facts that it wrote,
and after one more line what it sees.
"""

import json
import logging
import sys
from collections.abc import Iterable

from langgraph.store.base import Op, PutOp, Result
from langgraph.store.sqlite import SqliteStore

from memalign_graph import JudgeMemory
from memalign_graph.io import BLOCKING, run
from tests.unit_tests.memory.acting import Actor
from tests.unit_tests.memory.support import CRITERION, connect, hashed


class Noting(SqliteStore):
    """Notes which facts it wrote."""

    written: list[str]

    def batch(self, ops: Iterable[Op]) -> list[Result]:
        given = list(ops)
        results = super().batch(given)
        puts = [one for one in given if isinstance(one, PutOp)]
        self.written += [one.key for one in puts if one.namespace[-1] == "facts"]
        return results


def tell(*what: object) -> None:
    """Answer whoever started this process."""
    print(*what, flush=True)  # noqa: T201 - it is read


def main() -> None:
    """Act."""
    logging.disable(logging.WARNING)
    path, name, steps = sys.argv[1:]
    store = Noting(connect(path))
    store.written = []
    memory = JudgeMemory(store, CRITERION, embeddings=hashed)
    actor = Actor(memory, name)
    memory.version()
    tell("ready")
    sys.stdin.readline()
    for _ in range(int(steps)):
        run(actor.act(BLOCKING))
    tell(json.dumps(store.written))
    sys.stdin.readline()
    rules, episodes = memory.guidelines(), memory.episodes()
    tell(memory.version(), len(rules), len(episodes))


if __name__ == "__main__":
    main()
