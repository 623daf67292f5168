"""`assemble_guidelines`: the guidelines that stand."""

from collections.abc import Mapping
from typing import Any

from memalign_graph.context import DEFAULT_SETTINGS, resolve_context
from memalign_graph.io import IO
from memalign_graph.models import DEFAULT_EMBEDDINGS, EmbeddingsLike
from memalign_graph.nodes.base import Memories, OperationNode, Run, State, Update
from memalign_graph.state import ExampleView
from memalign_graph.types import Criterion

AssembleView = ExampleView
"""What the node reads of the state: nothing, but a node has to be given something."""


def create_assemble_node(
    criterion: Criterion,
    *,
    embeddings: EmbeddingsLike = DEFAULT_EMBEDDINGS,
    settings: Mapping[str, Any] = DEFAULT_SETTINGS,
    use_guidelines: bool = True,
) -> OperationNode:
    """Create the node that reads the guidelines, beside the one that retrieves episodes.

    Args:
        criterion: The criterion.
        embeddings: What the memory embeds with; nothing is embedded here.
        settings: The graph's settings by the names of `MemAlignContext`'s fields; the run's
            context goes before them.
        use_guidelines: False to give none, for comparison.

    Returns:
        The node; it writes `Assembled`.
    """
    memories = Memories(criterion, embeddings)

    async def assemble_guidelines(io: IO, _state: State, run: Run) -> Update:
        access = memories.get(run, resolve_context(run.context, settings))
        standing = (await access.all_guidelines(io)) if use_guidelines else []
        return {"guidelines": [one.to_json() for one in standing]}

    return OperationNode("assemble_guidelines", assemble_guidelines)
