"""Vectors as the rows of a matrix: the nearest ones found fast, and none found wrongly."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from memalign_graph.memory.codes import SAMPLE, Floats, RowCodes
from memalign_graph.memory.codes import Rows as RowNumbers

if TYPE_CHECKING:
    Found = tuple[Floats, RowNumbers]
else:
    Found = Any
"""Similarities and the rows that have them, most similar first."""

CODES_FROM = 10_000
"""From how many rows on codes are made: fewer are compared one by one, in a few milliseconds."""

_CATCH_UP = 2_048
"""How many rows an addition encodes beside its own, so that none has to encode them all."""

_CANDIDATES = (1_024, 8_192)
"""How many rows a search takes from the codes, and how many where those do not settle it."""

_LOOK = 256
"""How many candidates are compared at once."""


class VectorRows:
    """A matrix of vectors that grows, shrinks and finds the rows nearest to a vector.

    A search finds what comparing all rows finds. In a large matrix codes of eight bits tell which
    rows can be among the nearest at all (see `RowCodes`), and those are compared; where too many
    are nearly alike, all are. Codes are made little by little as rows are added, and rows without
    are compared.
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
        """Return a copy of one row.

        Args:
            row: The row.

        Returns:
            The vector, bit by bit as it was added.
        """
        vector: Floats = self._matrix[row].copy()
        return vector

    def append(self, vectors: Sequence[Floats]) -> None:
        """Add rows at the end.

        Args:
            vectors: The vectors, of this matrix's dimension.
        """
        import numpy as np

        stop = self._count + len(vectors)
        if len(self._matrix) < stop:
            self._resize(max(stop, len(self._matrix) * 5 // 4))
        np.stack(vectors, out=self._matrix[self._count : stop])
        self._count = stop
        if self._codes is not None or stop >= CODES_FROM:
            self._encode(len(vectors))

    def remove(self, rows: Iterable[int]) -> list[tuple[int, int]]:
        """Remove rows, overwrite them, and move others into their places.

        Args:
            rows: The rows, each once.

        Returns:
            The moves in their order: from where, and to where.
        """
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
        """Find the rows nearest to a vector.

        Args:
            query: The vector, contiguous.
            k: How many to find, at least 1 and at most all.

        Returns:
            Their similarities and the rows, most similar first.
        """
        for taken in _CANDIDATES:
            found = self._nearest_by_codes(query, k, taken)
            if found is not None:
                return found
        return _compare(query, self._matrix[: self._count], k)

    def _nearest_by_codes(self, query: Floats, k: int, taken: int) -> Found | None:
        """Find the nearest rows among those taken from the codes; None if others may be nearer."""
        matrix, codes = self._matrix[: self._count], self._codes
        if codes is None or not 4 * k <= taken <= len(codes) // 8:
            return None
        scores, rows = _compare(query, matrix[len(codes) :], k)
        best = _better((scores, rows + len(codes)), query, matrix, codes.misfits, k)
        candidates = codes.candidates(query, taken)
        for start in range(0, len(candidates.rows), _LOOK):
            if _settled(best, candidates.bounds[start], k):
                return best
            best = _better(best, query, matrix, candidates.rows[start : start + _LOOK], k)
        return best if _settled(best, candidates.rest, k) else None

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
        if self._count < CODES_FROM // 2:
            self._codes = None
        if len(self._matrix) > 4 * (self._count + _LOOK):
            self._resize(self._count + _LOOK)

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

    scores, places = _compare(query, matrix[rows], k)
    scores = np.concatenate((best[0], scores))
    order = np.argsort(-scores, kind="stable")[:k]
    return scores[order], np.concatenate((best[1], rows[places]))[order]


def _settled(best: Found, bound: float, k: int) -> bool:
    """Tell whether nothing of at most this similarity belongs to the best."""
    return len(best[0]) == k and bool(best[0][-1] >= bound)
