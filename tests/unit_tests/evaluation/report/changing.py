"""Reports whose texts are somebody's."""

from memalign_graph import Example
from memalign_graph.evaluation import EvaluatedCase, Evaluation, Report
from memalign_graph.evaluation.results import ExpertWord
from memalign_graph.types import Guideline


def with_text(report: Report, text: str) -> Report:
    """The report with a text at every place where somebody else's stands."""
    evaluation = report.evaluation
    # Copied, so that nothing checks the text: a report may be read from anywhere.
    given = {"inputs": text, "outputs": {"a": text, "b": [text]}, "reference_outputs": text}
    example = Example(inputs="x", outputs="x").model_copy(update=given)
    words = [ExpertWord(author=text, value=one.value, rationale=text) for one in _two(evaluation)]

    def case(one: EvaluatedCase) -> EvaluatedCase:
        judgments = {
            name: judged.model_copy(update={"rationale": text, "warnings": [text]})
            for name, judged in one.judgments.items()
        }
        failures = dict.fromkeys(one.failures, text)
        return one.model_copy(
            update={
                "example": example,
                "judgments": judgments,
                "failures": failures,
                "experts": words,
            }
        )

    def rule(one: Guideline) -> Guideline:
        update = {"text": text, "author": text, "status": "pending"}
        return one.model_copy(update=update)

    source = {"example": example, "rationale": text, "author": text}
    flip = {"example": example, "rationale": text, "experts": words}
    curve = report.learning_curve
    steps = [
        step.model_copy(
            update={
                "flips": [
                    one.model_copy(update={**flip, "guidelines": [*map(rule, one.guidelines)]})
                    for one in step.flips
                ]
            }
        )
        for step in (curve.steps if curve else [])
    ]
    criterion = evaluation.criterion.model_copy(update={"name": text, "instructions": text})
    return report.model_copy(
        update={
            "evaluation": evaluation.model_copy(
                update={
                    "criterion": criterion,
                    "cases": [*map(case, evaluation.cases)],
                    "warnings": [text],
                    "memories": [
                        one.model_copy(
                            update={"guidelines": [*map(rule, one.guidelines)], "warnings": [text]}
                        )
                        for one in evaluation.memories
                    ],
                }
            ),
            "learning_curve": curve.model_copy(update={"steps": steps}) if curve else None,
            "guidelines": [*map(rule, report.guidelines)],
            "sources": [one.model_copy(update=source) for one in report.sources],
            "credit": [
                one.model_copy(
                    update={
                        "guideline": rule(one.guideline),
                        "changed": [
                            changed.model_copy(update={"example": example})
                            for changed in one.changed
                        ],
                    }
                )
                for one in report.credit
            ],
        }
    )


def _two(evaluation: Evaluation) -> list[ExpertWord]:
    return [evaluation.cases[0].experts[0]] * 2
