"""Many proposals made into one set of guidelines, without a model.

Batches of feedback are distilled apart and know nothing of each other. What they propose is applied
to the guidelines that stand; rules in the same words are one, and a model says which say the
same in other words and which contradict each other. Code decides what follows from it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from memalign_graph.memory.guidelines import GuidelineOperation, GuidelineTable, normalize_text
from memalign_graph.prompts.compare import Relations
from memalign_graph.types import Guideline

_LONG_AGO = datetime.min.replace(tzinfo=UTC)


class Side(BaseModel):
    """One of two guidelines that contradict each other."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    guideline_id: str
    """The guideline."""

    text: str
    """Its wording."""

    episode_ids: list[str]
    """Its sources."""

    by_expert: bool = False
    """Whether an expert wrote it by hand."""

    experts: int = 0
    """How many experts gave its sources."""

    said: list[str] = []
    """The newest words behind it: who, when, and what."""


class Conflict(BaseModel):
    """Two guidelines that contradict each other."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: str
    """Names the conflict in the question to the expert: `C1`, `C2`, ..."""

    first: Side
    """The one that came first."""

    second: Side
    """The other."""

    newer: Literal["first", "second"]
    """Which has the newer word behind it; what an expert wrote by hand always has."""


@dataclass(frozen=True)
class Merged:
    """What proposals come to."""

    operations: list[GuidelineOperation]
    """What to do to the guidelines, conflicts aside."""

    conflicts: list[Conflict]
    """What contradicts each other, in a stable order."""

    not_retired: list[str]
    """The guidelines that were to be retired by feedback of fewer experts than support them."""


class ProposalMerger:
    """Rules that stand, and what is proposed of them, brought together step by step."""

    def __init__(
        self,
        guidelines: Sequence[Guideline],
        proposals: Sequence[Sequence[GuidelineOperation]],
        given_at: Mapping[str, datetime],
        authors: Mapping[str, str | None] = MappingProxyType({}),
    ) -> None:
        """Lay the proposals beside what stands; the same words are one rule.

        `given_at` dates the words of experts, by episode; what is not in it is older than all.
        `authors` names the experts; each episode that is not in it has an expert of its own.
        """
        self._before = {one.id: one for one in guidelines}
        self._given_at, self._authors = given_at, authors
        self._proposed = {
            key for batch in proposals for operation in batch for key in operation.episode_ids
        }
        self._table = GuidelineTable(
            self._before,
            live=self._proposed,
            position=max((one.position for one in guidelines), default=0) + 1,
        )
        self._touched: set[str] = set()
        self._opposed: list[tuple[str, str]] = []
        self._retiring: list[GuidelineOperation] = []
        self._not_retired: list[str] = []
        for batch in proposals:
            for operation in batch:
                self._lay(operation)
        for operation in self._retiring:
            self._retire(operation)

    @property
    def rules(self) -> list[Guideline]:
        """What is to stand: what stands first, then what is new."""
        return list(self._table.after.values())

    @property
    def touched(self) -> list[int]:
        """The places of rules that are new, reworded, or have a new source."""
        return [place for place, rule in enumerate(self.rules) if rule.id in self._touched]

    def merge(self, relations: Relations, *, touched_only: bool = True) -> Merged:
        """Work out what becomes of the rules, by how those at some places stand to each other."""
        ids = [rule.id for rule in self.rules]
        said = [(ids[a], ids[b]) for a, b in relations.contradictions]
        pairs = [pair for pair in [*self._opposed, *said] if not self._is_gone(*pair)]
        for group in relations.duplicates:
            self._join([ids[place] for place in group], pairs)
        if touched_only:
            pairs = [pair for pair in pairs if not self._touched.isdisjoint(pair)]
        return Merged(self._operations(), self._conflicts(pairs), self._not_retired)

    def _lay(self, operation: GuidelineOperation) -> None:
        target = self._table.after.get(operation.guideline_id or "")
        if operation.action == "retire" and not operation.text:
            self._retiring.append(operation)
            return
        if operation.action == "revise" and target is not None and self._agrees(operation, target):
            if normalize_text(operation.text or "") == normalize_text(target.text):
                operation = operation.model_copy(update={"text": target.text})
            self._table.apply(operation)
            self._touched.add(self._table.keeper(target.id))
            return
        # Also a guideline that another batch has reworded already, or that is not there any more.
        new = operation.model_copy(update={"action": "add", "guideline_id": None})
        rule = self._table.add(new, operation.episode_ids)
        self._touched.add(rule)
        if operation.action == "retire" and target is not None and target.id != rule:
            self._opposed.append((target.id, rule))

    def _agrees(self, operation: GuidelineOperation, target: Guideline) -> bool:
        """Tell whether a guideline can get these words: none others yet, and none by hand."""
        is_reworded = target.text != self._before[target.id].text
        same = normalize_text(operation.text or "") == normalize_text(target.text)
        return target.origin != "expert" and (same or not is_reworded)

    def _retire(self, operation: GuidelineOperation) -> None:
        target = self._table.after.get(operation.guideline_id or "")
        if target is None or self._newest(operation.episode_ids) < self._newest(target.episode_ids):
            return
        if self._experts(operation.episode_ids) < self._experts(target.episode_ids):
            self._not_retired.append(target.text)
            return
        reason = "Newer feedback says that it does not hold."
        self._table.apply(operation.model_copy(update={"reason": reason}))

    def _is_gone(self, *ids: str) -> bool:
        """Tell whether one of some rules holds no more, nor another in its place."""
        return any(self._table.keeper(key) not in self._table.after for key in ids)

    def _join(self, ids: Sequence[str], opposed: Sequence[tuple[str, str]]) -> None:
        """Make rules that say the same one, unless two of them contradict each other."""
        joined = list(dict.fromkeys(map(self._table.keeper, ids)))
        if any({*map(self._table.keeper, pair)} <= {*joined} for pair in opposed):
            return
        kept = min(joined, key=lambda key: (*self._rank(key), joined.index(key)))
        for key in joined:
            merge = GuidelineOperation(action="merge", guideline_id=key, superseded_by=kept)
            self._table.apply(merge)

    def _rank(self, key: str) -> tuple[bool | int, ...]:
        """Say what is kept of two that say the same: an expert's, then what stands unchanged."""
        rule, before = self._table.after[key], self._before.get(key)
        if before is None:
            return rule.origin != "expert", True, False, 0
        return rule.origin != "expert", False, rule.text != before.text, rule.position

    def _operations(self) -> list[GuidelineOperation]:
        """Return what leads from what stands to the rules as they are now."""
        operations = []
        for key, rule in self._table.after.items():
            before = self._before.get(key)
            fields: dict[str, Any] = {
                "guideline_id": key,
                "text": rule.text,
                "question": rule.question,
            }
            fields["episode_ids"] = [one for one in rule.episode_ids if one in self._proposed]
            if before is not None and before.text != rule.text:
                operations.append(GuidelineOperation(action="revise", before=before.text, **fields))
            elif fields["episode_ids"] and (key in self._touched or before != rule):
                operations.append(GuidelineOperation(action="add", **fields))
        for key, gone in self._table.retired.items():
            if key not in self._before or key in self._table.after:
                continue
            by = self._table.keeper(key)
            operations.append(
                GuidelineOperation(
                    action="retire" if gone.by is None else "merge",
                    guideline_id=key,
                    superseded_by=None if gone.by is None else by,
                    episode_ids=self._table.callers(key),
                    reason=gone.reason,
                )
            )
        return operations

    def _conflicts(self, pairs: Sequence[tuple[str, str]]) -> list[Conflict]:
        places = {key: place for place, key in enumerate(self._table.after)}
        found: dict[tuple[str, str], Conflict] = {}
        for pair in pairs:
            a, b = sorted(map(self._table.keeper, pair), key=lambda key: places[key])
            if a == b or (a, b) in found:
                continue
            first, second = self._table.after[a], self._table.after[b]
            found[a, b] = Conflict(
                id=f"C{len(found) + 1}",
                first=self._side(first),
                second=self._side(second),
                newer="second" if self._outweighs(second, first) else "first",
            )
        return list(found.values())

    def _outweighs(self, one: Guideline, other: Guideline) -> bool:
        """Tell whether the later of two rules has the newer word behind it, or one as new."""
        by_hand = [rule.origin == "expert" for rule in (one, other)]
        if by_hand[0] != by_hand[1]:
            return by_hand[0]
        return self._said_at(one) >= self._said_at(other)

    def _said_at(self, rule: Guideline) -> datetime:
        return rule.updated_at if rule.origin == "expert" else self._newest(rule.episode_ids)

    def _newest(self, sources: Sequence[str]) -> datetime:
        given_at = self._given_at
        return max((given_at[key] for key in sources if key in given_at), default=_LONG_AGO)

    def _experts(self, sources: Sequence[str]) -> int:
        return len({self._authors.get(key, key) for key in sources})

    def _side(self, rule: Guideline) -> Side:
        return Side(
            guideline_id=rule.id,
            text=rule.text,
            episode_ids=rule.episode_ids,
            by_expert=rule.origin == "expert",
            experts=self._experts(rule.episode_ids),
        )


