"""The graphs that `langgraph.json` serves to Studio and the Agent Server.

The criteria are `support_tone` and `support_answer`, or those in the file `MEMALIGN_CRITERION`, as
for the command line: one criterion or a list, in JSON or YAML, with the judge's settings under
`judge:`. The panel judges by all criteria with the settings of the first, the other graphs by the
first. Models that the file does not name come from the environment (see
`models.models_from_environment`). `MEMALIGN_MODELS` lists other chat models that a run's context
may choose, separated by commas. The graphs are compiled without a store and a checkpointer, since
the server has its own.
"""

import os
from datetime import timedelta
from typing import Any

from memalign_graph import graphs
from memalign_graph.cli.files import CriterionFile, errors_in, load_criteria
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
    """Make the judge of a file; `options` are the defaults."""
    with errors_in(f"{_OPTION}: {file.path}: judge"):
        return Judge(criterion=file.criterion, **{**options, **file.judge})


_model, _embeddings = models_from_environment()
# Models cost money, so a client may only choose one that the operator has listed.
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

_all_criteria = [judge.criterion for judge in judges]
panel = create_panel_graph(_all_criteria, review="always", **_unkept).compile()
"""`{inputs, outputs, reference_outputs?}` -> `{judgments, ...}`, with an interrupt for all."""
