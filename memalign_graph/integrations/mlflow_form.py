"""A memory in the forms of MLflow's MemAlign: pure functions, for which MLflow is not needed."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from memalign_graph.agreement import on_scale
from memalign_graph.integrations.mlflow_traces import EXPECTED
from memalign_graph.scales import Boolean, Categorical, Numeric, Pairwise, Scale
from memalign_graph.types import Criterion, Episode, Guideline

_SHARED = ("name", "description", "aggregations", "mlflow_version", "serialization_version")
"""What an aligned judge has in common with the judge that it was aligned from."""


def examples_to_export(
    episodes: Iterable[Episode], criterion: Criterion
) -> tuple[dict[str, list[Episode]], dict[str, str]]:
    """Choose the episodes that MLflow's MemAlign can show as examples."""
    shown: defaultdict[str, list[Episode]] = defaultdict(list)
    left_out: dict[str, str] = {}
    for episode in episodes:
        value = on_scale(episode.value, criterion.scale)
        if value is not None:
            shown[episode.example_id].append(episode.model_copy(update={"value": value}))
        elif episode.value is None:
            left_out[episode.id] = "it has words but no value, and MLflow's examples show a value."
        else:
            left_out[episode.id] = f"its value {episode.value!r} is not on the criterion's scale."
    return dict(shown), left_out


def judge_instructions(criterion: Criterion, *, expects: bool) -> str:
    """Write the criterion as instructions of an MLflow judge, which name what it looks at."""
    told = criterion.instructions.replace("{{", "{ {").replace("}}", "} }")
    fields = ["inputs", "outputs", *(["expectations"] if expects else [])]
    looked_at = "\n".join(f"{name}: {{{{ {name} }}}}" for name in fields)
    return f"{told}\n\nThe value is {criterion.scale.describe()}\n\n{looked_at}"


def value_type(scale: Scale) -> Any:
    """Return the type of a scale's values, as MLflow's judges are told it."""
    match scale:
        case Boolean():
            return bool
        case Numeric(integer=True):
            return int
        case Numeric():
            return float
        case Categorical() | Pairwise():
            return Literal[tuple(scale.choices)]


def semantic_memory(
    guidelines: Sequence[Guideline], trace_ids: Mapping[str, str]
) -> list[dict[str, Any]]:
    """Write guidelines as MLflow's MemAlign keeps them."""
    return [
        {
            "guideline_text": one.text,
            "source_trace_ids": list(
                dict.fromkeys(trace_ids[key] for key in one.episode_ids if key in trace_ids)
            )
            or None,
        }
        for one in guidelines
    ]


def serialized_judge(
    base: Mapping[str, Any],
    guidelines: Sequence[Mapping[str, Any]],
    trace_ids: Sequence[str],
    settings: Mapping[str, Any],
) -> dict[str, Any]:
    """Write a memory-augmented judge in the form that MLflow's registry keeps."""
    return {
        **{name: base[name] for name in _SHARED if name in base},
        "memory_augmented_judge_data": {
            "base_judge": dict(base),
            "episodic_trace_ids": list(trace_ids),
            "semantic_memory": [dict(one) for one in guidelines],
            **settings,
        },
    }


def expectations(reference_outputs: Any) -> dict[str, Any]:
    """Write reference outputs as MLflow's expectations, which have names."""
    if reference_outputs is None:
        return {}
    if isinstance(reference_outputs, dict):
        return {name: one for name, one in reference_outputs.items() if one is not None}
    return {EXPECTED: reference_outputs}
