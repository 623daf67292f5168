"""The history of a memory: its commits and versions, rollback, and the memory as it was.

A version is a fold of the first facts, so nothing is stored for it.
"""

from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Generic, TypeVar

from langgraph.store.memory import InMemoryStore

from memalign_graph.errors import EmbeddingError, InvalidInputError
from memalign_graph.io import IO
from memalign_graph.memory.access import HEAD, MemoryAccess
from memalign_graph.memory.facts import PURGE, Fact
from memalign_graph.memory.guidelines import check_name
from memalign_graph.memory.memory_state import EpisodeRow, MemoryState, build_state
from memalign_graph.memory.recall import index_missing, stored_vectors
from memalign_graph.memory.view import MemoryView, get_view
from memalign_graph.types import Episode, FrozenModel, Guideline

T = TypeVar("T", Episode, Guideline)


class ChangeCounts(FrozenModel):
    """How many items of one kind a commit changed."""

    added: int = 0
    """New items."""
    changed: int = 0
    """Items with other content than before."""
    removed: int = 0
    """Items that are gone."""


class RetiredGuideline(FrozenModel):
    """A guideline that a commit retired."""

    guideline_id: str
    """The guideline's id."""
    superseded_by: str | None
    """The id of the guideline that replaces it, if any."""
    reason: str | None
    """Why it was retired, if known."""


class Commit(FrozenModel):
    """One atomic change of a memory: who, when, why, and how much."""

    id: str
    """Unique, and in order of time."""
    at: datetime
    """The time in UTC."""
    author: str | None
    """Who made the change, if known."""
    reason: str
    """What made it: `remember`, `learn`, `forget`, `add_guideline`, ..."""
    episodes: ChangeCounts
    """How many episodes it changed."""
    guidelines: ChangeCounts
    """How many guidelines it changed."""
    retired: list[RetiredGuideline]
    """The guidelines that it retired."""
    version: str
    """The memory's version after it."""


@dataclass(frozen=True)
class Snapshot:
    """A memory as it was at one version."""

    version: str
    """The version."""
    episodes: list[Episode]
    """The episodes, oldest first."""
    guidelines: list[Guideline]
    """The guidelines, in the order a judge reads them."""
    missing: list[str]
    """The ids of episodes and guidelines that were purged since."""


@dataclass(frozen=True)
class ItemChange(Generic[T]):
    """An item that two versions have with different content."""

    before: T
    """The item in the first version."""
    after: T
    """The item in the second version."""


@dataclass(frozen=True)
class ItemsDiff(Generic[T]):
    """The differences between two versions in one kind of item."""

    added: list[T]
    """Items that only the second version has."""
    removed: list[T]
    """Items that only the first version has."""
    changed: list[ItemChange[T]]
    """Items that differ."""


@dataclass(frozen=True)
class MemoryDiff:
    """The differences between two versions of a memory."""

    episodes: ItemsDiff[Episode]
    """The differences in episodes."""
    guidelines: ItemsDiff[Guideline]
    """The differences in guidelines."""


async def history(io: IO, access: MemoryAccess, max_commits: int | None = None) -> list[Commit]:
    facts, rows_by_key = (await access.refresh(io)).facts()
    start = 0 if max_commits is None else max(len(facts) - max_commits, 0)
    commits: list[Commit] = []
    episodes: dict[str, object] = {}
    guidelines: dict[str, int] = {}
    for number, (state, touched) in enumerate(_replay(facts, rows_by_key, start), start):
        before = {key: episodes.pop(key) for key in touched & episodes.keys()}
        rows, pending = state.rows, state.pending
        now = {key: (rows[key].content_hash, key in pending) for key in touched & rows.keys()}
        episodes |= now
        guidelines_before, guidelines = guidelines, {**state.guideline_terms}
        if number == start:
            continue
        fact = facts[number - 1]
        commit = Commit(
            id=fact.id,
            at=fact.time,
            author=fact.author,
            reason=fact.reason,
            episodes=_count_changes(before, now),
            guidelines=_count_changes(guidelines_before, guidelines),
            retired=[
                RetiredGuideline(guideline_id=gone.id, superseded_by=gone.by, reason=gone.reason)
                for gone in fact.retired
            ],
            version=state.version,
        )
        commits.append(commit)
    return commits[::-1]


def _replay(
    facts: list[Fact], rows: Mapping[str, EpisodeRow], start: int = 0
) -> Iterator[tuple[MemoryState, AbstractSet[str]]]:
    """Yield the state after the first facts and after each further one, before any purge.

    Each state comes with the episodes that may have changed. The same object is updated and yielded
    again.
    """
    state = build_state(facts[:start], rows, include_purged=True)
    yield state, {*state.rows}
    for number, fact in enumerate(facts[start:], start + 1):
        if fact.undone:
            before = state.rows.keys()
            state = build_state(facts[:number], rows, include_purged=True)
            state.changed = {*before, *state.rows}
        else:
            state.apply(fact)
            state.settle()
        touched, state.changed = state.changed, set()
        yield state, touched


