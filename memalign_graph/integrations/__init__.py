"""The tools that people evaluate agents with: LangSmith, openevals and agentevals, MLflow.

Nothing is imported before it is asked for, and nothing here reaches the network by itself.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from memalign_graph.integrations.feedback import ImportedFeedback, RejectedFeedback
    from memalign_graph.integrations.langsmith import (
        EvaluatorResult,
        FewShotExample,
        as_async_evaluator,
        as_comparative_evaluator,
        as_evaluator,
        feedback_from_langsmith,
        few_shot_examples,
    )
    from memalign_graph.integrations.mlflow import (
        as_mlflow_scorer,
        feedback_from_mlflow,
    )
    from memalign_graph.integrations.transcripts import example_from_opentelemetry

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


def __getattr__(name: str) -> Any:
    """Import what is asked for, and nothing before."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = "langsmith"
    if name.endswith("Feedback"):
        module = "feedback"
    elif "mlflow" in name:
        module = "mlflow"
    elif name == "example_from_opentelemetry":
        module = "transcripts"
    return getattr(import_module(f"{__name__}.{module}"), name)
