"""`remember_feedback`: much feedback checked, stored, and packed into batches."""

from collections.abc import Mapping
from typing import Any, Literal
from uuid import uuid4

from langchain_core.language_models import BaseChatModel

from memalign_graph.agreement import expert_agreement
from memalign_graph.alignment.batches import DEFAULT_BATCH_SIZE, pack
from memalign_graph.context import DEFAULT_SETTINGS, resolve_context
from memalign_graph.errors import InvalidInputError
from memalign_graph.io import IO
from memalign_graph.memory.access import MemoryAccess
from memalign_graph.memory.changes import check_feedback, remember
from memalign_graph.models import (
    DEFAULT_CHAT_MODEL,
    DEFAULT_EMBEDDINGS,
    EmbeddingsLike,
    max_input_tokens,
)
from memalign_graph.nodes.base import Memories, Models, OperationNode, Run, State, Update
from memalign_graph.nodes.measured import measured_node, progress
from memalign_graph.reading import read_feedback
from memalign_graph.state import FeedbackView
from memalign_graph.types import Criterion, Episode, Feedback

LearnFrom = Literal["both", "labels", "words"]
"""What of the feedback is stored and learned from.

- `both`: values and rationales.
- `labels`: values alone.
- `words`: rationales alone.
"""

RememberView = FeedbackView
"""What the node reads of the state."""


def create_remember_node(
    criterion: Criterion,
    *,
    model: BaseChatModel | str = DEFAULT_CHAT_MODEL,
    embeddings: EmbeddingsLike = DEFAULT_EMBEDDINGS,
    settings: Mapping[str, Any] = DEFAULT_SETTINGS,
    learn_from: LearnFrom = "both",
    batch_size: int = DEFAULT_BATCH_SIZE,
    use_context_model: bool = True,
    distill: bool = True,
) -> OperationNode:
    """Create the node that stores feedback and packs what is pending; the first of its graph.

    A record that can't be used is reported with the reason, and does not keep out the others.

    Args:
        criterion: The criterion.
        model: The chat model that will distil: its window decides how large a batch is.
        embeddings: What the memory embeds with.
        settings: The graph's settings by the names of `MemAlignContext`'s fields; the run's
            context goes before them.
        learn_from: What of the feedback is stored and learned from.
        batch_size: How many pieces of feedback a batch has at most.
        use_context_model: Whether the model that a run's context names goes before this one.
        distill: False to pack nothing: what is pending stays so.

    Returns:
        The node; it reads `FeedbackView` and writes `Received`.
    """
    memories = Memories(criterion, embeddings)
    models = Models(model)

    async def remember_feedback(io: IO, state: State, run: Run) -> Update:
        given = state.get("feedback")
        if not isinstance(given, list | tuple):
            raise InvalidInputError(
                "feedback: give a list of Feedback or of its fields, such as "
                "[{'inputs': ..., 'outputs': ..., 'value': ..., 'rationale': ...}]."
            )
        resolved = resolve_context(run.context, settings)
        access = memories.get(run, resolved)
        chat = models.get(resolved["model"] if use_context_model else None)
        read, rejected = _read(list(given), criterion, learn_from, run.thread_id)
        progress(run, "remember", 0, len(read))
        view = await access.refresh(io)
        before = view.version
        guidelines = await access.every_guideline(io)
        stored = await remember(io, access, read, note_threads=False)
        progress(run, "remember", len(read), len(read))
        agreement = await _agreement(io, access, run)
        window = max_input_tokens(chat)
        batches = (await _batches(io, access, window, batch_size)) if distill else []
        key = uuid4().hex
        new, changed = len(stored.new), len(stored.changed)
        outdated = sum(map(_is_outdated, read, stored.episodes))
        return {
            "judge_settings": resolved,
            "received": {
                "feedback": {
                    "new": new,
                    "changed": changed,
                    "unchanged": len(read) - new - changed - outdated,
                    "rejected": len(rejected),
                },
                "rejected": rejected,
                "agreement": agreement,
                "memory_version_before": before,
                "warnings": _warnings(outdated),
            },
            "batches": [
                {**one, "number": number, "of": len(batches), "run": key}
                for number, one in enumerate(batches, start=1)
            ],
            "guidelines_before": [one.to_json() for one in guidelines],
            "new_ids": sorted(stored.new | stored.changed),
            "feedback_ids": list(dict.fromkeys(one.id for one in stored.episodes)),
            "judged": None,
            "proposals": None,
            "merged": None,
            "decisions": None,
            "guarded": None,
        }

    return measured_node("remember_feedback", remember_feedback, begins=True)


