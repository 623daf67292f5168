"""`settle_conflicts`: the interrupt that asks which of two contradicting guidelines stays."""

from memalign_graph.alignment.merging import Conflict
from memalign_graph.effects import Operation
from memalign_graph.interrupts import conflict_form
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

    def settle_conflicts(state: State, run: Run) -> Operation[Update]:
        yield from ()  # nothing is asked of the outside here
        warn_without_checkpointer(run, "alignment")
        conflicts = [Conflict.model_validate(one) for one in state["merged"]["conflicts"]]
        return {"decisions": conflict_form(criterion, conflicts).ask()}

    return OperationNode("settle_conflicts", settle_conflicts)
