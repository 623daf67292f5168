"""The cases in memory as evidence: what experts said of each, and which others are most like it.

Derived from a memory's view and kept in step with it: a change costs what it touches, so that
fitting anew after each piece of feedback takes milliseconds. What is forgotten is gone from here
as soon as the view knows, and the same cases give the same numbers whatever came and went before.
"""

import math
import threading
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from memalign_graph.agreement import majority, on_scale
from memalign_graph.evidence.places import places_of
from memalign_graph.evidence.similarity import similarities
from memalign_graph.evidence.slots import Slots, with_room
from memalign_graph.memory.episode_row import EpisodeRow
from memalign_graph.memory.index.vectors import Vector
from memalign_graph.memory.view import MemoryView
from memalign_graph.scales import Scale, Value

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Numbers = NDArray[np.int64]
else:
    Floats = Any
    Numbers = Any

NEIGHBOURS = 10
"""How many of the most similar cases vote."""

MAX_CASES = 1_000
"""How many cases a model is fitted to at most: those that experts spoke of last."""

_SPARE = 8
"""How many more are looked at, since a search compares in single precision."""

_ROUGH = 1e-5
"""How far two similarities may be off each other in single precision."""


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


@dataclass(frozen=True)
class Near:
    """The voters nearest to some cases."""

    similarities: Floats
    """A row a case, most similar first; -inf where there are fewer."""

    slots: Numbers
    """Which voter each is; -1 where there are fewer."""


