"""Merge the proposals of several batches into one set of guidelines, and consolidate a memory.

Batches are distilled independently of each other. Their proposals are applied to the active
guidelines; equal texts are one guideline. A model finds duplicates in other words, and
contradictions. The code decides which guidelines are merged or retired.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Literal

import numpy as np

from memalign_graph.alignment.distill import MAX_CONCURRENCY, redistill
from memalign_graph.alignment.reply_cache import CachedRepliesIO
from memalign_graph.alignment.report import Conflict, ConflictSide
from memalign_graph.asking import ask_with_retry, with_schema
from memalign_graph.errors import excerpt
from memalign_graph.identity import digest
from memalign_graph.io import IO
from memalign_graph.memory.access import MemoryAccess
from memalign_graph.memory.guidelines import (
    Byline,
    GuidelineOperation,
    GuidelineTable,
    bylines_of,
    last_date,
    outweighs,
)
from memalign_graph.memory.learning import (
    OUTWEIGHED,
    bylines_by_episode,
    commit_lesson,
    valid_operations,
)
from memalign_graph.memory.purge import clear_cached_replies
from memalign_graph.memory.recall import embed
from memalign_graph.memory.view import MemoryView
from memalign_graph.models import BaseChatModel, is_small_model, max_input_tokens
from memalign_graph.prompts.compare import (
    Relations,
    read_relations,
    relations_prompt,
    relations_schema,
)
from memalign_graph.prompts.fences import escape_tags, estimate_tokens
from memalign_graph.prompts.judge import ANSWER_TOKENS
from memalign_graph.types import Guideline

_MIN_COMPARED = 2
_NEIGHBORS = 10
"""The others that a guideline is compared with if all of them do not fit into a prompt."""

_MAX_COMMENTS = 3
_COMMENT_CHARS = 200
_UNRESOLVED = (
    "{}: {!r} and {!r} contradict each other. Both stay, because at least as many other experts "
    "support the older one, or because experts wrote both. Align with conflicts='ask', or edit or "
    "remove one of them."
)
_OVERRULED = (
    "{}: {!r} stays, because {!r}, which was to replace it, lost another conflict. Edit or remove "
    "it if that is wrong."
)
_CONTRADICTED = "It contradicts newer feedback, or a guideline that an expert wrote by hand."


@dataclass(frozen=True)
class MergeResult:
    """The merged proposals."""

    operations: list[GuidelineOperation]
    """Without those that resolve conflicts."""
    conflicts: list[Conflict]
    """Contradictions, in a stable order."""
    warnings: list[str]
    """Guidelines that stay: they are newer than the feedback against them, or outweigh it."""
    left_pending: set[str]
    """The episodes of proposals to change guidelines that changed meanwhile."""


async def merge_proposals(
    io: IO,
    access: MemoryAccess,
    chat: BaseChatModel,
    proposals: Sequence[Sequence[GuidelineOperation]],
    *,
    compare: bool,
) -> MergeResult:
    """Merge the proposals of several batches with each other and with the active guidelines.

    A small model can't compare guidelines: then only equal texts are merged.
    """
    view = await access.refresh(io)
    merger = ProposalMerger(view.guidelines, proposals, bylines_by_episode(view))
    texts = [guideline.text for guideline in merger.guidelines]
    changed = merger.changed_places
    relations = Relations([], [])
    if compare and not is_small_model(chat) and changed and len(texts) >= _MIN_COMPARED:
        relations = await find_relations(io, access, chat, texts, changed)
    merged = merger.merge(relations)
    view = await access.refresh(io)  # what was purged meanwhile is not quoted
    conflicts = [
        conflict.model_copy(
            update={name: _quoting(view, getattr(conflict, name)) for name in ("first", "second")}
        )
        for conflict in merged.conflicts
    ]
    return replace(merged, conflicts=conflicts)


def _quoting(view: MemoryView, side: ConflictSide) -> ConflictSide:
    """Add the newest comments behind a guideline, for the expert who decides."""
    episodes = view.episodes(side.episode_ids).values()
    comments = [
        f"{episode.author or 'anonymous'}, {episode.given_at:%Y-%m-%d}: "
        f"{excerpt(' '.join(episode.rationale.split()), _COMMENT_CHARS)}"
        for episode in sorted(episodes, key=lambda item: (item.given_at, item.id), reverse=True)
        if episode.rationale
    ]
    return side.model_copy(update={"said": comments[:_MAX_COMMENTS]})


async def consolidate_memory(io: IO, access: MemoryAccess, chat: BaseChatModel) -> dict[str, Any]:
    """Redistill pending guidelines, merge duplicates and resolve contradictions."""
    redistilled = await redistill(io, access, chat)
    merged = await merge_proposals(CachedRepliesIO(io, access), access, chat, [], compare=True)
    resolved = resolve_conflicts(merged.conflicts)
    operations = [*merged.operations, *resolved]
    learned = await commit_lesson(io, access, operations, {}, reason="consolidate")
    await clear_cached_replies(io, access)
    unresolved = unresolved_warnings(merged.conflicts, resolved)
    return {
        "guidelines": [*redistilled["guidelines"], *learned["guidelines"]],
        "memory_version": learned["memory_version"],
        "warnings": [*redistilled["warnings"], *unresolved, *merged.warnings, *learned["warnings"]],
    }


async def find_relations(
    io: IO, access: MemoryAccess, chat: BaseChatModel, texts: Sequence[str], changed: Sequence[int]
) -> Relations:
    """Ask which guidelines are duplicates and which contradict each other.

    If they do not all fit into one prompt, each changed one is compared with those nearest to it.
    """
    frame = sum(estimate_tokens(message.text) for message in relations_prompt(access.criterion, []))
    costs = [estimate_tokens(escape_tags(text)) + 6 for text in texts]
    budget = max(max_input_tokens(chat) - ANSWER_TOKENS - frame, 0)
    if sum(costs) <= budget:
        return await _compare(io, access, chat, texts, range(len(texts)))
    # A text that the embeddings refuse is compared with the first ones.
    vectors = await embed(io, access, {text: text for text in texts}, {})
    blank = np.zeros_like(next(iter(vectors.values()), np.zeros(1)))
    matrix = np.stack([vectors.get(text, blank) for text in texts])
    groups: list[set[int]] = [set()]
    for place in changed:
        group, tokens_left = {place}, budget - costs[place]
        ranked = map(int, np.argsort(-(matrix @ matrix[place]), kind="stable"))
        for other in [other for other in ranked if other != place][:_NEIGHBORS]:
            tokens_left -= costs[other]
            if tokens_left >= 0 or len(group) < _MIN_COMPARED:
                group.add(other)
        if groups[-1] and sum(costs[member] for member in groups[-1] | group) > budget:
            groups.append(set())
        groups[-1] |= group
    unique = dict.fromkeys(tuple(sorted(group)) for group in groups)
    comparing = [_compare(io, access, chat, texts, places) for places in unique]
    answers = await io.gather(comparing, MAX_CONCURRENCY)
    return Relations(
        [group for answer in answers for group in answer.duplicates],
        sorted({pair for answer in answers for pair in answer.contradictions}),
    )


async def _compare(
    io: IO, access: MemoryAccess, chat: BaseChatModel, texts: Sequence[str], places: Sequence[int]
) -> Relations:
    count = len(places)
    relations, _ = await ask_with_retry(
        io,
        with_schema(chat, relations_schema(count), "compare"),
        relations_prompt(access.criterion, [texts[place] for place in places]),
        lambda answer, _last: read_relations(answer, count),
    )
    return Relations(
        [[places[member] for member in group] for group in relations.duplicates],
        [(places[a], places[b]) for a, b in relations.contradictions],
    )


class ProposalMerger:
    """Applies proposals to the active guidelines, and then the result of a comparison."""

    def __init__(
        self,
        guidelines: Sequence[Guideline],
        proposals: Sequence[Sequence[GuidelineOperation]],
        bylines: Mapping[str, Byline],
    ) -> None:
        """Apply the proposals; equal texts are one guideline.

        Without any, all guidelines are compared with each other.
        """
        self._before = {guideline.id: guideline for guideline in guidelines}
        operations, self._left_pending = valid_operations(
            [operation for batch in proposals for operation in batch], self._before, set()
        )
        self._bylines = bylines
        self._proposed = {key for operation in operations for key in operation.episode_ids}
        self._proposed -= self._left_pending
        self._table = GuidelineTable(self._before, usable_sources=self._proposed, bylines=bylines)
        self._changed_ids: set[str | None] = set() if proposals else {*self._before}
        self._contradictions: list[tuple[str, str]] = []
        # A proposal that adds sources to a guideline counts before one that retires it.
        operations.sort(key=lambda each: each.action == "retire" and not each.text)
        for operation in operations:
            self._add_proposal(operation)

    @property
    def guidelines(self) -> list[Guideline]:
        """The guidelines after the proposals: active ones first, then new ones."""
        return list(self._table.after.values())

    @property
    def changed_places(self) -> list[int]:
        """The indexes of guidelines that are new, reworded, or have a new source."""
        return [index for index, key in enumerate(self._table.after) if key in self._changed_ids]

    def merge(self, relations: Relations) -> MergeResult:
        """Merge duplicates and collect conflicts, by the relations between the guidelines."""
        ids = list(self._table.after)
        found = [(ids[a], ids[b]) for a, b in relations.contradictions]
        pairs = [
            pair
            for pair in [*self._contradictions, *found]
            if {*map(self._table.successor, pair)} <= self._table.after.keys()
        ]
        for group in relations.duplicates:
            self._merge_duplicates([ids[place] for place in group], pairs)
        pairs = [pair for pair in pairs if not self._changed_ids.isdisjoint(pair)]
        conflicts = self._conflicts(pairs)
        opposed = {side.guideline_id for pair in conflicts for side in (pair.first, pair.second)}
        # What becomes of a contradiction is reported with it.
        warnings = [
            OUTWEIGHED.format(guideline.text)
            for key, guideline in self._table.after.items()
            if key in self._table.outweighing.keys() - opposed
        ]
        return MergeResult(self._operations(), conflicts, warnings, self._left_pending)

    def _add_proposal(self, operation: GuidelineOperation) -> None:
        target = self._table.after.get(operation.guideline_id or "")
        is_replacement = operation.action == "retire" and operation.text
        key = self._table.apply(operation.as_addition() if is_replacement else operation)
        self._changed_ids.add(key)
        if is_replacement and key is not None and target is not None and target.id != key:
            self._contradictions.append((target.id, key))

    def _merge_duplicates(self, ids: list[str], opposed: Sequence[tuple[str, str]]) -> None:
        """Merge duplicates into one guideline, unless two of them contradict each other."""
        merged = list(dict.fromkeys(map(self._table.successor, ids)))
        if any({*map(self._table.successor, pair)} <= {*merged} for pair in opposed):
            return
        winner = min(merged, key=self._rank)
        for key in merged:
            self._table.apply(
                GuidelineOperation(action="merge", guideline_id=key, superseded_by=winner)
            )

    def _rank(self, key: str) -> tuple[bool | int, ...]:
        """Rank duplicates: by hand first, then active and unchanged ones."""
        guideline, before = self._table.after[key], self._before.get(key)
        is_distilled = guideline.origin != "expert"
        if before is None:
            return is_distilled, True, False, 0
        return is_distilled, False, guideline.text != before.text, guideline.position

    def _operations(self) -> list[GuidelineOperation]:
        """Return the operations that turn the active guidelines into the merged ones."""
        operations = []
        for key, guideline in self._table.after.items():
            before = self._before.get(key)
            is_reworded = before is not None and before.text != guideline.text
            new_sources = [source for source in guideline.episode_ids if source in self._proposed]
            is_changed = key in self._changed_ids or before != guideline
            if is_reworded or (new_sources and is_changed):
                operation = GuidelineOperation(
                    action="revise" if is_reworded else "add",
                    guideline_id=key,
                    text=guideline.text,
                    question=guideline.question,
                    before=before.text if before else None,
                    episode_ids=new_sources,
                )
                operations.append(operation)
        for key, gone in self._table.retired.items():
            if key not in self._before or key in self._table.after:
                continue
            by = None if gone.by is None else self._table.successor(key)
            winner = self._table.after.get(by or "", self._before.get(by or ""))
            operation = GuidelineOperation(
                action="retire" if by is None else "merge",
                guideline_id=key,
                before=self._before[key].text,
                superseded_by=by,
                superseding_text=None if winner is None else winner.text,
                episode_ids=self._table.retirement_sources.get(key, []),
                reason=gone.reason,
            )
            operations.append(operation)
        return operations

    def _conflicts(self, pairs: Sequence[tuple[str, str]]) -> list[Conflict]:
        order = list(self._table.after)
        conflicts: dict[tuple[str, ...], Conflict] = {}
        for pair in pairs:
            ids = tuple(sorted({*map(self._table.successor, pair)}, key=order.index))
            if len(ids) == 1 or ids in conflicts:
                continue
            first, second = (self._table.after[key] for key in ids)
            newer: Literal["first", "second"] = "first"
            winner, loser = first, second
            if self._date(second) >= self._date(first):
                newer, winner, loser = "second", second, first
            stays = loser.origin == "expert" or (
                winner.origin != "expert"
                and outweighs(self._bylines, loser.episode_ids, winner.episode_ids)
            )
            # The hash refuses an answer to another run's question.
            contents = digest([[each.id, each.text] for each in (first, second)])
            conflicts[ids] = Conflict(
                id=f"C{len(conflicts) + 1}-{contents[:8]}",
                first=self._side(first),
                second=self._side(second),
                newer=newer,
                default="both" if stays else newer,
            )
        return list(conflicts.values())

    def _date(self, guideline: Guideline) -> tuple[bool, datetime]:
        """Return what the newer of two guidelines has more of: one by hand is always newer."""
        if guideline.origin == "expert":
            return True, guideline.updated_at
        return False, last_date(self._bylines, guideline.episode_ids)

    def _side(self, guideline: Guideline) -> ConflictSide:
        return ConflictSide(
            guideline_id=guideline.id,
            text=guideline.text,
            episode_ids=guideline.episode_ids,
            by_expert=guideline.origin == "expert",
            experts=len({author for _, author in bylines_of(self._bylines, guideline.episode_ids)}),
        )


def resolve_conflicts(
    conflicts: Sequence[Conflict], decisions: Mapping[str, str] | None = None
) -> list[GuidelineOperation]:
    """Retire the loser of each conflict, if it has one.

    A guideline that has lost retires no other: those that lose no conflict come first.
    """
    decisions, operations = decisions or {}, list[GuidelineOperation]()
    unsettled: list[tuple[Conflict, ConflictSide, ConflictSide]] = []
    for conflict in conflicts:
        match decisions.get(conflict.id, conflict.default):
            case "first":
                unsettled.append((conflict, conflict.first, conflict.second))
            case "second":
                unsettled.append((conflict, conflict.second, conflict.first))
    while unsettled:
        losers = {loser.guideline_id for _, _, loser in unsettled}
        unbeaten = (each for each in unsettled if each[1].guideline_id not in losers)
        conflict, winner, loser = next(unbeaten, unsettled[0])
        lost = loser.guideline_id
        unsettled = [
            each for each in unsettled if lost not in (each[1].guideline_id, each[2].guideline_id)
        ]
        is_decided = conflict.id in decisions
        operations.append(
            GuidelineOperation(
                action="retire",
                guideline_id=loser.guideline_id,
                before=loser.text,
                superseded_by=winner.guideline_id,
                superseding_text=winner.text,
                reason="An expert chose the other one." if is_decided else _CONTRADICTED,
                settled=is_decided,
            )
        )
    return operations


def overruled_warnings(
    conflicts: Sequence[Conflict],
    decisions: Mapping[str, str],
    resolved: Sequence[GuidelineOperation],
) -> list[str]:
    """Return a warning for each decision for a guideline that another decision has retired."""
    retired, warnings = {operation.guideline_id for operation in resolved}, list[str]()
    for conflict in conflicts:
        winner, loser = conflict.first, conflict.second
        if decisions[conflict.id] == "second":
            winner, loser = loser, winner
        is_overruled = winner.guideline_id in retired and loser.guideline_id not in retired
        if is_overruled and decisions[conflict.id] != "both":
            warnings.append(_OVERRULED.format(conflict.id, loser.text, winner.text))
    return warnings


def unresolved_warnings(
    conflicts: Sequence[Conflict], resolved: Sequence[GuidelineOperation]
) -> list[str]:
    """Return a warning for each contradiction that is left."""
    retired = {operation.guideline_id for operation in resolved}
    return [
        _UNRESOLVED.format(conflict.id, conflict.first.text, conflict.second.text)
        for conflict in conflicts
        if retired.isdisjoint([conflict.first.guideline_id, conflict.second.guideline_id])
    ]
