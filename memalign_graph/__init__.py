"""An LLM judge that learns from experts, as a LangGraph component.

`create_judge_graph` judges an example with the memory of a criterion; `create_review_graph` also
asks an expert and learns from the answer; `create_alignment_graph` learns from many pieces of
feedback; `create_panel_graph` judges by several criteria; `add_quality_gate` adds a judge to any
graph, and `QualityGateMiddleware` to an agent; `JudgeMemory` reads and changes a memory.
`memalign_graph.records` has the types of results.
"""

from importlib import import_module

TYPE_CHECKING = False  # importing typing would take longer than the rest of this module
if TYPE_CHECKING:
    from typing import Any

    from memalign_graph.agents import QualityGateMiddleware as QualityGateMiddleware
    from memalign_graph.approvals import ApprovalMiddleware as ApprovalMiddleware
    from memalign_graph.approvals import create_approval_wrapper as create_approval_wrapper
    from memalign_graph.errors import ChatModelError as ChatModelError
    from memalign_graph.errors import EmbeddingError as EmbeddingError
    from memalign_graph.errors import InvalidInputError as InvalidInputError
    from memalign_graph.errors import MemAlignError as MemAlignError
    from memalign_graph.errors import MemAlignWarning as MemAlignWarning
    from memalign_graph.errors import ModelAnswerError as ModelAnswerError
    from memalign_graph.errors import StoreError as StoreError
    from memalign_graph.gate import GateVerdict as GateVerdict
    from memalign_graph.gate import create_quality_gate_tool as create_quality_gate_tool
    from memalign_graph.gate_nodes import add_quality_gate as add_quality_gate
    from memalign_graph.gate_nodes import create_quality_gate_node as create_quality_gate_node
    from memalign_graph.graphs import JudgeNodes as JudgeNodes
    from memalign_graph.graphs import create_alignment_graph as create_alignment_graph
    from memalign_graph.graphs import create_feedback_graph as create_feedback_graph
    from memalign_graph.graphs import create_judge_graph as create_judge_graph
    from memalign_graph.graphs import create_review_graph as create_review_graph
    from memalign_graph.memory.judge_memory import JudgeMemory as JudgeMemory
    from memalign_graph.panel import Aggregate as Aggregate
    from memalign_graph.panel import create_panel_graph as create_panel_graph
    from memalign_graph.scales import Boolean as Boolean
    from memalign_graph.scales import Categorical as Categorical
    from memalign_graph.scales import Numeric as Numeric
    from memalign_graph.scales import Pairwise as Pairwise
    from memalign_graph.settings import Judge as Judge
    from memalign_graph.settings import JudgeOptions as JudgeOptions
    from memalign_graph.settings import MemAlignContext as MemAlignContext
    from memalign_graph.settings import Uncertain as Uncertain
    from memalign_graph.tracing import UsageLedger as UsageLedger
    from memalign_graph.types import Criterion as Criterion
    from memalign_graph.types import Episode as Episode
    from memalign_graph.types import Example as Example
    from memalign_graph.types import Feedback as Feedback
    from memalign_graph.types import Guideline as Guideline
    from memalign_graph.types import Judgment as Judgment

_MODULE_EXPORTS = {
    "agents": "QualityGateMiddleware",
    "approvals": "ApprovalMiddleware create_approval_wrapper",
    "errors": "ChatModelError EmbeddingError InvalidInputError MemAlignError MemAlignWarning "
    "ModelAnswerError StoreError",
    "gate": "GateVerdict create_quality_gate_tool",
    "gate_nodes": "add_quality_gate create_quality_gate_node",
    "graphs": "JudgeNodes create_alignment_graph create_feedback_graph create_judge_graph "
    "create_review_graph",
    "memory.judge_memory": "JudgeMemory",
    "panel": "Aggregate create_panel_graph",
    "scales": "Boolean Categorical Numeric Pairwise",
    "settings": "Judge JudgeOptions MemAlignContext Uncertain",
    "tracing": "UsageLedger",
    "types": "Criterion Episode Example Feedback Guideline Judgment",
}
_MODULE_BY_NAME = {
    name: module for module, names in _MODULE_EXPORTS.items() for name in names.split()
}
# All but those that need an extra.
__all__ = [
    name for name, module in _MODULE_BY_NAME.items() if module not in ("agents", "approvals")
]


def __getattr__(name: str) -> "Any":
    """Import a name at its first use."""
    if name not in _MODULE_BY_NAME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_MODULE_BY_NAME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULE_BY_NAME})
