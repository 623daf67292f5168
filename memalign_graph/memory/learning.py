"""What distilling proposes, and what comes of it: guideline operations and their outcome."""

import unicodedata
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from memalign_graph.identity import digest
from memalign_graph.types import Guideline

_FULL_STOPS = ".\u3002\u0964\u06d4"
"""Also the Chinese, the Hindi and the Urdu one."""

Action = Literal["add", "revise", "retire", "merge"]
"""What an operation does to a guideline.

- `add`: a new rule; in words that stand already it is that guideline, with the new sources.
- `revise`: another wording for a guideline.
- `retire`: a guideline that does not hold; it is kept as superseded.
- `merge`: a guideline that says in other words what another says; that one gets its sources.
"""


class GuidelineOperation(BaseModel):
    """One small change of the guidelines, with the episodes that call for it."""

    model_config = ConfigDict(frozen=True)

    action: Action
    """What is done."""

    guideline_id: str | None = None
    """The guideline revised, retired or merged; of one added, the id it is to have, if known."""

    text: str | None = None
    """The new wording; of a guideline retired, the rule that holds in its place, if any."""

    episode_ids: list[str] = []
    """The episodes the operation comes from; none where it only tidies up."""

    before: str | None = None
    """The wording of the guideline to be revised, as the model was shown it."""

    superseded_by: str | None = None
    """The guideline that takes the place of this one, where it is known by its id."""

    reason: str | None = None
    """Why a guideline is superseded."""

    alone: bool = False
    """Of a guideline that goes for good: whether what it had superseded stays superseded."""

    settled: bool = False
    """Whether an expert decided it: then also what an expert wrote by hand can be superseded."""


def guideline_id(text: str) -> str:
    """Name a guideline that is distilled: the same words are the same guideline."""
    return digest(["guideline", plain_words(text)])


def free_id(text: str, taken: Mapping[str, Guideline]) -> str:
    """Name a new guideline; the same as `guideline_id`, unless a reworded one has that id."""
    key, number = guideline_id(text), 0
    while key in taken:
        number += 1
        key = digest(["guideline", plain_words(text), number])
    return key


def apply_operations(
    guidelines: Iterable[Guideline],
    operations: Iterable[GuidelineOperation],
    *,
    live: set[str],
    now: datetime,
    position: int,
) -> tuple[dict[str, Guideline | None], list[dict[str, Any]]]:
    """Work out what some operations make of the guidelines that are there."""
    table = _Table(guidelines, now=now, position=position)
    for operation in operations:
        sources = [key for key in operation.episode_ids if key in live]
        if operation.episode_ids and not sources:
            continue
        match operation.action:
            case "add":
                table.add(operation, sources)
            case "revise":
                table.revise(operation, sources)
            case "retire":
                table.retire(operation, sources)
            case "merge":
                table.merge(operation)
    return table.changed(), table.outcome


