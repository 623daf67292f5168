"""An LLM judge that learns from experts, as a LangGraph component.

`create_judge_graph` judges an example with what a memory holds; `create_review_graph` also asks an
expert and learns from the answer; `create_alignment_graph` learns from much feedback at once;
`JudgeMemory` is that memory, in any LangGraph store.
"""

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
from memalign_graph.graphs import (
    create_alignment_graph,
    create_feedback_graph,
    create_judge_graph,
    create_review_graph,
)
from memalign_graph.memory import (
    Commit,
    Forgotten,
    JudgeMemory,
    KeptJudgment,
    MemoryDiff,
    Snapshot,
)
from memalign_graph.nodes import (
    create_assemble_node,
    create_collect_node,
    create_commit_alignment_node,
    create_commit_node,
    create_consolidate_node,
    create_distill_again_node,
    create_distill_batch_node,
    create_distill_node,
    create_find_judgment_node,
    create_judge_node,
    create_remember_node,
    create_replay_node,
    create_retrieve_node,
    create_review_node,
    create_settle_node,
)
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

__all__ = [
    "AlignmentReport",
    "Boolean",
    "Categorical",
    "ChatModelError",
    "Commit",
    "Criterion",
    "EmbeddingError",
    "Episode",
    "Example",
    "Feedback",
    "Forgotten",
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
    "Numeric",
    "Pairwise",
    "Snapshot",
    "create_alignment_graph",
    "create_assemble_node",
    "create_collect_node",
    "create_commit_alignment_node",
    "create_commit_node",
    "create_consolidate_node",
    "create_distill_again_node",
    "create_distill_batch_node",
    "create_distill_node",
    "create_feedback_graph",
    "create_find_judgment_node",
    "create_judge_graph",
    "create_judge_node",
    "create_remember_node",
    "create_replay_node",
    "create_retrieve_node",
    "create_review_graph",
    "create_review_node",
    "create_settle_node",
]
