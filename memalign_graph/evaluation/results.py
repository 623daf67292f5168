"""Results of an evaluation: cases, memories, changed verdicts, usage."""

from datetime import datetime
from typing import Any

from pydantic import Field

from memalign_graph.evaluation.metrics import JudgeScores, Prediction
from memalign_graph.scales import Value
from memalign_graph.tracing import Usage
from memalign_graph.types import Criterion, Example, FrozenModel, Guideline, Judgment

BASE, ALIGNED = "base", "aligned"
"""The judges that `evaluate` measures by default: without memory, and after learning."""


class ExpertLabel(FrozenModel):
    """One expert's feedback on a case."""

    author: str | None
    value: Value | None
    rationale: str | None
    episode_id: str


class EvaluatedCase(FrozenModel):
    """A case that every judge judged without having learned from it."""

    example: Example
    group: str  # the item it belongs to
    fold: int
    expected: Value  # the experts' consensus
    experts: list[ExpertLabel]  # oldest first
    predictions: dict[str, Prediction]  # by judge or baseline
    judgments: dict[str, Judgment]  # by judge; those that gave no usable answer are missing
    failures: dict[str, str]  # why, by judge

    def value_of(self, judge: str) -> Value | None:
        """Return the value by a judge or baseline; None if it gave none."""
        return self.predictions.get(judge, Prediction()).value


class FoldMemory(FrozenModel):
    """A judge's memory when it judged a fold."""

    fold: int
    judge: str
    episodes: int
    guidelines: list[Guideline]
    warnings: list[str]  # of the alignment


class UsageRow(Usage):
    """Calls by one judge for one purpose, with their tokens."""

    judge: str
    stage: str  # `learn`, `judge`, `curve`, `flips` or `report`
    purpose: str  # as in `UsageLedger`, or `embed`
    cached_calls: int = 0  # answers from the cache; not in `chat_calls`
    seconds: float = 0.0  # spent in chat models


class ChangedCase(FrozenModel):
    """A case whose verdict changed."""

    example: Example
    expected: Value
    before: Value
    after: Value
    rationale: str  # of the new verdict
    guidelines: list[Guideline]  # new ones, which may have changed it
    removed: list[Guideline] = Field(default_factory=list)  # retired ones, which may have, too


class LearningStep(FrozenModel):
    """The judge after some of the feedback."""

    feedback: int
    guidelines: int
    unseen: JudgeScores  # on the cases that were set aside
    seen: JudgeScores | None  # on the cases it has learned from; None at the first step
    flips: list[ChangedCase]  # seen cases that were right at the previous step and are wrong now


class LearningCurve(FrozenModel):
    """A judge's scores as its memory grows."""

    criterion: Criterion
    steps: list[LearningStep]  # from no feedback to all of it
    test_cases: int
    usage: list[UsageRow]


class RunSettings(FrozenModel):
    """What identifies an evaluation, and repeats it."""

    version: str  # of this package
    created_at: datetime
    data: str  # a digest of criterion, feedback and test cases
    feedback: int
    folds: int  # 1 with `test`
    group_by: str
    seed: int
    resamples: int
    judges: dict[str, dict[str, Any]]  # each judge's model, embeddings, k and other options
