"""Guidelines compared by a model, and what follows from it."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from memalign_graph.alignment.distill import redistill
from memalign_graph.alignment.merging import (
    Conflict,
    Merged,
    ProposalMerger,
    Side,
    settle,
    unsettled,
)
from memalign_graph.alignment.reply_cache import CachedRepliesIO
from memalign_graph.asking import ask_with_retry, with_schema
from memalign_graph.io import IO
from memalign_graph.memory.access import MemoryAccess
from memalign_graph.memory.embedding import embed
from memalign_graph.memory.feedback import clear_cached_replies
from memalign_graph.memory.guidelines import GuidelineOperation
from memalign_graph.memory.learning import learn
from memalign_graph.models import BaseChatModel, is_small_model, max_input_tokens
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

_NEAREST = 10
"""How many of the others a rule is compared with where all of them are too many."""

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
    """Bring the proposals of several batches together with each other and with what stands.

    A small model can't tell what says the same: then the same words do, and checks are measured.
    """
    view = await access.refresh(io)
    rows = view.rows()
    given_at = {row.id: row.given_at for row in rows}
    # Without a name, each system that feedback comes from tells its experts apart by its ids.
    authors = {row.id: row.content.get("author") or row.content.get("feedback_id") for row in rows}
    merging = ProposalMerger(view.guidelines, proposals, given_at, authors)
    relations = Relations([], [])
    fresh: Sequence[int] = merging.touched if proposals else range(len(merging.rules))
    if compare and not is_small_model(chat) and fresh and len(merging.rules) >= _SMALLEST:
        texts = [rule.text for rule in merging.rules]
        relations = await find_relations(io, access, chat, texts, fresh)
    merged = merging.merge(relations, touched_only=bool(proposals))
    sides = [side for one in merged.conflicts for side in (one.first, one.second)]
    said = await access.episodes(io, {key for side in sides for key in side.episode_ids})
    return replace(merged, conflicts=[_with_words(one, said) for one in merged.conflicts])


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
    io: IO, access: MemoryAccess, chat: BaseChatModel, texts: Sequence[str], fresh: Sequence[int]
) -> Relations:
    """Ask which rules say the same and which contradict each other, all of them or some fresh.

    Where all do not fit into one prompt, each of the fresh is shown beside those nearest to it.
    """
    room = _room(access, chat)
    if sum(map(_cost, texts)) <= room:
        return await _compare(io, access, chat, texts, range(len(texts)))
    vectors = await embed(io, access, {text: text for text in texts})
    matrix = np.stack([vectors[text] for text in texts])
    packed: list[dict[int, None]] = [{}]
    for place in fresh:
        nearest = np.argsort(-(matrix @ matrix[place]), kind="stable")
        others = [int(other) for other in nearest[: _NEAREST + 1] if other != place]
        near, left = {place: None}, room - _cost(texts[place])
        for other in others[:_NEAREST]:
            left -= _cost(texts[other])
            if left >= 0 or len(near) < _SMALLEST:
                near[other] = None
        if sum(_cost(texts[one]) for one in packed[-1] | near) > room and packed[-1]:
            packed.append({})
        packed[-1] |= near
    answers: list[Relations] = await io.gather(
        [
            _compare(io, access, chat, texts, places)
            for places in dict.fromkeys(tuple(sorted(one)) for one in packed)
        ],
        _TOGETHER,
    )
    return Relations(
        [group for answer in answers for group in answer.duplicates],
        sorted({pair for answer in answers for pair in answer.contradictions}),
    )


async def consolidate_memory(io: IO, access: MemoryAccess, chat: BaseChatModel) -> dict[str, Any]:
    """Tidy a memory's guidelines up."""
    again = await redistill(io, access, chat)
    merged = await merge_proposals(CachedRepliesIO(io, access), access, chat, [], compare=True)
    settled = settle(merged.conflicts)
    operations = [*merged.operations, *settled]
    learned = await learn(io, access, operations, {}, reason="consolidate")
    await clear_cached_replies(io, access)
    return {
        "guidelines": [*again["guidelines"], *learned["guidelines"]],
        "memory_version": learned["memory_version"],
        "warnings": [*again["warnings"], *unsettled(merged, settled)],
    }


async def _compare(
    io: IO, access: MemoryAccess, chat: BaseChatModel, texts: Sequence[str], places: Sequence[int]
) -> Relations:
    shown = [texts[place] for place in places]

    def read(answer: dict[str, Any], _last: bool) -> Relations:  # noqa: FBT001 - as `ask` calls it
        return read_relations(answer, len(shown))

    found, _ = await ask_with_retry(
        io,
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
