"""Bringing what was distilled into a memory, also where someone else changes it at the moment."""

from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from memalign_graph.io import IO
from memalign_graph.memory.access import MemoryAccess
from memalign_graph.memory.cascade import Cascade, cascade, with_dangling
from memalign_graph.memory.changes import COMMIT_ITEMS
from memalign_graph.memory.items import Edit, read_episode, read_guideline
from memalign_graph.memory.learning import GuidelineOperation, apply_operations, learned_before
from memalign_graph.memory.records import PURGE, Change, Changes, clock
from memalign_graph.memory.rivals import fall_out_of_step, purge_records
from memalign_graph.types import Episode, Guideline


async def learn(
    io: IO,
    access: MemoryAccess,
    operations: Sequence[GuidelineOperation],
    read: Mapping[str, str],
    *,
    author: str | None = None,
    relearn: bool = False,
    passed_over: Collection[str] = (),
    reason: str = "learn",
) -> dict[str, Any]:
    """Bring what was distilled into the memory, and mark the episodes it came from."""
    rivals = _Rivals()
    ours: list[str] = []
    while True:
        view = await access.refresh(io)
        known = view.known_commits()
        there = await access.episodes(io, {*read, *rivals.changed, *rivals.said})
        stored = {**there, **{key: one for key, one in rivals.said.items() if key in there}}
        kept = {one.id: one for one in await access.every_guideline(io)}
        same = {
            key
            for key, word in read.items()
            if key in stored and key not in rivals.removed and stored[key].word == word
        }
        gone = set(read) - same
        purged = await _purged(io, access, gone - stored.keys())
        # Who read what is purged may repeat it also where something else is named as the source.
        valid, spared = ([], same) if purged else _valid(operations, kept, gone=gone)
        spared = spared | {*passed_over}
        fresh = same if relearn else {key for key in same if stored[key].status == "pending"}
        live = fresh - spared
        standing = rivals.joined(kept)
        changed, outcome = apply_operations(
            standing.values(),
            valid,
            live=live,
            now=datetime.now(UTC),
            position=clock.now_us(ticks=2 * len(operations) + 1),
        )
        after = {**standing, **changed}
        rivals.ours |= changed.keys()
        rivals.merged |= {
            one.guideline_id: (standing[one.guideline_id], one.superseded_by)
            for one in valid
            if one.action == "merge"
            and one.guideline_id in standing
            and changed.get(one.guideline_id, standing) is None
            and one.superseded_by is not None
        }
        edits = [
            edit
            for key in dict.fromkeys([*kept, *after, *sorted(rivals.contested)])
            if (edit := Edit("guidelines", kept.get(key), after.get(key), key))
            and (edit.before != edit.after or key in rivals.contested)
        ]
        # The guidelines at once, with the first of the episodes: cut off after it, the same call
        # made again finds the guidelines with all their sources.
        learned = {
            key: _after_learning(one, live=live, rivals=rivals) for key, one in stored.items()
        }
        flips = [
            Edit("episodes", there[key], one) for key, one in learned.items() if one != there[key]
        ]
        room = max(COMMIT_ITEMS - len(edits), 0)
        edits += flips[:room]
        commit = await access.commit(io, view, edits, reason=reason, author=author, again=True)
        first = commit
        for start in range(room, len(flips), COMMIT_ITEMS):
            view = await access.refresh(io)
            part = flips[start : start + COMMIT_ITEMS]
            commit = await access.commit(io, view, part, reason=reason, author=author)
        outcome += learned_before(valid, kept, same - fresh)
        theirs: list[Changes] = []
        if first is not None:
            mine, theirs = await access.rivals(io, first, known)
            rivals.share_out(mine, theirs)
            ours.append(first.id)
        if not theirs:
            if rivals.purged:
                await purge_records(io, access, ours)
            return {
                "episode_ids": sorted(same - spared),
                "guidelines": outcome,
                "memory_version": commit.version if commit is not None else view.version,
            }
        rivals.note([one for record in theirs for one in record.changes], read, changed)
        await fall_out_of_step(io, len(ours))


