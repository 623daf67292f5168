"""Taking feedback back: forgetting, from which one can roll back, and purging, from which not."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

from memalign_graph.errors import InvalidInputError
from memalign_graph.io import IO
from memalign_graph.memory.access import MemoryAccess
from memalign_graph.memory.cascade import cascade_edits
from memalign_graph.memory.changes import COMMIT_ITEMS, follow_sources
from memalign_graph.memory.items import Edit
from memalign_graph.memory.rivals import edits_made, settle_rivals
from memalign_graph.types import Episode, Guideline


@dataclass(frozen=True)
class Purged:
    """What `purge` did beyond forgetting."""

    commits: int
    """How many commits were rid of what they kept of it."""

    vectors: int
    """How many vectors were removed, of all embedders."""

    thread_ids: list[str]
    """The threads deleted from the checkpointer."""

    warnings: list[str]
    """Where traces may be left that could not be removed from here, a sentence each."""


@dataclass(frozen=True)
class Forgotten:
    """What `forget` did."""

    episode_ids: list[str]
    """The episodes forgotten."""

    unknown_ids: list[str]
    """The episode ids and feedback ids that name nothing in this memory."""

    guidelines_removed: list[Guideline]
    """Guidelines that rested on those episodes alone; empty of words after a purge."""

    guidelines_reduced: list[Guideline]
    """Guidelines that have other sources, as they stand now: `pending` where they have yet to be
    distilled again from those."""

    purged: Purged | None = None
    """What a purge did; None if none was asked for."""


@dataclass(frozen=True)
class Selection:
    """Which episodes are meant: those that meet all that is given."""

    episode_ids: Sequence[str] | None = None
    """By id."""

    feedback_ids: Sequence[str] | None = None
    """By the id their feedback has where it came from."""

    author: str | None = None
    """By the expert who said it."""

    where: Callable[[Episode], Any] | None = None
    """By a function of the episode."""

    def __post_init__(self) -> None:
        if all(
            one is None for one in (self.episode_ids, self.feedback_ids, self.author, self.where)
        ):
            raise InvalidInputError(
                "episode_ids: say which episodes to forget: `episode_ids`, `feedback_ids`, "
                "`author` or `where`."
            )
        if self.where is not None and not callable(self.where):
            raise InvalidInputError("where: give a function that takes an Episode.")
        if self.author is not None and (not isinstance(self.author, str) or not self.author):
            raise InvalidInputError(
                "author: give one expert's name; for several or for anonymous feedback use "
                "`where`, such as where=lambda episode: episode.author is None."
            )

    @property
    def by_ids_alone(self) -> bool:
        """Whether nothing but ids is given, so that no other episode has to be read."""
        return self.feedback_ids is None and self.author is None and self.where is None

    def unknown(self, episodes: Collection[Episode]) -> list[str]:
        """Tell which ids name nothing."""
        known = {one.id for one in episodes}
        known_feedback = {one.feedback_id for one in episodes}
        return [
            *(key for key in dict.fromkeys(self.episode_ids or ()) if key not in known),
            *(key for key in dict.fromkeys(self.feedback_ids or ()) if key not in known_feedback),
        ]

    def meets(self, episode: Episode) -> bool:
        """Tell whether an episode is meant."""
        if self.episode_ids is not None and episode.id not in self.episode_ids:
            return False
        if self.feedback_ids is not None and episode.feedback_id not in self.feedback_ids:
            return False
        if self.author is not None and episode.author != self.author:
            return False
        return self.where is None or bool(self.where(episode))


@dataclass
class Forgetting:
    """What is forgotten so far, over several commits."""

    episodes: list[str] = field(default_factory=list)
    removed: dict[str, Guideline] = field(default_factory=dict)
    reduced: dict[str, Guideline] = field(default_factory=dict)


async def forget(
    io: IO, access: MemoryAccess, selection: Selection, *, author: str | None = None
) -> Forgotten:
    """Take episodes back, and every guideline that rests on them alone."""
    everything = await select(io, access, selection)
    ids = [key for key, one in everything.items() if selection.meets(one)]
    done = Forgetting()
    for start in range(0, len(ids), COMMIT_ITEMS):
        part = ids[start : start + COMMIT_ITEMS]
        await _forget_part(io, access, part, done, author)
    return Forgotten(
        episode_ids=done.episodes,
        unknown_ids=selection.unknown(list(everything.values())),
        guidelines_removed=list(done.removed.values()),
        guidelines_reduced=[one for key, one in done.reduced.items() if key not in done.removed],
    )


async def select(io: IO, access: MemoryAccess, selection: Selection) -> dict[str, Episode]:
    """Read the episodes among which those are that are meant."""
    if selection.by_ids_alone:
        return await access.episodes(io, selection.episode_ids or ())
    return {one.id: one for one in await access.all_episodes(io)}


async def _forget_part(
    io: IO, access: MemoryAccess, ids: Sequence[str], done: Forgetting, author: str | None
) -> None:
    view = await access.refresh(io)
    stored = await access.episodes(io, ids)
    follow = await follow_sources(io, access, set(stored))
    edits = [Edit("episodes", episode, None) for episode in stored.values()]
    edits += cascade_edits(follow)
    known = view.known_commits()
    commit = await access.commit(io, view, edits, reason="forget", author=author)
    await settle_rivals(io, access, commit, known, edits_made(edits), taken_back=set(stored))
    # A model's answer that waits to be committed may speak of what is forgotten.
    await clear_drafts(io, access)
    done.episodes += stored
    done.removed.update({one.id: one for one in follow.removed})
    done.reduced.update({one.id: one for one in follow.reduced})


async def clear_drafts(io: IO, access: MemoryAccess) -> None:
    """Remove answers of models that wait to be committed."""
    [items] = await access.search(io, access.layout.drafts)
    await access.put(io, access.layout.drafts, {item["id"]: None for item in items})
