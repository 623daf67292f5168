"""The seen cases that are judged again: those that new guidelines most likely touch."""

import random
from collections.abc import Sequence
from dataclasses import dataclass

from memalign_graph.agreement import consensus_value, value_or_none
from memalign_graph.io import IO
from memalign_graph.memory.access import MemoryAccess
from memalign_graph.memory.embedding import index_missing, key_of
from memalign_graph.memory.guidelines import GuidelineOperation
from memalign_graph.prompts.distill import by_case
from memalign_graph.scales import Scale, Value
from memalign_graph.types import Episode, Example

_SAMPLE_SHARE = 4
"""One in so many of the cases is a sample of all; the others are nearest to what is new."""

_NEAR = 20
"""How many neighbours of each source are looked at."""


@dataclass(frozen=True)
class Case:
    """A seen case."""

    episodes: list[Episode]
    """The experts' episodes on it."""

    expected: Value
    """The value that most of them gave."""

    @property
    def example_id(self) -> str:
        """The example's id."""
        return self.episodes[0].example_id

    @property
    def example(self) -> Example:
        """The example."""
        return self.episodes[0].example


async def select_cases(
    io: IO, access: MemoryAccess, operations: Sequence[GuidelineOperation], cases: int
) -> list[Case]:
    """Choose the seen cases that are nearest to what is new, and a sample of the others."""
    view = await access.refresh(io)
    await index_missing(io, access, view)
    sources = list(dict.fromkeys(key for one in operations for key in one.episode_ids))
    nearness: dict[str, float] = {}
    keys = [key_of(access, one.example) for one in (await access.episodes(io, sources)).values()]
    for vector in view.vectors(keys).values():
        for near, similarity in view.index.search(vector, _NEAR):
            nearness[near] = max(nearness.get(near, -1.0), similarity)
    ranked = sorted(nearness, key=lambda key: (-nearness[key], key))
    ids = [episode for key in ranked for episode in view.episode_ids_for_vector(key)]
    near_cases = _cases(await access.episodes(io, ids), ids, access.criterion.scale)
    picked = near_cases[: max(cases - cases // _SAMPLE_SHARE, 1)]
    rest = [row.id for row in view.rows() if row.id not in set(ids)]
    # The same sample for the same memory, so that a run made again judges the same cases.
    chooser = random.Random(view.version)  # noqa: S311 - nothing secret
    sample = chooser.sample(rest, min(len(rest), cases))
    others = _cases(await access.episodes(io, sample), sample, access.criterion.scale)
    known = {one.example_id for one in picked}
    fill = [one for one in [*others, *near_cases] if one.example_id not in known]
    return [*picked, *fill[: cases - len(picked)]]


def _cases(episodes: dict[str, Episode], order: Sequence[str], scale: Scale) -> list[Case]:
    return cases_of([episodes[key] for key in order if key in episodes], scale)


def cases_of(episodes: Sequence[Episode], scale: Scale) -> list[Case]:
    """Gather episodes into cases whose value experts gave."""
    valued = [
        one.model_copy(update={"value": value})
        for one in episodes
        if (value := value_or_none(one.value, scale)) is not None
    ]
    found = [(group, consensus_value(group, scale)) for group in by_case(valued)]
    return [Case(group, value) for group, value in found if value is not None]