class _Table:
    """The guidelines while operations are applied to them."""

    def __init__(self, guidelines: Iterable[Guideline], *, now: datetime, position: int) -> None:
        self._before = {guideline.id: guideline for guideline in guidelines}
        self._after: dict[str, Guideline] = dict(self._before)
        self._now = now
        self._position = position
        self.outcome: list[dict[str, Any]] = []

    def changed(self) -> dict[str, Guideline | None]:
        keys = list(dict.fromkeys([*self._before, *self._after]))
        return {
            key: self._after.get(key)
            for key in keys
            if self._before.get(key) != self._after.get(key)
        }

    def add(self, operation: GuidelineOperation, sources: list[str]) -> str | None:
        """Bring in a rule; returns the id of the guideline that says it."""
        text = operation.text or ""
        wanted = operation.guideline_id
        same = self._in_words(text)
        if same is not None and same.status == "superseded" and wanted not in (None, same.id):
            same = None
        if same is not None and same.origin == "expert":
            return same.id  # it stands already, and is the expert's to change
        if same is None:
            same = self._new(text, wanted)
        same = self._revived(same)
        self._report(operation, self._with_sources(same, sources), sources)
        return same.id

    def revise(self, operation: GuidelineOperation, sources: list[str]) -> None:
        target = self._target(operation)
        if target is None or target.status == "superseded":
            return
        text = operation.text or target.text
        same = self._in_words(text)
        if same is not None and same.id != target.id and same.status == "superseded":
            # Said again, it stands again: as this guideline, with the sources of both.
            self._drop(same.id, heir=target.id)
            target = self._with_sources(self._after[target.id], same.episode_ids)
        elif same is not None and same.id != target.id:
            # Another says just that already.
            self._drop(target.id, heir=same.id)
            same = self._after[same.id]
            if same.origin != "expert":
                same = self._with_sources(same, [*target.episode_ids, *sources])
            self._report(operation, same, sources)
            return
        if text != target.text or target.status == "pending":
            target = self._set(target, text=text, status="standing")
        self._report(operation, self._with_sources(target, sources), sources)

    def retire(self, operation: GuidelineOperation, sources: list[str]) -> None:
        key = operation.guideline_id or ""
        if key not in self._after:
            # Gone already: by an earlier attempt at this commit, or by an expert meanwhile.
            self._report(operation, None, sources)
            return
        target = self._target(operation)
        if target is None:
            return
        instead = operation.superseded_by
        if operation.text:
            added = operation.model_copy(update={"action": "add", "guideline_id": None})
            instead = self.add(added, sources)
        by = self._after.get(instead or "")
        if instead == key or (instead is not None and (by is None or by.status != "standing")):
            return  # what was to take its place is not there after all
        if target.status == "pending":
            # Nothing is left of it that could be kept.
            self._drop(key, heir=None, revives=not operation.alone)
        elif target.status == "standing":
            target = self._set(
                target,
                status="superseded",
                superseded_by=instead,
                reason=operation.reason or "Newer feedback says otherwise.",
            )
        self._report(operation.model_copy(update={"text": None}), target, sources)

    def merge(self, operation: GuidelineOperation) -> None:
        loser = self._after.get(operation.guideline_id or "")
        winner = self._after.get(operation.superseded_by or "")
        if loser is None or winner is None or loser.id == winner.id:
            return
        if loser.origin == "expert" or loser.status != "standing":
            return
        if winner.origin == "expert":
            reason = operation.reason or "An expert's own guideline says the same."
            loser = self._set(loser, status="superseded", superseded_by=winner.id, reason=reason)
        else:
            self._drop(loser.id, heir=winner.id)
            self._with_sources(self._after[winner.id], loser.episode_ids)
        self._report(operation, loser, loser.episode_ids)

    def _target(self, operation: GuidelineOperation) -> Guideline | None:
        target = self._after.get(operation.guideline_id or "")
        if target is not None and target.origin == "expert" and not operation.settled:
            return None  # what an expert wrote is the expert's to change
        return target

    def _in_words(self, text: str) -> Guideline | None:
        words = plain_words(text)
        same = [one for one in self._after.values() if one.text and plain_words(one.text) == words]
        return min(same, key=lambda one: one.status == "superseded", default=None)

    def _new(self, text: str, wanted: str | None) -> Guideline:
        is_free = wanted is not None and wanted not in self._after
        guideline = Guideline(
            id=wanted if is_free and wanted else free_id(text, self._after),
            text=text,
            position=self._position,
            created_at=self._now,
            updated_at=self._now,
        )
        self._position += 1
        self._after[guideline.id] = guideline
        return guideline

    def _drop(self, key: str, *, heir: str | None, revives: bool = True) -> None:
        """Take a guideline away; what it had superseded is the heir's to supersede."""
        del self._after[key]
        for one in [one for one in self._after.values() if one.superseded_by == key]:
            if not revives:
                self._set(one, superseded_by=None)
            elif heir is None or heir == one.id:
                self._revived(one)
            else:
                self._set(one, superseded_by=heir)

    def _revived(self, guideline: Guideline) -> Guideline:
        """Let a rule stand again that newer feedback says again."""
        if guideline.status != "superseded":
            return guideline
        return self._set(guideline, status="standing", superseded_by=None, reason=None)

    def _with_sources(self, guideline: Guideline, sources: Iterable[str]) -> Guideline:
        merged = list(dict.fromkeys([*guideline.episode_ids, *sources]))
        if merged == guideline.episode_ids:
            return guideline
        return self._set(guideline, episode_ids=merged)

    def _set(self, guideline: Guideline, **changes: Any) -> Guideline:
        after = guideline.model_copy(update={**changes, "updated_at": self._now})
        self._after[guideline.id] = after
        return after

    def _report(
        self, operation: GuidelineOperation, guideline: Guideline | None, sources: list[str]
    ) -> None:
        entry: dict[str, Any] = {
            "action": operation.action,
            "guideline_id": guideline.id if guideline else operation.guideline_id,
            "text": guideline.text if guideline is not None else operation.text,
            "episode_ids": sources,
        }
        if guideline is not None and guideline.status == "superseded":
            entry["superseded_by"] = guideline.superseded_by
            entry["reason"] = guideline.reason
        elif operation.action == "merge":
            entry["superseded_by"] = operation.superseded_by
        self.outcome.append(entry)


def learned_before(
    operations: Iterable[GuidelineOperation],
    standing: Mapping[str, Guideline],
    distilled: set[str],
) -> list[dict[str, Any]]:
    """Report again what an earlier attempt at the same commit made of some operations."""
    by_words = {plain_words(one.text): one for one in standing.values() if one.text}
    report = []
    for operation in operations:
        sources = [key for key in operation.episode_ids if key in distilled]
        if not sources:
            continue
        guideline = by_words.get(plain_words(operation.text or ""))
        target = standing.get(operation.guideline_id or "")
        retired = operation.action == "retire" and (target is None or target.status != "standing")
        if retired or (guideline is not None and set(sources) <= set(guideline.episode_ids)):
            key = guideline.id if guideline is not None else operation.guideline_id
            report.append(
                {
                    "action": operation.action,
                    "guideline_id": key,
                    "text": operation.text,
                    "episode_ids": sources,
                }
            )
    return report


def plain_words(text: str) -> str:
    """Reduce a guideline's text to what makes it another one: no case, no blanks, no full stop."""
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split()).rstrip(_FULL_STOPS)
