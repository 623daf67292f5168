"""A memory as a judge of MLflow's MemAlign."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from memalign_graph.errors import InvalidInputError, needs_extra
from memalign_graph.integrations.mlflow_form import (
    examples_to_export,
    expectations,
    judge_instructions,
    semantic_memory,
    serialized_judge,
    value_type,
)
from memalign_graph.integrations.mlflow_traces import EPISODE_KEY, EXAMPLE_KEY, FEEDBACK_KEY
from memalign_graph.memory.judge_memory import JudgeMemory
from memalign_graph.types import Criterion, Episode, Guideline

DEFAULT_MLFLOW_MODEL = "openai:/gpt-4.1-mini"
"""The judge's model unless told, as MLflow names models."""

DEFAULT_MLFLOW_EMBEDDINGS = "openai:/text-embedding-3-small"
"""What it embeds with unless told; MLflow's own default."""

_MLFLOW_DIMENSIONS = 512
_SPAN = "judged_example"


@dataclass(frozen=True)
class ExportedJudge:
    """What an export made in MLflow."""

    judge: Any
    """The `MemoryAugmentedJudge`: call it, `register()` it, or align it further."""

    trace_ids: dict[str, str]
    """The trace that was written for each example, by the example's id."""

    left_out: dict[str, str]
    """Episodes that MLflow's MemAlign can't show as examples: why, by the episode's id."""


def export_to_mlflow(
    memory: JudgeMemory,
    *,
    model: str = DEFAULT_MLFLOW_MODEL,
    reflection_lm: str | None = None,
    embedding_model: str = DEFAULT_MLFLOW_EMBEDDINGS,
    embedding_dim: int = _MLFLOW_DIMENSIONS,
    retrieval_k: int = 5,
) -> ExportedJudge:
    """Make of a memory a judge of MLflow's MemAlign, with its guidelines and its examples.

    MLflow keeps examples as traces with human assessments: so each example becomes a trace in the
    active experiment, each episode on it an assessment. The judge looks them up there when it is
    first called. Another export writes new traces.

    Args:
        memory: The memory.
        model: The judge's model, as MLflow names it.
        reflection_lm: The model that it distils with when it is aligned further; the judge's own
            unless given.
        embedding_model: The model it embeds with, as MLflow names it; vectors are not exported.
        embedding_dim: How many dimensions they have.
        retrieval_k: How many similar examples it is shown.

    Returns:
        The judge, the traces, and what MLflow has no place for.

    Raises:
        ImportError: If the extra `mlflow` is not installed.
        InvalidInputError: If what is given is no memory.
    """
    settings = _settings(
        memory,
        model=model,
        reflection_lm=reflection_lm,
        embedding_model=embedding_model,
        embedding_dim=embedding_dim,
        retrieval_k=retrieval_k,
    )
    return _export(memory.criterion, memory.episodes(), memory.guidelines(), settings)


async def aexport_to_mlflow(
    memory: JudgeMemory,
    *,
    model: str = DEFAULT_MLFLOW_MODEL,
    reflection_lm: str | None = None,
    embedding_model: str = DEFAULT_MLFLOW_EMBEDDINGS,
    embedding_dim: int = _MLFLOW_DIMENSIONS,
    retrieval_k: int = 5,
) -> ExportedJudge:
    """Async twin of `export_to_mlflow`; MLflow itself, which has no async calls, runs in a thread.

    Args:
        memory: The memory.
        model: The judge's model, as MLflow names it.
        reflection_lm: The model that it distils with when it is aligned further.
        embedding_model: The model it embeds with.
        embedding_dim: How many dimensions they have.
        retrieval_k: How many similar examples it is shown.

    Returns:
        The judge, the traces, and what MLflow has no place for.

    Raises:
        ImportError: If the extra `mlflow` is not installed.
        InvalidInputError: If what is given is no memory.
    """
    settings = _settings(
        memory,
        model=model,
        reflection_lm=reflection_lm,
        embedding_model=embedding_model,
        embedding_dim=embedding_dim,
        retrieval_k=retrieval_k,
    )
    episodes, guidelines = await memory.aepisodes(), await memory.aguidelines()
    return await asyncio.to_thread(_export, memory.criterion, episodes, guidelines, settings)


