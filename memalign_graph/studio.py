"""What `langgraph.json` serves to Studio and the Agent Server, a graph for each way of working.

The criteria are `support_tone` and `support_answer`, or those in the JSON file that
`MEMALIGN_CRITERION` names, one or a list: the panel judges by all of them, the others by the first.
The models come from the environment (see `models.models_from_environment`). `MEMALIGN_MODELS` lists
other chat models that a run's context may choose, separated by commas. Store and checkpointer are
the server's own, so the graphs are compiled without.
"""

import os
from datetime import timedelta
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from memalign_graph import graphs
from memalign_graph.errors import InvalidInputError, explain
from memalign_graph.models import models_from_environment
from memalign_graph.panel import create_panel_graph
from memalign_graph.settings import Judge
from memalign_graph.types import Criterion

_CRITERIA = [
    Criterion(name="support_tone", instructions="Is the reply appropriate for the customer?"),
    Criterion(name="support_answer", instructions="Does the reply answer what the customer asked?"),
]


def load_criteria() -> list[Criterion]:
    path = os.environ.get("MEMALIGN_CRITERION")
    if not path:
        return _CRITERIA
    try:
        text = Path(path).read_text(encoding="utf-8")
        if text.lstrip().startswith("["):
            criteria = TypeAdapter(list[Criterion]).validate_json(text)
        else:
            criteria = [Criterion.model_validate_json(text)]
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInputError(f"MEMALIGN_CRITERION: {path!r} can't be read: {error}") from error
    except ValidationError as error:
        raise InvalidInputError(f"MEMALIGN_CRITERION: {path!r}: {explain(error)}") from error
    if not criteria:
        raise InvalidInputError(f"MEMALIGN_CRITERION: {path!r} has no criterion in its list.")
    return criteria


_criteria = load_criteria()
_criterion = _criteria[0]
_model, _embeddings = models_from_environment()
# A client of the server must not choose a model that its operator did not list: models cost money.
_models = [name.strip() for name in os.environ.get("MEMALIGN_MODELS", "").split(",")]
_options: dict[str, Any] = {
    "model": _model,
    "embeddings": _embeddings,
    "models": tuple(filter(None, _models)),
}
_KEEP = timedelta(days=30)

judges = [Judge(criterion=it, keep_judgments=_KEEP, **_options) for it in _criteria]
"""The judges of all criteria, for the review page."""

judge = graphs.create_judge_graph(_criterion, keep_judgments=_KEEP, **_options).compile()
"""`{inputs, outputs, reference_outputs?}` -> `{judgment}`."""

review = graphs.create_review_graph(_criterion, **_options).compile()
"""`{inputs, outputs, reference_outputs?}` -> `{judgment, feedback, learned}`, with an interrupt."""

feedback = graphs.create_feedback_graph(_criterion, **_options).compile()
"""`{judgment_id, reply}` -> `{judgment, feedback, learned}`, for what `judge` has judged."""

align = graphs.create_alignment_graph(_criterion, **_options).compile()
"""`{feedback: [...]}` -> `{report}`."""

panel = create_panel_graph(_criteria, review="always", **_options).compile()
"""`{inputs, outputs, reference_outputs?}` -> `{judgments, ...}`, with an interrupt for all."""
