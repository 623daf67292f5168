"""Feedback packed into batches, each small enough for one prompt."""

from collections.abc import Sequence

from memalign_graph.prompts.distill import feedback_tokens, feedback_window
from memalign_graph.prompts.distill_small import MOST_COMMENTS
from memalign_graph.settings import DEFAULT_BATCH_SIZE
from memalign_graph.types import Criterion, Episode, Guideline


def pack(
    episodes: Sequence[Episode],
    criterion: Criterion,
    guidelines: Sequence[Guideline],
    *,
    max_input_tokens: int,
    most: int = DEFAULT_BATCH_SIZE,
    is_small: bool = False,
) -> list[list[str]]:
    """Pack feedback into batches that fit the model's window; experts on one case stay together.

    A small model is shown a few comments, which always fit.
    """
    most = min(most, MOST_COMMENTS) if is_small else most
    cases: dict[str, list[Episode]] = {}
    for episode in sorted(episodes, key=lambda one: (one.given_at, one.id)):
        cases.setdefault(episode.example_id, []).append(episode)
    window = 0
    if not is_small:
        window = feedback_window(criterion, guidelines, max_input_tokens=max_input_tokens)
    batches: list[list[str]] = []
    room = 0
    for case in cases.values():
        tokens = 0 if is_small else feedback_tokens(case)
        full = not batches or tokens > room or len(batches[-1]) + len(case) > most
        if full:
            batches.append([])
            room = window
        batches[-1] += [one.id for one in case]
        room -= tokens
    return batches
