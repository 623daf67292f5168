"""Embedding vectors as store items, and the FAISS index derived from them."""

import base64
import hashlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from memalign_graph.errors import EmbeddingError
from memalign_graph.memory.index.rows import VectorRows
from memalign_graph.memory.index.shared_lock import SharedLock

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Vector = NDArray[np.float32]
else:
    # numpy is imported at first use, since it would double the time this package takes to import.
    Vector = Any
"""A normalised embedding: float32, of the embedder's dimension."""


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


class VectorIndex:
    """Nearest neighbours by cosine similarity, with removal; safe to use from threads.

    Derived from stored vectors and never stored itself. Searches run side by side; what is removed
    is overwritten before `remove` returns.
    """

    def __init__(self, embedder: str) -> None:
        self._embedder = embedder
        self._lock = SharedLock()
        self._rows: VectorRows | None = None
        self._keys: list[str] = []
        self._row_of: dict[str, int] = {}

    def __contains__(self, key: str) -> bool:
        return key in self._row_of

    def add(self, vectors: Mapping[str, Vector]) -> None:
        """Add vectors; a key that is there already is left as it is."""
        with self._lock.exclusive():
            fresh = {key: vector for key, vector in vectors.items() if key not in self._row_of}
            if not fresh:
                return
            dimension = len(next(iter(fresh.values())))
            self._check_dimensions(fresh.values(), dimension)
            if self._rows is None:
                self._rows = VectorRows(dimension)
            self._rows.append(list(fresh.values()))
            self._row_of.update(zip(fresh, range(len(self._keys), len(self._rows)), strict=True))
            self._keys.extend(fresh)

    def remove(self, keys: set[str]) -> None:
        """Remove vectors; a key that is not there is passed over."""
        with self._lock.exclusive():
            rows = [self._row_of.pop(key) for key in keys if key in self._row_of]
            if self._rows is None or not rows:
                return
            for source, target in self._rows.remove(rows):
                self._keys[target] = key = self._keys[source]
                self._row_of[key] = target
            del self._keys[len(self._rows) :]

    def get(self, key: str) -> Vector | None:
        """Return the vector under a key, or None."""
        with self._lock.shared():
            row = self._row_of.get(key)
            return None if row is None or self._rows is None else self._rows.vector(row)

    def search(self, vector: Vector, k: int) -> list[tuple[str, float]]:
        """Find the nearest vectors."""
        import numpy as np

        with self._lock.shared(), _one_thread():
            count = min(k, len(self._keys))
            if self._rows is None or count < 1:
                return []
            self._check_dimensions([vector])
            query = np.ascontiguousarray(vector, dtype=np.float32)
            scores, rows = self._rows.nearest(query, count)
            pairs = zip(rows.tolist(), scores.tolist(), strict=True)
            return [(self._keys[row], score) for row, score in pairs]

    @property
    def is_empty(self) -> bool:
        """Whether no vector was ever added."""
        return self._rows is None

    def check(self, vectors: Iterable[Vector], like: Iterable[Vector] = ()) -> None:
        """Check that vectors have the dimension of those that are there."""
        with self._lock.shared():
            self._check_dimensions(vectors, next((len(one) for one in like), None))

    def fitting(self, vectors: Mapping[str, Vector]) -> dict[str, Vector]:
        """Leave aside vectors of another dimension than the first, or than those that are there."""
        with self._lock.shared():
            dimension = None if self._rows is None else self._rows.dimension
        dimension = dimension or next((len(vector) for vector in vectors.values()), None)
        return {key: vector for key, vector in vectors.items() if len(vector) == dimension}

    def _check_dimensions(self, vectors: Iterable[Vector], dimension: int | None = None) -> None:
        dimension = dimension if self._rows is None else self._rows.dimension
        if dimension is None:
            return
        for vector in vectors:
            if len(vector) != dimension:
                raise EmbeddingError(
                    f"The embeddings {self._embedder} give vectors of {len(vector)} dimensions, "
                    f"but this memory holds {dimension} under that name: give the other "
                    "embedder another name, or another namespace."
                )


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
