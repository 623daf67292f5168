"""The graphs: uncompiled, so that the caller gives them store, checkpointer and place.

- `judging`: `create_judge_graph`, `create_review_graph`.
- `feedback`: `create_feedback_graph`.
- `aligning`: `create_alignment_graph`.
- `options`: what they share.
"""

from memalign_graph.graphs.aligning import create_alignment_graph
from memalign_graph.graphs.feedback import create_feedback_graph
from memalign_graph.graphs.judging import create_judge_graph, create_review_graph

__all__ = [
    "create_alignment_graph",
    "create_feedback_graph",
    "create_judge_graph",
    "create_review_graph",
]