async def snapshot(io: IO, access: MemoryAccess, version: str) -> Snapshot:
    return (await _find_version(io, access, version))[0]


async def diff(io: IO, access: MemoryAccess, a: str, b: str | None = None) -> MemoryDiff:
    before = await snapshot(io, access, a)
    after = await snapshot(io, access, (await access.refresh(io)).version if b is None else b)
    return MemoryDiff(
        episodes=_diff(before.episodes, after.episodes),
        guidelines=_diff(before.guidelines, after.guidelines),
    )


async def rollback(
    io: IO, access: MemoryAccess, version: str, *, author: str | None = None
) -> Snapshot:
    """Restore a version: the facts since then no longer count."""
    author = check_name(author, "author")
    wanted, since = await _find_version(io, access, version)
    if access.view.version != version:
        undone = [fact.id for fact in since if fact.reason != PURGE]
        await access.write(io, "rollback", {"undone": undone}, author=author)
    return _current_snapshot(access.view, version, wanted.missing)


def _current_snapshot(view: MemoryView, version: str, missing: list[str]) -> Snapshot:
    return Snapshot(version, list(view.episodes().values()), list(view.guidelines), missing)


async def _find_version(io: IO, access: MemoryAccess, version: str) -> tuple[Snapshot, list[Fact]]:
    """Return a version's content, and the facts since then."""
    view = await access.refresh(io)
    if version == view.version:
        return _current_snapshot(view, version, []), []
    facts, rows = view.facts()
    match: tuple[Snapshot, list[Fact]] | None = None
    for number, (state, _) in enumerate(_replay(facts, rows)):
        if version == state.version:
            # The last match counts: feedback that was purged may have been given again.
            match = _snapshot(state), facts[number:]
    if match is not None:
        return match
    raise InvalidInputError(
        f"version: the memory of {access.criterion.name!r} never had the version {version!r}. "
        "`history()` lists its versions. A version that one worker saw before facts of other "
        "workers arrived can't be restored."
    )


def _snapshot(state: MemoryState) -> Snapshot:
    episodes = filter(None, map(state.episode, state.rows))
    version, guidelines, _ = state.active_guidelines()
    purged = [key for key, row in state.rows.items() if row.is_purged]
    return Snapshot(
        version=version,
        episodes=sorted(episodes, key=lambda episode: (episode.created_at, episode.id)),
        guidelines=[guideline for guideline in guidelines if guideline.text],
        missing=sorted([*purged, *(each.id for each in guidelines if not each.text)]),
    )


def _count_changes(before: Mapping[str, object], after: Mapping[str, object]) -> ChangeCounts:
    return ChangeCounts(
        added=len(after.keys() - before.keys()),
        removed=len(before.keys() - after.keys()),
        changed=sum(before[key] != after[key] for key in after.keys() & before.keys()),
    )


def _diff(before: list[T], after: list[T]) -> ItemsDiff[T]:
    old, new = ({item.id: item for item in items} for items in (before, after))
    changes = [ItemChange(old[key], new[key]) for key in new if key in old]
    return ItemsDiff(
        added=[item for key, item in new.items() if key not in old],
        removed=[item for key, item in old.items() if key not in new],
        changed=[change for change in changes if change.before != change.after],
    )


async def pin_memory(
    io: IO, access: MemoryAccess, *, newest: str, version: str, embeds: bool = False
) -> MemoryAccess:
    """Return the memory as of its fact `newest`; later writes do not change it.

    What was purged since is missing, and a warning is logged. Purged facts keep their ids. Missing
    vectors are made only with `embeds`.
    """
    current = await access.refresh(io)
    facts, rows = current.facts()
    if newest and newest not in current.fact_ids():
        raise InvalidInputError(
            f"memory: that of {access.criterion.name!r} here has no commit {newest!r}: "
            "give the memory that the cases were prepared with."
        )
    view = MemoryView(access.embedder.id)
    view.add([fact for fact in facts if fact.id <= newest], rows)
    missing = view.missing_texts()
    vectors = current.vectors(missing)
    vectors |= await stored_vectors(io, access, missing.keys() - vectors.keys())
    view.add_vectors(vectors)
    if not embeds:  # What has no vector by now was refused, or is not needed.
        refusal = EmbeddingError("No vector was stored when the memory was prepared.")
        view.add_refused(dict.fromkeys(view.missing_texts(), refusal))
    # A store of its own, whose head says that nothing is new.
    pinned = replace(access, store=InMemoryStore())
    await pinned.put(io, pinned.layout.of("head"), {HEAD: {"id": newest}})
    view.is_loaded, view.head = True, newest
    vars(pinned)["view"] = get_view(pinned.store, pinned.layout, pinned.embedder.id, made=view)
    await index_missing(io, pinned)
    if view.version != version:
        purged = f"parts of version {version[:8]} were purged since. Cases are judged with the "
        purged += "rest; those whose prompts had the purged parts are asked again."
        access.log_warnings([purged])
    return pinned
