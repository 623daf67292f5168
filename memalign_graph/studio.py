"""What `langgraph.json` serves to Studio and the Agent Server, a graph for each way of working.

The criteria are `support_tone` and `support_answer`, or those in the file that `MEMALIGN_CRITERION`
names, as for the command line, with settings of the judge under `judge:`; a list of them in JSON or
YAML, too. The panel judges by all of them, the others by the first. Models that a file does not
name come from the environment (see `models.models_from_environment`). `MEMALIGN_MODELS` lists other
chat models that a run's context may choose, separated by commas. Store and checkpointer are the
server's own, so the graphs are compiled without.
"""

import os
from datetime import timedelta
from typing import Any

from memalign_graph import graphs
from memalign_graph.cli.criterion import CriterionFile, load_criteria
from memalign_graph.errors import InvalidInputError
from memalign_graph.models import models_from_environment
from memalign_graph.panel import create_panel_graph
from memalign_graph.settings import Judge
from memalign_graph.types import Criterion

_OPTION = "MEMALIGN_CRITERION"
_CRITERIA = [
    Criterion(name="support_tone", instructions="Is the reply appropriate for the customer?"),
    Criterion(name="support_answer", instructions="Does the reply answer what the customer asked?"),
]


def load_files() -> list[CriterionFile]:
    """Return the criteria that are served, with their settings."""
    if path := os.environ.get(_OPTION):
        return load_criteria(path, _OPTION)
    return [CriterionFile("", criterion, {}, {}, {}) for criterion in _CRITERIA]


def make_judge(file: CriterionFile, options: dict[str, Any]) -> Judge:
    """Make the judge of a file; what it does not say is as in `options`."""
    try:
        return Judge(criterion=file.criterion, **{**options, **file.judge})
    except InvalidInputError as error:
        raise InvalidInputError(f"{_OPTION}: {file.path}: judge.{error}") from error


_model, _embeddings = models_from_environment()
# A client of the server must not choose a model that its operator did not list: models cost money.
_models = [name.strip() for name in os.environ.get("MEMALIGN_MODELS", "").split(",")]
_options: dict[str, Any] = {
    "model": _model,
    "embeddings": _embeddings,
    "models": tuple(filter(None, _models)),
}
_files = load_files()

judges = [make_judge(file, {"keep_judgments": timedelta(days=30), **_options}) for file in _files]
"""The judges of all criteria, for the review page."""

_criterion, _judge_options = judges[0].criterion, judges[0].options
_unkept = judges[0].but(keep_judgments=None).options

judge = graphs.create_judge_graph(_criterion, **_judge_options).compile()
"""`{inputs, outputs, reference_outputs?}` -> `{judgment}`."""

review = graphs.create_review_graph(_criterion, **_unkept).compile()
"""`{inputs, outputs, reference_outputs?}` -> `{judgment, feedback, learned}`, with an interrupt."""

feedback = graphs.create_feedback_graph(_criterion, **_unkept).compile()
"""`{judgment_id, reply}` -> `{judgment, feedback, learned}`, for what `judge` has judged."""

align = graphs.create_alignment_graph(_criterion, **_files[0].learn, **_unkept).compile()
"""`{feedback: [...]}` -> `{report}`."""

panel = create_panel_graph(
    [file.criterion for file in _files], review="always", **_options
).compile()
"""`{inputs, outputs, reference_outputs?}` -> `{judgments, ...}`, with an interrupt for all."""
