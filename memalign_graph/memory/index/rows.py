"""Vectors as the rows of a matrix, and the rows nearest to a vector found fast."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from memalign_graph.memory.index.codes import SAMPLE, Floats, RowCodes
from memalign_graph.memory.index.codes import Rows as RowNumbers

if TYPE_CHECKING:
    Found = tuple[Floats, RowNumbers]
else:
    Found = Any
"""Similarities and the rows that have them, most similar first."""

_CODES_FROM = 10_000_000
"""From how many numbers in a matrix on codes are made: fewer are compared in 3 ms or so."""

_CATCH_UP = 2_048
"""How many rows an addition encodes beside its own, so that none has to encode them all."""

_CANDIDATES = 1_024
"""How many rows a search takes from the codes at least, where there are many."""

_CANDIDATES_A_DIMENSION = 4
"""How many it takes for each dimension: where they do not settle it, it compares all rows, which
costs the more, the more dimensions there are."""

_GROW = 8_192
"""How many rows a matrix makes room for at most, beyond what is needed."""

_LOOK = 256
"""How many candidates are compared first, to tell which of the others may be nearer still."""


class VectorRows:
    """A matrix of vectors that grows, shrinks and finds the rows nearest to a vector.

    In a large matrix, codes of eight bits tell which rows can be among the nearest at all, and
    those are compared; where too many are nearly alike, all are. So a search finds what comparing
    all rows finds, whatever the vectors are, but for a chance below 0.0003 a row (see `codes`).
    Codes are made little by little as rows are added, and rows without one are compared.
    """

    def __init__(self, dimension: int) -> None:
        import numpy as np

        self.dimension = dimension
        """How long a vector is."""
        self._matrix: Any = np.zeros((_LOOK, dimension), dtype=np.float32)
        self._count = 0
        self._codes: RowCodes | None = None
        self._added_since_fit = 0

    def __len__(self) -> int:
        return self._count

    def vector(self, row: int) -> Floats:
        """Return a copy of one row."""
        vector: Floats = self._matrix[row].copy()
        return vector

    def append(self, vectors: Sequence[Floats]) -> None:
        """Add rows at the end."""
        import numpy as np

        stop = self._count + len(vectors)
        if len(self._matrix) < stop:
            self._resize(max(stop, len(self._matrix) + min(len(self._matrix) // 4, _GROW)))
        np.stack(vectors, out=self._matrix[self._count : stop])
        self._count = stop
        if self._codes is not None or stop * self.dimension >= _CODES_FROM:
            self._encode(len(vectors))

    def remove(self, rows: Iterable[int]) -> list[tuple[int, int]]:
        """Remove rows, overwrite them, and move others into their places."""
        moves: list[tuple[int, int]] = []
        coded = 0 if self._codes is None else len(self._codes)
        # From the end on, so that what is moved is never to be removed itself.
        for removed in sorted(rows, reverse=True):
            gap = removed
            # Codes are of the first rows, without a gap: the last of these closes it.
            if self._codes is not None and gap < coded:
                coded -= 1
                self._codes.move(coded, gap)
                self._move(coded, gap, moves)
                gap = coded
            self._count -= 1
            self._move(self._count, gap, moves)
            self._matrix[self._count] = 0
        if self._codes is not None:
            self._codes.truncate(coded)
        self._shrink()
        return moves

    def nearest(self, query: Floats, k: int) -> Found:
        """Find the rows nearest to a vector."""
        found = self._nearest_by_codes(query, k)
        return _compare(query, self._matrix[: self._count], k) if found is None else found

    def _nearest_by_codes(self, query: Floats, k: int) -> Found | None:
        """Find the nearest rows with the help of codes; None if these can't tell."""
        matrix, codes = self._matrix[: self._count], self._codes
        if codes is None:
            return None
        taken = max(_CANDIDATES, _CANDIDATES_A_DIMENSION * self.dimension)
        taken = min(taken, len(codes) // 4)
        if taken < max(_LOOK, 4 * k):
            return None
        scores, rows = _compare(query, matrix[len(codes) :], k)
        best = _better((scores, rows + len(codes)), query, matrix, codes.misfits, k)
        candidates = codes.candidates(query, taken)
        best = _better(best, query, matrix, candidates.rows[:_LOOK], k)
        if len(best[0]) < k or best[0][-1] < candidates.rest:
            return None
        # Bounds fall: those that the k-th so far has not reached come first.
        open_ones = int((candidates.bounds > best[0][-1]).sum())
        return _better(best, query, matrix, candidates.rows[_LOOK:open_ones], k)

    def _encode(self, added: int) -> None:
        self._added_since_fit += added
        # Where many vectors are unlike those that the codes were fitted to, fit them again, but
        # not at every addition.
        if self._codes is None or (
            len(self._codes.misfits) > self._count // 16
            and self._added_since_fit > self._count // 2
        ):
            self._codes = RowCodes(self._matrix[: self._count : -(-self._count // SAMPLE)])
            self._added_since_fit = 0
        start = len(self._codes)
        stop = min(self._count, start + 2 * added + _CATCH_UP)
        self._codes.append(self._matrix[start:stop])

    def _shrink(self) -> None:
        if self._count * self.dimension < _CODES_FROM // 2:
            self._codes = None
        if len(self._matrix) > 4 * (self._count + _LOOK):
            self._resize(self._count + _LOOK)
            if self._codes is not None:  # FAISS gives no memory back but with the whole index.
                self._codes = None
                self._encode(self._count)

    def _resize(self, rows: int) -> None:
        # In place: the system then need not copy a large matrix. Nothing else may refer to it.
        self._matrix.resize((rows, self.dimension), refcheck=False)

    def _move(self, source: int, target: int, moves: list[tuple[int, int]]) -> None:
        if source != target:
            self._matrix[target] = self._matrix[source]
            moves.append((source, target))


def _compare(query: Floats, matrix: Floats, k: int) -> Found:
    """Find the nearest rows of a matrix by comparing them all, in this thread alone."""
    import faiss
    import numpy as np

    if not len(matrix):
        return np.zeros(0, dtype=np.float32), np.zeros(0, dtype=np.int64)
    scores, rows = faiss.knn(
        query.reshape(1, -1), matrix, min(k, len(matrix)), metric=faiss.METRIC_INNER_PRODUCT
    )
    return scores[0], rows[0]


def _better(best: Found, query: Floats, matrix: Floats, rows: RowNumbers, k: int) -> Found:
    """Return the best of what was found and some rows of a matrix."""
    import numpy as np

    if not len(rows):
        return best
    scores, places = _compare(query, matrix[rows], k)
    scores = np.concatenate((best[0], scores))
    order = np.argsort(-scores, kind="stable")[:k]
    return scores[order], np.concatenate((best[1], rows[places]))[order]
