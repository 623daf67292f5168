"""Guidelines that lost a source, distilled again from the sources that are left."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from langchain_core.language_models import BaseChatModel

from memalign_graph.alignment.drafts import ask_once
from memalign_graph.effects import Operation
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


def reword(
    access: MemoryAccess, chat: BaseChatModel, guidelines: Sequence[Guideline]
) -> Operation[Rewordings]:
    """Ask for the wordings of some pending guidelines, one after the other."""
    rewordings = Rewordings()
    for guideline in guidelines:
        yield from _reword(access, chat, guideline, rewordings)
    return rewordings


def _reword(
    access: MemoryAccess, chat: BaseChatModel, guideline: Guideline, rewordings: Rewordings
) -> Operation[None]:
    """Ask for a pending guideline's wording, from its sources alone."""
    retire = GuidelineOperation(action="retire", guideline_id=guideline.id)
    sources = yield from access.episodes(guideline.episode_ids)
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
    proposed = yield from ask_once(access, bound, prompt.messages, read, purpose="distil feedback")
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


def redistill(
    access: MemoryAccess, chat: BaseChatModel, *, keep_drafts: bool = False
) -> Operation[dict[str, Any]]:
    """Distil all pending guidelines again."""
    waiting = yield from access.all_guidelines("pending")
    rewordings = yield from reword(access, chat, waiting)
    learned = yield from learn_again(access, rewordings.operations, rewordings.read)
    if waiting and not keep_drafts:
        yield from clear_drafts(access)
    return {**learned, "warnings": rewordings.refused}


def learn_again(
    access: MemoryAccess, operations: list[GuidelineOperation], read: dict[str, str]
) -> Operation[dict[str, Any]]:
    """Commit what was made of pending guidelines; their sources were learned from before."""
    return (yield from learn(access, operations, read, relearn=True, reason="redistill"))


def redistilled(
    access: MemoryAccess, chat: Callable[[], BaseChatModel], forgotten: Forgotten
) -> Operation[Forgotten]:
    """Distil again what forgetting left without words."""
    if not any(one.status == "pending" for one in forgotten.guidelines_reduced):
        return forgotten
    yield from redistill(access, chat())
    standing = {one.id: one for one in (yield from access.every_guideline())}
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
