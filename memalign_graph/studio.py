"""What `langgraph.json` serves to Studio and the Agent Server: graphs to judge, review and align.

The criterion is `support_tone`, or the one in the JSON file that `MEMALIGN_CRITERION` names; the
models come from the environment (see `models.models_from_environment`). Store and checkpointer are
the server's own, so the graphs are compiled without.
"""

import os
from pathlib import Path

from pydantic import ValidationError

from memalign_graph.errors import InvalidInputError, explain
from memalign_graph.graphs import create_alignment_graph, create_judge_graph, create_review_graph
from memalign_graph.models import models_from_environment
from memalign_graph.types import Criterion

_SUPPORT_TONE = Criterion(
    name="support_tone",
    instructions="Is the reply appropriate for the customer?",
)


def load_criterion() -> Criterion:
    """Return the criterion to serve.

    Returns:
        The one in the file that `MEMALIGN_CRITERION` names, else `support_tone`.

    Raises:
        InvalidInputError: If the file can't be read, or holds no criterion.
    """
    path = os.environ.get("MEMALIGN_CRITERION")
    if not path:
        return _SUPPORT_TONE
    try:
        return Criterion.model_validate_json(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInputError(f"MEMALIGN_CRITERION: {path!r} can't be read: {error}") from error
    except ValidationError as error:
        raise InvalidInputError(f"MEMALIGN_CRITERION: {path!r}: {explain(error)}") from error


_criterion = load_criterion()
_model, _embeddings = models_from_environment()

judge = create_judge_graph(_criterion, model=_model, embeddings=_embeddings).compile()
"""`{inputs, outputs, reference_outputs?}` -> `{judgment}`."""

review = create_review_graph(_criterion, model=_model, embeddings=_embeddings).compile()
"""`{inputs, outputs, reference_outputs?}` -> `{judgment, feedback, learned}`, with an interrupt."""

align = create_alignment_graph(_criterion, model=_model, embeddings=_embeddings).compile()
"""`{feedback: [...]}` -> `{report}`."""
