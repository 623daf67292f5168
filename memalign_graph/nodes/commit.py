"""`commit_memory`: what was learned, written in one commit."""

from typing import NotRequired

from memalign_graph.alignment.redistill import learn_again
from memalign_graph.io import IO
from memalign_graph.memory.forgetting import clear_drafts
from memalign_graph.memory.learning import GuidelineOperation
from memalign_graph.memory.lessons import learn
from memalign_graph.models import DEFAULT_EMBEDDINGS, EmbeddingsLike
from memalign_graph.nodes.base import Memories, OperationNode, Run, State, Update, store_feedback
from memalign_graph.state import Distilled, Retrieved, ReviewOutput
from memalign_graph.types import Criterion, Feedback


class CommitView(Retrieved, ReviewOutput, Distilled):
    """What the node reads of the state."""

    learning_warnings: NotRequired[list[str]]
    """What learning did without."""


def create_commit_node(
    criterion: Criterion, *, embeddings: EmbeddingsLike = DEFAULT_EMBEDDINGS
) -> OperationNode:
    """Create the node that commits what was learned.

    Feedback that only agrees comes here without distilling, and is stored here. Running the node
    again changes nothing more.

    Args:
        criterion: The criterion.
        embeddings: What the memory embeds with.

    Returns:
        The node; it reads `CommitView` and writes `learned`.
    """
    memories = Memories(criterion, embeddings)

    async def commit_memory(io: IO, state: State, run: Run) -> Update:
        feedback = Feedback.model_validate(state["feedback"])
        warnings = list(state.get("learning_warnings") or [])
        access = memories.get(run, state["judge_settings"])
        if feedback.agrees:
            episode = await store_feedback(io, access, feedback, state)
            learned = await learn(io, access, [], {})
            learned["episode_ids"] = [episode.id]
        else:
            again = [GuidelineOperation.model_validate(one) for one in state.get("rewordings", [])]
            if again:
                await learn_again(io, access, again, state.get("reworded", {}))
                await clear_drafts(io, access)
            operations = [GuidelineOperation.model_validate(one) for one in state["operations"]]
            taught = {key for one in operations for key in one.episode_ids}
            learned = await learn(
                io,
                access,
                operations,
                state["distilled"],
                author=feedback.author,
                # Another review may be distilling what this one read along, and passed over.
                passed_over=state["distilled"].keys() - taught - {feedback.episode_id},
            )
            warnings += state.get("refused", [])
        return {"learned": {**learned, "warnings": warnings}}

    return OperationNode("commit_memory", commit_memory)
