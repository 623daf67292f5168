"""`distill_feedback`: the expert's words made into operations on guidelines."""

from typing import Any

from langchain_core.language_models import BaseChatModel

from memalign_graph.alignment.redistill import reword
from memalign_graph.io import IO
from memalign_graph.models import (
    DEFAULT_CHAT_MODEL,
    DEFAULT_EMBEDDINGS,
    EmbeddingsLike,
    ask,
    max_input_tokens,
    with_schema,
)
from memalign_graph.nodes.base import (
    Memories,
    Models,
    OperationNode,
    Run,
    State,
    Update,
    store_feedback,
)
from memalign_graph.prompts.distill import distill_prompt, operations_schema, read_operations
from memalign_graph.state import Retrieved, ReviewOutput
from memalign_graph.types import Criterion, Episode, Feedback

_MAX_PENDING = 20
"""How many episodes that an earlier run left pending are distilled along with a new one."""


class DistillView(Retrieved, ReviewOutput):
    """What the node reads of the state."""


def create_distill_node(
    criterion: Criterion,
    *,
    model: BaseChatModel | str = DEFAULT_CHAT_MODEL,
    embeddings: EmbeddingsLike = DEFAULT_EMBEDDINGS,
    use_context_model: bool = True,
) -> OperationNode:
    """Create the node that distils feedback.

    The feedback is stored as pending before the model is asked: if that fails, the run fails, and
    the next distilling takes the feedback along. So does this one with what is pending already.

    Args:
        criterion: The criterion.
        model: The chat model that distils, or a `"provider:name"` string.
        embeddings: What the memory embeds with.
        use_context_model: Whether the model that a run's context names goes before this one.

    Returns:
        The node; it reads `DistillView` and writes `Distilled`.
    """
    memories = Memories(criterion, embeddings)
    models = Models(model)

    async def distill_feedback(io: IO, state: State, run: Run) -> Update:
        feedback = Feedback.model_validate(state["feedback"])
        settings = state["judge_settings"]
        access = memories.get(run, settings)
        episode = await store_feedback(io, access, feedback, state)
        if episode.status != "pending":
            nothing: Update = {"operations": [], "rewordings": [], "reworded": {}, "refused": []}
            return {**nothing, "distilled": {episode.id: episode.word}}
        view = await access.refresh(io)
        others = [key for key in view.pending() if key != episode.id][:_MAX_PENDING]
        pending = await access.episodes(io, others)
        chat = models.get(settings["model"] if use_context_model else None)
        prompt = distill_prompt(
            criterion,
            guidelines=(await access.all_guidelines(io)),
            episodes=[episode, *_oldest_first(pending)],
            max_input_tokens=max_input_tokens(chat),
        )

        def read(answer: dict[str, Any], last: bool) -> Any:  # noqa: FBT001 - as `ask` calls it
            return read_operations(answer, prompt, drop_idle=last)

        bound = with_schema(chat, operations_schema(prompt))
        proposal, _ = await ask(io, bound, prompt.messages, read, purpose="distil feedback")
        # What this expert took back may have left guidelines without words.
        waiting = await access.all_guidelines(io, "pending")
        again = await reword(io, access, chat, waiting[:_MAX_PENDING])
        return {
            "operations": [one.model_dump(mode="json") for one in proposal.operations],
            "distilled": {one.id: one.word for one in prompt.episodes.values()},
            "rewordings": [one.model_dump(mode="json") for one in again.operations],
            "reworded": again.read,
            "refused": [*proposal.refused, *again.refused],
        }

    return OperationNode("distill_feedback", distill_feedback)


def _oldest_first(episodes: dict[str, Episode]) -> list[Episode]:
    return sorted(episodes.values(), key=lambda one: (one.created_at, one.id))
