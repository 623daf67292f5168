"""The nodes of the graphs, one file each; each is made by a factory, to build other graphs from.

- `retrieve`, `assemble`: what memory has on the case.
- `judge`: the verdict.
- `decide_review`: whether an expert is asked, with `review="uncertain"`.
- `review`: the expert's word, by interrupt.
- `clarify`: a question back, where the words are too vague.
- `distill`, `commit`: what is learned from it, and where it goes.
- `find_judgment`: an earlier judgment, for an expert who answers later.
- `remember`, `judge_cases`, `distill_batch`, `consolidate`, `settle`, `replay`,
  `commit_alignment`: the same for much feedback at once.
- `base`, `measured`: what nodes share.
"""

from memalign_graph.nodes.assemble import create_assemble_node
from memalign_graph.nodes.clarify import create_clarify_node, create_question_node
from memalign_graph.nodes.commit import create_commit_node
from memalign_graph.nodes.commit_alignment import create_commit_alignment_node
from memalign_graph.nodes.consolidate import create_consolidate_node
from memalign_graph.nodes.decide_review import create_decide_review_node
from memalign_graph.nodes.distill import create_distill_node
from memalign_graph.nodes.distill_batch import (
    create_collect_node,
    create_distill_again_node,
    create_distill_batch_node,
)
from memalign_graph.nodes.find_judgment import create_find_judgment_node
from memalign_graph.nodes.judge import create_judge_node
from memalign_graph.nodes.judge_cases import create_judge_cases_node
from memalign_graph.nodes.remember import create_remember_node
from memalign_graph.nodes.replay import create_replay_node
from memalign_graph.nodes.retrieve import create_retrieve_node
from memalign_graph.nodes.review import create_review_node
from memalign_graph.nodes.settle import create_settle_node

__all__ = [
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
    "create_find_judgment_node",
    "create_judge_cases_node",
    "create_judge_node",
    "create_question_node",
    "create_remember_node",
    "create_replay_node",
    "create_retrieve_node",
    "create_review_node",
    "create_settle_node",
]
