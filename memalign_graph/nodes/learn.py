"""Learning from one word of an expert: distilled into operations on guidelines, and committed."""

from typing import Any

from memalign_graph.alignment.redistill import learn_again, reword_all, words_read
from memalign_graph.io import IO
from memalign_graph.memory.access import MemoryAccess
from memalign_graph.memory.changes import remember
from memalign_graph.memory.forgetting import clear_drafts
from memalign_graph.memory.learning import GuidelineOperation
from memalign_graph.memory.lessons import learn
from memalign_graph.memory.recall import known_vector
from memalign_graph.models import ask, max_input_tokens, with_schema
from memalign_graph.nodes.judge import own_channel
from memalign_graph.prompts.distill import (
    Proposal,
    distill_prompt,
    operations_schema,
    read_operations,
)
from memalign_graph.runtime import Node, Parts, Run, State, Update
from memalign_graph.types import Episode, Feedback

_MAX_PENDING = 20
"""How many episodes that an earlier run left pending are distilled along with a new one."""


def distill_node(parts: Parts) -> Node:
    """Make the node that distils feedback.

    The feedback is stored as pending before the model is asked: if that fails, the run fails, and
    the next distilling takes the feedback along. So does this one with what is pending already.
    """

    async def distill_feedback(io: IO, state: State, run: Run) -> Update:
        feedback = Feedback.model_validate(state["feedback"])
        settings = own_channel(state, "judge_run")["settings"]
        access = parts.memory(run.store, settings)
        lesson = own_channel(state, "judge_lesson")
        episode = await _store(io, access, feedback, state)
        if episode.status != "pending":
            return {"judge_lesson": {**lesson, "distilled": {episode.id: episode.word}}}
        view = await access.refresh(io)
        others = [key for key in view.pending() if key != episode.id][:_MAX_PENDING]
        pending = (await access.episodes(io, others)).values()
        chat = parts.distiller(settings["model"])
        prompt = distill_prompt(
            parts.criterion,
            guidelines=await access.all_guidelines(io),
            episodes=[
                episode,
                *sorted(pending, key=lambda waiting: (waiting.created_at, waiting.id)),
            ],
            max_input_tokens=max_input_tokens(chat),
        )

        def read(answer: dict[str, Any], last: bool) -> Proposal:  # noqa: FBT001 - as `ask` calls it
            return read_operations(answer, prompt, drop_idle=last)

        structured = with_schema(chat, operations_schema(prompt))
        proposal, _ = await ask(io, structured, prompt.messages, read, purpose="distil feedback")
        # What this expert took back may have left guidelines without words.
        wordless = await access.all_guidelines(io, "pending")
        rewordings = await reword_all(
            io, access, chat, wordless[:_MAX_PENDING], run.max_concurrency
        )
        return {
            "judge_lesson": {
                **lesson,
                "operations": [one.model_dump(mode="json") for one in proposal.operations],
                "distilled": {one.id: one.word for one in prompt.episodes.values()},
                "rewordings": [one.operation.model_dump(mode="json") for one in rewordings],
                "reworded": words_read(rewordings),
                "warnings": [
                    *lesson.get("warnings", []),
                    *proposal.refused,
                    *(why for one in rewordings for why in one.refused),
                ],
            }
        }

    return Node("distill_feedback", distill_feedback)


def commit_node(parts: Parts) -> Node:
    """Make the node that commits what was learned; running it again changes nothing more.

    Feedback that only agrees comes here without distilling, and is stored here.
    """

    async def commit_memory(io: IO, state: State, run: Run) -> Update:
        feedback = Feedback.model_validate(state["feedback"])
        settings = own_channel(state, "judge_run")["settings"]
        access = parts.memory(run.store, settings)
        lesson = own_channel(state, "judge_lesson")
        if feedback.agrees:
            episode = await _store(io, access, feedback, state)
            learned = await learn(io, access, [], {})
            learned["episode_ids"] = [episode.id]
        else:
            rewordings = read_saved(lesson.get("rewordings"))
            if rewordings:
                await learn_again(io, access, rewordings, lesson["reworded"])
                await clear_drafts(io, access)
            operations = read_saved(lesson.get("operations"))
            taught = {key for operation in operations for key in operation.episode_ids}
            learned = await learn(
                io,
                access,
                operations,
                lesson["distilled"],
                author=feedback.author,
                # Another review may be distilling what this one read along, and passed over.
                passed_over=lesson["distilled"].keys() - taught - {feedback.episode_id},
            )
        return {"learned": {**learned, "warnings": lesson.get("warnings", [])}}

    return Node("commit_memory", commit_memory)


def read_saved(operations: list[dict[str, Any]] | None) -> list[GuidelineOperation]:
    """Read operations that an earlier node left in the state."""
    return [GuidelineOperation.model_validate(fields) for fields in operations or []]


async def _store(io: IO, access: MemoryAccess, feedback: Feedback, state: State) -> Episode:
    """Store a reviewer's feedback, with the embedding that retrieval left in the state."""
    vector = known_vector((state.get("judge_memory") or {}).get("vector"))
    known = {} if vector is None else {feedback.example.id: vector}
    stored = await remember(io, access, [feedback], known_vectors=known)
    return stored.episodes[0]
