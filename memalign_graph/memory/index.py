"""The text of an example that is embedded, its vector, and the index of vectors."""

import base64
import hashlib
import json
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING, Any, NamedTuple

from memalign_graph.errors import EmbeddingError
from memalign_graph.transcript import goal_tools_answer, transcripts_in
from memalign_graph.types import Example

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Vector = NDArray[np.float32]
else:
    # numpy would double the import time of this package, so it is imported at first use.
    Vector = Any
"""A normalized embedding, float32."""

_KEY_BYTES = 200  # in a list and a dict


def vector_key(embedder: str, text: str) -> str:
    return hashlib.sha256(f"{embedder}\n{text}".encode()).hexdigest()[:32]


def encode_vector(vector: Vector) -> str:
    """Encode little-endian float32 bytes as base64: a quarter of the size of a JSON list."""
    return base64.b64encode(vector.astype("<f4").tobytes()).decode("ascii")


def decode_vector(text: str) -> Vector:
    import numpy as np

    return np.frombuffer(base64.b64decode(text), dtype="<f4").astype(np.float32)


def normalize_vectors(vectors: Any, count: int, embedder: str) -> list[Vector]:
    """Check and normalize what an embedding call returned."""
    import numpy as np

    try:
        matrix = np.asarray(vectors, dtype=np.float32)
    except (TypeError, ValueError):  # of different lengths, or not numbers
        matrix = np.empty(0, dtype=np.float32)
    if matrix.ndim != 2 or len(matrix) != count or not matrix.size:  # noqa: PLR2004 - rows and columns
        raise EmbeddingError(
            f"The embeddings {embedder} did not return {count} vector(s) of one length, one for "
            "each text."
        )
    norms = np.linalg.norm(matrix, axis=1, keepdims=True)
    if not np.isfinite(norms).all() or (norms == 0).any():
        failure = EmbeddingError(
            f"The embeddings {embedder} returned a vector that is zero or not finite."
        )
        failure.is_refusal = True  # another text may get a usable vector
        raise failure
    return list(matrix / norms)


class _Table(NamedTuple):
    """The data that searches use; never changed, so that they take no lock."""

    keys: list[str]
    rows: dict[str, int]
    matrix: Any


class VectorIndex:
    """Exact nearest neighbors by cosine similarity; writers take turns, and readers need not."""

    def __init__(self, embedder: str) -> None:
        self._embedder = embedder
        self._table: _Table | None = None

    def keys(self) -> AbstractSet[str]:
        return set() if self._table is None else self._table.rows.keys()

    def add(self, vectors: Mapping[str, Vector]) -> None:
        """Add vectors with new keys; those of another dimension than the first are ignored."""
        import numpy as np

        table, known = self._table, self.keys()
        size = self.dimension or next(map(len, vectors.values()), 0)
        fresh = {
            key: each for key, each in vectors.items() if key not in known and len(each) == size
        }
        if not fresh:
            return
        matrix = np.stack(list(fresh.values()))
        if table is None:
            self._set(list(fresh), matrix)
        else:
            self._set([*table.keys, *fresh], np.concatenate([table.matrix, matrix]))

    def retain(self, keys: AbstractSet[str]) -> None:
        """Remove the vectors of all other keys."""
        table = self._table
        if table is not None and not table.rows.keys() <= keys:
            left = [key for key in table.keys if key in keys]
            self._set(left, table.matrix[[table.rows[key] for key in left]])

    def _set(self, keys: list[str], matrix: Any) -> None:
        self._table = _Table(keys, {key: row for row, key in enumerate(keys)}, matrix)

    def get(self, key: str) -> Vector | None:
        table = self._table
        if table is None or key not in table.rows:
            return None
        vector: Vector = table.matrix[table.rows[key]].copy()
        return vector

    def search(self, vector: Vector, k: int) -> list[tuple[str, float]]:
        import faiss
        import numpy as np

        table = self._table
        if table is None or not table.keys:
            return []
        self.check([vector])
        threads = faiss.omp_get_max_threads()
        faiss.omp_set_num_threads(1)
        try:
            [scores], [rows] = faiss.knn(
                np.ascontiguousarray(vector, dtype=np.float32).reshape(1, -1),
                table.matrix,
                min(k, len(table.keys)),
                metric=faiss.METRIC_INNER_PRODUCT,
            )
        finally:
            faiss.omp_set_num_threads(threads)
        pairs = zip(rows.tolist(), scores.tolist(), strict=True)
        return [(table.keys[row], score) for row, score in pairs]

    @property
    def dimension(self) -> int | None:
        """The dimension; None if no vector was ever added."""
        return None if self._table is None else int(self._table.matrix.shape[1])

    @property
    def nbytes(self) -> int:
        table = self._table
        return 0 if table is None else table.matrix.nbytes + _KEY_BYTES * len(table.keys)

    def check(self, vectors: Iterable[Vector], dimension: int | None = None) -> None:
        """Check that vectors have the index's dimension, or the given one if it has none."""
        wanted = self.dimension or dimension
        for vector in vectors:
            if wanted not in (None, len(vector)):
                raise EmbeddingError(
                    f"The embeddings {self._embedder} return vectors of {len(vector)} dimensions, "
                    f"but this memory has vectors of {wanted} under that name. Give the other "
                    "embedder another name, or another namespace."
                )


