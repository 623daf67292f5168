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
    from memalign_graph.errors import (
        ChatModelError,
        EmbeddingError,
        InvalidInputError,
        MemAlignError,
        MemAlignWarning,
        ModelAnswerError,
        StoreError,
    )
    from memalign_graph.gate import GateVerdict, create_quality_gate_tool
    from memalign_graph.gate_nodes import add_quality_gate, create_quality_gate_node
    from memalign_graph.graphs import (
        JudgeNodes,
        create_alignment_graph,
        create_feedback_graph,
        create_judge_graph,
        create_review_graph,
    )
    from memalign_graph.memory.judge_memory import JudgeMemory
    from memalign_graph.panel import Aggregate, create_panel_graph
    from memalign_graph.scales import Boolean, Categorical, Numeric, Pairwise
    from memalign_graph.settings import Judge, JudgeOptions, MemAlignContext, Uncertain
    from memalign_graph.tracing import UsageLedger
    from memalign_graph.types import Criterion, Episode, Example, Feedback, Guideline, Judgment

__all__ = [
    "Aggregate",
    "Boolean",
    "Categorical",
    "ChatModelError",
    "Criterion",
    "EmbeddingError",
    "Episode",
    "Example",
    "Feedback",
    "GateVerdict",
    "Guideline",
    "InvalidInputError",
    "Judge",
    "JudgeMemory",
    "JudgeNodes",
    "JudgeOptions",
    "Judgment",
    "MemAlignContext",
    "MemAlignError",
    "MemAlignWarning",
    "ModelAnswerError",
    "Numeric",
    "Pairwise",
    "StoreError",
    "Uncertain",
    "UsageLedger",
    "add_quality_gate",
    "create_alignment_graph",
    "create_feedback_graph",
    "create_judge_graph",
    "create_panel_graph",
    "create_quality_gate_node",
    "create_quality_gate_tool",
    "create_review_graph",
]

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


def __getattr__(name: str) -> "Any":
    """Import a name at its first use."""
    if name not in _MODULE_BY_NAME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_MODULE_BY_NAME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULE_BY_NAME})
