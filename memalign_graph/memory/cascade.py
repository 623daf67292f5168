"""What becomes of guidelines when feedback they rest on is taken back."""

from collections.abc import Iterable
from dataclasses import dataclass

from memalign_graph.types import Guideline


@dataclass(frozen=True)
class Cascade:
    """Which guidelines go, and which lose a source."""

    standing: list[Guideline]
    """The guidelines as they were."""

    removed: list[Guideline]
    """Guidelines that rested on that feedback alone, and superseded ones that rested on it."""

    reduced: list[Guideline]
    """Guidelines that have other sources, which alone they now name. Their wording is gone, since
    it may hold what was taken back: they are to be distilled again. Only what an expert worded by
    hand keeps its words."""


def cascade(guidelines: Iterable[Guideline], episode_ids: set[str]) -> Cascade:
    """Follow the provenance of guidelines when episodes are forgotten or replaced.

    Args:
        guidelines: All guidelines, wherever they stand.
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
        if not left or guideline.status == "superseded":
            removed.append(guideline)
        elif guideline.origin == "expert":
            reduced.append(guideline.model_copy(update={"episode_ids": left}))
        else:
            blank = {"episode_ids": left, "text": "", "status": "pending"}
            reduced.append(guideline.model_copy(update=blank))
    return Cascade(standing=standing, removed=removed, reduced=reduced)
