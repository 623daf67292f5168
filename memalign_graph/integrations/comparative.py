"""A pairwise judge as an evaluator for LangSmith's `evaluate_comparative`."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from langchain_core.runnables import Runnable, RunnableConfig
from typing_extensions import TypedDict

from memalign_graph.errors import InvalidInputError
from memalign_graph.integrations.evaluators import (
    Evaluation,
    MakeExample,
    untraced_if_local,
)
from memalign_graph.integrations.plain import plain_json

_SCORES = {"A": (1.0, 0.0), "B": (0.0, 1.0), "tie": (0.5, 0.5)}
_PAIR = 2


class ComparisonResult(TypedDict):
    """Which of two runs is better."""

    key: str
    """What was judged."""

    scores: dict[str, float]
    """By run id: 1 for the better one, 0 for the other, and a half for each where they tie."""

    comment: str
    """The judge's rationale."""


def as_comparative_evaluator(
    graph: Runnable[Any, Any],
    *,
    key: str | None = None,
    example: MakeExample | None = None,
    context: Mapping[str, Any] | None = None,
    config: RunnableConfig | None = None,
) -> Callable[..., ComparisonResult]:
    """Make an evaluator of two experiments out of a judge with a `Pairwise` scale.

    The first run is A, the second B; build the judge with `swap=True` to have it look at them in
    both orders.

    Args:
        graph: The compiled judge graph.
        key: What the result is called; the criterion's name unless given.
        example: Makes the example of `inputs`, `outputs` (both, in a list) and
            `reference_outputs`.
        context: The graph's context.
        config: The config of each run.

    Returns:
        The evaluator.

    Raises:
        InvalidInputError: If an option can't be used.
    """
    evaluation = Evaluation.of(graph, key=key, example=example, context=context, config=config)

    def memalign_judge(
        *, runs: Sequence[Any], inputs: Any, outputs: Sequence[Any], reference_outputs: Any = None
    ) -> ComparisonResult:
        ids = [_run_id(run) for run in runs]
        if len(ids) != _PAIR or len(outputs) != _PAIR:
            raise InvalidInputError(f"runs: a pairwise judge compares two runs, not {len(ids)}.")
        given = evaluation.given(inputs, plain_json(list(outputs)), reference_outputs)
        with untraced_if_local():
            output = graph.invoke(given, evaluation.run_config(), **evaluation.options)
        result = evaluation.results(output, {})
        verdict = None if isinstance(result, list) else result.get("value")
        if isinstance(result, list) or verdict not in _SCORES:
            raise InvalidInputError(
                "graph: comparing needs a judge whose criterion has scale=Pairwise()."
            )
        return ComparisonResult(
            key=result["key"],
            scores=dict(zip(ids, _SCORES[verdict], strict=True)),
            comment=result["comment"] or "",
        )

    memalign_judge.__name__ = evaluation.name
    return memalign_judge


def _run_id(run: Any) -> str:
    found = run.get("id") if isinstance(run, Mapping) else getattr(run, "id", None)
    if found is None:
        raise InvalidInputError("runs: each needs an `id`.")
    return str(found)
