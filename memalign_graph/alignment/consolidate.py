"""Guidelines compared by a model, and what follows from it."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from memalign_graph.alignment.drafts import ask_once
from memalign_graph.alignment.merging import Conflict, Merged, Side, Table, settle
from memalign_graph.alignment.redistill import redistill
from memalign_graph.io import IO
from memalign_graph.memory.access import MemoryAccess
from memalign_graph.memory.learning import GuidelineOperation, learn
from memalign_graph.memory.operations import clear_drafts
from memalign_graph.models import BaseChatModel, max_input_tokens, with_schema
from memalign_graph.prompts.compare import (
    Relations,
    read_relations,
    relations_prompt,
    relations_schema,
)
from memalign_graph.prompts.fences import estimate_tokens
from memalign_graph.prompts.judge import ANSWER_TOKENS
from memalign_graph.types import Episode

_TOGETHER = 32
"""How many comparisons are under way at a time."""

_SMALLEST = 2

_SHOWN_WORDS = 3
_WORD_CHARS = 200


async def merge_proposals(
    io: IO,
    access: MemoryAccess,
    chat: BaseChatModel,
    proposals: Sequence[Sequence[GuidelineOperation]],
    *,
    compare: bool,
) -> Merged:
    """Bring the proposals of several batches together with each other and with what stands."""
    table = Table(await access.guidelines(io), proposals)
    relations = Relations([], [])
    if compare and len(table.rules) >= _SMALLEST:
        relations = await find_relations(io, access, chat, table.texts)
    sources = await access.episodes(io, sorted(table.contested()))
    given_at = {key: one.given_at for key, one in sources.items()}
    merged = table.merge(relations, given_at, touched_only=bool(proposals))
    return replace(merged, conflicts=[_with_words(one, sources) for one in merged.conflicts])


def _with_words(conflict: Conflict, episodes: Mapping[str, Episode]) -> Conflict:
    """Add what experts said to two guidelines, for whoever is to decide between them."""

    def told(side: Side) -> Side:
        there = [episodes[key] for key in side.episode_ids if key in episodes]
        newest = sorted(there, key=lambda one: (one.given_at, one.id), reverse=True)
        said = [
            f"{one.author or 'anonymous'}, {one.given_at:%Y-%m-%d}: {_one_line(one.rationale)}"
            for one in newest
            if one.rationale
        ]
        return side.model_copy(update={"said": said[:_SHOWN_WORDS]})

    update = {"first": told(conflict.first), "second": told(conflict.second)}
    return conflict.model_copy(update=update)


def _one_line(text: str) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= _WORD_CHARS else f"{flat[:_WORD_CHARS]}…"


async def find_relations(
    io: IO, access: MemoryAccess, chat: BaseChatModel, texts: Sequence[str]
) -> Relations:
    """Ask which rules say the same and which contradict each other."""
    room = _room(access, chat)
    total = sum(map(_cost, texts))
    places = list(range(len(texts)))
    if total <= room:
        return await _compare(io, access, chat, texts, places)
    blocks = _blocks(texts, room // 2)
    pairs = [(one, other) for index, one in enumerate(blocks) for other in blocks[index + 1 :]] or [
        (blocks[0], [])
    ]
    answers: list[Relations] = await io.gather(
        [_compare(io, access, chat, texts, [*one, *other]) for one, other in pairs], _TOGETHER
    )
    return Relations(
        [group for answer in answers for group in answer.duplicates],
        sorted({pair for answer in answers for pair in answer.contradictions}),
    )


async def consolidate_memory(io: IO, access: MemoryAccess, chat: BaseChatModel) -> dict[str, Any]:
    """Tidy a memory's guidelines up."""
    again = await redistill(io, access, chat, keep_drafts=True)
    merged = await merge_proposals(io, access, chat, [], compare=True)
    operations = [*merged.operations, *settle(merged.conflicts)]
    learned = await learn(io, access, operations, {}, reason="consolidate")
    await clear_drafts(io, access)
    return {
        "guidelines": [*again["guidelines"], *learned["guidelines"]],
        "memory_version": learned["memory_version"],
        "warnings": again["warnings"],
    }


async def _compare(
    io: IO, access: MemoryAccess, chat: BaseChatModel, texts: Sequence[str], places: Sequence[int]
) -> Relations:
    shown = [texts[place] for place in places]

    def read(answer: dict[str, Any], _last: bool) -> Relations:  # noqa: FBT001 - as `ask` calls it
        return read_relations(answer, len(shown))

    found = await ask_once(
        io,
        access,
        with_schema(chat, relations_schema(len(shown))),
        relations_prompt(access.criterion, shown),
        read,
        purpose="compare guidelines",
    )
    return Relations(
        [[places[one] for one in group] for group in found.duplicates],
        [(places[a], places[b]) for a, b in found.contradictions],
    )


def _room(access: MemoryAccess, chat: BaseChatModel) -> int:
    fixed = sum(estimate_tokens(one.text) for one in relations_prompt(access.criterion, []))
    return max(max_input_tokens(chat) - ANSWER_TOKENS - fixed, 2 * _cost("x"))


def _cost(text: str) -> int:
    return estimate_tokens(text) + 6


def _blocks(texts: Sequence[str], room: int) -> list[list[int]]:
    blocks: list[list[int]] = [[]]
    left = room
    for place, text in enumerate(texts):
        cost = _cost(text)
        if blocks[-1] and cost > left:
            blocks.append([])
            left = room
        blocks[-1].append(place)
        left -= cost
    return blocks
