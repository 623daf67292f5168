"""The cases in memory as evidence: what experts said of each, and which others are most like it.

Derived from a memory's view and kept in step with it: a change costs what it touches, so that
fitting anew after each piece of feedback takes milliseconds. What is forgotten is gone from here
as soon as the view knows, and the same cases give the same numbers whatever came and went before.
"""

import math
import threading
from bisect import bisect_left, insort
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from heapq import nsmallest
from typing import Any

from memalign_graph.agreement import majority, on_scale
from memalign_graph.evidence.nearest import (
    ROUGH,
    Floats,
    Near,
    Nearest,
    Pair,
    nearest,
    similarities,
)
from memalign_graph.evidence.places import places_of
from memalign_graph.evidence.slots import Slots, with_room
from memalign_graph.memory.episode_row import EpisodeRow
from memalign_graph.memory.index.vectors import Vector
from memalign_graph.memory.view import MemoryView
from memalign_graph.scales import Scale, Value

__all__ = ["MAX_CASES", "NEIGHBOURS", "Case", "CaseTable", "Floats", "case_of", "table_of"]

NEIGHBOURS = 10
"""How many of the most similar cases vote."""

MAX_CASES = 1_000
"""How many cases a model is fitted to at most: those that experts spoke of last."""

_SPARE = 8
"""How many more are looked at, since a search compares in single precision."""


@dataclass(frozen=True, slots=True)
class Case:
    """A case that memory holds, and what experts and judge said of it."""

    key: str
    """The vector key of its inputs and outputs."""

    example_id: str
    """The example's id; of several with the same inputs and outputs the one spoken of last."""

    episode_ids: tuple[str, ...]
    """The experts' episodes on it."""

    value: Value
    """What most experts say."""

    given_at: datetime
    """When the last of them said it."""

    verdict: Value | None
    """What the judge said before it knew; None if it was not asked, or the scale changed since."""

    probabilities: Mapping[str, float] | None
    """How likely the judge held each value, where that was measured."""

    review: Mapping[str, Any] | None
    """Why the expert was asked, where that was decided case by case."""


def case_of(rows: Sequence[EpisodeRow], scale: Scale) -> Case | None:
    """Make a case of the episodes on it."""
    valued = [(on_scale(row.value, scale), row) for row in rows]
    given = [(row.given_at, row.id, value) for value, row in valued if value is not None]
    if not given:
        return None
    last = max(rows, key=lambda row: (row.given_at, row.id))
    judged = [row.judged for row in sorted(rows, key=lambda row: (row.given_at, row.id))]
    own = {row.id for row in rows}
    verdicts = [
        (verdict, one)
        for one in judged
        if one is not None
        and own.isdisjoint(one.shown)
        and (verdict := on_scale(one.verdict, scale)) is not None
    ]
    # The first: by then no expert had spoken of the case, so that the judge could not know.
    verdict, first = verdicts[0] if verdicts else (None, None)
    return Case(
        key=last.vector_key,
        example_id=last.example_id,
        episode_ids=tuple(row.id for row in rows),
        value=majority(given),
        given_at=last.given_at,
        verdict=verdict,
        probabilities=first.probabilities if first else None,
        review=first.review if first else None,
    )