class _Rivals:
    """What other writers did, at the same moment, to items that a commit of ours changed, too."""

    def __init__(self) -> None:
        self.removed: set[str] = set()
        """Items they removed, which stay removed."""
        self.changed: set[str] = set()
        """Episodes they learned from, into a wording that is lost under ours: distilled again."""
        self.said: dict[str, Episode] = {}
        """Episodes that they gave another word."""
        self.contested: set[str] = set()
        """Guidelines that both changed: written again, so that the last commit is what is held."""
        self.purged = False
        """Whether one of them purged something: then our commits must not keep it, either."""
        self.taken: dict[str, set[str]] = {}
        """Sources to be taken back from guidelines, since another's commit learned from them."""
        self.merged: dict[str, tuple[Guideline, str]] = {}
        """Guidelines that our own commits merged, with the ids of those they went into."""
        self.ours: set[str] = set()
        """Guidelines that our own commits changed."""
        self._sources: dict[str, list[str]] = {}
        self._by_hand: dict[str, Guideline] = {}

    def note(
        self,
        changes: Sequence[Change],
        read: Mapping[str, str],
        ours: Mapping[str, Guideline | None],
    ) -> None:
        self.removed |= {one.id for one in changes if one.revision is None}
        self.contested = {one.id for one in changes if one.kind == "guidelines"} & self.ours
        self.purged = self.purged or any(one.purged for one in changes)
        episodes = [one for one in changes if one.kind == "episodes"]
        if any(self._lost(one, ours) for one in changes):
            self.changed |= {one.id for one in episodes} - set(read)
        self.said |= {one.id: read_episode(one.after) for one in episodes if one.after is not None}
        self.changed -= self.removed
        for one in changes:
            if one.kind == "guidelines" and one.after is not None:
                guideline = read_guideline(one.after)
                self._sources.setdefault(one.id, []).extend(guideline.episode_ids)
                if guideline.origin == "expert":
                    self._by_hand[one.id] = guideline

    def share_out(self, mine: Changes, theirs: Sequence[Changes]) -> None:
        """Leave to one writer what both learned from: the one whose commit has the smaller id."""
        for other in theirs:
            both = mine.learned_from() & other.learned_from()
            first, second = sorted((mine, other), key=lambda one: one.id)
            given = first.sources_given()
            both &= set().union(*given.values())  # where the first found no lesson, the second may
            for key, sources in second.sources_given().items():
                taken = (sources & both) - given.get(key, set())
                self.taken.setdefault(key, set()).update(taken)

    def _lost(self, change: Change, ours: Mapping[str, Guideline | None]) -> bool:
        mine = ours.get(change.id)
        theirs = change.after if change.kind == "guidelines" else None
        return mine is not None and theirs is not None and theirs.get("text") != mine.text

    def joined(self, kept: Mapping[str, Guideline]) -> dict[str, Guideline]:
        """Return the guidelines with their sources beside ours, less what they removed."""
        joined = {}
        for key, guideline in {**kept, **self._by_hand}.items():
            sources = dict.fromkeys([*guideline.episode_ids, *self._sources.get(key, [])])
            left = [one for one in sources if one not in self.taken.get(key, ())]
            if left or not sources:
                joined[key] = guideline.model_copy(update={"episode_ids": left})
        # Two that merged each into the other's: ours comes back, or the rule would be lost.
        for loser, winner in self.merged.values():
            if winner in self.removed and loser.id not in self.removed:
                joined.setdefault(loser.id, loser)
        # What we learned from a word that they replaced goes with it.
        for taken_back, only in ((self.removed, None), (set(self.said), self.ours)):
            follow = cascade(joined.values(), taken_back, only=only)
            joined.update({one.id: one for one in [*follow.reduced, *follow.restored]})
            gone = self.removed | {one.id for one in follow.removed}
            joined = {key: one for key, one in joined.items() if key not in gone}
        again = with_dangling(Cascade(), joined, self.ours | self._sources.keys())
        return {**joined, **{one.id: one for one in again.restored}}


async def _purged(io: IO, access: MemoryAccess, episode_ids: set[str]) -> bool:
    """Tell whether one of some episodes that are gone was purged."""
    if not episode_ids:
        return False
    purges = [one.id for one in await access.commits(io) if one.reason == PURGE]
    records = await access.changes(io, purges)
    return any(one.id in episode_ids for record in records.values() for one in record.changes)


def _valid(
    operations: Sequence[GuidelineOperation], kept: Mapping[str, Guideline], *, gone: set[str]
) -> tuple[list[GuidelineOperation], set[str]]:
    """Leave out operations that come from what was taken back, and name their other sources."""
    valid, spared = [], set()
    for operation in operations:
        sources = set(operation.episode_ids)
        target = kept.get(operation.guideline_id or "")
        lost = (
            operation.before is not None
            and target is not None
            and target.text not in (operation.before, operation.text)
        )
        if sources & gone or lost:
            spared |= sources - gone
        else:
            valid.append(operation)
    return valid, spared


def _after_learning(episode: Episode, *, live: set[str], rivals: _Rivals) -> Episode | None:
    if episode.id in rivals.removed:
        return None
    if episode.id in rivals.changed:
        return episode.model_copy(update={"status": "pending"})
    return episode.model_copy(update={"status": "distilled"}) if episode.id in live else episode
