"""For some cases the voters nearest to each, kept in step as voters come and go."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from memalign_graph.evidence.slots import Slots, with_room
from memalign_graph.memory.index.vectors import Vector

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Numbers = NDArray[np.int64]
else:
    Floats = Any
    Numbers = Any

ROUGH = 1e-5
"""How far two similarities may be off each other in single precision."""

_DIGITS = 6
"""To how many digits similarities count: beyond them the order of a sum shows."""

Pair = tuple[float, str]
"""A similarity, and whose it is."""


@dataclass(frozen=True)
class Near:
    """The voters nearest to some cases."""

    similarities: Floats
    """A row a case, most similar first; -inf where there are fewer."""

    slots: Numbers
    """Which voter each is; -1 where there are fewer."""


class Nearest:
    """Rows of cases, each with the voters nearest to it."""

    def __init__(self, voters: Slots, count: int) -> None:
        """Begin without any case."""
        self.rows = Slots()
        """The cases' rows."""
        self._voters = voters
        self._count = count
        self._vectors: Any = None
        self._similarities: Any = None
        self._slots: Any = None

    def of(self, keys: Sequence[str]) -> Near:
        """Return the voters nearest to some cases."""
        import numpy as np

        if not keys:
            none = np.zeros((0, self._count))
            return Near(none, none.astype(np.int64))
        rows = [self.rows.of[key] for key in keys]
        return Near(self._similarities[rows], self._slots[rows])

    def vector(self, key: str) -> Vector | None:
        """Return a case's vector."""
        row = self.rows.of.get(key)
        return None if row is None else self._vectors[row]

    def remove(self, keys: Iterable[str]) -> None:
        """Take cases away; those that are not there are passed over."""
        for key in keys:
            if key in self.rows.of:
                self._vectors[self.rows.remove(key)] = 0

    def losing(self, slots: Sequence[int]) -> list[str]:
        """Return the cases that had one of some voters among their nearest."""
        import numpy as np

        if not (slots and self.rows.of):
            return []
        rows = np.flatnonzero(np.isin(self._slots, slots).any(axis=1)).tolist()
        return [key for row in rows if (key := self.rows.key(row)) is not None]

    def insert(self, voters: Mapping[str, Vector]) -> None:
        """Let new voters take their places among the nearest."""
        import numpy as np

        count = len(self.rows.keys)
        for key, vector in voters.items():
            # In this thread alone: threads that wait for each other cost more than they bring.
            rough = np.einsum("ij,j->i", self._vectors[:count], vector)
            closer = np.flatnonzero(rough >= self._similarities[:count, -1] - ROUGH).tolist()
            rows = [row for row in closer if self.rows.key(row) not in (None, key)]
            exact = similarities(self._vectors[rows], vector)
            for row, similarity in zip(rows, exact, strict=True):
                self._fill(row, nearest([*self._pairs(row), (similarity, key)], self._count))

    def write(self, key: str, vector: Vector, pairs: Sequence[Pair]) -> None:
        """Write down the voters nearest to a case."""
        row = self.rows.of.get(key)
        if row is None:
            row = self.rows.add(key)
            self._vectors = with_room(self._vectors, (row + 1, len(vector)), 0.0, "f4")
            room = (row + 1, self._count)
            self._similarities = with_room(self._similarities, room, -math.inf)
            self._slots = with_room(self._slots, room, -1, "i8")
        self._vectors[row] = vector
        self._fill(row, pairs)

    def _pairs(self, row: int) -> list[Pair]:
        slots = self._slots[row].tolist()
        found = zip(self._similarities[row].tolist(), slots, strict=True)
        return [(one, key) for one, slot in found if (key := self._voters.key(slot)) is not None]

    def _fill(self, row: int, pairs: Sequence[Pair]) -> None:
        missing = self._count - len(pairs)
        self._similarities[row] = [*(one for one, _ in pairs), *[-math.inf] * missing]
        self._slots[row] = [*(self._voters.of[key] for _, key in pairs), *[-1] * missing]


def nearest(pairs: Iterable[Pair], count: int) -> list[Pair]:
    """Return the most similar, and of those that are equally so the first by key."""
    return sorted(pairs, key=lambda one: (-one[0], one[1]))[:count]


def similarities(vectors: Any, vector: Vector) -> list[float]:
    """Compare vectors with one, so that it comes out the same wherever and beside what they lie."""
    import numpy as np

    products = np.asarray(vectors, dtype=np.float64) * vector.astype(np.float64)
    found: list[float] = np.round(products.sum(axis=-1), _DIGITS).tolist()
    return found
