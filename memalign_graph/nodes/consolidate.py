"""`consolidate_guidelines`: what the batches propose, brought together with what stands."""

from dataclasses import dataclass
from typing import Any

from langchain_core.language_models import BaseChatModel

from memalign_graph.alignment.consolidate import merge_proposals
from memalign_graph.alignment.merging import Conflict, settle
from memalign_graph.io import IO
from memalign_graph.memory.learning import GuidelineOperation
from memalign_graph.models import DEFAULT_CHAT_MODEL, DEFAULT_EMBEDDINGS, EmbeddingsLike
from memalign_graph.nodes.base import Memories, Models, OperationNode, Run, State, Update
from memalign_graph.nodes.measured import measured_node, progress
from memalign_graph.state import Proposed, Received
from memalign_graph.types import Criterion

_SEVERAL = 2


class ConsolidateView(Received, Proposed):
    """What the node reads of the state."""


def create_consolidate_node(
    criterion: Criterion,
    *,
    model: BaseChatModel | str = DEFAULT_CHAT_MODEL,
    embeddings: EmbeddingsLike = DEFAULT_EMBEDDINGS,
    use_context_model: bool = True,
    always: bool = False,
) -> OperationNode:
    """Create the node that consolidates.

    One batch has seen the guidelines that stand and needs no comparison; several know nothing of
    each other.

    Args:
        criterion: The criterion.
        model: The chat model that compares, or a `"provider:name"` string.
        embeddings: What the memory embeds with; nothing is embedded here.
        use_context_model: Whether the model that a run's context names goes before this one.
        always: Whether to compare also what one batch proposes.

    Returns:
        The node; it reads `ConsolidateView` and writes `Consolidated`.
    """
    memories = Memories(criterion, embeddings)
    models = Models(model)

    async def consolidate_guidelines(io: IO, state: State, run: Run) -> Update:
        settings = state["judge_settings"]
        access = memories.get(run, settings)
        chat = models.get(settings["model"] if use_context_model else None)
        answers = in_order(state["proposals"])
        proposals = [
            [GuidelineOperation.model_validate(one) for one in answer["operations"]]
            for answer in answers
            if answer.get("operations")
        ]
        progress(run, "consolidate", 0, 1)
        merged = await merge_proposals(
            io, access, chat, proposals, compare=len(proposals) >= (1 if always else _SEVERAL)
        )
        progress(run, "consolidate", 1, 1)
        return {
            "merged": {
                "operations": [one.model_dump(mode="json") for one in merged.operations],
                "conflicts": [one.model_dump(mode="json") for one in merged.conflicts],
                "rewordings": [one["rewording"] for one in answers if "rewording" in one],
            }
        }

    return measured_node("consolidate_guidelines", consolidate_guidelines)


@dataclass(frozen=True)
class ToCommit:
    """What consolidation left, read from the state."""

    operations: list[GuidelineOperation]
    """What to do to the guidelines, conflicts settled."""

    rewordings: list[GuidelineOperation]
    """What becomes of guidelines that had lost a source."""

    conflicts: list[Conflict]
    """What contradicted each other."""


def to_commit(state: State) -> ToCommit:
    """Read what consolidation left, with what was decided about conflicts."""
    merged = state.get("merged") or {"operations": [], "conflicts": [], "rewordings": []}
    conflicts = [Conflict.model_validate(one) for one in merged["conflicts"]]
    return ToCommit(
        operations=[
            *map(GuidelineOperation.model_validate, merged["operations"]),
            *settle(conflicts, state.get("decisions")),
        ],
        rewordings=[*map(GuidelineOperation.model_validate, merged["rewordings"])],
        conflicts=conflicts,
    )


def in_order(proposals: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the batches' answers in the order of the batches."""
    return [proposals[key] for key in sorted(proposals, key=int)]