MAX_BYTES = 8_000
"""The longest text to embed, in UTF-8 bytes: a text has at most as many tokens as bytes, and
common embedding models accept 8,191 tokens."""
_PART_BYTES = (4_000, 1_000, 2_996)  # a transcript's goal, tools and answer


def retrieval_text(example: Example) -> tuple[str, bool]:
    """Return the text to embed, and whether it was truncated."""
    return text_of(example.inputs, example.outputs)


def text_of(inputs: Any, outputs: Any) -> tuple[str, bool]:
    if transcripts_in(inputs) or transcripts_in(outputs):
        return _transcript_text(inputs, outputs)
    return _json_text(inputs, outputs)


def past_texts(example: Example) -> set[str]:
    """Return all texts of an example that may have been embedded, also before version 0.3."""
    inputs, outputs = example.inputs, example.outputs
    return {text_of(inputs, outputs)[0], _json_text(inputs, outputs)[0]}


def _json_text(inputs: Any, outputs: Any) -> tuple[str, bool]:
    inputs, outputs = _plain(inputs), _plain(outputs)
    room = MAX_BYTES - 2
    half = room // 2
    spare = max(0, half - len(outputs.encode()))
    cut_inputs = _cut(inputs, half + spare)
    cut_outputs = _cut(outputs, room - len(cut_inputs.encode()))
    truncated = len(cut_inputs) < len(inputs) or len(cut_outputs) < len(outputs)
    return f"{cut_inputs}\n\n{cut_outputs}", truncated


def _transcript_text(inputs: Any, outputs: Any) -> tuple[str, bool]:
    """Write the goal, the tools in the order of use, and the answer."""
    goals: list[str] = []
    tools: list[str] = []
    answers: list[str] = []
    for value, texts in ((inputs, goals), (outputs, answers)):
        transcripts = transcripts_in(value)
        for steps in transcripts.values():
            asked, used, answered = goal_tools_answer(steps)
            goals += asked
            tools += used
            answers += [answered] if texts is answers else []
        texts.extend([] if transcripts else [_plain(value)])
    parts = "\n".join(dict.fromkeys(goals)), " ".join(tools), "\n".join(answers)
    shortened = [_cut_middle(part, room) for part, room in zip(parts, _PART_BYTES, strict=True)]
    return "\n\n".join(shortened), shortened != [*parts]


def _cut_middle(text: str, limit: int) -> str:
    data = text.encode()
    if len(data) <= limit:
        return text
    head, tail = data[: limit * 2 // 3], data[len(data) - limit // 3 :]
    return head.decode(errors="ignore") + tail.decode(errors="ignore")


def _plain(value: Any) -> str:
    """Write a JSON value as text, a dict without its keys."""
    if isinstance(value, str):
        return value
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        return "\n".join(_plain(item) for item in value)
    return json.dumps(value)


def _cut(text: str, limit: int) -> str:
    # Sliced first, so that huge texts are not encoded whole.
    return text[:limit].encode()[:limit].decode(errors="ignore")