def _settings(
    memory: Any,
    *,
    model: str,
    reflection_lm: str | None,
    embedding_model: str,
    embedding_dim: int,
    retrieval_k: int,
) -> dict[str, Any]:
    """Check what is given before anything is written to MLflow."""
    if not isinstance(memory, JudgeMemory):
        raise InvalidInputError(
            f"memory: give a JudgeMemory, not a value of type {type(memory).__name__}."
        )
    named = {"model": model, "embedding_model": embedding_model}
    if reflection_lm is not None:
        named["reflection_lm"] = reflection_lm
    for name, value in named.items():
        if not isinstance(value, str) or ":/" not in value:
            raise InvalidInputError(
                f"{name}: {value!r} is no model as MLflow names it, such as 'openai:/gpt-4.1-mini'."
            )
    for name, count in (("embedding_dim", embedding_dim), ("retrieval_k", retrieval_k)):
        if isinstance(count, bool) or not isinstance(count, int) or count < 1:
            raise InvalidInputError(f"{name}: {count!r} is not a whole number from 1 on.")
    with needs_extra("mlflow", "export_to_mlflow"):
        # What MLflow's MemAlign needs of its own, and looks for at its first call only.
        for package in ("dspy", "mlflow"):
            import_module(package)
    return {
        "model": model,
        "reflection_lm": reflection_lm or model,
        "retrieval_k": retrieval_k,
        "embedding_model": embedding_model,
        "embedding_dim": embedding_dim,
    }


def _export(
    criterion: Criterion,
    episodes: list[Episode],
    guidelines: list[Guideline],
    settings: Mapping[str, Any],
) -> ExportedJudge:
    from mlflow.genai.judges import make_judge
    from mlflow.genai.scorers import Scorer

    shown, left_out = examples_to_export(episodes, criterion)
    base = make_judge(
        name=criterion.name,
        instructions=judge_instructions(criterion, expects=_all_have_references(shown)),
        model=settings["model"],
        feedback_value_type=value_type(criterion.scale),
    )
    trace_ids = {key: _write_trace(group, criterion) for key, group in shown.items()}
    by_episode = {one.id: trace_ids[key] for key, group in shown.items() for one in group}
    judge = Scorer.model_validate(
        serialized_judge(
            base.model_dump(),
            semantic_memory(guidelines, by_episode),
            list(trace_ids.values()),
            {name: one for name, one in settings.items() if name != "model"},
        )
    )
    return ExportedJudge(judge=judge, trace_ids=trace_ids, left_out=left_out)


def _all_have_references(shown: Mapping[str, list[Episode]]) -> bool:
    """Tell whether the judge can ask for expectations: it drops every example that has none."""
    return bool(shown) and all(
        group[0].example.reference_outputs is not None for group in shown.values()
    )


def _write_trace(episodes: list[Episode], criterion: Criterion) -> str:
    """Write an example as a trace, with the episodes on it as human assessments."""
    import mlflow
    from mlflow.entities import AssessmentSource, Expectation, Feedback

    example = episodes[0].example
    with mlflow.start_span(_SPAN) as span:
        span.set_inputs(example.inputs)
        span.set_outputs(example.outputs)
        mlflow.update_current_trace(tags={EXAMPLE_KEY: example.id})
    # Assessments are written at once, and the trace has to be there before them.
    mlflow.flush_trace_async_logging()
    trace_id = str(span.trace_id)
    for one in episodes:
        who = {} if one.author is None else {"source_id": one.author}
        whence = {} if one.feedback_id is None else {FEEDBACK_KEY: one.feedback_id}
        at_ms = int(one.given_at.timestamp() * 1000)
        mlflow.log_assessment(
            trace_id,
            Feedback(
                name=criterion.name,
                value=one.value,
                rationale=one.rationale,
                source=AssessmentSource("HUMAN", **who),
                metadata={EPISODE_KEY: one.id, **whence},
                create_time_ms=at_ms,
                last_update_time_ms=at_ms,
            ),
        )
    for name, value in expectations(example.reference_outputs).items():
        mlflow.log_assessment(trace_id, Expectation(name=name, value=value))
    return trace_id
