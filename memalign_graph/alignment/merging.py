"""Many proposals made into one set of guidelines: pure functions.

Batches of feedback are distilled apart and know nothing of each other. What they propose is laid
beside the guidelines that stand; rules in the same words are one, and a model says which say the
same in other words and which contradict each other. Code decides what follows from it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from memalign_graph.memory.learning import GuidelineOperation, free_id, plain_words
from memalign_graph.prompts.compare import Relations
from memalign_graph.types import Guideline

_LONG_AGO = datetime.min.replace(tzinfo=UTC)


@dataclass
class Rule:
    """One rule on the table: a guideline that stands, or one that is proposed."""

    id: str
    """The id it has or is to have."""

    text: str
    """Its wording, as proposed."""

    sources: list[str]
    """The episodes it comes from."""

    guideline: Guideline | None = None
    """The guideline that stands; None for a new rule."""

    fresh: list[str] = field(default_factory=list)
    """The sources that are new."""

    reworded: bool = False
    """Whether a guideline that stands is to have other words."""

    @property
    def by_expert(self) -> bool:
        """Whether an expert wrote it by hand."""
        return self.guideline is not None and self.guideline.origin == "expert"

    @property
    def is_touched(self) -> bool:
        """Whether it is new, reworded, or has a new source."""
        return bool(self.fresh)


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


class Table:
    """All rules side by side: those that stand first, then the proposals of each batch in order."""

    def __init__(
        self,
        guidelines: Sequence[Guideline],
        proposals: Sequence[Sequence[GuidelineOperation]],
    ) -> None:
        """Lay the rules out; the same words are one rule."""
        self.rules: list[Rule] = [
            Rule(id=one.id, text=one.text, sources=list(one.episode_ids), guideline=one)
            for one in guidelines
        ]
        self._taken = {one.id for one in guidelines}
        self._retired: list[tuple[int, int | None, list[str]]] = []
        for operations in proposals:
            for operation in operations:
                self._lay(operation)

    @property
    def texts(self) -> list[str]:
        """The rules' wordings, in their order."""
        return [rule.text for rule in self.rules]

    def contested(self) -> set[str]:
        """Return the ids of the episodes whose dates decide."""
        retiring = {key for _, _, sources in self._retired for key in sources}
        return retiring.union(*(rule.sources for rule in self.rules))

    def merge(
        self,
        relations: Relations,
        given_at: Mapping[str, datetime],
        *,
        touched_only: bool = True,
    ) -> Merged:
        """Work out what becomes of the rules."""
        keeper = self._keepers(relations)
        operations: list[GuidelineOperation] = []
        groups: dict[int, list[int]] = {}
        for place in range(len(self.rules)):
            groups.setdefault(keeper[place], []).append(place)
        for kept in sorted(groups):
            operations += self._operations(kept, groups[kept])
        gone: set[int] = set()
        for place, instead, sources in self._retired:
            if instead is None and not self.rules[place].by_expert:
                retire = self._retire(place, sources, given_at)
                operations += retire
                gone |= {keeper[place]} if retire else set()
        pairs = [
            *((place, instead) for place, instead, _ in self._retired if instead is not None),
            *relations.contradictions,
        ]
        # What is retired outright wins nothing.
        pairs = [pair for pair in pairs if gone.isdisjoint(keeper[one] for one in pair)]
        if touched_only:
            pairs = [pair for pair in pairs if any(self.rules[one].is_touched for one in pair)]
        return Merged(operations, self._conflicts(pairs, keeper, given_at))

    def _lay(self, operation: GuidelineOperation) -> None:
        target = self._place_of(operation.guideline_id)
        if operation.action == "retire":
            instead = self._add(operation) if operation.text else None
            if target is not None:
                self._retired.append((target, instead, operation.episode_ids))
            return
        if operation.action == "revise" and target is not None:
            rule = self.rules[target]
            same = plain_words(rule.text) == plain_words(operation.text or "")
            if not rule.by_expert and (same or not rule.reworded):
                rule.reworded = rule.reworded or not same
                rule.text = rule.text if same else operation.text or rule.text
                self._source(rule, operation.episode_ids)
                return
        # A guideline that another batch has reworded already, or that is not there any more.
        self._add(operation)

    def _add(self, operation: GuidelineOperation) -> int:
        words = plain_words(operation.text or "")
        for place, rule in enumerate(self.rules):
            if plain_words(rule.text) == words:
                self._source(rule, operation.episode_ids)
                return place
        text = operation.text or ""
        rule = Rule(id=free_id(text, self._taken), text=text, sources=[])
        self._source(rule, operation.episode_ids)
        self.rules.append(rule)
        return len(self.rules) - 1

    def _source(self, rule: Rule, episode_ids: Sequence[str]) -> None:
        rule.sources = list(dict.fromkeys([*rule.sources, *episode_ids]))
        rule.fresh = list(dict.fromkeys([*rule.fresh, *episode_ids]))

    def _place_of(self, key: str | None) -> int | None:
        return next(
            (
                place
                for place, rule in enumerate(self.rules)
                if rule.guideline is not None and rule.id == key
            ),
            None,
        )

    def _keepers(self, relations: Relations) -> list[int]:
        """Say for each rule which one stands for it."""
        keeper = list(range(len(self.rules)))
        replaced = [(place, instead) for place, instead, _ in self._retired if instead is not None]
        opposed = [*relations.contradictions, *replaced]
        # A rule may have been reworded into the words of another.
        by_words: dict[str, list[int]] = {}
        for place, rule in enumerate(self.rules):
            by_words.setdefault(plain_words(rule.text), []).append(place)
        same = [group for group in by_words.values() if len(group) > 1]
        for group in [*same, *relations.duplicates]:
            joined = {keeper[place] for place in group}
            members = [place for place, kept in enumerate(keeper) if kept in joined]
            if group not in same and any(a in members and b in members for a, b in opposed):
                continue
            best = {place: rank for rank, place in enumerate(group)}

            def worth(place: int, best: Mapping[int, int] = best) -> tuple[bool | int, ...]:
                rule = self.rules[place]
                old = rule.guideline is not None
                rank = 0 if old else best.get(place, len(best))
                return not rule.by_expert, not old, rule.reworded, rank, place

            first = min(members, key=worth)
            for place in members:
                keeper[place] = first
        return keeper

    def _operations(self, kept: int, group: Sequence[int]) -> list[GuidelineOperation]:
        rule = self.rules[kept]
        others = [self.rules[place] for place in group if place != kept]
        new = [key for one in others for key in (one.fresh if one.guideline else one.sources)]
        fresh = list(dict.fromkeys([*rule.fresh, *new]))
        operations: list[GuidelineOperation] = []
        if fresh and rule.reworded:
            before = rule.guideline.text if rule.guideline is not None else None
            operations.append(
                _operation("revise", rule, fresh, guideline_id=rule.id, before=before)
            )
        elif fresh:
            operations.append(_operation("add", rule, fresh, guideline_id=rule.id))
        operations += [
            GuidelineOperation(action="merge", guideline_id=one.id, superseded_by=rule.id)
            for one in others
            if one.guideline is not None and not one.by_expert
        ]
        return operations

    def _retire(
        self, place: int, sources: list[str], given_at: Mapping[str, datetime]
    ) -> list[GuidelineOperation]:
        rule = self.rules[place]
        if _newest(sources, given_at) < _newest(rule.sources, given_at):
            return []
        return [
            GuidelineOperation(
                action="retire",
                guideline_id=rule.id,
                episode_ids=sources,
                reason="Newer feedback says that it does not hold.",
            )
        ]

    def _joined(self, kept: int, keeper: Sequence[int]) -> Rule:
        """Return a rule with the sources of all that it stands for."""
        places = [place for place, one in enumerate(keeper) if one == kept]
        sources = dict.fromkeys(key for place in places for key in self.rules[place].sources)
        return replace(self.rules[kept], sources=list(sources))

    def _conflicts(
        self,
        pairs: Sequence[tuple[int, int]],
        keeper: Sequence[int],
        given_at: Mapping[str, datetime],
    ) -> list[Conflict]:
        found: dict[tuple[int, int], Conflict] = {}
        for a, b in pairs:
            first, second = sorted((keeper[a], keeper[b]))
            if first == second or (first, second) in found:
                continue
            one, other = self._joined(first, keeper), self._joined(second, keeper)
            found[first, second] = Conflict(
                id=f"C{len(found) + 1}",
                first=_side(one),
                second=_side(other),
                newer="second" if _outweighs(other, one, given_at) else "first",
            )
        return list(found.values())


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
        if loser.by_expert and not decided:
            continue  # two of an expert's own: nothing but an expert decides between them
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


def _operation(action: Any, rule: Rule, sources: list[str], **fields: Any) -> GuidelineOperation:
    return GuidelineOperation(action=action, text=rule.text, episode_ids=sources, **fields)


def _side(rule: Rule) -> Side:
    return Side(
        guideline_id=rule.id,
        text=rule.text,
        episode_ids=rule.sources,
        by_expert=rule.by_expert,
    )


def _outweighs(one: Rule, other: Rule, given_at: Mapping[str, datetime]) -> bool:
    """Tell whether the later of two rules has the newer word behind it; ties go to the later."""
    if one.by_expert != other.by_expert:
        return one.by_expert
    return _said_at(one, given_at) >= _said_at(other, given_at)


def _said_at(rule: Rule, given_at: Mapping[str, datetime]) -> datetime:
    if rule.by_expert and rule.guideline is not None:
        return rule.guideline.updated_at
    return _newest(rule.sources, given_at)


def _newest(sources: Sequence[str], given_at: Mapping[str, datetime]) -> datetime:
    return max((given_at[key] for key in sources if key in given_at), default=_LONG_AGO)
