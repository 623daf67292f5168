"""Helpers for tests of prompts."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from langchain_core.messages import BaseMessage

from memalign_graph import Criterion, Episode, Feedback, Guideline, Judgment
from memalign_graph.prompts.distill import DistillPrompt, distill_prompt
from memalign_graph.prompts.fences import estimate_tokens
from tests.builders import make_judgment

CRITERION = Criterion(name="tone", instructions="Is the reply appropriate for the customer?")
START = datetime(2026, 1, 1, tzinfo=UTC)


def guideline(name: str, text: str = "", *sources: str, **fields: Any) -> Guideline:
    written: dict[str, Any] = {"created_at": START, "updated_at": START, "position": ord(name[0])}
    fields_of_guideline = {
        **written,
        "text": text or f"Rule {name}.",
        "episode_ids": list(sources),
        **fields,
    }
    return Guideline(id=name, **fields_of_guideline)


def episode(outputs: Any, **word: Any) -> Episode:
    fields = {"inputs": "Hello?", "outputs": outputs, "rationale": "Rude.", "given_at": START}
    return Episode.from_feedback(Feedback.model_validate({**fields, **word}))


def judgment(rationale: str = "It tells where to look.") -> Judgment:
    return make_judgment(rationale=rationale)


def prompt(
    *episodes: Episode,
    guidelines: Sequence[Guideline] = (),
    window: int = 100_000,
    criterion: Criterion = CRITERION,
    **options: Any,
) -> DistillPrompt:
    return distill_prompt(
        criterion,
        guidelines=guidelines,
        episodes=episodes or [episode("Go away.")],
        max_input_tokens=window,
        **options,
    )


def tokens(messages: Sequence[BaseMessage]) -> int:
    return sum(estimate_tokens(message.text) for message in messages)
