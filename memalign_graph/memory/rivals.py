"""Two writers at one moment: what one of them does when it finds the other's commit beside its own.

A store has no compare-and-set, so two commits that did not see each other may both have written
the same item. Whoever finds that out brings the two together and commits again, so that the last
commit is also what the items hold.
"""

import asyncio
import random
import time
from collections.abc import Mapping, Sequence

from memalign_graph.io import IO
from memalign_graph.memory.access import MemoryAccess
from memalign_graph.memory.cascade import cascade, cascade_edits, with_dangling
from memalign_graph.memory.items import Edit, read_episode, read_guideline
from memalign_graph.memory.records import Change, Changes, Commit, ItemKey
from memalign_graph.memory.words import newer_word
from memalign_graph.types import Episode, Guideline

_TRIES = 20
_FIRST_WAIT_S = 0.01

Mine = Mapping[ItemKey, Episode | Guideline | None]
"""What a commit made of each item; None where it removed it."""


def edits_made(edits: list[Edit]) -> Mine:
    """Return what some edits make of their items."""
    made: dict[ItemKey, Episode | Guideline | None] = {}
    for edit in edits:
        item = edit.after or edit.before
        if item is not None and edit.before != edit.after:
            made[edit.kind, item.id] = edit.after
    return made


async def settle_rivals(
    io: IO,
    access: MemoryAccess,
    commit: Commit | None,
    known: frozenset[str],
    mine: Mine,
    *,
    taken_back: set[str],
    purges: bool = False,
    keeps_status: bool = False,
) -> None:
    """Bring a commit together with those made at the same moment on the same items."""
    ours: list[str] = []
    purged = False
    for _ in range(_TRIES):
        if commit is None:
            break
        ours.append(commit.id)
        _, records = await access.rivals(io, commit, known)
        theirs = [change for record in records for change in record.changes]
        if not theirs:
            break
        purged = purged or (not purges and any(one.purged for one in theirs))
        await fall_out_of_step(io, len(ours))
        view = await access.refresh(io)
        known = view.known_commits()
        contested = [change for change in theirs if change.key in mine]
        episodes = await access.episodes(io, (one.id for one in contested))
        guidelines = {one.id: one for one in await access.every_guideline(io)}
        stored: dict[ItemKey, Episode | Guideline] = {
            **{("episodes", key): one for key, one in episodes.items()},
            **{("guidelines", key): one for key, one in guidelines.items()},
        }
        learned = {key for record in records for key in record.learned_from() if keeps_status}
        edits = [
            Edit(
                change.kind,
                stored.get(change.key),
                _learned(_both(change, mine, stored), learned, mine),
                change.id,
            )
            for change in contested
        ]
        touched = {one.id for one in theirs if one.kind == "guidelines"}
        gone = {one.id for one in theirs if one.kind == "episodes" and one.revision is None}
        final = dict(guidelines)
        for edit in edits:
            if isinstance(edit.after, Guideline):
                final[edit.item_id] = edit.after
            elif edit.after is None:
                final.pop(edit.item_id, None)
        follow = cascade(final.values(), taken_back | gone, only=touched)
        ours_too = {key for kind, key in mine if kind == "guidelines"}
        follow = with_dangling(follow, final, touched | ours_too)
        dealt = {edit.item_id for edit in edits} & {one.id for one in follow.touched}
        edits = [edit for edit in edits if edit.item_id not in dealt]
        edits += [
            Edit("guidelines", guidelines.get(edit.item_id), edit.after)
            for edit in cascade_edits(follow)
        ]
        commit = await access.commit(
            io, view, edits, reason=commit.reason, author=commit.author, purges=purges, again=True
        )
    if purged:
        await purge_records(io, access, ours)


async def fall_out_of_step(io: IO, tries: int) -> None:
    """Wait for a random moment: two writers in step would stand beside each other for ever."""
    seconds = random.uniform(0, _FIRST_WAIT_S * 2 ** min(tries, 6))  # noqa: S311 - no secret
    await io.call(lambda: time.sleep(seconds), lambda: asyncio.sleep(seconds))


async def purge_records(io: IO, access: MemoryAccess, commit_ids: Sequence[str]) -> None:
    """Take out of commits what they keep of items: it may hold what was purged meanwhile."""
    records = await access.changes(io, commit_ids)
    scrubbed = {
        key: Changes(id=key, changes=[one.purge() for one in record.changes])
        for key, record in records.items()
    }
    await access.put(
        io,
        access.layout.changes,
        {key: record.model_dump(mode="json") for key, record in scrubbed.items()},
    )


def _learned(
    item: Episode | Guideline | None, learned: set[str], mine: Mine
) -> Episode | Guideline | None:
    """Note that an episode was learned from, unless it says something else by now."""
    ours = mine.get(("episodes", item.id)) if isinstance(item, Episode) else None
    if not isinstance(item, Episode) or not isinstance(ours, Episode) or item.id not in learned:
        return item
    return item.model_copy(update={"status": "distilled"}) if item.says_the_same_as(ours) else item


def _both(
    change: Change, mine: Mine, stored: Mapping[ItemKey, Episode | Guideline]
) -> Episode | Guideline | None:
    ours, there = mine[change.key], stored.get(change.key)
    by_hand_now = isinstance(ours, Guideline) and ours.origin == "expert"
    if ours is None or (change.revision is None and not by_hand_now):
        return None
    if isinstance(ours, Guideline):
        theirs = there if change.after is None else read_guideline(change.after)
        versions = [one for one in (ours, theirs, there) if isinstance(one, Guideline)]
        by_hand = [one for one in versions if one.origin == "expert"]
        return max(by_hand, key=lambda one: one.updated_at) if by_hand else there or ours
    said = [ours, there, None if change.after is None else read_episode(change.after)]
    versions_said = [one for one in said if isinstance(one, Episode)]
    kept = versions_said[0]
    for one in versions_said[1:]:
        kept = newer_word(kept, one)
    return kept
