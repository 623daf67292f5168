"""Embedding vectors as store items, and the FAISS index derived from them."""

import base64
import hashlib
import threading
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
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


def find(keys: Any, key: str) -> int:
    """Return where a key lies among sorted ones that are bytes, or -1."""
    import numpy as np

    wanted = np.array([key.encode()])
    if wanted.itemsize > keys.itemsize or not len(keys):
        return -1
    at = int(np.searchsorted(keys, wanted.astype(keys.dtype))[0])
    return at if at < len(keys) and keys[at] == wanted[0] else -1


class Ann:
    """An approximate index beside a matrix of many rows: an inverted file of 8-bit codes, mapped.

    It only chooses candidates; they are compared by their vectors.
    """

    least = 300_000
    """From how many vectors on there is one."""

    _candidates = 20
    """How many are compared for each that is wanted."""

    def __init__(self, index: Any) -> None:
        self._index = index

    @classmethod
    def read(cls, path: Path, told: Sequence[int]) -> "Ann":
        """Open what was written; raises ValueError where it is damaged."""
        import faiss
        import numpy as np

        if _checked(np.memmap(path, np.uint8, "r")) != list(told):
            raise ValueError(f"{path.name} is damaged.")
        return cls(faiss.read_index(str(path), faiss.IO_FLAG_MMAP))

    @staticmethod
    def write(path: Path, matrix: Any) -> list[int]:
        """Make it and write it to a file; returns what tells the file."""
        import faiss
        import numpy as np

        dimension, lists = matrix.shape[1], int(len(matrix) ** 0.5)
        index: Any = faiss.index_factory(dimension, f"IVF{lists},SQ8", faiss.METRIC_INNER_PRODUCT)
        with _one_thread():
            index.train(np.ascontiguousarray(matrix[:: max(len(matrix) // (40 * lists), 1)]))
            for start in range(0, len(matrix), 10_000):
                index.add(np.ascontiguousarray(matrix[start : start + 10_000]))
        index.nprobe = max(lists // 16, 8)
        beside = path.with_suffix(".tmp")
        faiss.write_index(index, str(beside))
        beside.chmod(0o600)
        beside.replace(path)
        return _checked(np.memmap(path, np.uint8, "r"))

    def nearest(self, matrix: Any, query: Any, count: int) -> tuple[Any, Any]:
        """Find rows of the matrix, most similar first, and how similar they are."""
        import numpy as np

        with _one_thread():
            _, [rows] = self._index.search(query, min(count * self._candidates, len(matrix)))
        rows = rows[rows >= 0]
        scores = matrix[rows] @ query[0]
        best = np.argsort(-scores, kind="stable")[:count]
        return scores[best], rows[best]


def _checked(data: Any) -> list[int]:
    return [len(data), zlib.crc32(memoryview(data))]


class MappedVectors:
    """Vectors in a file, in the order of their keys; what is removed is overwritten in memory."""

    def __init__(self, keys: Any, matrix: Any, ann: Ann | None = None) -> None:
        self.keys, self.matrix, self._ann = keys, matrix, ann
        self._gone: set[int] = set()

    def row(self, key: str) -> int:
        """Return the row of a key, or -1."""
        at = find(self.keys, key)
        return -1 if at in self._gone else at

    def remove(self, keys: Iterable[str]) -> None:
        rows = [row for key in keys if (row := self.row(key)) >= 0]
        self._gone.update(rows)  # first, so that whoever sees zeros sees that they are gone
        self.matrix[rows] = 0

    def items(self) -> dict[str, Vector]:
        """Return all that is left, in memory."""
        keys = enumerate(self.keys.tolist())
        return {key.decode(): self.matrix[at].copy() for at, key in keys if at not in self._gone}

    def search(self, query: Any, k: int) -> list[tuple[str, float]]:
        count = min(k + len(self._gone), len(self.matrix))
        if self._ann is None:
            scores, rows = _nearest(query, self.matrix, count)
        else:
            scores, rows = self._ann.nearest(self.matrix, query, count)
        pairs = zip(rows.tolist(), scores.tolist(), strict=True)
        near = [(row, score) for row, score in pairs if row not in self._gone]
        return [(self.keys[row].decode(), score) for row, score in near[:k]]


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

    def __init__(self, embedder: str, mapped: MappedVectors | None = None) -> None:
        self._embedder = embedder
        self._writing = threading.Lock()
        self._mapped = mapped
        self._table: _Table | None = None

    def __contains__(self, key: str) -> bool:
        if self._table is not None and key in self._table.rows:
            return True
        return self._mapped is not None and self._mapped.row(key) >= 0

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
            mapped, table = self._mapped, self._table
            if mapped is not None:
                mapped.remove(keys)
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

    def unmap(self) -> None:
        """Let go of the file."""
        with self._writing:
            if self._mapped is not None and (left := self._mapped.items()):
                self._append(left)  # first: a search sees each row once or twice
            self._mapped = None

    def get(self, key: str) -> Vector | None:
        """Return the vector under a key, or None."""
        mapped, table = self._mapped, self._table
        row = None if table is None else table.rows.get(key)
        if table is None or row is None:
            at = -1 if mapped is None else mapped.row(key)
            if mapped is None or at < 0:
                return None
            found: Vector = mapped.matrix[at].copy()
            return found if mapped.row(key) >= 0 else None
        vector: Vector = table.matrix[row].copy()
        return vector if key in table.rows else None

    def search(self, vector: Vector, k: int) -> list[tuple[str, float]]:
        """Find the nearest vectors, most similar first."""
        import numpy as np

        mapped, table = self._mapped, self._table
        if k < 1 or self.is_empty:
            return []
        self.check([vector])
        query = np.ascontiguousarray(vector, dtype=np.float32).reshape(1, -1)
        found = [] if mapped is None else mapped.search(query, k)
        if table is not None and table.size:
            count = min(k + table.removed, table.size)
            scores, rows = _nearest(query, table.matrix[: table.size], count)
            pairs = zip(rows.tolist(), scores.tolist(), strict=True)
            near = ((table.keys[row], score) for row, score in pairs)
            found += [(key, score) for key, score in near if key is not None]
        return sorted(dict(found).items(), key=lambda one: -one[1])[:k]

    @property
    def is_empty(self) -> bool:
        """Whether no vector was ever added."""
        return self._table is None and self._mapped is None

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
        rows = self._table or self._mapped
        if rows is not None:
            return int(rows.matrix.shape[1])
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
