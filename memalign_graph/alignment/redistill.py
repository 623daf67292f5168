"""Guidelines that lost a source, distilled again from the sources that are left."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from langchain_core.language_models import BaseChatModel

from memalign_graph.alignment.drafts import ask_once
from memalign_graph.io import IO
from memalign_graph.memory.access import MemoryAccess
from memalign_graph.memory.forgetting import Forgotten, clear_drafts
from memalign_graph.memory.learning import GuidelineOperation
from memalign_graph.memory.lessons import learn
from memalign_graph.models import max_input_tokens, with_schema
from memalign_graph.prompts.distill import (
    Proposal,
    distill_prompt,
    operations_schema,
    read_operations,
)
from memalign_graph.types import Guideline

_SOURCES = 50
"""How many of a guideline's sources are read, the newest of them."""


@dataclass
class Rewordings:
    """New wordings for guidelines that had lost a source."""

    operations: list[GuidelineOperation] = field(default_factory=list)
    read: dict[str, str] = field(default_factory=dict)
    """What was read: the word of each episode by its id."""
    refused: list[str] = field(default_factory=list)
    """Which wordings were not kept, and why: those guidelines go."""


async def reword(
    io: IO, access: MemoryAccess, chat: BaseChatModel, guidelines: Sequence[Guideline]
) -> Rewordings:
    """Ask for the wordings of some pending guidelines, one after the other."""
    rewordings = Rewordings()
    for guideline in guidelines:
        await _reword(io, access, chat, guideline, rewordings)
    return rewordings


async def _reword(
    io: IO,
    access: MemoryAccess,
    chat: BaseChatModel,
    guideline: Guideline,
    rewordings: Rewordings,
) -> None:
    """Ask for a pending guideline's wording, from its sources alone."""
    retire = GuidelineOperation(action="retire", guideline_id=guideline.id)
    sources = await access.episodes(io, guideline.episode_ids)
    newest = sorted(sources.values(), key=lambda one: (one.given_at, one.id))[-_SOURCES:]
    if not newest:
        rewordings.operations.append(retire)
        return
    prompt = distill_prompt(
        access.criterion,
        guidelines=[],
        episodes=newest[::-1],
        max_input_tokens=max_input_tokens(chat),
        most_operations=1,
    )

    def read(answer: dict[str, Any], last: bool) -> Proposal:  # noqa: FBT001 - as `ask` calls it
        return read_operations(answer, prompt, drop_idle=last)

    bound = with_schema(chat, operations_schema(prompt))
    proposed = await ask_once(io, access, bound, prompt.messages, read, purpose="distil feedback")
    words = {episode.id: episode.word for episode in prompt.episodes.values()}
    rewordings.read |= words
    rewordings.refused += proposed.refused
    rewordings.operations.append(
        GuidelineOperation(
            action="revise",
            guideline_id=guideline.id,
            text=proposed.operations[0].text,
            before="",
            episode_ids=list(words),
        )
        if proposed.operations
        else retire
    )


async def redistill(
    io: IO, access: MemoryAccess, chat: BaseChatModel, *, keep_drafts: bool = False
) -> dict[str, Any]:
    """Distil all pending guidelines again."""
    waiting = await access.all_guidelines(io, "pending")
    rewordings = await reword(io, access, chat, waiting)
    learned = await learn_again(io, access, rewordings.operations, rewordings.read)
    if waiting and not keep_drafts:
        await clear_drafts(io, access)
    return {**learned, "warnings": rewordings.refused}


async def learn_again(
    io: IO, access: MemoryAccess, operations: list[GuidelineOperation], read: dict[str, str]
) -> dict[str, Any]:
    """Commit what was made of pending guidelines; their sources were learned from before."""
    return await learn(io, access, operations, read, relearn=True, reason="redistill")


async def redistilled(
    io: IO, access: MemoryAccess, chat: Callable[[], BaseChatModel], forgotten: Forgotten
) -> Forgotten:
    """Distil again what forgetting left without words."""
    if not any(one.status == "pending" for one in forgotten.guidelines_reduced):
        return forgotten
    await redistill(io, access, chat())
    standing = {one.id: one for one in await access.every_guideline(io)}
    return replace(
        forgotten,
        guidelines_reduced=[
            standing[one.id] for one in forgotten.guidelines_reduced if one.id in standing
        ],
        guidelines_removed=[
            *forgotten.guidelines_removed,
            *(one for one in forgotten.guidelines_reduced if one.id not in standing),
        ],
    )