def _is_outdated(said: Feedback, kept: Episode) -> bool:
    """Tell whether the same expert's newer word on the example counts, and not this one."""
    value_stays = said.value is None or said.value == kept.value
    words_stay = said.rationale is None or said.rationale == kept.rationale
    return not (value_stays and words_stay)


def _warnings(outdated: int) -> list[str]:
    if not outdated:
        return []
    sentence = (
        f"{outdated} record(s) do not count, since there is a newer word of the same expert on the "
        "same example. Feedback without `author` and `id` is taken for one expert's."
    )
    return [sentence]


def _read(
    given: list[Any], criterion: Criterion, learn_from: LearnFrom, thread_id: str | None
) -> tuple[list[Feedback], list[dict[str, Any]]]:
    read: list[Feedback] = []
    rejected: list[dict[str, Any]] = []
    for index, one in enumerate(given):
        try:
            feedback = check_feedback(_part(_fields(one), learn_from), criterion)
        except InvalidInputError as error:
            rejected.append({"index": index, "reason": str(error)})
        else:
            own = feedback.thread_id or thread_id
            read.append(feedback.model_copy(update={"thread_id": own}))
    return read, rejected


def _fields(given: Any) -> Any:
    if not isinstance(given, Feedback | Mapping):
        raise InvalidInputError(
            f"feedback: a record of type {type(given).__name__} is no Feedback: give an object "
            "with `inputs`, `outputs`, and `value`, `rationale` or both."
        )
    return given


def _part(given: Any, learn_from: LearnFrom) -> Feedback:
    """Read feedback, and take from it what is not to be learned from."""
    feedback = read_feedback(given)
    if learn_from == "both":
        return feedback
    kept, left_out = ("value", "rationale") if learn_from == "labels" else ("rationale", "value")
    if getattr(feedback, kept) is None:
        raise InvalidInputError(
            f"{kept}: the record has none, and with learn_from={learn_from!r} nothing else counts."
        )
    return feedback.model_copy(update={left_out: None})


async def _agreement(io: IO, access: MemoryAccess, run: Run) -> dict[str, Any]:
    view = await access.refresh(io)
    episodes = await access.episodes(io, view.shared())
    agreement = expert_agreement(list(episodes.values()), access.criterion.scale)
    if agreement.examples:
        run.write(
            {
                "type": "alignment_agreement",
                "criterion": access.criterion.name,
                **agreement.model_dump(mode="json"),
            }
        )
    return agreement.model_dump(mode="json")


async def _batches(
    io: IO, access: MemoryAccess, window: int, batch_size: int
) -> list[dict[str, Any]]:
    """Pack what is pending: feedback, and guidelines that lost a source."""
    view = await access.refresh(io)
    pending = await access.episodes(io, view.pending())
    guidelines = await access.every_guideline(io)
    packed = pack(
        list(pending.values()),
        access.criterion,
        [one for one in guidelines if one.status == "standing"],
        max_input_tokens=window,
        most=batch_size,
    )
    return [
        *({"episode_ids": ids} for ids in packed),
        *({"guideline_id": one.id} for one in guidelines if one.status == "pending"),
    ]
