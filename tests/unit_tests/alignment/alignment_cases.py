"""What the unit tests of alignment share: guidelines, proposals and episodes in one line."""

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

from memalign_graph import Criterion, Episode, Feedback, Guideline
from memalign_graph.alignment.merge import MergeResult, ProposalMerger, resolve_conflicts
from memalign_graph.memory.facts import LONG_AGO
from memalign_graph.memory.guidelines import GuidelineOperation, apply_operations, guideline_id
from memalign_graph.prompts.compare import Relations

CRITERION = Criterion(name="tone", instructions="Is it polite?")
START = datetime(2026, 1, 1, tzinfo=UTC)


def at(minutes: int) -> datetime:
    return START + timedelta(minutes=minutes)


DATES = {f"e{number}": at(number) for number in range(60)}
"""When each source was given: `e7` in minute 7."""

BY_ANN: dict[str, str | None] = dict.fromkeys(DATES, "ann")


def standing(text: str, *sources: str, position: int = 1, **fields: Any) -> Guideline:
    defaults = {"created_at": START, "updated_at": START, "position": position}
    content = {"id": guideline_id(text), "text": text, "episode_ids": list(sources)}
    return Guideline.model_validate({**defaults, **content, **fields})


def by_hand(text: str, **fields: Any) -> Guideline:
    return standing(text, origin="expert", **fields)


def add(text: str, *sources: str) -> GuidelineOperation:
    return GuidelineOperation(action="add", text=text, episode_ids=list(sources))


def revise(guideline: Guideline, text: str, *sources: str) -> GuidelineOperation:
    return add(text, *sources).model_copy(update={"action": "revise", "guideline_id": guideline.id})


def retire(guideline: Guideline, text: str | None, *sources: str) -> GuidelineOperation:
    return revise(guideline, "", *sources).model_copy(update={"action": "retire", "text": text})


def relations(duplicates: Any = (), contradictions: Any = ()) -> Relations:
    return Relations(
        [list(group) for group in duplicates], [tuple(pair) for pair in contradictions]
    )


NONE = relations()


def merge(
    guidelines: Iterable[Guideline],
    *proposals: Iterable[GuidelineOperation],
    between: Relations = NONE,
    authors: dict[str, str | None] = BY_ANN,
) -> MergeResult:
    batches = [list(proposal) for proposal in proposals]
    bylines = {key: (DATES.get(key, LONG_AGO), author) for key, author in authors.items()}
    return ProposalMerger(list(guidelines), batches, bylines).merge(between)


def after(
    guidelines: Iterable[Guideline], merged: MergeResult, decisions: dict[str, str] | None = None
) -> dict[str, Guideline]:
    """What a memory's guidelines are when all of it is committed, by text."""
    operations = [*merged.operations, *resolve_conflicts(merged.conflicts, decisions)]
    return {operation.text: operation for operation in apply_operations(guidelines, operations)}


def stands(guidelines: dict[str, Guideline]) -> dict[str, set[str]]:
    """The guidelines that the judge would be given, with their sources."""
    active = (item for item in guidelines.items() if item[1].status == "standing")
    return {text: set(item.episode_ids) for text, item in active}


def episode(number: int, outputs: str = "Go away.", **word: Any) -> Episode:
    content = {"inputs": f"Case {number}", "outputs": outputs, "given_at": at(number)}
    return Episode.from_feedback(Feedback.model_validate({"rationale": "Rude.", **content, **word}))
