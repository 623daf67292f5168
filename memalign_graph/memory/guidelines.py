"""Guidelines as pure data: checks of their text, and the operations that distilling proposes."""

import unicodedata
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from operator import itemgetter
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from memalign_graph.errors import InvalidInputError
from memalign_graph.identity import check_json, digest
from memalign_graph.memory.facts import LONG_AGO, FeedbackHashes, GuidelineTombstone
from memalign_graph.types import Guideline

MAX_GUIDELINE_CHARS = 2_000
MAX_QUESTION_CHARS = 300

_FULL_STOPS = ".\u3002\u0964\u06d4"
"""Also of Chinese, Hindi and Urdu."""

Action = Literal["add", "revise", "retire", "merge"]

Byline = tuple[datetime, str | None]
"""When an episode was given, and its author."""


class GuidelineOperation(BaseModel):
    """One change of a guideline, with the episodes that call for it.

    - `add`: add a guideline; if one has the same text, it gets the new sources.
    - `revise`: change its text.
    - `retire`: remove a guideline that does not hold.
    - `merge`: retire a guideline in favor of one with the same meaning, which gets its sources.
    """

    model_config = ConfigDict(frozen=True)

    action: Action
    guideline_id: str | None = None
    """The guideline to revise, retire or merge; for `add`, the id of the new one, if known."""
    text: str | None = None
    """The new text; for `retire`, the text of the guideline that replaces it, if any."""
    question: str | None = None
    """The check question: the guideline as a yes/no question about one case."""
    episode_ids: list[str] = []
    """The sources; none for consolidation."""
    before: str | None = None
    """The text of the guideline to revise, retire or merge that the model or the expert saw."""
    superseded_by: str | None = None
    superseding_text: str | None = None
    """The text of that guideline when the two were compared."""
    reason: str | None = None
    settled: bool = False
    """Whether an expert decided it: only then guidelines that an expert wrote are retired."""

    def as_addition(self) -> "GuidelineOperation":
        """Return the operation that adds the text as a guideline of its own."""
        return self.model_copy(update={"action": "add", "guideline_id": None, "before": None})


def normalize_text(text: str) -> str:
    """Normalize a guideline's text for comparison: case, spaces and the final full stop."""
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split()).rstrip(_FULL_STOPS)


def guideline_with_text(
    guidelines: Iterable[Guideline], text: str, *, except_id: str | None = None
) -> Guideline | None:
    """Return the guideline that has this text, apart from case and spaces."""
    normalized = normalize_text(text)
    same = (each for each in guidelines if normalize_text(each.text) == normalized)
    return next((guideline for guideline in same if guideline.id != except_id), None)


def check_guideline_text(text: Any, question: str | None = None) -> str:
    """Check a guideline's text and question, and put the text on one line."""
    text = _check_text(text, "text", "expected a guideline as a sentence, not empty.")
    if len(text) > MAX_GUIDELINE_CHARS:
        raise InvalidInputError(
            f"text: a guideline has at most {MAX_GUIDELINE_CHARS:,} characters. Shorten it."
        )
    if len(question or "") > MAX_QUESTION_CHARS:
        raise InvalidInputError(f"question: over {MAX_QUESTION_CHARS} characters. Shorten it.")
    return " ".join(text.split())


def check_name(value: Any, name: str) -> str | None:
    return None if value is None else _check_text(value, name, "expected a name.").strip()


def _check_text(value: Any, name: str, problem: str) -> str:
    if not isinstance(value, str) or not value.strip():
        raise InvalidInputError(f"{name}: {problem}")
    try:
        check_json(value, name)
    except ValueError as error:
        raise InvalidInputError(str(error)) from error
    return value


def bylines_of(bylines: Mapping[str, Byline], episode_ids: Iterable[str]) -> list[Byline]:
    """Return the bylines of episodes; an unknown one is the oldest, and of an expert of its own."""
    return [bylines.get(key, (LONG_AGO, key)) for key in episode_ids]


def last_date(bylines: Mapping[str, Byline], episode_ids: Iterable[str]) -> datetime:
    return max((date for date, _ in bylines_of(bylines, episode_ids)), default=LONG_AGO)


def outweighs(bylines: Mapping[str, Byline], older: Iterable[str], newer: Iterable[str]) -> bool:
    """Return whether the sources of a guideline outweigh newer ones that contradict it.

    Each expert counts for their newest feedback.
    """
    dated = [(date, author, False) for date, author in bylines_of(bylines, older)]
    dated += [(date, author, True) for date, author in bylines_of(bylines, newer)]
    against = {author: side for _, author, side in sorted(dated, key=itemgetter(0))}
    return 2 * sum(against.values()) <= len(against)


