"""Operations on guidelines, as distilling proposes them."""

import unicodedata
from typing import Literal

from pydantic import BaseModel, ConfigDict

MAX_GUIDELINE_CHARS = 2_000
"""The longest guideline, in characters."""

MAX_QUESTION_CHARS = 300
"""The longest check question, in characters."""

_FULL_STOPS = ".\u3002\u0964\u06d4"
"""Also of Chinese, Hindi and Urdu."""

Action = Literal["add", "revise", "retire", "merge"]
"""What an operation does to a guideline.

- `add`: add a guideline; if one has the same text, it gets the new sources.
- `revise`: change its text.
- `retire`: remove a guideline that does not hold.
- `merge`: retire a guideline in favor of one with the same meaning, which gets its sources.
"""


class GuidelineOperation(BaseModel):
    """One change of a guideline, with the episodes that call for it."""

    model_config = ConfigDict(frozen=True)

    action: Action

    guideline_id: str | None = None
    """The guideline to revise, retire or merge; for `add`, the id of the new one, if known."""

    text: str | None = None
    """The new text; for `retire`, the text of the guideline that replaces it, if any."""

    question: str | None = None
    """The check question: the guideline as a yes/no question about one case."""

    episode_ids: list[str] = []
    """The sources; none for consolidation."""

    before: str | None = None
    """For `revise`: the text of the guideline in the model's prompt."""

    superseded_by: str | None = None
    """The id of the guideline that replaces this one."""

    reason: str | None = None
    """Why a guideline is retired."""

    settled: bool = False
    """Whether an expert decided it: only then guidelines that an expert wrote are retired."""


def normalize_text(text: str) -> str:
    """Normalize a guideline's text for comparison: case, spaces and the final full stop."""
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split()).rstrip(_FULL_STOPS)
