"""`distill_batch`: one batch of feedback made into proposals, beside the other batches."""

import logging
from typing import Any

from langchain_core.language_models import BaseChatModel

from memalign_graph.alignment.drafts import ask_once
from memalign_graph.alignment.redistill import reword
from memalign_graph.effects import Operation
from memalign_graph.errors import ChatModelError, ModelAnswerError
from memalign_graph.memory.access import MemoryAccess
from memalign_graph.models import (
    DEFAULT_CHAT_MODEL,
    DEFAULT_EMBEDDINGS,
    EmbeddingsLike,
    max_input_tokens,
    with_schema,
)
from memalign_graph.nodes.base import Memories, Models, OperationNode, Run, State, Update
from memalign_graph.nodes.measured import Counter, measured_node, progress
from memalign_graph.prompts.distill import distill_prompt
from memalign_graph.prompts.operations import operations_schema, read_operations
from memalign_graph.state import Batched
from memalign_graph.types import Criterion, Episode

logger = logging.getLogger(__name__)

DistillBatchView = Batched
"""What the node is sent."""


def create_distill_batch_node(
    criterion: Criterion,
    *,
    model: BaseChatModel | str = DEFAULT_CHAT_MODEL,
    embeddings: EmbeddingsLike = DEFAULT_EMBEDDINGS,
    use_context_model: bool = True,
) -> OperationNode:
    """Create the node that distils one batch; many run side by side, each sent its own.

    A failure is left for a second try when the other batches are done, so that it does not stop
    them; then it fails the run.

    Args:
        criterion: The criterion.
        model: The chat model that distils, or a `"provider:name"` string.
        embeddings: What the memory embeds with; nothing is embedded here.
        use_context_model: Whether the model that a run's context names goes before this one.

    Returns:
        The node; it reads `Batched` and writes `Proposed`.
    """
    memories = Memories(criterion, embeddings)
    models = Models(model)
    counter = Counter()

    def distill_batch(state: State, run: Run) -> Operation[Update]:
        batch = state["batch"]
        settings = state["judge_settings"]
        access = memories.get(run, settings)
        chat = models.get(settings["model"] if use_context_model else None)
        try:
            if "guideline_id" in batch:
                proposal = yield from _reword(access, chat, batch["guideline_id"])
            else:
                proposal = yield from _distil(access, chat, batch["episode_ids"])
        except (ChatModelError, ModelAnswerError) as error:
            if batch.get("last"):
                raise
            logger.warning(
                "Batch %d of %d failed and is tried again: %s", batch["number"], batch["of"], error
            )
            proposal = {"error": str(error)}
        else:
            done = counter.note(batch["run"], batch["number"])
            progress(run, "distill", done, batch["of"], batch=batch["number"])
            if done == batch["of"]:
                counter.clear(batch["run"])
        return {"proposals": {str(batch["number"]): proposal}}

    return measured_node("distill_batch", distill_batch)


def _distil(
    access: MemoryAccess, chat: BaseChatModel, episode_ids: list[str]
) -> Operation[dict[str, Any]]:
    found = yield from access.episodes(episode_ids)
    # Another run may have learned some of it meanwhile.
    waiting = [one for one in found.values() if one.status == "pending"]
    guidelines = yield from access.all_guidelines()
    proposal: dict[str, Any] = {"operations": [], "read": {}, "cut": []}
    while waiting:
        prompt = distill_prompt(
            access.criterion,
            guidelines=guidelines,
            episodes=waiting,
            max_input_tokens=max_input_tokens(chat),
        )

        def read(answer: dict[str, Any], last: bool, prompt: Any = prompt) -> Any:  # noqa: FBT001 - as `ask` calls it
            return read_operations(answer, prompt, drop_idle=last)

        bound = with_schema(chat, operations_schema(prompt))
        operations = yield from ask_once(
            access, bound, prompt.messages, read, purpose="distil feedback"
        )
        shown: list[Episode] = list(prompt.episodes.values())
        proposal["operations"] += [one.model_dump(mode="json") for one in operations]
        proposal["read"] |= {one.id: one.word for one in shown}
        proposal["cut"] += prompt.cut
        waiting = [one for one in waiting if one.id not in proposal["read"]]
    return proposal


def _reword(
    access: MemoryAccess, chat: BaseChatModel, guideline_id: str
) -> Operation[dict[str, Any]]:
    pending = yield from access.all_guidelines("pending")
    guideline = next((one for one in pending if one.id == guideline_id), None)
    if guideline is None:
        return {"operations": [], "read": {}, "cut": []}
    operation, read = yield from reword(access, chat, guideline)
    return {"rewording": operation.model_dump(mode="json"), "read": read, "cut": []}
