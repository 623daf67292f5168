"""Quality gates: a judge in any graph, which lets through what passes and sends back what does not.

- `build`: `add_quality_gate`, in one call, and `create_quality_gate_node`.
- `tool`: `create_quality_gate_tool`, for agents that check their own work.
- `gate`: the gate itself: judge, ask the expert, and say what becomes of the answer.
- `verdict`: which values pass, and what a gate says.
- `example`, `critique`: the answer taken out of a parent's state; what its writer is told.

`memalign_graph.middleware` is the same for langchain's `create_agent`.
"""

from memalign_graph.gate.build import add_quality_gate, create_quality_gate_node
from memalign_graph.gate.gate import GateReview
from memalign_graph.gate.tool import create_quality_gate_tool
from memalign_graph.gate.verdict import GateStatus, GateVerdict, OnJudgeError, Passes

__all__ = [
    "GateReview",
    "GateStatus",
    "GateVerdict",
    "OnJudgeError",
    "Passes",
    "add_quality_gate",
    "create_quality_gate_node",
    "create_quality_gate_tool",
]
