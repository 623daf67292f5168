"""Learning from one word of an expert: distilled into operations on guidelines, and committed."""

from collections.abc import Sequence
from typing import Any

from memalign_graph.alignment.drafts import KeepReplies
from memalign_graph.alignment.redistill import distil, learn_again, reword_all, words_read
from memalign_graph.memory.learning import GuidelineOperation, learn
from memalign_graph.memory.operations import clear_drafts, remember
from memalign_graph.memory.recall import known_vector
from memalign_graph.runtime import Step, Update, own_channel
from memalign_graph.types import Episode

_MAX_PENDING = 20
"""How many episodes that an earlier run left pending are distilled along with a new one."""


async def distill_feedback(step: Step) -> Update:
    """Distil feedback, with what is pending already."""
    io, access = step.io, step.access
    lesson = own_channel(step.state, "judge_lesson")
    # Stored before the model is asked: if that fails, the next distilling takes it along.
    episode = await _store(step)
    if episode.status != "pending":
        return {"judge_lesson": {**lesson, "distilled": {episode.id: episode.word}}}
    view = await access.refresh(io)
    others = [key for key in view.pending() if key != episode.id][:_MAX_PENDING]
    pending = (await access.episodes(io, others)).values()
    oldest_first = sorted(pending, key=lambda waiting: (waiting.created_at, waiting.id))
    chat, guidelines = step.distiller, await access.guidelines(io)
    prompt, proposal = await distil(io, access, chat, [episode, *oldest_first], guidelines)
    # What this expert took back may have left guidelines that are to be worded anew.
    outdated = (await access.outdated_guidelines(io))[:_MAX_PENDING]
    rewordings = await reword_all(
        KeepReplies(io, access), access, chat, outdated, step.run.max_concurrency
    )
    refused = [*proposal.refused, *(why for one in rewordings for why in one.refused)]
    learned = {
        "operations": saved(proposal.operations),
        "distilled": {shown.id: shown.word for shown in prompt.episodes.values()},
        "rewordings": saved([rewording.operation for rewording in rewordings]),
        "reworded": words_read(rewordings),
        "warnings": [*lesson.get("warnings", []), *refused],
    }
    return {"judge_lesson": {**lesson, **learned}}


async def commit_memory(step: Step) -> Update:
    """Commit what was learned; again, it changes nothing more."""
    io, access, feedback = step.io, step.access, step.feedback
    lesson = own_channel(step.state, "judge_lesson")
    if feedback.agrees:  # comes here without distilling
        episode = await _store(step)
        learned = {**await learn(io, access, [], {}), "episode_ids": [episode.id]}
    else:
        if rewordings := read_saved(lesson.get("rewordings")):
            await learn_again(io, access, rewordings, lesson["reworded"])
            await clear_drafts(io, access)
        operations = read_saved(lesson.get("operations"))
        taught = {key for operation in operations for key in operation.episode_ids}
        distilled = lesson["distilled"]
        # Another review may be distilling what this one read along, and passed over.
        passed_over = distilled.keys() - taught - {feedback.episode_id}
        learned = await learn(
            io, access, operations, distilled, author=feedback.author, passed_over=passed_over
        )
    return {"learned": {**learned, "warnings": lesson.get("warnings", [])}}


def saved(operations: Sequence[GuidelineOperation]) -> list[dict[str, Any]]:
    """Make of operations what the state can hold."""
    return [operation.model_dump(mode="json") for operation in operations]


def read_saved(operations: list[dict[str, Any]] | None) -> list[GuidelineOperation]:
    """Read operations that an earlier node left in the state."""
    return [GuidelineOperation.model_validate(fields) for fields in operations or []]


async def _store(step: Step) -> Episode:
    """Store a reviewer's feedback, with the embedding that retrieval left in the state."""
    feedback = step.feedback
    vector = known_vector((step.state.get("judge_memory") or {}).get("vector"))
    known = {} if vector is None else {feedback.example.id: vector}
    return (await remember(step.io, step.access, [feedback], known_vectors=known)).episodes[0]
