"""What the nodes of an alignment share: each counts what it uses, and tells how far it is."""

import threading
import time
from typing import Any

from memalign_graph.io import IO
from memalign_graph.models import Metered
from memalign_graph.nodes.base import NodeOperation, OperationNode, Run, State, Update


def measured_node(name: str, operation: NodeOperation, *, begins: bool = False) -> OperationNode:
    """Make a node that adds what it used to the state's `usage`."""

    async def measured(io: IO, state: State, run: Run) -> Update:
        metered = Metered(io)
        start = time.time()
        update = await operation(metered, state, run)
        used = metered.usage.model_dump()
        entry = {"used": used, "start": start, "stop": time.time(), "begins": begins}
        return {**update, "usage": [entry]}

    return OperationNode(name, measured)


def progress(run: Run, stage: str, done: int, of: int, **more: Any) -> None:
    """Stream how far an alignment is, as a custom event."""
    run.write({"type": "alignment_progress", "stage": stage, "done": done, "of": of, **more})


class Counter:
    """Counts what nodes that run side by side have done, by run."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._done: dict[str, set[int]] = {}

    def note(self, run_key: str, number: int) -> int:
        """Note one as done."""
        with self._lock:
            done = self._done.setdefault(run_key, set())
            done.add(number)
            return len(done)

    def clear(self, run_key: str) -> int:
        """Forget a run."""
        with self._lock:
            return len(self._done.pop(run_key, ()))


counter = Counter()
"""What the runs of this process have done."""
