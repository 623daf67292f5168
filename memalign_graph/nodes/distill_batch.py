"""`distill_batch`: a batch of feedback made into proposals; `distill_again`: those that failed."""

import logging
from collections.abc import Coroutine, Mapping
from typing import Any

from langchain_core.language_models import BaseChatModel

from memalign_graph.alignment.drafts import ask_once
from memalign_graph.alignment.redistill import reword
from memalign_graph.errors import ChatModelError, MemAlignError, ModelAnswerError
from memalign_graph.io import IO
from memalign_graph.memory.access import MemoryAccess
from memalign_graph.models import (
    DEFAULT_CHAT_MODEL,
    DEFAULT_EMBEDDINGS,
    EmbeddingsLike,
    max_input_tokens,
    with_schema,
)
from memalign_graph.nodes.base import Memories, Models, OperationNode, Run, State, Update
from memalign_graph.nodes.measured import counter, measured_node, progress
from memalign_graph.prompts.distill import distill_prompt, operations_schema, read_operations
from memalign_graph.state import Batched, Proposed, Received
from memalign_graph.types import Criterion, Episode

logger = logging.getLogger(__name__)

DistillBatchView = Batched
"""What `distill_batch` is sent."""


class DistillAgainView(Received, Proposed):
    """What `distill_again` reads of the state."""


def create_distill_batch_node(
    criterion: Criterion,
    *,
    model: BaseChatModel | str = DEFAULT_CHAT_MODEL,
    embeddings: EmbeddingsLike = DEFAULT_EMBEDDINGS,
    use_context_model: bool = True,
) -> OperationNode:
    """Create the node that distils one batch; many run side by side, each sent its own.

    A failure is left to `distill_again`, when the other batches are done, so that it does not stop
    them.

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

    async def distill_batch(io: IO, state: State, run: Run) -> Update:
        batch = state["batch"]
        settings = state["judge_settings"]
        access = memories.get(run, settings)
        chat = models.get(settings["model"] if use_context_model else None)
        try:
            proposal = await _propose(io, access, chat, batch)
        except (ChatModelError, ModelAnswerError) as error:
            logger.warning(
                "Batch %d of %d failed and is tried again: %s", batch["number"], batch["of"], error
            )
            proposal = {"error": str(error)}
        else:
            done = counter.note(batch["run"], batch["number"])
            progress(run, "distill", done, batch["of"], batch=batch["number"])
        return {"proposals": {str(batch["number"]): proposal}}

    return measured_node("distill_batch", distill_batch)


def create_collect_node() -> OperationNode:
    """Create the node that waits for all batches, and tells when they are done.

    Returns:
        The node; it reads `DistillAgainView` and writes nothing.
    """

    async def collect_proposals(_io: IO, state: State, run: Run) -> Update:
        told = counter.clear(state["batches"][0]["run"])
        done = sum("error" not in one for one in state["proposals"].values())
        if told < done:  # by another process, before this one went on with the run
            progress(run, "distill", done, len(state["batches"]))
        return {}

    return OperationNode("collect_proposals", collect_proposals)


def create_distill_again_node(
    criterion: Criterion,
    *,
    model: BaseChatModel | str = DEFAULT_CHAT_MODEL,
    embeddings: EmbeddingsLike = DEFAULT_EMBEDDINGS,
    use_context_model: bool = True,
) -> OperationNode:
    """Create the node that tries the batches again that failed, all of them before it fails.

    Args:
        criterion: The criterion.
        model: The chat model that distils, or a `"provider:name"` string.
        embeddings: What the memory embeds with; nothing is embedded here.
        use_context_model: Whether the model that a run's context names goes before this one.

    Returns:
        The node; it reads `DistillAgainView` and writes `Proposed`.
    """
    memories = Memories(criterion, embeddings)
    models = Models(model)

    async def distill_again(io: IO, state: State, run: Run) -> Update:
        settings = state["judge_settings"]
        access = memories.get(run, settings)
        chat = models.get(settings["model"] if use_context_model else None)
        failed = [
            one for one in state["batches"] if "error" in state["proposals"][str(one["number"])]
        ]
        done: list[Any] = await io.gather(
            [_caught(_propose(io, access, chat, one)) for one in failed], run.max_concurrency
        )
        problem = next((one for one in done if isinstance(one, MemAlignError)), None)
        if problem is not None:
            raise problem
        total = len(state["batches"])
        progress(run, "distill", total, total)
        return {
            "proposals": {
                str(batch["number"]): proposal for batch, proposal in zip(failed, done, strict=True)
            }
        }

    return measured_node("distill_again", distill_again)


async def _caught(
    operation: Coroutine[Any, Any, dict[str, Any]],
) -> dict[str, Any] | MemAlignError:
    """Return a failure instead of raising it, so that those beside it come to their end."""
    try:
        return await operation
    except (ChatModelError, ModelAnswerError) as error:
        return error


async def _propose(
    io: IO, access: MemoryAccess, chat: BaseChatModel, batch: Mapping[str, Any]
) -> dict[str, Any]:
    if "guideline_id" in batch:
        return await _reword(io, access, chat, batch["guideline_id"])
    return await _distil(io, access, chat, batch["episode_ids"])


async def _distil(
    io: IO, access: MemoryAccess, chat: BaseChatModel, episode_ids: list[str]
) -> dict[str, Any]:
    found = await access.episodes(io, episode_ids)
    # Another run may have learned some of it meanwhile.
    waiting = [one for one in found.values() if one.status == "pending"]
    guidelines = await access.all_guidelines(io)
    proposal: dict[str, Any] = {"operations": [], "read": {}, "cut": [], "refused": []}
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
        proposed = await ask_once(
            io, access, bound, prompt.messages, read, purpose="distil feedback"
        )
        shown: list[Episode] = list(prompt.episodes.values())
        proposal["operations"] += [one.model_dump(mode="json") for one in proposed.operations]
        proposal["refused"] += proposed.refused
        proposal["read"] |= {one.id: one.word for one in shown}
        proposal["cut"] += prompt.cut
        waiting = [one for one in waiting if one.id not in proposal["read"]]
    return proposal


async def _reword(
    io: IO, access: MemoryAccess, chat: BaseChatModel, guideline_id: str
) -> dict[str, Any]:
    pending = await access.all_guidelines(io, "pending")
    guideline = next((one for one in pending if one.id == guideline_id), None)
    if guideline is None:
        return {"operations": [], "read": {}, "cut": []}
    again = await reword(io, access, chat, [guideline])
    [rewording] = again.operations
    return {
        "rewording": rewording.model_dump(mode="json"),
        "read": again.read,
        "cut": [],
        "refused": again.refused,
    }
