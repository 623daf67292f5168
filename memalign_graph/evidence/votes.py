"""What the most similar cases in memory say together."""

from dataclasses import dataclass

from memalign_graph.evidence.nearest import Floats, Near

_WIDTHS = (0.1, 0.2, 0.4, 0.8, 1.6)
"""How fast a neighbour's weight may fall with its distance, of the usual distance between the
nearest neighbour and the last."""


@dataclass(frozen=True)
class Kernel:
    """How similarity becomes weight: a share that falls with the distance from the nearest."""

    width: float
    """At this much less similarity than the nearest has, a neighbour weighs 1/e of it."""

    @classmethod
    def fitted(cls, near: Near, said: Floats, truth: Floats) -> "Kernel":
        """Choose the width with which neighbours foretell the cases in memory best."""
        import numpy as np

        there = np.isfinite(near.similarities)
        if not there.any():
            return cls(1.0)
        # In the memory's own measure, since embedders differ in their similarities.
        last = np.where(there, near.similarities, np.inf).min(axis=1)
        spread = float(np.median((near.similarities[:, 0] - last)[there[:, 0]]))
        kernels = [cls(max(width * spread, 1e-6)) for width in _WIDTHS]
        votes = [
            np.einsum("ij,ij...->i...", one.weights(near.similarities), said) for one in kernels
        ]
        errors = [float(((vote - truth) ** 2).mean()) for vote in votes]
        return kernels[int(np.argmin(errors))]

    def weights(self, similarities: Floats) -> Floats:
        """Weigh neighbours."""
        import numpy as np

        first = similarities[:, :1]
        nearest = np.where(np.isfinite(first), first, 0.0)
        weights = np.exp((similarities - nearest) / self.width)
        total = weights.sum(axis=1, keepdims=True)
        shares: Floats = np.divide(weights, total, out=np.zeros_like(weights), where=total > 0)
        return shares
