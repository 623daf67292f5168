"""Guidelines that lost a source, distilled again from the sources that are left."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from memalign_graph.alignment.batches import pack
from memalign_graph.alignment.comment_questions import distill_comments, drop_refuted
from memalign_graph.alignment.drafts import KeepReplies
from memalign_graph.errors import MemAlignError
from memalign_graph.io import IO
from memalign_graph.memory.access import MemoryAccess
from memalign_graph.memory.learning import GuidelineOperation, learn
from memalign_graph.memory.operations import Forgotten, clear_drafts, left_without
from memalign_graph.models import BaseChatModel, ask, is_small, max_input_tokens, with_schema
from memalign_graph.prompts.distill import (
    DistillPrompt,
    Proposal,
    distill_prompt,
    operations_schema,
    read_operations,
)
from memalign_graph.prompts.distill_small import (
    expert_questions_schema,
    read_distilled,
    small_distill_prompt,
)
from memalign_graph.types import Episode, Guideline

_TOGETHER = 32

_FEW = 3  # comments, each of which a small model distills by itself
_SOURCES = 50
"""How many of a guideline's sources are read, the newest of them."""


@dataclass(frozen=True)
class Rewording:
    """A new wording for a guideline that had lost a source, or that it goes."""

    operation: GuidelineOperation
    read: dict[str, str]
    """What was read: the word of each episode by its id."""
    refused: list[str]
    """Which wordings were not kept, and why."""


async def distil(
    io: IO,
    access: MemoryAccess,
    chat: BaseChatModel,
    episodes: Sequence[Episode],
    guidelines: Sequence[Guideline] = (),
    *,
    most_operations: int | None = None,
) -> tuple[DistillPrompt, Proposal]:
    """Ask for what feedback teaches."""
    small, window = is_small(chat), max_input_tokens(chat)
    commented = [episode for episode in episodes if episode.rationale]
    if small and 0 < len(commented) <= _FEW:
        return await distill_comments(io, access, chat, commented[: most_operations or _FEW])
    if small:
        prompt = small_distill_prompt(
            access.criterion,
            episodes=episodes,
            max_input_tokens=window,
            most_operations=most_operations,
        )
        schema = expert_questions_schema(prompt.most_operations)
    else:
        prompt = distill_prompt(
            access.criterion,
            guidelines=guidelines,
            episodes=episodes,
            max_input_tokens=window,
            most_operations=most_operations,
        )
        schema = operations_schema(prompt)

    def read(answer: dict[str, Any], last: bool) -> Proposal:  # noqa: FBT001 - as `ask` calls it
        return (read_distilled if small else read_operations)(answer, prompt, drop_idle=last)

    model = with_schema(chat, schema)
    proposal, _ = await ask(io, model, prompt.messages, read, purpose="distil feedback")
    if small:
        proposal = await drop_refuted(io, access, chat, proposal, prompt.episodes.values())
    return prompt, proposal


@dataclass
class Reading:
    """What was made of feedback that was read batch by batch."""

    operations: list[GuidelineOperation] = field(default_factory=list)
    read: dict[str, str] = field(default_factory=dict)
    """What was read: the word of each episode by its id."""
    refused: list[str] = field(default_factory=list)
    """Which guidelines were not kept, and why."""
    cut: list[str] = field(default_factory=list)
    """The episodes that were too long to be read whole."""


async def distil_all(
    io: IO, access: MemoryAccess, chat: BaseChatModel, episodes: Sequence[Episode]
) -> Reading:
    """Distil feedback beside the guidelines that stand, in as many prompts as it takes."""
    reading, guidelines = Reading(), await access.guidelines(io)
    while waiting := [episode for episode in episodes if episode.id not in reading.read]:
        prompt, proposed = await distil(io, access, chat, waiting, guidelines)
        reading.operations += proposed.operations
        reading.refused += proposed.refused
        reading.read |= {episode.id: episode.word for episode in prompt.episodes.values()}
        reading.cut += prompt.cut
    return reading


