"""What an evaluation found: each case with every judge's verdict, and what the judges are worth."""

from typing import Any

from pydantic import BaseModel, ConfigDict

from memalign_graph.agreement import Agreement, agree
from memalign_graph.evaluation.answers import Spent
from memalign_graph.evaluation.scores import Comparison, Estimate, JudgeScores
from memalign_graph.evaluation.variants import ALIGNED, VERDICT
from memalign_graph.scales import Scale, Value
from memalign_graph.types import Criterion, Example, Guideline, Judgment


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    def to_json(self) -> dict[str, Any]:
        """Return it as plain JSON values."""
        return self.model_dump(mode="json")


class ExpertWord(_Part):
    """What one expert said on a case."""

    author: str | None
    """Who, if known."""

    value: Value | None
    """The value given, if any."""

    rationale: str | None
    """Why, in the expert's words."""


class EvaluatedCase(_Part):
    """A case that was judged, by every judge, without having been learned from."""

    example: Example
    """The example."""

    group: str
    """The item it belongs to."""

    fold: int
    """The fold it was judged in, from 0 on."""

    expected: Value
    """The value that most experts gave."""

    experts: list[ExpertWord]
    """What each expert said, oldest first."""

    judgments: dict[str, Judgment]
    """By judge; those that gave no usable answer are missing."""

    failures: dict[str, str]
    """Why they are missing, by judge."""

    predictions: dict[str, Value]
    """What needs no judge at all would say: `constant` and `nearest`."""

    def value_of(self, judge: str) -> Value | None:
        """Return a judge's verdict, or what needs none.

        Args:
            judge: The judge, `constant` or `nearest`; `verdict` is what the aligned judge itself
                says where the evidence decides.

        Returns:
            The value; None if there is none.
        """
        if judge == VERDICT:
            said = self.judgments.get(ALIGNED)
            return said.verdict if said is not None and said.evidence is not None else None
        if judge in self.judgments:
            return self.judgments[judge].value
        return self.predictions.get(judge)

    def confidence_of(self, judge: str, scale: Scale) -> float | None:
        """Return how sure a judge was of its value.

        Args:
            judge: As for `value_of`.
            scale: The criterion's scale.

        Returns:
            The confidence, of `verdict` before calibration; None where that was not measured.
        """
        if judge != VERDICT:
            return self.judgments[judge].confidence if judge in self.judgments else None
        value, said = self.value_of(judge), self.judgments.get(ALIGNED)
        if value is None or said is None or said.probabilities is None:
            return None
        return said.probabilities.get(scale.render(value))


class FoldMemory(_Part):
    """What a judge had learned when it judged a fold."""

    fold: int
    """The fold."""

    judge: str
    """The judge."""

    episodes: int
    """How many episodes its memory holds."""

    guidelines: list[Guideline]
    """The guidelines it was given."""

    warnings: list[str]
    """What learning had to do without."""


class Evaluation(_Part):
    """Judges measured on the same unseen cases."""

    criterion: Criterion
    """What was judged."""

    folds: int
    """How many folds there were; 1 where cases were set aside."""

    cases: list[EvaluatedCase]
    """Every case."""

    scores: list[JudgeScores]
    """What each judge is worth; what needs no judge comes first."""

    comparisons: list[Comparison]
    """Judges side by side, on the same draws of cases."""

    memories: list[FoldMemory]
    """What was learned for each fold."""

    learning: Spent
    """What learning asked of models, in all folds together."""

    judging: dict[str, Spent]
    """What judging asked of them, by judge."""

    experts: Agreement
    """How far the experts agree among themselves."""

    warnings: list[str]
    """What has to be known to read the numbers, a sentence each."""

    def of(self, judge: str) -> JudgeScores:
        """Return the scores of a judge.

        Args:
            judge: The judge.

        Returns:
            Its scores.

        Raises:
            KeyError: If it is none of those that were measured.
        """
        for one in self.scores:
            if one.judge == judge:
                return one
        raise KeyError(f"{judge!r} was not measured: there is {[one.judge for one in self.scores]}")

    def metric(self, judge: str, name: str) -> Estimate:
        """Return one number.

        Args:
            judge: The judge.
            name: The metric.

        Returns:
            The estimate, with its interval; without a value where this scale has no such metric.

        Raises:
            KeyError: If the judge was not measured.
        """
        return self.of(judge).metrics.get(name, Estimate(value=None))

    def wrong(self, judge: str) -> list[EvaluatedCase]:
        """Return the cases on which a judge disagrees with the experts.

        Args:
            judge: The judge.

        Returns:
            The cases.
        """
        scale = self.criterion.scale
        return [
            case
            for case in self.cases
            if (value := case.value_of(judge)) is not None
            and not agree(scale, value, case.expected)
        ]
