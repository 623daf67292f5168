"""A judgment as an evaluator's result, in the form that openevals and LangSmith share."""

from collections.abc import Callable, Mapping
from typing import Any, NotRequired

from typing_extensions import TypedDict

from memalign_graph.errors import InvalidInputError
from memalign_graph.types import Judgment

Score = bool | float | None
"""What LangSmith takes the mean of; None where there is nothing to take a mean of."""

Scoring = Callable[[Judgment], Score]
"""Makes the score of a judgment."""

AGGREGATE_KEY = "aggregate"
"""The key of a panel's own score."""


class EvaluatorResult(TypedDict):
    """What an evaluator says of one output."""

    key: str
    """What was judged."""

    score: Score
    """True or false, or a number; None where the verdict is a word."""

    value: NotRequired[str]
    """The verdict where it is a word: a choice, or `A`, `B` or `tie`."""

    comment: str | None
    """The judge's rationale."""

    metadata: dict[str, Any]
    """What the verdict rests on: `judgment_id`, `confidence`, `guideline_ids`, `episode_ids`,
    `memory_version`, `warnings` and so on."""

    extra: NotRequired[dict[str, Any]]
    """`{"error": True}` where a panel could not judge a criterion, as LangSmith marks errors."""


def judgment_result(judgment: Judgment, key: str | None, score: Scoring | None) -> EvaluatorResult:
    """Write a judgment as a result."""
    value = judgment.value
    result = EvaluatorResult(
        key=key or judgment.criterion,
        score=_plain_score(judgment) if score is None else _check_score(score(judgment)),
        comment=judgment.rationale,
        metadata=_metadata(judgment),
    )
    if isinstance(value, str):
        result["value"] = value
    return result


def panel_results(output: Mapping[str, Any], score: Scoring | None) -> list[EvaluatorResult]:
    """Write what a panel returned as results, one a criterion."""
    results = [
        judgment_result(Judgment.model_validate(one), None, score)
        for one in output["judgments"].values()
    ]
    results += [
        EvaluatorResult(
            key=name,
            score=None,
            comment=str(problem),
            metadata={"error": str(problem)},
            extra={"error": True},
        )
        for name, problem in output.get("errors", {}).items()
        if name not in output["judgments"]
    ]
    aggregate = output.get("aggregate")
    if aggregate is not None:
        results.append(
            EvaluatorResult(
                key=AGGREGATE_KEY,
                score=aggregate["score"],
                comment=None,
                metadata={name: one for name, one in aggregate.items() if name != "score"},
            )
        )
    return results


def _plain_score(judgment: Judgment) -> Score:
    value = judgment.value
    if isinstance(value, str):
        return None
    return value if isinstance(value, bool) else float(value)


def _check_score(score: Any) -> Score:
    if score is not None and not isinstance(score, bool | int | float):
        raise InvalidInputError(
            "score: the function has to return true or false, a number, or None, not a value of "
            f"type {type(score).__name__}."
        )
    return score


def _metadata(judgment: Judgment) -> dict[str, Any]:
    told = judgment.model_dump(mode="json", exclude={"id", "rationale"})
    return {"judgment_id": judgment.id, **told}