async def reword(
    io: IO, access: MemoryAccess, chat: BaseChatModel, guideline: Guideline
) -> Rewording:
    """Ask for a pending guideline's wording, from its sources alone."""
    change: dict[str, Any] = {"action": "retire"}
    sources = await access.episodes(io, guideline.episode_ids)
    newest = sorted(sources.values(), key=lambda one: (one.given_at, one.id))[-_SOURCES:]
    words: dict[str, str] = {}
    refused: list[str] = []
    if newest:
        prompt, proposed = await distil(io, access, chat, newest[::-1], most_operations=1)
        words = {episode.id: episode.word for episode in prompt.episodes.values()}
        refused = proposed.refused
        for operation in proposed.operations:
            change = {"action": "revise", "text": operation.text, "before": guideline.text}
            change |= {"question": operation.question, "episode_ids": list(words)}
    return Rewording(GuidelineOperation(guideline_id=guideline.id, **change), words, refused)


async def reword_all(
    io: IO,
    access: MemoryAccess,
    chat: BaseChatModel,
    guidelines: Sequence[Guideline],
    limit: int = _TOGETHER,
) -> list[Rewording]:
    """Ask for the wordings of some pending guidelines, all of them before one's failure is told."""

    async def attempt(guideline: Guideline) -> Rewording | MemAlignError:
        try:
            return await reword(io, access, chat, guideline)
        except MemAlignError as error:
            return error

    outcomes = await io.gather([attempt(guideline) for guideline in guidelines], limit)
    for outcome in outcomes:
        if isinstance(outcome, MemAlignError):
            raise outcome
    return [outcome for outcome in outcomes if isinstance(outcome, Rewording)]


async def redistill(io: IO, access: MemoryAccess, chat: BaseChatModel) -> dict[str, Any]:
    """Distil all pending guidelines again."""
    waiting = await access.outdated_guidelines(io)
    rewordings = await reword_all(KeepReplies(io, access), access, chat, waiting)
    operations = [one.operation for one in rewordings]
    learned = await learn_again(io, access, operations, words_read(rewordings))
    if waiting:
        await clear_drafts(io, access)
    return {**learned, "warnings": [why for one in rewordings for why in one.refused]}


def words_read(rewordings: Sequence[Rewording]) -> dict[str, str]:
    """Return what was read for some rewordings: the word of each episode by its id."""
    return {key: word for rewording in rewordings for key, word in rewording.read.items()}


async def learn_again(
    io: IO, access: MemoryAccess, operations: list[GuidelineOperation], read: dict[str, str]
) -> dict[str, Any]:
    """Commit what was made of pending guidelines; their sources were learned from before."""
    prompts = [operation.episode_ids for operation in operations]
    return await learn(
        io, access, operations, read, prompts=prompts, relearn=True, reason="redistill"
    )


async def redistilled(
    io: IO, access: MemoryAccess, chat: Callable[[], BaseChatModel], forgotten: Forgotten
) -> Forgotten:
    """Distil again what lost a source, and what was read along with what is purged."""
    read_along = forgotten.purged.pending if forgotten.purged is not None else []
    reduced = forgotten.guidelines_reduced
    if any(one.status == "pending" for one in reduced):
        await redistill(io, access, chat())
    if read_along:
        episodes, standing = await access.episodes(io, read_along), await access.guidelines(io)
        batches = pack(
            list(episodes.values()),
            access.criterion,
            standing,
            max_input_tokens=max_input_tokens(chat()),
            is_small=is_small(chat()),
        )
        for batch in batches:
            reading = await distil_all(io, access, chat(), [episodes[key] for key in batch])
            await learn(io, access, reading.operations, reading.read)
    removed, left = left_without(reduced, await access.guidelines(io))
    gone = [*forgotten.guidelines_removed, *removed]
    return replace(forgotten, guidelines_reduced=left, guidelines_removed=gone)