def settle(
    conflicts: Sequence[Conflict], decisions: Mapping[str, str] | None = None
) -> list[GuidelineOperation]:
    """Work out what becomes of guidelines that contradict each other."""
    lost: set[str] = set()
    operations: list[GuidelineOperation] = []
    for conflict in conflicts:
        choice = (decisions or {}).get(conflict.id, conflict.newer)
        if choice == "both":
            continue
        winner, loser = (
            (conflict.first, conflict.second)
            if choice == "first"
            else (conflict.second, conflict.first)
        )
        if winner.guideline_id in lost or loser.guideline_id in lost:
            continue  # what has lost already decides nothing
        decided = decisions is not None and conflict.id in decisions
        is_outweighed = loser.by_expert or (not winner.by_expert and loser.experts > winner.experts)
        if is_outweighed and not decided:
            continue  # nothing but an expert decides between them
        lost.add(loser.guideline_id)
        operations.append(
            GuidelineOperation(
                action="retire",
                guideline_id=loser.guideline_id,
                superseded_by=winner.guideline_id,
                reason="An expert chose the other one." if decided else _NEWER,
                settled=decided,
            )
        )
    return operations


_NEWER = "It contradicts what newer feedback, or an expert's own guideline, says."


def unsettled(merged: Merged, settled: Sequence[GuidelineOperation]) -> list[str]:
    """Name the contradictions that are left, a sentence each."""
    gone = {operation.guideline_id for operation in settled}
    return [
        *(
            f"{conflict.id}: {_quote(conflict.first)} and {_quote(conflict.second)} contradict "
            "each other, and both stay: the newer one is not supported by as many experts, or "
            "experts wrote both. Align with conflicts='ask', or edit or remove one of them."
            for conflict in merged.conflicts
            if gone.isdisjoint([conflict.first.guideline_id, conflict.second.guideline_id])
        ),
        *(
            f"{text!r} stays, although newer feedback says that it does not hold: more experts "
            "support it. Edit or remove it where that is wrong."
            for text in merged.not_retired
        ),
    ]


def _quote(side: Side) -> str:
    count = f"{side.experts} expert{'s' * (side.experts != 1)}"
    return f"{side.text!r} ({'by hand' if side.by_expert else count})"