def apply_operations(
    guidelines: Iterable[Guideline], operations: Sequence[GuidelineOperation]
) -> list[Guideline]:
    """Return the guidelines after some operations."""
    active = {guideline.id: guideline for guideline in guidelines}
    usable_sources = {key for operation in operations for key in operation.episode_ids}
    table = GuidelineTable(active, usable_sources=usable_sources)
    for operation in operations:
        table.apply(operation)
    return list(table.after.values())


def next_position(guidelines: Iterable[Guideline]) -> int:
    return max((guideline.position for guideline in guidelines), default=0) + 1


class GuidelineTable:
    """The guidelines while operations are applied to them."""

    def __init__(
        self,
        guidelines: Mapping[str, Guideline],
        *,
        usable_sources: set[str],
        bylines: Mapping[str, Byline] | None = None,
        is_redistilling: bool = False,
    ) -> None:
        """Start with the active guidelines.

        With `bylines`, feedback does not change a guideline that is newer, or that as many other
        experts support.
        """
        self.outcome: list[dict[str, Any]] = []
        self.after: dict[str, Guideline] = dict(guidelines)
        """The active guidelines, new ones last."""
        self.read_with: dict[str, str] = {}
        """An episode of the prompt that each new guideline was written in."""
        self.retired: dict[str, GuidelineTombstone] = {}
        self.retirement_sources: dict[str, list[str]] = {}
        """The episodes that call for the retirement of each guideline."""
        self.outweighing: dict[str, str] = {}
        """The texts of guidelines that stay: they are newer than the feedback against them, or
        outweigh it."""
        self._bylines = bylines or {}
        self._before = dict(guidelines)
        self._gone: dict[str, Guideline] = {}
        self._usable_sources = usable_sources
        self._is_redistilling = is_redistilling
        self._now = datetime.now(UTC)
        self._position = next_position(guidelines.values())

    def apply(self, operation: GuidelineOperation) -> str | None:
        """Apply an operation, unless all its sources are forgotten.

        Returns the id of the guideline that has the text of an addition or a revision.
        """
        sources = [key for key in operation.episode_ids if key in self._usable_sources]
        if operation.episode_ids and not sources:
            return None
        match operation.action:
            case "add":
                return self._add(operation, sources)
            case "revise":
                return self._revise(operation, sources)
            case "retire":
                self._retire(operation, sources)
            case "merge":
                self._merge(operation)
        return None

    def changed(self) -> list[Guideline]:
        """Return new and changed guidelines, also new ones that are retired already."""
        lost = {key: each for key, each in self._gone.items() if key not in self._before}
        changed = {key: each for key, each in self.after.items() if self._before.get(key) != each}
        return list((lost | changed).values())

    def retirements(self, hashes: FeedbackHashes) -> list[GuidelineTombstone]:
        """Return the tombstones with their sources."""
        return [
            tombstone.model_copy(update={"sources": hashes_of(self._sources_of(tombstone), hashes)})
            for key, tombstone in self.retired.items()
            if key in self._before or key not in self.after
        ]

    def _sources_of(self, gone: GuidelineTombstone) -> list[str]:
        sources, by = self.retirement_sources.get(gone.id), gone.by or ""
        if sources or by in self.after:
            return sources or self.after[by].episode_ids
        return self._sources_of(self.retired[by]) if by in self.retired else []

    def successor(self, key: str) -> str:
        """Return the id of the guideline that replaces a retired one; its own id if active."""
        while key not in self.after and key in self.retired and self.retired[key].by is not None:
            key = self.retired[key].by or ""
        return key

    def _add(self, operation: GuidelineOperation, sources: list[str]) -> str:
        """Add a guideline, or its sources to the one with the same text; returns the id."""
        text, wanted = operation.text or "", operation.guideline_id
        same = guideline_with_text(self.after.values(), text)
        if same is None:
            is_free = wanted is not None and wanted not in self.after
            same = Guideline(
                id=wanted if wanted and is_free else guideline_id(text, self.after),
                text=text,
                question=operation.question,
                position=self._position,
                created_at=self._now,
                updated_at=self._now,
            )
            self._position += 1
            self.after[same.id] = same
            self.read_with |= {same.id: sources[0]} if sources else {}
        elif same.origin == "expert":
            return same.id  # only experts change it
        same = self._with_sources(self._fill_question(same, operation), sources)
        self._report(operation, same, sources)
        return same.id

    def _stays(self, guideline: Guideline, sources: Sequence[str]) -> bool:
        """Return whether a guideline is newer than the feedback against it, or outweighs it."""
        if not self._bylines or not sources:
            return False
        own, bylines = guideline.episode_ids, self._bylines
        is_newer = last_date(bylines, own) > last_date(bylines, sources)
        stays = is_newer or outweighs(bylines, own, sources)
        if stays:
            self.outweighing[guideline.id] = guideline.text
        return stays

    def _revise(self, operation: GuidelineOperation, sources: list[str]) -> str:
        target, text = self._target(operation), operation.text or ""
        if target is None:
            return self._add(operation.as_addition(), sources)
        if normalize_text(target.text) == normalize_text(text):
            target = self._fill_question(target, operation)
        elif (
            self._stays(target, sources)
            # An earlier operation has given it another text.
            or target.text != self._before.get(target.id, target).text
        ):
            return self._add(operation.as_addition(), sources)
        elif (same := guideline_with_text(self.after.values(), text)) is not None:
            self._drop(target.id, by=same.id)
            if same.origin == "expert":
                self.retirement_sources[target.id] = sources
            else:
                same = self._fill_question(same, operation)
                same = self._with_sources(same, [*target.episode_ids, *sources])
            self._report(operation, same, sources)
            return same.id
        else:
            # Its worth was measured with the old text.
            status = "standing" if target.status == "unproven" else target.status
            changes = {"question": operation.question, "status": status, "worth": None}
            target = self._set(target, text=text, **changes)
        if self._is_redistilling:
            target = self._set(target, status="standing")
        self._report(operation, self._with_sources(target, sources), sources)
        return target.id

    def _retire(self, operation: GuidelineOperation, sources: list[str]) -> None:
        key = operation.guideline_id or ""
        target = self._target(operation)
        stays = target is not None and self._stays(target, sources)
        instead = operation.superseded_by
        own, bylines = [] if target is None else target.episode_ids, self._bylines
        is_older = last_date(bylines, sources) < last_date(bylines, own)
        if operation.text and (not is_older or outweighs(bylines, sources, own)):
            instead = self._add(operation.as_addition(), sources)
        if target is None and not operation.text and key not in self.after:
            self._report(operation, None, sources)  # retired by an earlier operation, or meanwhile
        is_lost = instead is not None and instead not in self.after
        if target is None or stays or is_lost or instead == key:
            return
        self.retirement_sources[key] = sources
        reason = operation.reason or "Newer feedback contradicts it."
        self._drop(key, by=instead, reason=reason, settled=operation.settled)
        reported = operation.model_copy(update={"text": None, "reason": reason})
        self._report(reported, target, sources, by=instead)

    def _merge(self, operation: GuidelineOperation) -> None:
        loser = self.after.get(operation.guideline_id or "")
        winner = self.after.get(operation.superseded_by or "")
        if loser is None or winner is None or loser.id == winner.id or loser.origin == "expert":
            return
        self._drop(loser.id, by=winner.id, reason=operation.reason)
        if winner.origin != "expert":
            self._with_sources(winner, loser.episode_ids)
        self._report(operation, loser, loser.episode_ids, by=winner.id)

    def _target(self, operation: GuidelineOperation) -> Guideline | None:
        target = self.after.get(operation.guideline_id or "")
        if target is not None and target.origin == "expert" and not operation.settled:
            return None  # only experts change it
        return target

    def _drop(
        self, key: str, *, by: str | None, reason: str | None = None, settled: bool = False
    ) -> None:
        self._gone[key] = self.after.pop(key)
        self.retired[key] = GuidelineTombstone(id=key, by=by, reason=reason, is_settled=settled)

    def _fill_question(self, guideline: Guideline, operation: GuidelineOperation) -> Guideline:
        if guideline.question is not None or operation.question is None:
            return guideline
        return self._set(guideline, question=operation.question)

    def _with_sources(self, guideline: Guideline, sources: Iterable[str]) -> Guideline:
        merged = list(dict.fromkeys([*guideline.episode_ids, *sources]))
        if merged == guideline.episode_ids:
            return guideline
        return self._set(guideline, episode_ids=merged)

    def _set(self, guideline: Guideline, **changes: Any) -> Guideline:
        if "text" in changes:
            self.read_with.pop(guideline.id, None)
        after = guideline.model_copy(update={**changes, "updated_at": self._now})
        self.after[guideline.id] = after
        return after

    def _report(
        self,
        operation: GuidelineOperation,
        guideline: Guideline | None,
        sources: list[str],
        *,
        by: str | None = None,
    ) -> None:
        entry = {
            "action": operation.action,
            "guideline_id": guideline.id if guideline else operation.guideline_id,
            "text": guideline.text if guideline else operation.text,
            "episode_ids": sources,
        }
        details = {"superseded_by": by, "reason": operation.reason}
        self.outcome.append(entry | {name: text for name, text in details.items() if text})


def hashes_of(episode_ids: Iterable[str], hashes: FeedbackHashes) -> FeedbackHashes:
    return {key: hashes[key] for key in episode_ids if key in hashes}


def guideline_id(text: str, taken: Collection[str] = ()) -> str:
    """Hash a guideline's text to an id; numbered if a reworded guideline has that id."""
    key, number = digest(["guideline", normalize_text(text)]), 0
    while key in taken:
        number += 1
        key = digest(["guideline", normalize_text(text), number])
    return key
