"""Vectors in eight bits a dimension: a quarter of the bytes, to find which are worth a look."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float32]
    Rows = NDArray[np.int64]
else:
    Floats = Rows = Any

SAMPLE = 8_192
"""How many rows the codes are fitted to, about."""

_LIMIT = 127
"""A code is a whole number from -127 to 127."""

_MARGIN = 1.25
"""How much wider than the sample the range of codes is."""

_BLOCK = 1_024
"""How many rows are encoded at once, so that they stay in the processor's cache."""

_LINE = 64
"""Codes fill whole cache lines: FAISS reads others at half the speed."""

_SURE = 4
"""How far a similarity by codes may be off, in standard deviations.

A code's grid begins at a random place in each dimension, so that what rounding takes from a row is
uniform within half a step. The query's weights are rounded up or down at random, so that they are
right on average. Both kinds of error are thus independent between dimensions, with mean 0 and a
variance of at most 1/12 and 1/4 of their steps' squares, whatever the vectors are, and their sum
is sub-Gaussian (Hoeffding, 1963): that one of the nearest rows looks 4 standard deviations farther
than it is, and so may be passed over, has a probability below exp(-4**2 / 2) = 0.0003. What is
measured lies far below that, since few rows meet the worst case.
"""

_FLOAT_ERROR = 1e-5
"""How far a similarity may be off as float32 numbers near 1 are added up, amply."""


@dataclass(frozen=True)
class Candidates:
    """Rows that may be among the nearest, by their codes."""

    rows: Rows
    """The rows, most promising first."""

    bounds: Floats
    """What each one's similarity is at most, but for the chance that `_SURE` leaves."""

    rest: float
    """What the similarity of all others is at most, likewise; misfits are not among them."""


class RowCodes:
    """Codes of the first rows of a matrix.

    A dimension's codes are even steps over the range that a sample of the rows has there, so what
    all vectors share costs no precision. A row beyond that range is a misfit: its code says
    nothing, and it is always to be compared itself.
    """

    def __init__(self, sample: Floats) -> None:
        import faiss
        import numpy as np

        mean = sample.mean(axis=0)
        reach = np.maximum(sample.max(axis=0) - mean, mean - sample.min(axis=0))
        # A dimension that has not varied yet may still do so.
        reach = np.maximum(reach, reach.mean() / 16) + np.float32(1e-9)
        self._step = reach * np.float32(_MARGIN / _LIMIT)
        self._random = np.random.default_rng()
        start = self._random.random(len(mean), dtype=np.float32) - np.float32(0.5)
        self._origin = mean + start * self._step
        self._dimension = len(mean)
        self._width = -(-len(mean) // _LINE) * _LINE
        self._index = faiss.IndexScalarQuantizer(
            self._width,
            faiss.ScalarQuantizer.QT_8bit_direct_signed,
            faiss.METRIC_INNER_PRODUCT,
        )
        self._misfit = np.zeros(0, dtype=np.bool_)
        self._longest = 0.0

    def __len__(self) -> int:
        return len(self._misfit)

    @property
    def misfits(self) -> Rows:
        """The rows to be compared in any case."""
        import numpy as np

        return np.flatnonzero(self._misfit)

    def append(self, rows: Floats) -> None:
        """Encode the rows that follow those that are encoded."""
        import numpy as np

        misfit = [self._misfit]
        buffer = np.zeros((min(_BLOCK, len(rows)), self._width), dtype=np.float32)
        for start in range(0, len(rows), _BLOCK):
            block = rows[start : start + _BLOCK]
            codes = buffer[: len(block)]
            steps = codes[:, : self._dimension]
            np.subtract(block, self._origin, out=steps)
            np.divide(steps, self._step, out=steps)
            np.rint(steps, out=steps)
            misfit.append((steps.max(axis=1) > _LIMIT) | (steps.min(axis=1) < -_LIMIT))
            lengths = np.linalg.norm(steps, axis=1)
            self._longest = float(lengths.max(where=~misfit[-1], initial=self._longest))
            np.clip(steps, -_LIMIT, _LIMIT, out=steps)
            self._index.add(codes)
        self._misfit = np.concatenate(misfit)

    def move(self, source: int, target: int) -> None:
        """Put one row's code into another's place."""
        codes = self._codes()
        codes[target] = codes[source]
        self._misfit[target] = self._misfit[source]

    def truncate(self, count: int) -> None:
        """Forget all codes but the first."""
        import faiss

        if count < len(self):
            self._codes()[count:] = 0  # The memory stays with the index.
            self._index.remove_ids(faiss.IDSelectorRange(count, len(self)))
            self._misfit = self._misfit[:count].copy()

    def candidates(self, query: Floats, count: int) -> Candidates:
        """Find the rows that are nearest by their codes; misfits are left out."""
        import numpy as np

        weights = query * self._step
        step = max(float(np.abs(weights).max()), 1e-30) / _LIMIT
        # Whole numbers, since FAISS cuts off what is behind the point here.
        rounded = np.zeros((1, self._width), dtype=np.float32)
        chance = self._random.random(self._dimension, dtype=np.float32)
        rounded[0, : self._dimension] = np.floor(weights / step + chance).clip(-_LIMIT, _LIMIT)
        scores, rows = self._index.search(rounded, min(count, len(self)))
        variance = float(weights @ weights) / 12 + (step * self._longest) ** 2 / 4
        error = _SURE * variance**0.5 + _FLOAT_ERROR
        bounds = scores[0] * np.float32(step) + np.float32(float(query @ self._origin) + error)
        fits = ~self._misfit[rows[0]]
        rest = float(bounds[-1]) if count < len(self) else -np.inf
        return Candidates(rows=rows[0][fits], bounds=bounds[fits], rest=rest)

    def _codes(self) -> Any:
        """Return the codes as FAISS holds them, to be written to."""
        import faiss

        size = self._index.ntotal * self._width
        return faiss.rev_swig_ptr(self._index.codes.data(), size).reshape(-1, self._width)
