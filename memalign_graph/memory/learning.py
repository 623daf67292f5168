"""What distilling proposes, and what comes of it: guideline operations and their outcome."""

from collections.abc import Iterable
from datetime import datetime
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from memalign_graph.identity import digest
from memalign_graph.types import Guideline

Action = Literal["add", "revise", "retire"]
"""What an operation does to a guideline."""


class GuidelineOperation(BaseModel):
    """One small change of the guidelines, with the episodes that call for it."""

    model_config = ConfigDict(frozen=True)

    action: Action
    """What is done."""

    guideline_id: str | None = None
    """The guideline revised or retired."""

    text: str | None = None
    """The new wording, unless the guideline is retired."""

    episode_ids: list[str]
    """The episodes the operation comes from."""


def apply_operations(
    guidelines: Iterable[Guideline],
    operations: Iterable[GuidelineOperation],
    *,
    live: set[str],
    now: datetime,
    position: int,
) -> tuple[dict[str, Guideline | None], list[dict[str, Any]]]:
    """Work out what some operations make of the guidelines that stand.

    What an expert wrote by hand is never changed. Applying the same operations again changes
    nothing more. Provenance is kept here, not by the
    model: a guideline added in words that already stand gets the new sources, a revised one keeps
    its old sources beside the new.

    Args:
        guidelines: The guidelines that stand.
        operations: What distilling proposed.
        live: The episodes that are still there; an operation that comes only from others is void.
        now: The time to write down.
        position: Where the first new guideline stands.

    Returns:
        The guidelines that change, by id, None where one is retired; and one entry an operation
        that took effect, with `action`, `guideline_id`, `text` and `episode_ids`.
    """
    standing = {guideline.id: guideline for guideline in guidelines}
    changed: dict[str, Guideline | None] = {}
    outcome: list[dict[str, Any]] = []
    for operation in operations:
        sources = [key for key in operation.episode_ids if key in live]
        if not sources:
            continue
        target = _target(operation, standing)
        if target is not None and target.origin == "expert":
            continue  # what an expert wrote is the expert's to change
        if operation.action == "add" or target is not None:
            after = _after(operation, target, sources, standing, now=now, position=position)
            position += 1
            key = after.id if after is not None else operation.guideline_id or ""
            if after != target:
                changed[key] = after
            if after is None:
                standing.pop(key, None)
            else:
                standing[key] = after
            outcome.append(_report(operation, key, after or target, sources))
        elif operation.action == "retire":
            # Gone already: by an earlier attempt at this commit, or by an expert meanwhile.
            outcome.append(_report(operation, operation.guideline_id or "", None, sources))
    return changed, outcome


def _target(operation: GuidelineOperation, standing: dict[str, Guideline]) -> Guideline | None:
    if operation.action != "add":
        return standing.get(operation.guideline_id or "")
    words = plain_words(operation.text or "")
    return next((one for one in standing.values() if plain_words(one.text) == words), None)


def _after(
    operation: GuidelineOperation,
    target: Guideline | None,
    sources: list[str],
    standing: dict[str, Guideline],
    *,
    now: datetime,
    position: int,
) -> Guideline | None:
    if operation.action == "retire":
        return None
    text = operation.text or ""
    if target is None:
        key = digest(["guideline", text, sources])
        if key in standing:  # reworded by an expert since
            key = digest(["guideline", text, sources, position])
        return Guideline(
            id=key,
            text=text,
            episode_ids=sources,
            position=position,
            created_at=now,
            updated_at=now,
        )
    merged = list(dict.fromkeys([*target.episode_ids, *sources]))
    kept_text = target.text if operation.action == "add" else text
    if merged == target.episode_ids and kept_text == target.text:
        return target
    return target.model_copy(update={"text": kept_text, "episode_ids": merged, "updated_at": now})


def _report(
    operation: GuidelineOperation, key: str, guideline: Guideline | None, sources: list[str]
) -> dict[str, Any]:
    return {
        "action": operation.action,
        "guideline_id": key,
        "text": guideline.text if guideline is not None else operation.text,
        "episode_ids": sources,
    }


def plain_words(text: str) -> str:
    """Reduce a guideline's text to what makes it another one: no case, no blanks, no full stop.

    Args:
        text: The text.

    Returns:
        The words alone.
    """
    return " ".join(text.casefold().split()).rstrip(".")
