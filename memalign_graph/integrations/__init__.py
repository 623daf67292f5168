"""The tools that people evaluate agents with: LangSmith, openevals and agentevals, MLflow.

- `as_evaluator(graph)`, `as_async_evaluator(graph)`: a judge as an evaluator, for LangSmith's
  `evaluate` and wherever openevals' evaluators go.
- `as_comparative_evaluator(graph)`: a pairwise judge, for LangSmith's `evaluate_comparative`.
- `feedback_from_langsmith(runs, feedback, criterion)`: what people said in LangSmith.
- `few_shot_examples(episodes, criterion)`: episodes for openevals' and agentevals' own judges.
- `feedback_from_mlflow(traces, criterion)`: what people said in MLflow.
- `export_to_mlflow(memory, ...)`: a memory as a judge of MLflow's MemAlign, and
  `memory_from_mlflow(judge, criterion)`: the way back. Both need the extra `mlflow`.

Nothing heavy is imported before it is used, and nothing here reaches the network by itself.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from memalign_graph.integrations.comparative import as_comparative_evaluator
    from memalign_graph.integrations.evaluator_results import EvaluatorResult
    from memalign_graph.integrations.evaluators import as_async_evaluator, as_evaluator
    from memalign_graph.integrations.few_shot import FewShotExample, few_shot_examples
    from memalign_graph.integrations.imported import ImportedFeedback, RejectedFeedback
    from memalign_graph.integrations.langsmith_feedback import feedback_from_langsmith
    from memalign_graph.integrations.mlflow_export import (
        ExportedJudge,
        aexport_to_mlflow,
        export_to_mlflow,
    )
    from memalign_graph.integrations.mlflow_import import ImportedMemory, memory_from_mlflow
    from memalign_graph.integrations.mlflow_traces import feedback_from_mlflow

_HOME = {
    "EvaluatorResult": "evaluator_results",
    "ExportedJudge": "mlflow_export",
    "FewShotExample": "few_shot",
    "ImportedFeedback": "imported",
    "ImportedMemory": "mlflow_import",
    "RejectedFeedback": "imported",
    "aexport_to_mlflow": "mlflow_export",
    "as_async_evaluator": "evaluators",
    "as_comparative_evaluator": "comparative",
    "as_evaluator": "evaluators",
    "export_to_mlflow": "mlflow_export",
    "feedback_from_langsmith": "langsmith_feedback",
    "feedback_from_mlflow": "mlflow_traces",
    "few_shot_examples": "few_shot",
    "memory_from_mlflow": "mlflow_import",
}
"""The module that each public name lives in."""

__all__ = [
    "EvaluatorResult",
    "ExportedJudge",
    "FewShotExample",
    "ImportedFeedback",
    "ImportedMemory",
    "RejectedFeedback",
    "aexport_to_mlflow",
    "as_async_evaluator",
    "as_comparative_evaluator",
    "as_evaluator",
    "export_to_mlflow",
    "feedback_from_langsmith",
    "feedback_from_mlflow",
    "few_shot_examples",
    "memory_from_mlflow",
]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first asked for."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    """List the public names, those not yet imported included."""
    return sorted(__all__)
