"""Embedding vectors as store items, and the FAISS index derived from them."""

import base64
import hashlib
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from memalign_graph.errors import EmbeddingError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Vector = NDArray[np.float32]
else:
    # numpy is imported at first use, since it would double the time this package takes to import.
    Vector = Any
"""A normalised embedding: float32, of the embedder's dimension."""


_MOST_REMOVED = 64
"""How many removed rows a search passes over at least, before the others are copied."""

_KEY_BYTES = 200
"""What a key takes, in a list and a dict."""


def vector_key(embedder: str, text: str) -> str:
    """Name the vector of a text."""
    return hashlib.sha256(f"{embedder}\n{text}".encode()).hexdigest()[:32]


def encode_vector(vector: Vector) -> str:
    """Write a vector as base64 of its little-endian float32 bytes, a quarter of a JSON list."""
    return base64.b64encode(vector.astype("<f4").tobytes()).decode("ascii")


def decode_vector(text: str) -> Vector:
    """Read what `encode_vector` wrote."""
    import numpy as np

    return np.frombuffer(base64.b64decode(text), dtype="<f4").astype(np.float32)


def normalised(vectors: Any, count: int, embedder: str) -> list[Vector]:
    """Check what an embedding call gave, and normalise it."""
    import numpy as np

    try:
        matrix = np.asarray(vectors, dtype=np.float32)
    except (TypeError, ValueError) as error:
        raise EmbeddingError(
            f"The embeddings {embedder} returned vectors of different lengths, or no numbers."
        ) from error
    if matrix.ndim != 2 or matrix.shape[0] != count or matrix.shape[1] == 0:  # noqa: PLR2004 - rows and columns
        raise EmbeddingError(
            f"The embeddings {embedder} returned an array of shape {matrix.shape} for {count} "
            "texts: one vector a text is needed."
        )
    norms = np.linalg.norm(matrix, axis=1, keepdims=True)
    if not np.isfinite(norms).all() or (norms == 0).any():
        raise EmbeddingError(
            f"The embeddings {embedder} returned a vector that is zero or not finite."
        )
    return list(matrix / norms)


class _Table(NamedTuple):
    """What searches see: rows are written beyond `size`, then published; or set to zero."""

    matrix: Any
    """A row a vector, with room for more beyond `size`."""
    keys: list[str | None]
    """The row's key; None where it was removed."""
    rows: dict[str, int]
    size: int
    removed: int
    """How many of the rows are of no key any more."""

    def copy(self, room: int) -> "_Table":
        """Copy the rows that have a key, with room for more."""
        import numpy as np

        held = list(self.rows.values())
        matrix = np.empty((len(held) + room, self.matrix.shape[1]), dtype=np.float32)
        np.take(self.matrix, held, axis=0, out=matrix[: len(held)])
        rows = dict(zip(self.rows, range(len(held)), strict=True))
        return _Table(matrix, [*rows], rows, len(held), 0)


def _nearest(query: Any, matrix: Any, count: int) -> tuple[Any, Any]:
    import faiss

    with _one_thread():
        [scores], [rows] = faiss.knn(query, matrix, count, metric=faiss.METRIC_INNER_PRODUCT)
    return scores, rows


class VectorIndex:
    """Nearest neighbours by exact cosine similarity, with removal; safe to use from threads.

    Derived from stored vectors and never stored itself. Searches wait for nobody; what is removed
    is overwritten before `remove` returns.
    """

    def __init__(self, embedder: str) -> None:
        self._embedder = embedder
        self._writing = threading.Lock()
        self._table: _Table | None = None

    def __contains__(self, key: str) -> bool:
        return self._table is not None and key in self._table.rows

    def add(self, vectors: Mapping[str, Vector]) -> None:
        """Add vectors; a key that is there already is left as it is."""
        with self._writing:
            fresh = {key: vector for key, vector in vectors.items() if key not in self}
            if fresh:
                self.check(fresh.values(), like=fresh.values())
                self._append(fresh)

    def _append(self, fresh: Mapping[str, Vector]) -> None:
        import numpy as np

        table = self._table
        if table is None:
            dimension = len(next(iter(fresh.values())))
            table = _Table(np.empty((0, dimension), dtype=np.float32), [], {}, 0, 0)
        if table.size + len(fresh) > len(table.matrix):
            table = table.copy(len(fresh) + len(table.rows) // 4)
        stop = table.size + len(fresh)
        np.stack(list(fresh.values()), out=table.matrix[table.size : stop])
        table.keys.extend(fresh)
        table.rows.update(zip(fresh, range(table.size, stop), strict=True))
        self._table = table._replace(size=stop)

    def remove(self, keys: set[str]) -> None:
        """Remove vectors; a key that is not there is passed over."""
        with self._writing:
            table = self._table
            if table is None:
                return
            rows = [table.rows.pop(key) for key in keys if key in table.rows]
            self._table = table = table._replace(removed=table.removed + len(rows))
            # In this order: whoever sees zeros sees that their key is gone.
            for row in rows:
                table.keys[row] = None
            table.matrix[rows] = 0
            if table.removed > max(_MOST_REMOVED, table.size // 16):
                self._table = table.copy(0)

    def get(self, key: str) -> Vector | None:
        """Return the vector under a key, or None."""
        table = self._table
        row = None if table is None else table.rows.get(key)
        if table is None or row is None:
            return None
        vector: Vector = table.matrix[row].copy()
        return vector if key in table.rows else None

    def search(self, vector: Vector, k: int) -> list[tuple[str, float]]:
        """Find the nearest vectors, most similar first."""
        import numpy as np

        table = self._table
        if k < 1 or table is None or not table.size:
            return []
        self.check([vector])
        query = np.ascontiguousarray(vector, dtype=np.float32).reshape(1, -1)
        count = min(k + table.removed, table.size)
        scores, rows = _nearest(query, table.matrix[: table.size], count)
        pairs = zip(rows.tolist(), scores.tolist(), strict=True)
        near = ((table.keys[row], score) for row, score in pairs)
        return [(key, score) for key, score in near if key is not None][:k]

    @property
    def is_empty(self) -> bool:
        """Whether no vector was ever added."""
        return self._table is None

    @property
    def nbytes(self) -> int:
        """About how many bytes it takes."""
        table = self._table
        return 0 if table is None else table.matrix.nbytes + _KEY_BYTES * table.size

    def check(self, vectors: Iterable[Vector], like: Iterable[Vector] = ()) -> None:
        """Check that vectors have the dimension of those that are there."""
        dimension = self._dimension(like)
        for vector in vectors if dimension is not None else ():
            if len(vector) != dimension:
                raise EmbeddingError(
                    f"The embeddings {self._embedder} give vectors of {len(vector)} dimensions, "
                    f"but this memory holds {dimension} under that name: give the other "
                    "embedder another name, or another namespace."
                )

    def fitting(self, vectors: Mapping[str, Vector]) -> dict[str, Vector]:
        """Leave aside vectors of another dimension than the first, or than those that are there."""
        dimension = self._dimension(vectors.values())
        return {key: vector for key, vector in vectors.items() if len(vector) == dimension}

    def _dimension(self, like: Iterable[Vector]) -> int | None:
        if self._table is not None:
            return int(self._table.matrix.shape[1])
        return next((len(vector) for vector in like), None)


@contextmanager
def _one_thread() -> Iterator[None]:
    """Let FAISS work in this thread alone."""
    import faiss

    threads = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(1)
    try:
        yield
    finally:
        faiss.omp_set_num_threads(threads)
