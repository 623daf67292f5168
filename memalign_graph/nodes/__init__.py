"""The nodes of the graphs, one file each; each is made by a factory, to build other graphs from.

- `retrieve`, `assemble`: what memory has on the case.
- `judge`: the verdict.
- `review`: the expert's word, by interrupt.
- `distill`, `commit`: what is learned from it, and where it goes.
- `base`, `asking`: what nodes share.
"""

from memalign_graph.nodes.assemble import create_assemble_node
from memalign_graph.nodes.commit import create_commit_node
from memalign_graph.nodes.distill import create_distill_node
from memalign_graph.nodes.judge import create_judge_node
from memalign_graph.nodes.retrieve import create_retrieve_node
from memalign_graph.nodes.review import create_review_node

__all__ = [
    "create_assemble_node",
    "create_commit_node",
    "create_distill_node",
    "create_judge_node",
    "create_retrieve_node",
    "create_review_node",
]