class CaseTable:
    """All cases of a memory, and for those that the judge had judged the voters nearest to them.

    A voter is a case that experts valued. Not to be used from two threads at once but under `lock`.
    """

    def __init__(self, view: MemoryView, scale: Scale) -> None:
        self._view = view
        self._scale = scale
        self._touched = view.watch()
        self._waiting: set[str] = set()
        self.lock = threading.RLock()
        """Held while the table is brought up to date, and while it is read."""
        self.generation = 0
        """Counts the times that anything changed."""
        self.voters: dict[str, Case] = {}
        """The cases that experts valued, by vector key."""
        self._marks: dict[str, int] = {}
        self._order: list[str] = []
        self._slots = Slots()
        self._nearest = Nearest(self._slots, NEIGHBOURS)
        self._places = places_of(scale)
        self._said: Any = None
        self._values: Any = None
        self._judged: list[Case] = []

    def refresh(self) -> None:
        """Bring the table up to date with its view, which was refreshed, and has its vectors."""
        touched = self._view.take(self._touched) | self._waiting
        self._waiting = set()
        changed = False
        gone: list[int] = []
        new: dict[str, Vector] = {}
        for key in sorted(touched):
            case = case_of(self._view.rows_at(key), self._scale)
            vector = None if case is None else self._view.index.get(key)
            if vector is None and case is not None:
                self._waiting.add(key)  # its embedding is still to come
                case = None
            known = self.voters.get(key)
            mark = 0 if vector is None else hash(vector.tobytes())
            # What is purged and said again may be embedded a little differently.
            stays = known is not None and vector is not None and mark == self._marks[key]
            changed |= case != known or not (stays or case is None)
            self._rank(key, known, case)
            if known is not None and not stays:
                gone.append(self._remove(key))
            if case is not None and vector is not None:
                if not stays:
                    self._slots.add(key)
                    self._marks[key] = mark
                    new[key] = vector
                self.voters[key] = case
        if changed:
            self.generation += 1
            fresh = self._settle(gone, new)
            self._note(touched, fresh)

    def judged(self) -> list[Case]:
        """Return the cases that the judge had judged, at most `MAX_CASES`, in a stable order."""
        return self._judged

    def numbers(self) -> tuple[Floats, Floats]:
        """Return what was said of the judged cases, in their order."""
        import numpy as np

        if not self._judged:
            return np.zeros(0), np.zeros((0, 2 + len(self._places.names)))
        rows = [self._nearest.rows.of[one.key] for one in self._judged]
        slots = [self._slots.of[one.key] for one in self._judged]
        return self._values[slots], self._said[rows]

    def values(self, near: Near) -> Floats:
        """Return what the nearest voters say."""
        import numpy as np

        if not len(near.slots):
            return np.zeros(near.slots.shape)
        return np.where(near.slots < 0, 0.0, self._values[near.slots])

    def near_judged(self, cases: Sequence[Case]) -> Near:
        """Return the voters nearest to judged cases, each left out of its own."""
        return self._nearest.of([one.key for one in cases])

    def near(self, vector: Vector, besides: Container[str] = ()) -> list[tuple[Case, float]]:
        """Find the voters nearest to a case."""
        found = self._search(vector, besides)
        return [(self.voters[key], similarity) for similarity, key in found]

    def by_slot(self, read: Callable[[Case], float]) -> Floats:
        """Return a number of each voter, by its slot in `Near`."""
        import numpy as np

        numbers = np.zeros(len(self._slots.keys) + 1)
        for slot, key in enumerate(self._slots.keys):
            if key is not None:
                numbers[slot] = read(self.voters[key])
        return numbers

    def _rank(self, key: str, known: Case | None, case: Case | None) -> None:
        """Keep the keys of judged cases in order."""
        was = known is not None and known.verdict is not None
        now = case is not None and case.verdict is not None
        if now and not was:
            insort(self._order, key)
        elif was and not now:
            del self._order[bisect_left(self._order, key)]

    def _remove(self, key: str) -> int:
        del self.voters[key], self._marks[key]
        self._nearest.remove([key])
        return self._slots.remove(key)

    def _search(self, vector: Vector, besides: Container[str]) -> list[Pair]:
        asked = NEIGHBOURS + _SPARE
        while True:
            hits = self._view.index.search(vector, asked)
            found = [one for one in hits if one[0] in self.voters and one[0] not in besides]
            # Of those that are equally near all are wanted: the key decides among them.
            last = found[NEIGHBOURS - 1][1] if len(found) >= NEIGHBOURS else -math.inf
            if len(hits) < asked or hits[-1][1] < last - ROUGH:
                break
            asked *= 2
        keys = [key for key, rough in found if rough >= last - ROUGH]
        known = [(key, one) for key in keys if (one := self._vector(key)) is not None]
        if not known:
            return []
        exact = similarities([one for _, one in known], vector)
        return nearest(zip(exact, (key for key, _ in known), strict=True), NEIGHBOURS)

    def _vector(self, key: str) -> Vector | None:
        vector = self._nearest.vector(key)
        return self._view.index.get(key) if vector is None else vector

    def _settle(self, gone: list[int], new: Mapping[str, Vector]) -> set[str]:
        """Bring the nearest voters of judged cases up to date; return which cases are new there."""
        rows = self._nearest.rows.of
        self._judged = self._find_judged()
        wanted = {one.key for one in self._judged}
        self._nearest.remove(rows.keys() - wanted)
        fresh = wanted - rows.keys()
        stale = [*sorted(fresh), *self._nearest.losing(gone)]
        if len(new) > len(rows):
            stale = sorted(wanted)
        elif rows:
            self._nearest.insert(new)
        for key in stale:
            vector = self._vector(key)
            if vector is not None:
                self._nearest.write(key, vector, self._search(vector, {key}))
        if len(rows) < len(wanted):
            # Another thread took some from the memory meanwhile: the next look will tell.
            self._waiting |= wanted - rows.keys()
            self._judged = [one for one in self._judged if one.key in rows]
        return fresh

    def _find_judged(self) -> list[Case]:
        cases = [self.voters[key] for key in self._order]
        beyond = len(cases) - MAX_CASES
        if beyond <= 0:
            return cases
        first = set(nsmallest(beyond, ((one.given_at, one.key) for one in cases)))
        return [one for one in cases if (one.given_at, one.key) not in first]

    def _note(self, touched: set[str], fresh: set[str]) -> None:
        """Write down as numbers what was said of the cases that changed."""
        rows = self._nearest.rows
        width = 2 + len(self._places.names)
        self._values = with_room(self._values, (len(self._slots.keys),), 0.0)
        self._said = with_room(self._said, (len(rows.keys), width), 0.0)
        for key in touched & self.voters.keys():
            self._values[self._slots.of[key]] = self._places.number(self.voters[key].value)
        for key in (touched | fresh) & rows.of.keys():
            case = self.voters[key]
            if case.verdict is not None:
                said = self._places.said(case.verdict, case.probabilities)
                self._said[rows.of[key]] = said


_tables_lock = threading.Lock()


def table_of(view: MemoryView, scale: Scale) -> CaseTable:
    """Return the cases of a memory; they live as long as its view."""
    with _tables_lock:
        if scale not in view.derived:
            view.derived[scale] = CaseTable(view, scale)
        table: CaseTable = view.derived[scale]
        return table
