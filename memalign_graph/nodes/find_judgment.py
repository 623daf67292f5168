"""`find_judgment`: an earlier judgment, and the expert's word on it."""

from collections.abc import Mapping
from typing import Any

from memalign_graph.context import DEFAULT_SETTINGS, resolve_context
from memalign_graph.errors import InvalidInputError
from memalign_graph.interrupts import read_reply
from memalign_graph.io import IO
from memalign_graph.memory.judgments import find_judgment
from memalign_graph.models import DEFAULT_EMBEDDINGS, EmbeddingsLike
from memalign_graph.nodes.base import Memories, OperationNode, Run, State, Update
from memalign_graph.state import LaterFeedback
from memalign_graph.types import Criterion, Feedback

FindView = LaterFeedback
"""What the node reads of the state."""


def create_find_judgment_node(
    criterion: Criterion,
    *,
    embeddings: EmbeddingsLike = DEFAULT_EMBEDDINGS,
    settings: Mapping[str, Any] = DEFAULT_SETTINGS,
) -> OperationNode:
    """Create the node that finds the judgment which feedback is on.

    Args:
        criterion: The criterion.
        embeddings: What the memory embeds with.
        settings: The graph's settings by the names of `MemAlignContext`'s fields; the run's
            context goes before them.

    Returns:
        The node; it reads `FindView`, and writes `judgment`, `feedback` and what
        `distill_feedback` and `commit_memory` read.
    """
    memories = Memories(criterion, embeddings)

    async def look(io: IO, state: State, run: Run) -> Update:
        resolved = resolve_context(run.context, settings)
        access = memories.get(run, resolved)
        kept = await find_judgment(io, access, state.get("judgment_id", ""))
        try:
            said = read_reply(state.get("reply"), criterion, kept.judgment)
        except ValueError as error:
            raise InvalidInputError(f"reply: {error}") from error
        feedback = None
        if said is not None:
            feedback = Feedback(
                example=kept.example, judgment=kept.judgment, thread_id=run.thread_id, **said
            ).to_json()
        return {
            "judge_example": kept.example.to_json(),
            "judge_settings": resolved,
            "recalled": [],
            "recall_version": kept.judgment.memory_version,
            "recall_vector": kept.vector if kept.embedder == access.embedder.id else None,
            "recall_warnings": [],
            "judgment": kept.judgment.to_json(),
            "feedback": feedback,
            "learned": None,
        }

    return OperationNode("find_judgment", look)
