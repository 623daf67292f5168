"""What becomes of guidelines when feedback they rest on is taken back."""

from collections.abc import Iterable
from dataclasses import dataclass

from memalign_graph.types import Guideline


@dataclass(frozen=True)
class Cascade:
    """Which guidelines go, and which have to be distilled again."""

    standing: list[Guideline]
    """The guidelines as they stood."""

    removed: list[Guideline]
    """Guidelines that rested on that feedback alone."""

    reduced: list[Guideline]
    """Guidelines that have other sources, which alone they now name."""

    def to_distill(self) -> set[str]:
        """Return the episodes from which the reduced guidelines are to be distilled again."""
        return {key for guideline in self.reduced for key in guideline.episode_ids}


def cascade(guidelines: Iterable[Guideline], episode_ids: set[str]) -> Cascade:
    """Follow the provenance of guidelines when episodes are forgotten or replaced.

    Args:
        guidelines: The guidelines that stand.
        episode_ids: The episodes taken back.

    Returns:
        What becomes of the guidelines that rest on them; the others are not in it.
    """
    standing = list(guidelines)
    removed, reduced = [], []
    for guideline in standing:
        if not episode_ids & set(guideline.episode_ids):
            continue
        left = [key for key in guideline.episode_ids if key not in episode_ids]
        if left:
            reduced.append(guideline.model_copy(update={"episode_ids": left}))
        else:
            removed.append(guideline)
    return Cascade(standing=standing, removed=removed, reduced=reduced)
