"""A case worth asking an expert about."""

from pydantic import Field

from memalign_graph.frozen import FrozenModel
from memalign_graph.types import Example


class ReviewCandidate(FrozenModel):
    """A case of a backlog that an expert should label, and why this one."""

    example: Example
    """The case."""

    index: int
    """Its place in the backlog, from 0 on; of equal cases the first."""

    gain: float = Field(ge=0, le=1)
    """How much of the doubt about the whole backlog a label on it takes away, once those picked
    before it are labelled; a share of the doubt at the beginning, so that the gains of several add
    up. Where it becomes small, further labels bring little."""

    uncertainty: float = Field(ge=0, le=1)
    """How unsure its value is: by the judge's confidence where that is known, else by how far the
    experts' values of the most similar cases differ. 1 where nothing is known."""

    novelty: float = Field(ge=0, le=1)
    """How unlike the cases in memory it is: 1 less the similarity of the nearest; 1 where there are
    none."""

    spread: float = Field(ge=0, le=1)
    """How unlike the cases picked before it it is: 1 less the similarity of the nearest; 1 for the
    first."""
