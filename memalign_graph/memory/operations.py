"""Small operations that change guidelines, as distilling proposes them; pure data."""

import unicodedata
from typing import Literal

from pydantic import BaseModel, ConfigDict

MAX_GUIDELINE_CHARS = 2_000
"""The longest guideline, in characters."""

MAX_QUESTION_CHARS = 300
"""The longest question that asks the same as a guideline, in characters."""

_FULL_STOPS = ".\u3002\u0964\u06d4"
"""Also the Chinese, the Hindi and the Urdu one."""

Action = Literal["add", "revise", "retire", "merge"]
"""What an operation does to a guideline.

- `add`: a new rule; in words that stand already it is that guideline, with the new sources.
- `revise`: another wording for a guideline.
- `retire`: a guideline that does not hold.
- `merge`: a guideline that says in other words what another says; that one gets its sources.
"""


class GuidelineOperation(BaseModel):
    """One small change of the guidelines, with the episodes that call for it."""

    model_config = ConfigDict(frozen=True)

    action: Action
    """What is done."""

    guideline_id: str | None = None
    """The guideline revised, retired or merged; of one added, the id it is to have, if known."""

    text: str | None = None
    """The new wording; of a guideline retired, the rule that holds in its place, if any."""

    question: str | None = None
    """The same as a yes/no question about one case, if it can be asked so."""

    episode_ids: list[str] = []
    """The episodes the operation comes from; none where it only tidies up."""

    before: str | None = None
    """The wording of the guideline to be revised, as the model was shown it."""

    superseded_by: str | None = None
    """The guideline that takes the place of this one, where it is known by its id."""

    reason: str | None = None
    """Why a guideline goes."""

    settled: bool = False
    """Whether an expert decided it: then also what an expert wrote by hand can be retired."""


def normalize_text(text: str) -> str:
    """Reduce a guideline's text to what makes it another one: no case, no blanks, no full stop."""
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split()).rstrip(_FULL_STOPS)
