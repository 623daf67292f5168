"""An LLM judge that learns from experts, as a LangGraph component.

`create_judge_graph` judges an example with what a memory holds; `create_review_graph` also asks an
expert and learns from the answer; `create_alignment_graph` learns from much feedback at once;
`create_panel_graph` judges by many criteria at once; `add_quality_gate` puts a judge into any
graph, and `QualityGateMiddleware` into an agent; `JudgeMemory` is that memory, in any store.
"""

from typing import TYPE_CHECKING, Any

from memalign_graph.alignment.report import AlignmentReport
from memalign_graph.context import MemAlignContext
from memalign_graph.errors import (
    ChatModelError,
    EmbeddingError,
    InvalidInputError,
    MemAlignError,
    MemAlignWarning,
    ModelAnswerError,
)
from memalign_graph.evidence.trust import Trust
from memalign_graph.gate import (
    GateReview,
    GateStatus,
    GateVerdict,
    add_quality_gate,
    create_quality_gate_node,
    create_quality_gate_tool,
)
from memalign_graph.graphs import (
    create_alignment_graph,
    create_feedback_graph,
    create_judge_graph,
    create_review_graph,
)
from memalign_graph.judgment import Evidence, Neighbour, ReviewChoice
from memalign_graph.memory import (
    Commit,
    Forgotten,
    JudgeMemory,
    KeptJudgment,
    MemoryDiff,
    ReviewReport,
    Snapshot,
)
from memalign_graph.nodes import (
    create_assemble_node,
    create_clarify_node,
    create_collect_node,
    create_commit_alignment_node,
    create_commit_node,
    create_consolidate_node,
    create_decide_review_node,
    create_distill_again_node,
    create_distill_batch_node,
    create_distill_node,
    create_find_judgment_node,
    create_judge_cases_node,
    create_judge_node,
    create_question_node,
    create_remember_node,
    create_replay_node,
    create_retrieve_node,
    create_review_node,
    create_settle_node,
)
from memalign_graph.panel import Aggregate, AggregateResult, create_panel_graph
from memalign_graph.types import (
    Boolean,
    Categorical,
    Criterion,
    Episode,
    Example,
    Feedback,
    Guideline,
    Judgment,
    Numeric,
    Pairwise,
)

if TYPE_CHECKING:
    from memalign_graph.middleware import QualityGateMiddleware as QualityGateMiddleware

__all__ = [
    "Aggregate",
    "AggregateResult",
    "AlignmentReport",
    "Boolean",
    "Categorical",
    "ChatModelError",
    "Commit",
    "Criterion",
    "EmbeddingError",
    "Episode",
    "Evidence",
    "Example",
    "Feedback",
    "Forgotten",
    "GateReview",
    "GateStatus",
    "GateVerdict",
    "Guideline",
    "InvalidInputError",
    "JudgeMemory",
    "Judgment",
    "KeptJudgment",
    "MemAlignContext",
    "MemAlignError",
    "MemAlignWarning",
    "MemoryDiff",
    "ModelAnswerError",
    "Neighbour",
    "Numeric",
    "Pairwise",
    "ReviewChoice",
    "ReviewReport",
    "Snapshot",
    "Trust",
    "add_quality_gate",
    "create_alignment_graph",
    "create_assemble_node",
    "create_clarify_node",
    "create_collect_node",
    "create_commit_alignment_node",
    "create_commit_node",
    "create_consolidate_node",
    "create_decide_review_node",
    "create_distill_again_node",
    "create_distill_batch_node",
    "create_distill_node",
    "create_feedback_graph",
    "create_find_judgment_node",
    "create_judge_cases_node",
    "create_judge_graph",
    "create_judge_node",
    "create_panel_graph",
    "create_quality_gate_node",
    "create_quality_gate_tool",
    "create_question_node",
    "create_remember_node",
    "create_replay_node",
    "create_retrieve_node",
    "create_review_graph",
    "create_review_node",
    "create_settle_node",
]


def __getattr__(name: str) -> Any:
    """Import what needs an extra only when it is asked for."""
    if name == "QualityGateMiddleware":
        from memalign_graph.middleware import QualityGateMiddleware

        return QualityGateMiddleware
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