def case_of(rows: Sequence[EpisodeRow], scale: Scale) -> Case | None:
    """Make a case of the episodes on it.

    Args:
        rows: The episodes.
        scale: The criterion's scale.

    Returns:
        The case; None if no expert gave a value that is on the scale.
    """
    valued = [(on_scale(row.value, scale), row) for row in rows]
    given = [(row.given_at, row.id, value) for value, row in valued if value is not None]
    value = majority(given)
    if value is None:
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
        value=value,
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
        self._slots = Slots()
        self._rows = Slots()
        self._vectors: Any = None
        self._similarities: Any = None
        self._nearest: Any = None
        self._fresh: set[str] = set()
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
            self._judged = self._find_judged()
            self._settle(gone, new)
            self._note(touched)

    def _remove(self, key: str) -> int:
        del self.voters[key], self._marks[key]
        if key in self._rows.of:
            self._vectors[self._rows.remove(key)] = 0
        return self._slots.remove(key)

    def judged(self) -> list[Case]:
        """Return the cases that the judge had judged, at most `MAX_CASES`, in a stable order.

        Returns:
            Those that experts spoke of last.
        """
        return self._judged

    def numbers(self) -> tuple[Floats, Floats]:
        """Return what was said of the judged cases, in their order.

        Returns:
            What the experts say, and what the judge said, a row a case as `Places.said` gives it.
        """
        import numpy as np

        if not self._judged:
            return np.zeros(0), np.zeros((0, 2 + len(self._places.names)))
        rows = [self._rows.of[one.key] for one in self._judged]
        slots = [self._slots.of[one.key] for one in self._judged]
        return self._values[slots], self._said[rows]

    def values(self, near: Near) -> Floats:
        """Return what the nearest voters say.

        Args:
            near: The voters.

        Returns:
            Their values as numbers; 0 where there are fewer.
        """
        import numpy as np

        if not len(near.slots):
            return np.zeros(near.slots.shape)
        return np.where(near.slots < 0, 0.0, self._values[near.slots])

    def near_judged(self, cases: Sequence[Case]) -> Near:
        """Return the voters nearest to judged cases, each left out of its own.

        Args:
            cases: What `judged` returned.

        Returns:
            The voters, a row a case.
        """
        import numpy as np

        rows = np.array([self._rows.of[one.key] for one in cases], dtype=np.int64)
        if not len(rows):
            return Near(np.zeros((0, NEIGHBOURS)), np.zeros((0, NEIGHBOURS), dtype=np.int64))
        return Near(self._similarities[rows], self._nearest[rows])

    def near(self, vector: Vector, besides: Container[str] = ()) -> list[tuple[Case, float]]:
        """Find the voters nearest to a case.

        Args:
            vector: The case's vector.
            besides: Vector keys that do not count.

        Returns:
            Up to `NEIGHBOURS` cases with their cosine similarities, most similar first.
        """
        found = self._search(vector, besides)
        return [(self.voters[key], similarity) for similarity, key in found]

    def by_slot(self, read: Callable[[Case], float]) -> Floats:
        """Return a number of each voter, by its slot in `Near`.

        Args:
            read: Gives the number.

        Returns:
            The numbers; 0 where a slot is free, and in the last place, which is that of slot -1.
        """
        import numpy as np

        numbers = np.zeros(len(self._slots.keys) + 1)
        for slot, key in enumerate(self._slots.keys):
            if key is not None:
                numbers[slot] = read(self.voters[key])
        return numbers

    def _search(self, vector: Vector, besides: Container[str]) -> list[tuple[float, str]]:
        asked = NEIGHBOURS + _SPARE
        while True:
            hits = self._view.index.search(vector, asked)
            found = [one for one in hits if one[0] in self.voters and one[0] not in besides]
            # Of those that are equally near all are wanted: the key decides among them.
            last = found[NEIGHBOURS - 1][1] if len(found) >= NEIGHBOURS else -math.inf
            if len(hits) < asked or hits[-1][1] < last - _ROUGH:
                break
            asked *= 2
        keys = [key for key, rough in found if rough >= last - _ROUGH]
        pairs = [(key, one) for key in keys if (one := self._view.index.get(key)) is not None]
        if not pairs:
            return []
        exact = similarities([one for _, one in pairs], vector)
        named = zip(exact, (key for key, _ in pairs), strict=True)
        return sorted(named, key=lambda one: (-one[0], one[1]))[:NEIGHBOURS]

    def _settle(self, gone: list[int], new: Mapping[str, Vector]) -> None:
        """Bring the nearest voters of judged cases up to date."""
        import numpy as np

        wanted = {one.key for one in self._judged}
        for key in self._rows.of.keys() - wanted:
            self._vectors[self._rows.remove(key)] = 0
        stale = sorted(wanted - self._rows.of.keys())
        if gone and self._rows.of:
            lost = np.flatnonzero(np.isin(self._nearest, gone).any(axis=1)).tolist()
            stale += [one for row in lost if (one := self._rows.key(row)) is not None]
        if len(new) > len(self._rows.of):
            stale = sorted(wanted)
        elif self._rows.of:
            self._insert(new)
        for key in stale:
            vector = self._view.index.get(key)
            if vector is not None:
                self._write(key, vector, self._search(vector, {key}))

    def _find_judged(self) -> list[Case]:
        cases = [one for one in self.voters.values() if one.verdict is not None]
        if len(cases) > MAX_CASES:
            cases.sort(key=lambda one: (one.given_at, one.key))
            cases = cases[-MAX_CASES:]
        return sorted(cases, key=attrgetter("key"))

    def _note(self, touched: set[str]) -> None:
        """Write down as numbers what was said of the cases that changed."""
        width = 2 + len(self._places.names)
        self._values = with_room(self._values, (len(self._slots.keys),), 0.0)
        self._said = with_room(self._said, (len(self._rows.keys), width), 0.0)
        for key in touched & self.voters.keys():
            self._values[self._slots.of[key]] = self._places.number(self.voters[key].value)
        for key in (touched | self._fresh) & self._rows.of.keys():
            case = self.voters[key]
            if case.verdict is not None:
                said = self._places.said(case.verdict, case.probabilities)
                self._said[self._rows.of[key]] = said
        self._fresh = set()

    def _insert(self, new: Mapping[str, Vector]) -> None:
        """Let new voters take their places among the nearest of the judged cases."""
        import numpy as np

        count = len(self._rows.keys)
        for key, vector in new.items():
            # In this thread alone: threads that wait for each other cost more than they bring.
            rough = np.einsum("ij,j->i", self._vectors[:count], vector)
            closer = rough >= self._similarities[:count, -1] - _ROUGH
            rows = [
                one
                for one in np.flatnonzero(closer).tolist()
                if self._rows.key(one) not in (None, key)
            ]
            exact = similarities(self._vectors[rows], vector)
            for row, similarity in zip(rows, exact, strict=True):
                pairs = [*self._pairs(row), (similarity, key)]
                pairs.sort(key=lambda one: (-one[0], one[1]))
                self._fill(row, pairs[:NEIGHBOURS])

    def _pairs(self, row: int) -> list[tuple[float, str]]:
        slots = self._nearest[row].tolist()
        found = zip(self._similarities[row].tolist(), slots, strict=True)
        return [(one, key) for one, slot in found if (key := self._slots.key(slot)) is not None]

    def _write(self, key: str, vector: Vector, pairs: Sequence[tuple[float, str]]) -> None:
        row = self._rows.of.get(key)
        if row is None:
            row = self._rows.add(key)
            self._fresh.add(key)
            self._vectors = with_room(self._vectors, (row + 1, len(vector)), 0.0, "f4")
            room = (row + 1, NEIGHBOURS)
            self._similarities = with_room(self._similarities, room, -math.inf)
            self._nearest = with_room(self._nearest, room, -1, "i8")
        self._vectors[row] = vector
        self._fill(row, pairs)

    def _fill(self, row: int, pairs: Sequence[tuple[float, str]]) -> None:
        import numpy as np

        self._similarities[row] = -np.inf
        self._nearest[row] = -1
        for place, (similarity, key) in enumerate(pairs):
            self._similarities[row, place] = similarity
            self._nearest[row, place] = self._slots.of[key]


_tables_lock = threading.Lock()


def table_of(view: MemoryView, scale: Scale) -> CaseTable:
    """Return the cases of a memory; they live as long as its view.

    Args:
        view: The memory's view.
        scale: The criterion's scale.

    Returns:
        The one table of this view and scale, not yet brought up to date.
    """
    with _tables_lock:
        if scale not in view.derived:
            view.derived[scale] = CaseTable(view, scale)
        table: CaseTable = view.derived[scale]
        return table
