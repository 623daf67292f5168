"""What the unit tests of alignment share: guidelines and episodes in one line."""

from datetime import UTC, datetime, timedelta
from typing import Any

from memalign_graph import Criterion, Episode, Feedback, Guideline
from memalign_graph.memory.learning import guideline_id

CRITERION = Criterion(name="tone", instructions="Is it polite?")
START = datetime(2026, 1, 1, tzinfo=UTC)


def standing(text: str, *sources: str, position: int = 1, **fields: Any) -> Guideline:
    """A guideline that is in memory."""
    defaults = {"created_at": START, "updated_at": START, "position": position}
    given = {"id": guideline_id(text), "text": text, "episode_ids": list(sources)}
    return Guideline.model_validate({**defaults, **given, **fields})


def by_hand(text: str, **fields: Any) -> Guideline:
    """A guideline that an expert wrote."""
    return standing(text, origin="expert", **fields)


def episode(number: int, outputs: str = "Go away.", **word: Any) -> Episode:
    """Feedback in memory."""
    given_at = START + timedelta(minutes=number)
    given = {"inputs": f"Case {number}", "outputs": outputs, "given_at": given_at}
    return Episode.from_feedback(Feedback.model_validate({"rationale": "Rude.", **given, **word}))
