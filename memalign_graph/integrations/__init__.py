"""Judges as evaluators in LangSmith, openevals, agentevals and MLflow, and feedback from there.

Nothing here reaches the network by itself. MLflow is imported by the first call that needs it.
"""

from memalign_graph.integrations.langsmith import (
    EvaluatorResult,
    FewShotExample,
    as_async_evaluator,
    as_comparative_evaluator,
    as_evaluator,
    feedback_from_langsmith,
    few_shot_examples,
)
from memalign_graph.integrations.mlflow import as_mlflow_scorer, feedback_from_mlflow
from memalign_graph.integrations.recorded import (
    ImportedFeedback,
    RejectedFeedback,
    example_from_opentelemetry,
)

__all__ = [
    "EvaluatorResult",
    "FewShotExample",
    "ImportedFeedback",
    "RejectedFeedback",
    "as_async_evaluator",
    "as_comparative_evaluator",
    "as_evaluator",
    "as_mlflow_scorer",
    "example_from_opentelemetry",
    "feedback_from_langsmith",
    "feedback_from_mlflow",
    "few_shot_examples",
]
