"""`settle_conflicts`: the interrupt that asks which of two contradicting guidelines stays."""

from typing import Any

from langgraph.types import interrupt

from memalign_graph.alignment.conflicts import conflicts_payload, decisions_schema
from memalign_graph.alignment.merging import Conflict
from memalign_graph.io import IO
from memalign_graph.nodes.base import (
    OperationNode,
    Run,
    State,
    Update,
    warn_without_checkpointer,
)
from memalign_graph.state import Consolidated
from memalign_graph.types import Criterion

SettleView = Consolidated
"""What the node reads of the state."""


def create_settle_node(criterion: Criterion) -> OperationNode:
    """Create the node that asks an expert about all conflicts at once, and waits.

    Args:
        criterion: The criterion.

    Returns:
        The node; it reads `SettleView` and writes `Settled`.
    """

    async def settle_conflicts(_io: IO, state: State, run: Run) -> Update:
        warn_without_checkpointer(run, "alignment")
        conflicts = [Conflict.model_validate(one) for one in state["merged"]["conflicts"]]
        reply: Any = interrupt(
            conflicts_payload(criterion, conflicts), response_schema=decisions_schema(conflicts)
        )
        return {"decisions": reply.root}

    return OperationNode("settle_conflicts", settle_conflicts)
