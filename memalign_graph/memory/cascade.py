"""What becomes of guidelines when feedback they rest on is taken back."""

from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from datetime import UTC, datetime

from memalign_graph.memory.items import Edit
from memalign_graph.types import Guideline


@dataclass(frozen=True)
class Cascade:
    """Which guidelines go, and which lose a source."""

    before: dict[str, Guideline] = field(default_factory=dict)
    """The guidelines it touches as they were, by id."""

    removed: list[Guideline] = field(default_factory=list)
    """Guidelines that rested on that feedback alone, and superseded ones that rested on it."""

    reduced: list[Guideline] = field(default_factory=list)
    """Guidelines that have other sources, which alone they now name. Their wording is gone, since
    it may hold what was taken back: they are to be distilled again. Only what an expert worded by
    hand keeps its words."""

    restored: list[Guideline] = field(default_factory=list)
    """Guidelines that had been superseded by one that is removed: they stand again."""

    @property
    def touched(self) -> list[Guideline]:
        """All of them."""
        return [*self.removed, *self.reduced, *self.restored]


def cascade(
    guidelines: Iterable[Guideline],
    episode_ids: AbstractSet[str],
    *,
    only: AbstractSet[str] | None = None,
    keep_by_hand: bool = True,
) -> Cascade:
    """Follow the provenance of guidelines when episodes are forgotten or replaced."""
    everything = {one.id: one for one in guidelines}
    removed: dict[str, Guideline] = {}
    reduced: dict[str, Guideline] = {}
    for guideline in everything.values():
        if episode_ids.isdisjoint(guideline.episode_ids):
            continue
        if only is not None and guideline.id not in only:
            continue
        left = [key for key in guideline.episode_ids if key not in episode_ids]
        if not left or guideline.status == "superseded":
            removed[guideline.id] = guideline
        elif guideline.origin == "expert" and keep_by_hand:
            less = {"episode_ids": left, "updated_at": datetime.now(UTC)}
            reduced[guideline.id] = guideline.model_copy(update=less)
        else:
            reduced[guideline.id] = without_words(guideline, left)
    restored = superseded_by(everything.values(), removed.values())
    touched = {*removed, *reduced, *restored.before}
    return Cascade(
        before={key: one for key, one in everything.items() if key in touched},
        removed=list(removed.values()),
        reduced=list(reduced.values()),
        restored=restored.restored,
    )


def superseded_by(guidelines: Iterable[Guideline], removed: Iterable[Guideline]) -> Cascade:
    """Let guidelines stand again whose place was taken by one that goes."""
    gone = {one.id for one in removed}
    before = {one.id: one for one in guidelines if one.superseded_by in gone and one.id not in gone}
    restored = [_standing_again(one) for one in before.values()]
    return Cascade(before=before, restored=restored)


def with_dangling(
    follow: Cascade, guidelines: Mapping[str, Guideline], only: AbstractSet[str]
) -> Cascade:
    """Let also those stand again that are superseded by a guideline which is not there any more."""
    gone = {one.id for one in follow.removed}
    dealt = {one.id for one in follow.touched}
    dangling = {
        key: one
        for key, one in guidelines.items()
        if key in only - dealt
        and one.superseded_by is not None
        and (one.superseded_by in gone or one.superseded_by not in guidelines)
    }
    return Cascade(
        before={**follow.before, **dangling},
        removed=follow.removed,
        reduced=follow.reduced,
        restored=[*follow.restored, *(_standing_again(one) for one in dangling.values())],
    )


def _standing_again(guideline: Guideline) -> Guideline:
    return guideline.model_copy(
        update={
            "status": "standing",
            "superseded_by": None,
            "reason": None,
            "updated_at": datetime.now(UTC),
        }
    )


def without_words(guideline: Guideline, episode_ids: list[str]) -> Guideline:
    """Take a guideline's wording away, until it is distilled again."""
    return guideline.model_copy(
        update={
            "episode_ids": episode_ids,
            "text": "",
            "status": "pending",
            "origin": "distilled",
            "author": None,
            "updated_at": datetime.now(UTC),
        }
    )


def cascade_edits(follow: Cascade) -> list[Edit]:
    """Write a cascade as edits."""
    after = {one.id: one for one in [*follow.reduced, *follow.restored]}
    return [Edit("guidelines", one, after.get(key)) for key, one in follow.before.items()]
